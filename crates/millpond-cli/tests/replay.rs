//! `millpond replay`, as a user runs it.

mod support;

use std::fs;

use serde_json::Value;

use support::{number, objects, replay, stderr, stdout, trace};

/// All recordings of the repository.
const TRACES: [&str; 7] = [
    "fsdp_prefetch.ordered.csv.gz",
    "gnn_sampled.csv.gz",
    "gnn_sampled.pickle.gz",
    "mixed_dynamic.ordered.csv.gz",
    "offload_streams.ordered.csv.gz",
    "rmm_cupy_log.csv.gz",
    "small_full_context.pickle.gz",
];

fn assert_complete_and_clean(object: &Value, device: &str) {
    assert_eq!(object["device"], device);
    assert_eq!(object["policy"], "millpond");
    assert_eq!(object["failed_allocations"], 0, "{object}");
    assert_eq!(object["corrupt_blocks"], 0, "{object}");
    assert!(number(object, "ops") > 0.0);
    let (live, reserved) = (
        number(object, "peak_live_bytes"),
        number(object, "peak_reserved_bytes"),
    );
    assert!(0.0 < live && live <= reserved, "{object}");
    let ratio = number(object, "reserved_over_live");
    assert!((ratio - reserved / live).abs() < 1e-9, "{object}");
    assert!(number(object, "host_ns_per_op") > 0.0);
    assert!(number(object, "driver_ns_per_op") > 0.0);
    let calls = &object["driver_calls"];
    for call in ["create", "map", "set_access"] {
        assert!(number(calls, call) > 0.0, "{object}");
    }
    // The pool is not taken down before this is counted.
    for call in ["unmap", "release"] {
        assert!(number(calls, call) < number(calls, "map"), "{object}");
    }
}

#[test]
fn all_recordings_replay_on_the_sim_at_full_size() {
    let output = replay(&["--device", "sim", "--json"], &TRACES.map(trace));
    assert!(output.status.success(), "{}", stderr(&output));
    let objects = objects(&output);
    assert_eq!(objects.len(), TRACES.len());
    for object in &objects {
        assert_complete_and_clean(object, "sim");
        assert_eq!(object.get("scale"), None);
    }
    assert_eq!(objects[1]["trace"], "gnn_sampled");
    assert_eq!(objects[1]["ops"], 9174);
    assert_eq!(objects[1]["peak_live_bytes"], 4_328_336_620_u64);
}

#[test]
fn all_recordings_replay_on_the_host_shrunk_to_a_small_device() {
    // Not much larger than each can be, to save time: blocks are not shrunk below 1 MiB.
    for (name, mebibytes) in TRACES.into_iter().zip([128, 48, 48, 288, 96, 96, 128]) {
        let size = format!("{mebibytes}MiB");
        let output = replay(&["--device-size", &size, "--json"], &[trace(name)]);
        assert!(output.status.success(), "{}", stderr(&output));
        let [object] = &objects(&output)[..] else {
            panic!("{}", stdout(&output))
        };
        assert_complete_and_clean(object, "host");
        let reserved = number(object, "peak_reserved_bytes");
        assert!(reserved <= f64::from(mebibytes << 20), "{object}");
        assert!(number(object, "scale") < 1.0, "{object}");
        let note = format!("does not fit a device of {mebibytes}.0 MiB: replayed at scale 0.");
        assert!(stderr(&output).contains(&note), "{}", stderr(&output));
    }
    let whole = [trace("small_full_context.pickle.gz")];
    let output = replay(&["--device-size", "256MiB", "--json"], &whole);
    assert_eq!(objects(&output)[0].get("scale"), None);
}

