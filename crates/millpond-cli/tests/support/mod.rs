//! Running the program, and reading what it says.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

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
