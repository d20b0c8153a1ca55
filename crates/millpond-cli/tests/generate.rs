//! `millpond generate`, as a user runs it.

mod support;

use std::process::Output;

use assert_cmd::Command;

use support::{number, objects, replay, stderr, stdout};

const KINDS: [&str; 6] = [
    "stage-chain",
    "independent-streams",
    "producer-consumers",
    "varying-batches",
    "growing-caches",
    "model-mixture",
];

fn generate(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("generate").args(arguments).output().unwrap()
}

#[test]
fn every_kind_is_replayed_clean() {
    let folder = tempfile::tempdir().unwrap();
    let paths = KINDS.map(|kind| folder.path().join(format!("{kind}.ordered.csv")));
    for (kind, path) in KINDS.iter().zip(&paths) {
        let output = generate(&[kind, "--seed", "3", "--output", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!((stdout(&output), stderr(&output)), ("", ""));
    }
    let output = replay(&["--device", "sim", "--json"], &paths);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    for (kind, object) in KINDS.iter().zip(objects(&output)) {
        assert_eq!(object["trace"], format!("{kind}.ordered"));
        assert_eq!(object["corrupt_blocks"], 0, "{object}");
        assert!(number(&object, "final_delay_share") >= 0.0, "{object}");
        if KINDS[3..].contains(kind) {
            assert_eq!(object["events_recorded"], 0, "{object}");
            assert_eq!(object["event_queries"], 0, "{object}");
        }
    }
}

#[test]
fn without_a_file_it_goes_to_standard_output_and_a_seed_decides_it() {
    let zero = generate(&["growing-caches"]);
    assert!(zero.status.success());
    assert!(stdout(&zero).starts_with("op,block,size,stream,event,host_us,device_us\nalloc,0,"));
    assert!(generate(&["growing-caches", "--seed", "0"]).stdout == zero.stdout);
    assert!(generate(&["growing-caches", "--seed", "1"]).stdout != zero.stdout);
}

#[test]
fn what_cannot_be_written_is_one_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("file.csv");
    let output = generate(&["stage-chain", "--output", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let start = format!("error: {}: ", missing.display());
    assert!(stderr(&output).starts_with(&start), "{}", stderr(&output));
    assert_eq!(stderr(&output).lines().count(), 1);
}

#[test]
fn an_unknown_kind_is_refused_with_those_there_are_and_help_says_what_they_are() {
    let refused = generate(&["pipeline"]);
    assert_eq!(refused.status.code(), Some(2));
    let help = generate(&["--help"]);
    for kind in KINDS {
        assert!(stderr(&refused).contains(kind), "{}", stderr(&refused));
        assert!(
            stdout(&help).contains(&format!("- {kind}")),
            "{}",
            stdout(&help)
        );
    }
    assert!(
        stdout(&help).contains("millpond replay"),
        "{}",
        stdout(&help)
    );
}
