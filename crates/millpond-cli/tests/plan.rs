//! `millpond plan`, as a user runs it.

mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use flate2::Compression;
use flate2::write::GzEncoder;

use support::{number, objects, stderr, stdout};

const CSV: &str = "id,lower,upper,size\n0,0,2,4\n1,2,4,4\n2,1,3,2\n";

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("plan").args(arguments).output().unwrap()
}

fn write(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A protobuf field of bytes.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2, content.len() as u8];
    bytes.extend_from_slice(content);
    bytes
}

fn tensor(name: &str, dim: &[u8]) -> Vec<u8> {
    let shape = [field(1, dim), field(1, &[8, 100])].concat();
    let kind = field(1, &[vec![8, 1], field(2, &shape)].concat());
    [field(1, name.as_bytes()), field(2, &kind)].concat()
}

fn node(operator: &str, input: &str, output: &str) -> Vec<u8> {
    [
        field(1, input.as_bytes()),
        field(2, output.as_bytes()),
        field(4, operator.as_bytes()),
    ]
    .concat()
}

/// x: float[batch, 100] → Exp → Transpose → Exp → y.
fn model(operators: [&str; 3]) -> Vec<u8> {
    let graph = [
        field(1, &node(operators[0], "x", "a")),
        field(1, &node(operators[1], "a", "b")),
        field(1, &node(operators[2], "b", "y")),
        field(11, &tensor("x", &field(2, b"batch"))),
        field(12, &field(1, b"y")),
    ];
    [vec![8, 8], field(7, &graph.concat())].concat()
}

