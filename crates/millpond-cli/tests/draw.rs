//! `millpond replay --draw`: the picture of a replay.

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use svg::node::element::tag::Type;
use svg::parser::Event;

use support::{number, objects, replay, stderr, trace, written};

/// Two blocks of 64 MiB are freed with others between them, and one of 128 MiB takes their place.
const LAID_OVER: &str = "op,block,size,stream,event,host_us,device_us
alloc,0,67108864,0,,0,
alloc,1,33554432,0,,1,
alloc,2,67108864,0,,2,
alloc,3,33554432,0,,3,
free,0,67108864,0,,4,4
free,2,67108864,0,,5,5
alloc,4,134217728,0,,6,
free,4,134217728,0,,7,7
alloc,5,0,0,,8,
";

/// The rectangles of each class of group in a picture, which is well formed.
fn rectangles(picture: &str) -> HashMap<String, usize> {
    let mut open: Vec<(String, Option<String>)> = Vec::new();
    let mut counts = HashMap::new();
    for event in svg::read(picture).unwrap() {
        match event {
            Event::Error(error) => panic!("{error}"),
            Event::Tag(name, Type::End, _) => {
                let (opened, _) = open.pop().expect("an element is closed that is open");
                assert_eq!(opened, name);
            }
            Event::Tag(name, kind, attributes) => {
                if name == "rect" {
                    for side in ["width", "height"] {
                        let length = attributes[side].trim_end_matches('%');
                        assert!(length.parse::<f64>().unwrap() > 0.0, "{attributes:?}");
                    }
                    let class = open.iter().rev().find_map(|(_, class)| class.clone());
                    *counts.entry(class.unwrap_or_default()).or_insert(0) += 1;
                }
                if kind == Type::Start {
                    let class = attributes.get("class").map(|class| class.to_string());
                    open.push((name.to_owned(), class));
                }
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
    counts
}

fn drawn(arguments: &[&str], recording: &Path, picture: &Path) -> (String, serde_json::Value) {
    let picture_name = picture.to_str().unwrap();
    let arguments = [arguments, &["--json", "--draw", picture_name]].concat();
    let output = replay(&arguments, &[recording.to_owned()]);
    assert!(output.status.success(), "{}", stderr(&output));
    (
        fs::read_to_string(picture).unwrap(),
        objects(&output).remove(0),
    )
}

#[test]
fn a_picture_has_every_mapping_and_every_block_that_can_be_seen() {
    let (folder, recording) = written(LAID_OVER);
    let picture = folder.path().join("picture.svg");
    for device in [
        &["--device", "sim"][..],
        &["--device-size", "512MiB", "--scale", "1"],
    ] {
        let (picture, object) = drawn(device, &recording, &picture);
        let rectangles = rectangles(&picture);
        let maps = number(&object["driver_calls"], "map") as usize;
        assert_eq!(rectangles["bands"], maps, "{object}");
        // Not the one of no bytes.
        assert_eq!(rectangles["blocks"], 5);
        assert!(picture.contains("5 of 6 blocks are drawn"));
        // The large one lies over a handle that has other addresses, too.
        assert!(rectangles["shadows"] > 0);
    }
}

#[test]
fn a_picture_of_a_policy_shows_its_plain_allocations() {
    let (folder, recording) = written(LAID_OVER);
    let picture = folder.path().join("picture.svg");
    let arguments = ["--device", "sim", "--policy", "cuda-malloc"];
    let (picture, _) = drawn(&arguments, &recording, &picture);
    let rectangles = rectangles(&picture);
    assert_eq!((rectangles["bands"], rectangles["blocks"]), (5, 5));
    assert_eq!(rectangles.get("shadows"), None);
}

#[test]
fn small_blocks_are_left_out_of_a_large_job_and_names_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a<b & \"c\".csv.gz");
    fs::copy(trace("gnn_sampled.csv.gz"), &recording).unwrap();
    let picture = folder.path().join("picture.svg");
    let (picture, _) = drawn(&["--device", "sim"], &recording, &picture);
    let rectangles = rectangles(&picture);
    assert!((1000..4587).contains(&rectangles["blocks"]));
    assert!(rectangles["shadows"] <= 20_000);
    assert!(picture.contains("a&lt;b &amp; \"c\" on sim"));
    // The same calls give the same picture.
    let again = folder.path().join("again.svg");
    assert_eq!(drawn(&["--device", "sim"], &recording, &again).0, picture);
}

#[test]
fn what_cannot_be_drawn_is_said_with_the_way_out() {
    let small = || trace("small_full_context.pickle.gz");
    let output = replay(&["--draw", "x.svg"], &[small(), small()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("one recording and one policy"));
    let missing = ["--device", "sim", "--draw", "no such folder/x.svg"];
    let output = replay(&missing, &[small()]);
    assert_eq!(output.status.code(), Some(1));
    let message = "could not be written to no such folder/x.svg";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
}
