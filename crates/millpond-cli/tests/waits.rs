//! `millpond replay --waits`: what the pool inserts, and what that costs.

mod support;

use serde_json::Value;

use support::{HANDED_ON, number, replay, replayed, stderr, stdout, trace, written};

const MODES: [&str; 3] = ["memory-first", "balanced", "time-first"];

#[test]
fn a_wait_that_must_be_is_counted_and_its_delay_is_told() {
    let (_folder, path) = written(HANDED_ON);
    for mode in MODES {
        let arguments = ["--device", "sim", "--waits", mode, "--limit", "16MiB"];
        let object = replayed(&arguments, path.clone());
        assert_eq!(object["waits_inserted"], 1, "{object}");
        assert!(number(&object, "events_recorded") >= 1.0, "{object}");
        // 50 + 29.99 ms in place of 50, of 49.999 ms in which the device had something to do.
        let share = number(&object, "final_delay_share");
        assert!((share - 29.99 / 49.999).abs() < 1e-9, "{object}");
    }
}

#[test]
fn without_a_wait_there_is_no_delay() {
    let (_folder, path) = written(HANDED_ON);
    let object = replayed(&["--device", "sim", "--waits", "time-first"], path);
    assert_eq!(object["waits_inserted"], 0, "{object}");
    assert_eq!(object["final_delay_share"], 0.0, "{object}");
    let reserved = number(&object, "peak_reserved_bytes");
    assert!(reserved >= f64::from(32 << 20), "{object}");
}

#[test]
fn one_stream_needs_no_event_and_no_query() {
    let lines = HANDED_ON.replace(",1,,", ",0,,");
    let (_folder, path) = written(&lines);
    let object = replayed(&["--device", "sim", "--limit", "16MiB"], path);
    for key in ["waits_inserted", "events_recorded", "event_queries"] {
        assert_eq!(object[key], 0, "{object}");
    }
    assert_eq!(object["final_delay_share"], 0.0, "{object}");
}

#[test]
fn where_a_delay_cannot_be_told_it_is_null() {
    let (_folder, path) = written(HANDED_ON);
    let arguments = [
        "--device-size",
        "16MiB",
        "--scale",
        "1",
        "--waits",
        "memory-first",
    ];
    let on_the_host = replayed(&arguments, path);
    let unordered = replayed(&["--device", "sim"], trace("small_full_context.pickle.gz"));
    for object in [on_the_host, unordered] {
        assert_eq!(object["final_delay_share"], Value::Null, "{object}");
        assert!(object.get("final_delay_share").is_some(), "{object}");
        assert!(object["waits_inserted"].is_u64(), "{object}");
    }
}

#[test]
fn memory_first_takes_no_more_than_balanced_and_time_first_inserts_nothing() {
    let of = |mode| {
        let arguments = ["--device", "sim", "--waits", mode];
        replayed(&arguments, trace("offload_streams.ordered.csv.gz"))
    };
    let [memory, balanced, time] = MODES.map(of);
    let reserved = |object| number(object, "peak_reserved_bytes");
    assert!(reserved(&memory) <= reserved(&balanced), "{memory}");
    assert!(reserved(&balanced) <= reserved(&time), "{balanced}");
    assert!(number(&memory, "waits_inserted") > 0.0, "{memory}");
    assert_eq!(time["waits_inserted"], 0, "{time}");
    assert_eq!(time["final_delay_share"], 0.0, "{time}");
}

#[test]
fn the_table_shows_waits_and_where_it_can_be_told_their_delay() {
    let (_folder, path) = written(HANDED_ON);
    let arguments = ["--device", "sim", "--limit", "16MiB", "--quiet"];
    let output = replay(&arguments, &[path, trace("small_full_context.pickle.gz")]);
    let lines: Vec<&str> = stdout(&output).lines().collect();
    let ends: Vec<Vec<&str>> = lines
        .iter()
        .map(|line| line.split_whitespace().rev().take(2).collect())
        .collect();
    assert_eq!(ends[0], ["delay", "waits"]);
    assert_eq!(ends[1], ["59.98%", "1"]);
    assert_eq!(ends[2][0], "-");
    let output = replay(&arguments, &[trace("small_full_context.pickle.gz")]);
    assert!(!stdout(&output).contains("delay"), "{}", stdout(&output));
}

#[test]
fn an_unknown_mode_is_refused_with_those_there_are() {
    let output = replay(&["--waits", "never"], &[trace("rmm_cupy_log.csv.gz")]);
    assert_eq!(output.status.code(), Some(2));
    for mode in MODES {
        assert!(stderr(&output).contains(mode), "{}", stderr(&output));
    }
}