#[test]
fn streams_that_are_held_back_at_random_find_every_byte_in_place() {
    let arguments = ["--device-size", "64MiB", "--seed", "7", "--json", "--quiet"];
    let traces = ["offload_streams.ordered.csv.gz", "rmm_cupy_log.csv.gz"];
    let output = replay(&arguments, &traces.map(trace));
    assert!(output.status.success(), "{}", stderr(&output));
    for object in objects(&output) {
        assert_complete_and_clean(&object, "host");
    }
    assert_eq!(stderr(&output), "");
}

#[test]
fn two_runs_on_the_sim_print_the_same_but_for_times() {
    let run = || {
        let output = replay(
            &["--device", "sim", "--json", "--seed", "3"],
            &TRACES.map(trace),
        );
        let mut objects = objects(&output);
        for object in &mut objects {
            object["host_ns_per_op"] = Value::Null;
        }
        objects
    };
    assert_eq!(run(), run());
}

#[test]
fn a_limit_that_is_too_small_is_explained_in_full_and_fails() {
    let arguments = ["--device", "sim", "--limit", "1GiB", "--json"];
    let output = replay(&arguments, &[trace("gnn_sampled.csv.gz")]);
    assert_eq!(output.status.code(), Some(1));
    let objects = objects(&output);
    assert!(number(&objects[0], "failed_allocations") > 0.0);
    assert_eq!(objects[0]["corrupt_blocks"], 0);
    assert!(number(&objects[0], "peak_reserved_bytes") <= f64::from(1 << 30));
    let report = stderr(&output);
    for part in [
        "failed: ",
        "gnn_sampled.csv.gz: block ",
        "asked for on stream",
        "the limit of 1.0 GiB",
        "live in",
        "raise the limit",
        "more",
    ] {
        assert!(report.contains(part), "{part:?} in {report}");
    }
}

#[test]
fn the_table_has_a_row_for_each_recording() {
    let names = ["small_full_context.pickle.gz", "rmm_cupy_log.csv.gz"];
    let output = replay(&["--device", "sim", "--quiet"], &names.map(trace));
    assert!(output.status.success());
    let lines: Vec<&str> = stdout(&output).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for column in ["trace", "ops", "failed", "corrupt", "ratio", "calls"] {
        assert!(lines[0].contains(column), "{}", lines[0]);
    }
    assert!(lines[1].trim_start().starts_with("small_full_context"));
    assert!(lines[2].trim_start().starts_with("rmm_cupy_log"));
    assert_eq!(stderr(&output), "");
}

#[test]
fn the_scale_is_said_where_it_is_not_one() {
    let arguments = ["--device", "sim", "--scale", "0.5", "--json"];
    let output = replay(&arguments, &[trace("gnn_sampled.csv.gz")]);
    assert!(output.status.success());
    let object = &objects(&output)[0];
    assert_eq!(object["scale"], 0.5);
    let half = 4_328_336_620.0 / 2.0;
    assert!((number(object, "peak_live_bytes") / half - 1.0).abs() < 0.05);
    let arguments = ["--device", "sim", "--scale", "auto", "--json"];
    let output = replay(&arguments, &[trace("gnn_sampled.csv.gz")]);
    assert_eq!(objects(&output)[0].get("scale"), None);
}

#[test]
fn a_bad_file_is_one_clear_line_and_the_others_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let malformed = b"action,addr,size,stream,time_us\nalloc,512,100,0,7\nalloc,1024,many,0,8\n";
    let whole = fs::read(trace("gnn_sampled.csv.gz")).unwrap();
    let traces = [
        folder.path().join("missing.csv"),
        file("empty.csv", b""),
        file("unknown.txt", b"no recording\n"),
        file("malformed.csv", malformed),
        file("truncated.csv.gz", &whole[..whole.len() / 2]),
        trace("small_full_context.pickle.gz"),
    ];
    let output = replay(&["--device", "sim", "--json", "--quiet"], &traces);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(objects(&output).len(), 1);
    let errors: Vec<&str> = stderr(&output).lines().collect();
    assert_eq!(errors.len(), 5, "{errors:#?}");
    for (path, line) in traces.iter().zip(&errors) {
        let start = format!("error: {}: ", path.display());
        assert!(line.starts_with(&start), "{line}");
    }
    assert!(errors[3].contains("line 3"), "{}", errors[3]);
    assert!(errors[3].contains("many"), "{}", errors[3]);
}