#[test]
fn a_csv_is_planned_plain_and_gzipped() {
    let folder = tempfile::tempdir().unwrap();
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(CSV.as_bytes()).unwrap();
    let plain = write(folder.path(), "a.csv", CSV.as_bytes());
    let zipped = write(folder.path(), "a.csv.gz", &zipped.finish().unwrap());
    for path in [plain, zipped] {
        let output = plan(&[text(&path), "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        let object = &objects(&output)[0];
        assert_eq!(object["input"], text(&path));
        assert_eq!(number(object, "buffers"), 3.0);
        assert_eq!(
            (number(object, "peak"), number(object, "lower_bound")),
            (6.0, 6.0)
        );
        assert_eq!(object["proven_optimal"], true);
        assert!(number(object, "seconds") >= 0.0);
        assert_eq!(number(object, "no_sharing"), 10.0);
        assert_eq!(object["live_at_peak"][0]["bytes"], 4);
    }
}

#[test]
fn the_text_says_what_is_live_by_name_and_what_others_take() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(
        folder.path(),
        "a.csv",
        CSV.replace("\n2,", "\nfilter,").as_bytes(),
    );
    let output = plan(&[text(&path)]);
    let text = stdout(&output);
    for part in [
        "peak",
        "proven optimal",
        "lower bound",
        "naive",
        "greedy by size",
        "no sharing",
        "filter",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn alignment_and_capacity_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.csv", CSV.as_bytes());
    let output = plan(&[text(&path), "--align", "16", "--json"]);
    assert_eq!(number(&objects(&output)[0], "peak"), 18.0);
    let output = plan(&[text(&path), "--capacity", "6", "--json"]);
    assert!(output.status.success());
    let output = plan(&[text(&path), "--capacity", "5"]);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("6 bytes are needed"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn plans_are_written_for_other_programs() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(
        folder.path(),
        "a.csv",
        b"id,lower,upper,size\n3,0,2,4\n0,1,3,4\n",
    );
    let to = |name: &str| folder.path().join(name);
    for name in ["p.csv", "p.json", "p.h", "p.tflm"] {
        let output = plan(&[
            text(&path),
            "--out",
            text(&to(name)),
            "--svg",
            text(&to("p.svg")),
        ]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let bytes = std::fs::read(to("p.tflm")).unwrap();
    let numbers: Vec<i32> = bytes
        .chunks(4)
        .map(|c| i32::from_le_bytes(c.try_into().unwrap()))
        .collect();
    assert_eq!(numbers[..3], [0, 0, 4]);
    assert_eq!(numbers[4..6], [-1, -1]);
    assert_eq!(numbers[3] + numbers[6], 4);
    let header = std::fs::read_to_string(to("p.h")).unwrap();
    assert!(
        header.contains("#define P_ARENA_BYTES UINT64_C(8)"),
        "{header}"
    );
    let csv = std::fs::read_to_string(to("p.csv")).unwrap();
    assert!(
        csv.starts_with("id,lower,upper,size,alignment,offset,gaps\n3,0,2,4,1,"),
        "{csv}"
    );
    // What was written can be read again, with its offsets fixed.
    let again = plan(&[text(&to("p.csv")), "--json"]);
    assert_eq!(number(&objects(&again)[0], "peak"), 8.0);
    assert!(
        std::fs::read_to_string(to("p.svg"))
            .unwrap()
            .contains("proven optimal")
    );
    let output = plan(&[text(&path), "--out", text(&to("p.xyz"))]);
    assert!(
        stderr(&output).contains("says no format"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_model_is_sized_with_its_dimensions_bound() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "m.onnx", &model(["Exp", "Transpose", "Exp"]));
    let output = plan(&[text(&path), "--json"]);
    assert!(
        stderr(&output).contains("give one with --dim batch=N"),
        "{}",
        stderr(&output)
    );
    let output = plan(&[text(&path), "--dim", "batch=3", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let object = &objects(&output)[0];
    // Two of 1200 bytes at once: the last is written over its input.
    assert_eq!(number(object, "peak"), 2400.0);
    assert_eq!(number(object, "input_bytes"), 1200.0);
    assert_eq!(number(object, "output_bytes"), 1200.0);
    let output = plan(&[text(&path), "--dim", "batch=3", "--dim", "width=3"]);
    assert!(
        stderr(&output).contains("no dimension is called `width`"),
        "{}",
        stderr(&output)
    );
    let path = write(folder.path(), "n.onnx", &model(["Exp", "NonZero", "Exp"]));
    let output = plan(&[text(&path), "--dim", "batch=3"]);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("`b` (NonZero)"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn one_iteration_of_a_recording_is_found() {
    let mut recording = "action,addr,size,stream,time_us\n".to_owned();
    let mut time = 0;
    for _ in 0..8 {
        for layer in 0..20_u64 {
            time += 1;
            recording += &format!(
                "alloc,{},{},0,{time}\n",
                layer * 4096 + 512,
                512 * (layer + 1)
            );
        }
        for layer in (0..20_u64).rev() {
            time += 1;
            recording += &format!(
                "free_requested,{},{},0,{time}\n",
                layer * 4096 + 512,
                512 * (layer + 1)
            );
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "job.csv", recording.as_bytes());
    let output = plan(&[text(&path), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let object = &objects(&output)[0];
    assert_eq!(object["repeats"], true);
    assert_eq!(number(object, "buffers"), 20.0);
    assert_eq!(
        number(object, "last_step") - number(object, "first_step"),
        40.0
    );
    assert_eq!(number(object, "peak"), 512.0 * 210.0);
    let output = plan(&[text(&path), "--iteration", "0..10", "--json"]);
    assert_eq!(number(&objects(&output)[0], "buffers"), 10.0);
    let output = plan(&[text(&path), "--iteration", "0..1000"]);
    assert!(
        stderr(&output).contains("has 320 steps"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn malformed_inputs_give_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let whole = model(["Exp", "Transpose", "Exp"]);
    let mut inputs: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"\x1f\x8b\x08\x00broken".to_vec(),
        b"id,lower,upper,size\n1,2\n".to_vec(),
        b"id,lower,upper,size\n1,3,2,8\n".to_vec(),
        b"id,lower,upper,size\n1,0,2,99999999999999999999\n".to_vec(),
        b"id,lower,upper,size\n1,0,2,9223372036854775807\n".to_vec(),
        b"id,lower,upper,size\n1,0,2,\xff\n".to_vec(),
        b"id,lower,upper,size,alignment\n1,0,2,8,0\n".to_vec(),
        b"nothing known\n".to_vec(),
        vec![8, 8, 0x3a, 0x7f],
        vec![0x80, 4, b'.'],
    ];
    inputs.extend((1..whole.len()).step_by(7).map(|end| whole[..end].to_vec()));
    for content in inputs {
        let path = write(folder.path(), "input", &content);
        let bound = ["--dim", "batch=2"];
        let dims = if content.first() == Some(&8) {
            &bound[..]
        } else {
            &[]
        };
        let output = plan(&[&[text(&path)], dims].concat());
        let shown = String::from_utf8_lossy(&content).into_owned();
        assert_eq!(
            output.status.code(),
            Some(1),
            "{shown:?}: {}",
            stdout(&output)
        );
        let message = stderr(&output);
        assert!(
            message.starts_with("error: ") && message.lines().count() == 1,
            "{message}"
        );
    }
}

#[test]
fn a_written_plan_keeps_its_gaps_and_a_header_its_own_names() {
    let folder = tempfile::tempdir().unwrap();
    let gaps = "id,lower,upper,size,gaps\nnone,0,5,10,1-4\noffsets,1,4,10,\nc,5,9,6,6-7@2:4\n";
    let path = write(folder.path(), "g.csv", gaps.as_bytes());
    let written = folder.path().join("w.csv");
    let header = folder.path().join("w.h");
    for out in [&written, &header] {
        let output = plan(&[text(&path), "--out", text(out)]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let again = plan(&[text(&written), "--json"]);
    assert!(again.status.success(), "{}", stderr(&again));
    assert_eq!(number(&objects(&again)[0], "peak"), 10.0);
    let kept = std::fs::read_to_string(&written).unwrap();
    assert!(kept.contains("1-4") && kept.contains("6-7@2:4"), "{kept}");
    let names = std::fs::read_to_string(&header).unwrap();
    assert_eq!(names.matches("w_none =").count(), 1, "{names}");
    assert!(names.contains("w_none__0 ="), "{names}");
}
