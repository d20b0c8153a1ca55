//! Running the program, and reading what it says.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// A recording of the repository.
pub fn trace(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../traces")
        .join(name)
}

/// Runs `millpond replay`.
pub fn replay(arguments: &[&str], traces: &[PathBuf]) -> Output {
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("replay").args(arguments).args(traces);
    command.output().unwrap()
}

/// What it printed.
pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// What it complained of.
pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The JSON objects that it printed, one a line.
pub fn objects(output: &Output) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap();
    stdout(output).lines().map(parse).collect()
}

/// A number of an object.
pub fn number(object: &Value, key: &str) -> f64 {
    object[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} in {object}"))
}

/// 16 MiB go from one stream, which is busy with them until 50 ms, to another one, which does
/// 29.99 ms of work with 16 MiB of its own.
pub const HANDED_ON: &str = "op,block,size,stream,event,host_us,device_us
alloc,0,16777216,0,,0,
free,0,16777216,0,,1,50000
alloc,1,16777216,1,,10,
free,1,16777216,1,,11,30000
";

/// A file with a recording, and the folder that it lies in while that lives.
pub fn written(content: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handed_on.ordered.csv");
    fs::write(&path, content).unwrap();
    (folder, path)
}

/// Replays a recording, which succeeds; gives its object.
pub fn replayed(arguments: &[&str], path: PathBuf) -> Value {
    let output = replay(&[arguments, &["--json"]].concat(), &[path]);
    assert!(output.status.success(), "{}", stderr(&output));
    objects(&output).remove(0)
}