#[test]
fn what_cannot_be_done_is_said_with_the_way_out() {
    let gnn = [trace("gnn_sampled.csv.gz")];
    let cases = [
        (&["--device-size", "1MiB"][..], "give 2 MiB or more"),
        (&["--device-size", "4MiB"], "give a larger --device-size"),
        (&["--limit", "1MiB"], "set a larger limit"),
    ];
    for (arguments, way_out) in cases {
        let output = replay(arguments, &gnn);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(way_out), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_runs() {
    let gnn = [trace("gnn_sampled.csv.gz")];
    let cases = [
        (&["--device-size", "lots"][..], "such as 141GB"),
        (&["--limit", "17179869184GiB"], "more than"),
        (&["--scale", "0"], "greater than 0"),
        (&["--seed", "x"], "invalid"),
        (&["--device", "tpu"], "host, sim, cuda"),
        (&["--device", "cuda:-1"], "such as cuda:0"),
        (
            &["--device", "cuda", "--device-size", "1GiB"],
            "--limit bounds what the pool takes",
        ),
    ];
    for (arguments, explanation) in cases {
        let output = replay(arguments, &gnn);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(explanation), "{}", stderr(&output));
    }
    assert_eq!(replay(&[], &[]).status.code(), Some(2));
}

/// No machine has a GPU of that number, and most that run this have none at all.
#[test]
fn a_gpu_that_is_not_there_is_one_line_with_the_way_out() {
    let names = ["small_full_context.pickle.gz", "rmm_cupy_log.csv.gz"];
    let output = replay(
        &["--device", "cuda:4000000000", "--json"],
        &names.map(trace),
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let lines: Vec<&str> = stderr(&output).lines().collect();
    let [line] = lines[..] else {
        panic!("{lines:#?}")
    };
    assert!(line.starts_with("error: cuda:4000000000: "), "{line}");
    let ways_out = [
        "install",
        "choose one of them",
        "no GPU is visible",
        "cannot start here",
    ];
    assert!(ways_out.iter().any(|way| line.contains(way)), "{line}");
}

#[test]
fn help_has_examples() {
    let output = replay(&["--help"], &[]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("Examples:"));
    assert!(stdout(&output).contains("millpond replay --device sim"));
}

#[test]
fn policies_are_replayed_beside_the_pool_and_stay_clean() {
    let policies = "millpond,cuda-malloc,bump,buddy,slab,caching,expandable";
    let arguments = ["--device", "sim", "--json", "--policy", policies];
    for name in ["gnn_sampled.csv.gz", "offload_streams.ordered.csv.gz"] {
        let output = replay(&arguments, &[trace(name)]);
        assert!(output.status.success(), "{}", stderr(&output));
        let objects = objects(&output);
        let names: Vec<_> = objects.iter().map(|object| &object["policy"]).collect();
        assert_eq!(names, policies.split(',').collect::<Vec<_>>());
        for object in &objects {
            assert_eq!(object["failed_allocations"], 0, "{object}");
            assert_eq!(object["corrupt_blocks"], 0, "{object}");
            assert_eq!(object["ops"], objects[0]["ops"]);
            assert_eq!(object["peak_live_bytes"], objects[0]["peak_live_bytes"]);
            assert!(number(object, "reserved_over_live") >= 1.0, "{object}");
            assert!(number(object, "driver_ns_per_op") > 0.0, "{object}");
        }
        // A call for every operation, and what it takes is what lives.
        let calls = &objects[1]["driver_calls"];
        assert_eq!(number(&objects[1], "reserved_over_live"), 1.0);
        assert!(number(calls, "allocate") > 4000.0, "{}", objects[1]);
        assert!(number(&objects[6]["driver_calls"], "set_access") > 0.0);
    }
}

#[test]
fn policies_keep_every_byte_on_the_host() {
    let runs = [
        (
            "small_full_context.pickle.gz",
            "256MiB",
            "1",
            "cuda-malloc,bump,buddy,slab,caching",
        ),
        // Two streams, and little room: what is held is waited for.
        (
            "offload_streams.ordered.csv.gz",
            "96MiB",
            "0.05",
            "expandable",
        ),
    ];
    for (name, size, scale, policies) in runs {
        let arguments = [
            "--device-size",
            size,
            "--scale",
            scale,
            "--seed",
            "5",
            "--json",
            "--policy",
            policies,
        ];
        let output = replay(&arguments, &[trace(name)]);
        assert!(output.status.success(), "{}", stderr(&output));
        let objects = objects(&output);
        assert_eq!(objects.len(), policies.split(',').count());
        for object in &objects {
            assert_eq!(object["corrupt_blocks"], 0, "{object}");
            assert_eq!(object["failed_allocations"], 0, "{object}");
        }
    }
}

#[test]
fn a_policy_can_be_repeated_and_its_smallest_limit_found() {
    let arguments = ["--device", "sim", "--json", "--policy", "expandable"];
    let traces = [trace("small_full_context.pickle.gz")];
    let output = replay(&[&arguments[..], &["--repeat", "2"]].concat(), &traces);
    let [first, second] = &objects(&output)[..] else {
        panic!("{}", stderr(&output))
    };
    assert_eq!(
        (&first["repetition"], &second["repetition"]),
        (&1.into(), &2.into())
    );
    assert_eq!(second["driver_calls"]["create"], 0, "{second}");
    let output = replay(&[&arguments[..], &["--min-limit"]].concat(), &traces);
    let [object] = &objects(&output)[..] else {
        panic!("{}", stderr(&output))
    };
    let limit = number(object, "min_limit_bytes");
    assert!(limit <= number(object, "peak_reserved_bytes"), "{object}");
    assert!(limit >= number(object, "peak_live_bytes"), "{object}");
}

#[test]
fn a_table_of_policies_names_them_and_an_unknown_one_is_refused() {
    let policies = ["--device", "sim", "--policy", "millpond,caching"];
    let output = replay(&policies, &[trace("small_full_context.pickle.gz")]);
    let table = stdout(&output);
    for word in ["policy", "driver ms", "millpond", "caching"] {
        assert!(table.contains(word), "{table}");
    }
    let output = replay(&["--policy", "arena"], &[trace("gnn_sampled.csv.gz")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("expandable"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_setting_trades_handles_for_memory_and_is_said() {
    let figures = |setting: &str| {
        let arguments = ["--device", "sim", "--json", "--setting", setting];
        let output = replay(&arguments, &[trace("gnn_sampled.csv.gz")]);
        assert!(output.status.success(), "{}", stderr(&output));
        let object = objects(&output).remove(0);
        assert_eq!(object["setting"], setting);
        let calls = &object["driver_calls"];
        (number(calls, "create"), number(calls, "map"))
    };
    let settings = ["plentiful", "fast", "balanced", "tight"].map(figures);
    for pair in settings.windows(2) {
        assert!(
            pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1,
            "{settings:?}"
        );
    }
    let arguments = ["--device", "sim", "--json", "--policy", "millpond,caching"];
    let output = replay(&arguments, &[trace("small_full_context.pickle.gz")]);
    let objects = objects(&output);
    assert_eq!(objects[0]["setting"], "balanced");
    assert_eq!(objects[1]["setting"], Value::Null);
    let output = replay(&["--setting", "loose"], &[trace("gnn_sampled.csv.gz")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("tight"), "{}", stderr(&output));
}
