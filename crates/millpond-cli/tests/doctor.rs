//! `millpond doctor`, as a user runs it, on whatever machine this is.

use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("doctor").args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn every_machine_gets_a_report_that_parses() {
    let output = doctor(&["--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1);
    let report: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(report["millpond"], env!("CARGO_PKG_VERSION"));
    let driver = &report["driver"];
    // Either there is a driver, or it is said why not and how to get one.
    assert_ne!(driver["library"].is_null(), driver["problem"].is_null());
    let devices = report["devices"].as_array().unwrap();
    let host = devices.last().unwrap();
    assert_eq!(host["device"], "host");
    assert!(host["gpu"].is_null());
    for device in devices {
        let (memory, free) = (&device["memory_bytes"], &device["free_bytes"]);
        assert!(0 < free.as_u64().unwrap() && free.as_u64() <= memory.as_u64());
        assert_eq!(device["probe"]["sizes"].as_array().unwrap().len(), 3);
        assert!(!device["pool"].as_array().unwrap().is_empty());
    }
    assert_eq!(host["mapping"], true);
    assert_eq!(host["handle_types"]["posix_fd"]["works"], true);
    let costs = &host["probe"]["sizes"][0];
    for call in ["create", "map", "set_access", "unmap", "release"] {
        assert!(costs[format!("{call}_ns")].as_u64() > Some(0), "{costs}");
    }
    if let Some(problem) = driver["problem"].as_str() {
        let missing = report["missing"][0].as_str().unwrap();
        assert!(missing.contains(problem), "{missing}");
    }
}

#[test]
fn every_key_is_documented() {
    fn collect(value: &Value, keys: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    // Its keys are not the program's own.
                    if key != "environment" {
                        collect(value, keys);
                    }
                    keys.push(key.clone());
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, keys)),
            _ => {}
        }
    }
    let output = doctor(&["--json", "--device", "host"]);
    let report: Value = serde_json::from_str(stdout(&output)).unwrap();
    let mut keys = Vec::new();
    collect(&report, &mut keys);
    assert!(keys.len() > 50, "{keys:?}");
    let help = doctor(&["--help"]);
    let words: Vec<&str> = stdout(&help)
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .collect();
    for key in keys {
        assert!(words.contains(&key.as_str()), "{key}");
    }
}

#[test]
fn the_text_names_every_device_and_what_a_pool_does() {
    let output = doctor(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "NVIDIA driver",
        "This machine",
        "host: host memory",
        "What a pool does here:",
        "mapping: physical handles",
        "Missing",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(stderr(&output), "");
}

#[test]
fn one_device_can_be_named() {
    let output = doctor(&["--device", "host", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output)).unwrap();
    let devices = report["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0]["device"], "host");
}

/// No machine has a GPU of that number, and most that run this have none at all.
#[test]
fn a_named_device_that_cannot_be_used_fails_with_the_report() {
    let output = doctor(&["--device", "cuda:4000000000", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let start = "error: cuda:4000000000: ";
    assert!(stderr(&output).starts_with(start), "{}", stderr(&output));
    let report: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(report["unusable"][0]["device"], "cuda:4000000000");
    assert_eq!(report["devices"].as_array().unwrap().len(), 0);
}

#[test]
fn wrong_arguments_are_refused() {
    let cases = [
        ("tpu", "write host, sim, cuda"),
        ("sim", "name host or cuda:N"),
    ];
    for (device, explanation) in cases {
        let output = doctor(&["--device", device]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(explanation), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    }
}
