//! `millpond replay --repeat` and `--min-limit`.

mod support;

use serde_json::Value;

use support::{HANDED_ON, number, objects, replay, stderr, stdout, trace, written};

fn calls(object: &Value) -> f64 {
    let kinds = ["create", "map", "set_access", "unmap", "release"];
    kinds
        .map(|kind| number(&object["driver_calls"], kind))
        .iter()
        .sum()
}

#[test]
fn each_repetition_has_an_object_with_figures_of_its_own() {
    let names = ["offload_streams.ordered.csv.gz", "rmm_cupy_log.csv.gz"];
    let arguments = ["--device", "sim", "--json", "--repeat", "3"];
    let output = replay(&arguments, &names.map(trace));
    assert!(output.status.success(), "{}", stderr(&output));
    let objects = objects(&output);
    assert_eq!(objects.len(), 6);
    for of_one in objects.chunks(3) {
        for (object, number_from_1) in of_one.iter().zip(1..) {
            assert_eq!(object["repetition"], number_from_1);
            for same in ["trace", "ops", "peak_live_bytes"] {
                assert_eq!(object[same], of_one[0][same], "{object}");
            }
            assert_eq!(object["corrupt_blocks"], 0, "{object}");
            let live = number(object, "peak_live_bytes");
            assert!(number(object, "peak_reserved_bytes") >= live, "{object}");
        }
        // The pool keeps what it took the first time.
        let creates = |index: usize| number(&of_one[index]["driver_calls"], "create");
        assert!(creates(1) < creates(0), "{of_one:#?}");
    }
}

#[test]
fn what_is_counted_begins_anew_with_each_repetition() {
    let (_folder, path) = written(HANDED_ON);
    let arguments = [
        "--device", "sim", "--json", "--limit", "16MiB", "--repeat", "4",
    ];
    let objects = objects(&replay(&arguments, &[path]));
    assert_eq!(objects.len(), 4);
    for object in &objects {
        assert_eq!(object["waits_inserted"], 1, "{object}");
        let share = number(object, "final_delay_share");
        assert!((share - 29.99 / 49.999).abs() < 1e-9, "{object}");
    }
    assert!(calls(&objects[0]) > 0.0);
    for again in &objects[1..] {
        assert_eq!(calls(again), 0.0, "{again}");
        assert_eq!(again["driver_ns_per_op"], 0.0, "{again}");
    }
}

#[test]
fn repetitions_on_the_host_find_every_byte_in_place() {
    let arguments = ["--device-size", "64MiB", "--seed", "3", "--json", "--quiet"];
    let arguments = [&arguments[..], &["--repeat", "2"]].concat();
    let output = replay(&arguments, &[trace("rmm_cupy_log.csv.gz")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let objects = objects(&output);
    assert_eq!(objects.len(), 2);
    for object in objects {
        assert_eq!(object["corrupt_blocks"], 0, "{object}");
        assert!(number(&object, "host_ns_per_op") > 0.0, "{object}");
    }
}

#[test]
fn repetitions_are_rows_of_the_table_and_one_is_none() {
    let (_folder, path) = written(HANDED_ON);
    let arguments = ["--device", "sim", "--quiet"];
    let once = replay(&arguments, std::slice::from_ref(&path));
    assert!(!stdout(&once).contains("repetition"), "{}", stdout(&once));
    let repeated = replay(&[&arguments[..], &["--repeat", "2"]].concat(), &[path]);
    let lines: Vec<&str> = stdout(&repeated).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("repetition"), "{}", lines[0]);
    for (line, number) in lines[1..].iter().zip(["1", "2"]) {
        assert_eq!(line.split_whitespace().nth(1), Some(number), "{line}");
    }
}

#[test]
fn at_the_smallest_limit_the_job_completes_and_below_it_does_not() {
    let offload = trace("offload_streams.ordered.csv.gz");
    let output = replay(
        &["--device", "sim", "--json", "--min-limit"],
        std::slice::from_ref(&offload),
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let object = &objects(&output)[0];
    let limit = object["min_limit_bytes"].as_u64().unwrap();
    assert_eq!(limit % (2 << 20), 0, "{object}");
    assert!(
        limit as f64 >= number(object, "peak_live_bytes"),
        "{object}"
    );
    // The other figures are those without a limit.
    let without = replay(
        &["--device", "sim", "--json"],
        std::slice::from_ref(&offload),
    );
    assert_eq!(
        object["peak_reserved_bytes"],
        objects(&without)[0]["peak_reserved_bytes"]
    );
    let completes = |limit: u64| {
        let limit = limit.to_string();
        let arguments = ["--device", "sim", "--json", "--limit", &limit];
        let output = replay(&arguments, std::slice::from_ref(&offload));
        objects(&output)[0]["failed_allocations"] == 0
    };
    assert!(completes(limit));
    assert!(!completes(limit - (2 << 20)));
}

#[test]
fn the_smallest_limit_is_found_on_the_host_too_and_shown_in_the_table() {
    let (_folder, path) = written(HANDED_ON);
    let arguments = [
        "--device-size",
        "64MiB",
        "--scale",
        "1",
        "--min-limit",
        "--quiet",
    ];
    let json = [&arguments[..], &["--json"]].concat();
    let output = replay(&json, std::slice::from_ref(&path));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(objects(&output)[0]["min_limit_bytes"], 16 << 20);
    let output = replay(&arguments, &[path]);
    let lines: Vec<&str> = stdout(&output).lines().collect();
    assert!(lines[0].trim_end().ends_with("min limit"), "{}", lines[0]);
    assert!(lines[1].trim_end().ends_with("16.0 MiB"), "{}", lines[1]);
}

#[test]
fn where_even_the_whole_device_is_too_little_there_is_no_smallest_limit() {
    let (_folder, path) = written(HANDED_ON);
    let arguments = [
        "--device",
        "sim",
        "--device-size",
        "8MiB",
        "--min-limit",
        "--json",
    ];
    let output = replay(&arguments, &[path]);
    assert_eq!(output.status.code(), Some(1));
    let object = &objects(&output)[0];
    assert_eq!(object["min_limit_bytes"], Value::Null, "{object}");
    assert!(object.get("min_limit_bytes").is_some(), "{object}");
}

#[test]
fn what_was_not_asked_for_is_not_said_and_what_contradicts_is_refused() {
    let (_folder, path) = written(HANDED_ON);
    let output = replay(&["--device", "sim", "--json"], std::slice::from_ref(&path));
    let object = &objects(&output)[0];
    for key in ["repetition", "min_limit_bytes"] {
        assert_eq!(object.get(key), None, "{object}");
    }
    for arguments in [
        &["--repeat", "0"][..],
        &["--repeat", "2", "--min-limit"],
        &["--limit", "1GiB", "--min-limit"],
    ] {
        let output = replay(arguments, std::slice::from_ref(&path));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
