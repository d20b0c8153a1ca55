//! `millpond diff`: what grew.

mod support;

use std::path::PathBuf;
use std::process::Output;

use assert_cmd::Command;

use support::{objects, stderr, stdout, trace, written};

fn diff(arguments: &[&str], before: &PathBuf, after: &PathBuf) -> Output {
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("diff").args(arguments).arg(before).arg(after);
    command.output().unwrap()
}

const HEAD: &str = "op,block,size,stream,event,host_us,device_us\n";

#[test]
fn the_first_line_names_the_largest_growth() {
    let before = format!("{HEAD}alloc,0,1048576,0,,0,\nalloc,1,8388608,0,,1,\n");
    let after = format!(
        "{before}alloc,2,1048576,0,,2,\nalloc,3,1048576,0,,3,\nfree,1,8388608,0,,4,5\n\
         alloc,4,4096,9,,6,\n"
    );
    let (_one, before) = written(&before);
    let (_other, after) = written(&after);
    let output = diff(&[], &before, &after);
    assert!(output.status.success(), "{}", stderr(&output));
    let first = stdout(&output).lines().next().unwrap();
    assert_eq!(
        first,
        "blocks of 1.0 MiB grew most, by 2.0 MiB at the end: from 1.0 MiB in 1 blocks to 3.0 MiB in 3."
    );
    let object = objects(&diff(&["--json"], &before, &after)).remove(0);
    assert_eq!(object["headline"], first);
    let end = object["end"].as_array().unwrap();
    let shrunk = end
        .iter()
        .find(|change| change["what"] == "blocks of 8.0 MiB");
    assert_eq!(shrunk.unwrap()["grew"], -8_388_608);
    let stream = end.iter().find(|change| change["what"] == "stream 9");
    assert_eq!(stream.unwrap()["after"]["blocks"], 1);
}

#[test]
fn the_same_recording_did_not_grow() {
    for name in ["gnn_sampled.csv.gz", "small_full_context.pickle.gz"] {
        let output = diff(&[], &trace(name), &trace(name));
        assert!(stdout(&output).starts_with("Nothing grew"), "{name}");
    }
}

#[test]
fn call_sites_are_compared_where_both_have_them() {
    let (_folder, nothing) = written(HEAD);
    let snapshot = trace("small_full_context.pickle.gz");
    let output = diff(&["--json"], &snapshot, &nothing);
    let object = objects(&output).remove(0);
    let by_site = |change: &&serde_json::Value| change["by"] == "call_site";
    assert!(
        object["end"]
            .as_array()
            .unwrap()
            .iter()
            .find(by_site)
            .is_none()
    );
    assert!(
        object["headline"]
            .as_str()
            .unwrap()
            .starts_with("Nothing grew")
    );
}
