//! `millpond bench`, as a user runs it, with few pairs: what it says, not how fast it is.

mod support;

use std::collections::BTreeSet;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use support::{number, objects, stderr, stdout, trace};

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("bench").args(arguments).output().unwrap()
}

/// The objects of a run that succeeds.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = bench(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = objects(&output);
    rows.iter().for_each(assert_sane);
    rows
}

/// What holds for every row, however fast the machine is.
fn assert_sane(row: &Value) {
    let get = |key| number(row, key);
    assert!(get("ns_per_pair") > 0.0, "{row}");
    let rising = [
        "p50_ns",
        "p90_ns",
        "p99_ns",
        "p99_9_ns",
        "p99_99_ns",
        "max_ns",
    ];
    assert!(rising.is_sorted_by(|a, b| get(a) <= get(b)), "{row}");
    assert!(get("max_ns") > 0.0, "{row}");
    assert!(get("size_min") <= get("size_max"), "{row}");
    assert!(get("live") >= get("threads"), "{row}");
    // Both are of the same time, rounded to a tenth of a nanosecond and to a whole pair.
    let product = get("ns_per_pair") * get("pairs_per_second") / get("threads") / 1e9;
    assert!((0.99..1.01).contains(&product), "{product} {row}");
    assert!(
        get("peak_reserved_bytes") >= get("peak_live_bytes"),
        "{row}"
    );
    assert!(get("peak_live_bytes") >= get("size_max") / 2.0, "{row}");
    assert_eq!(row["failed_allocations"], 0);
    assert!(get("clock_ns") < 10_000.0, "{row}");
}

fn column(rows: &[Value], key: &str) -> Vec<u64> {
    let value = |row: &Value| {
        row[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key} in {row}"))
    };
    rows.iter().map(value).collect()
}

#[test]
fn pairs_are_of_one_size_and_need_the_driver_no_more() {
    let rows = rows(&["pair", "--pairs", "50"]);
    assert_eq!(column(&rows, "size_min"), [512, 1 << 16, 1 << 20, 1 << 26]);
    assert_eq!(column(&rows, "size_min"), column(&rows, "size_max"));
    for row in &rows {
        assert_eq!(
            (&row["pattern"], &row["device"]),
            (&"pair".into(), &"sim".into())
        );
        assert_eq!(row["driver_calls_per_pair"], 0.0);
        assert_eq!(row["peak_live_bytes"], row["size_min"]);
    }
}

#[test]
fn churn_is_measured_with_the_sizes_and_counts_of_other_allocators() {
    let rows = rows(&["churn", "--pairs", "50"]);
    assert_eq!(column(&rows, "live"), [1000, 200]);
    assert_eq!(column(&rows, "size_min"), [1 << 9, 1 << 20]);
    assert_eq!(column(&rows, "size_max"), [(1 << 24) - 1, (1 << 28) - 1]);
    assert_eq!(column(&rows, "pairs"), [50, 50]);
}

#[test]
fn every_thread_has_a_stream_and_blocks_of_its_own() {
    let rows = rows(&["threads", "--pairs", "20"]);
    assert_eq!(column(&rows, "threads"), [1, 2, 4, 8, 16]);
    assert_eq!(column(&rows, "streams"), [1, 2, 4, 8, 16]);
    assert_eq!(column(&rows, "live"), [100, 200, 400, 800, 1600]);
}

#[test]
fn rows_with_too_many_live_blocks_are_left_out() {
    let rows = rows(&["scale", "--pairs", "20", "--most-live", "10000"]);
    assert_eq!(column(&rows, "live"), [1000, 10_000]);
}

#[test]
fn a_recording_is_played_twice_and_the_driver_has_less_to_do_then() {
    let path = trace("gnn_sampled.csv.gz");
    let rows = rows(&["replay", path.to_str().unwrap()]);
    assert_eq!(column(&rows, "repetition"), [1, 2]);
    for row in &rows {
        assert_eq!(row["trace"], "gnn_sampled");
        assert_eq!(row["pairs"], 4587);
        // As many frees as allocations.
        let operations = number(row, "ns_per_pair") / number(row, "ns_per_op");
        assert!((1.9..2.01).contains(&operations), "{operations} {row}");
    }
    let calls = |row| number(row, "driver_calls_per_pair");
    assert!(calls(&rows[0]) > 2.0 * calls(&rows[1]), "{rows:?}");
    assert!(calls(&rows[0]) < 0.5, "{rows:?}");
}

#[test]
fn all_replays_the_recordings_named_and_the_table_has_a_row_for_each() {
    let path = trace("small_full_context.pickle.gz");
    let few = ["--pairs", "10", "--most-live", "1000"];
    let all = [&["all", path.to_str().unwrap()], &few[..]].concat();
    let patterns = |rows: &[Value]| -> BTreeSet<String> {
        let pattern = |row: &Value| row["pattern"].as_str().unwrap().to_owned();
        rows.iter().map(pattern).collect()
    };
    let measured = rows(&all);
    assert_eq!(
        patterns(&measured).into_iter().collect::<Vec<_>>(),
        ["churn", "pair", "replay", "scale", "threads"]
    );
    let output = bench(&all);
    assert!(output.status.success(), "{}", stderr(&output));
    // A header, and what the clock costs.
    assert_eq!(stdout(&output).lines().count(), measured.len() + 2);
    let without = rows(&few);
    assert_eq!(without.len() + 2, measured.len());
}

#[test]
fn the_host_device_is_measured_with_its_driver_calls() {
    let rows = rows(&["pair", "--device", "host", "--pairs", "20"]);
    for row in &rows {
        assert_eq!(row["device"], "host");
        assert!(row["driver_calls_per_pair"].is_null());
    }
}

#[test]
fn every_key_is_documented() {
    let output = bench(&["--help"]);
    let help = stdout(&output);
    let (_, keys) = help.split_once("Keys of a JSON object").unwrap();
    let words: BTreeSet<&str> = keys
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    for key in rows(&["pair", "--pairs", "1"])[0]
        .as_object()
        .unwrap()
        .keys()
    {
        assert!(words.contains(key.as_str()), "{key}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        &["replay"][..],
        &["pair", "x.csv"],
        &["pair", "--pairs", "0"],
        &["everything"],
        &["--device", "tpu"],
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!stderr(&output).is_empty());
    }
    let output = bench(&["replay", "no_such_recording.csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no_such_recording.csv"));
}
