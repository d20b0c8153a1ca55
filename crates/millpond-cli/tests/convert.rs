//! `millpond convert`: formats by name, and what is said of what is lost.

mod support;

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;
use millpond_trace::{Format, read_path};

use support::{stderr, trace};

fn convert(from: &Path, to: &Path) -> Output {
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("convert").arg(from).arg(to).output().unwrap()
}

#[test]
fn the_name_says_the_format_and_the_compression() {
    let folder = tempfile::tempdir().unwrap();
    let from = trace("offload_streams.ordered.csv.gz");
    for (name, format) in [
        ("a.ordered.csv", Format::OrderedCsv),
        ("a.csv.gz", Format::EventCsv),
        ("a.rmm.csv", Format::RmmLog),
        ("a.log.gz", Format::RmmLog),
        ("a.pickle", Format::PytorchSnapshot),
        ("a.pkl.gz", Format::PytorchSnapshot),
    ] {
        let to = folder.path().join(name);
        let output = convert(&from, &to);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert_eq!(read_path(&to).unwrap().format, format, "{name}");
        let zipped = std::fs::read(&to).unwrap().starts_with(&[0x1f, 0x8b]);
        assert_eq!(zipped, name.ends_with(".gz"), "{name}");
        let lost = stderr(&output).contains("1152 uses on further streams");
        assert_eq!(lost, format != Format::OrderedCsv, "{name}");
    }
}

#[test]
fn a_name_that_says_no_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = convert(&trace("rmm_cupy_log.csv.gz"), &folder.path().join("a.txt"));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--to"));
}
