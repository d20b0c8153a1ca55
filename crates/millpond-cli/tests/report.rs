//! `millpond report`: what it says of planted faults, and what its page is.

mod support;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use tempfile::TempDir;

use support::{objects, stderr, stdout, trace};

fn report(arguments: &[&str], traces: &[PathBuf]) -> (TempDir, PathBuf, Output) {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("report").args(arguments).args(traces);
    let output = command.arg("-o").arg(&page).output().unwrap();
    (folder, page, output)
}

/// The first line of what is said of a recording with this text.
fn first_line(content: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.csv");
    fs::write(&path, content).unwrap();
    let (_page, _, output) = report(&[], &[path]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).lines().next().unwrap().to_owned()
}

/// 200 rounds of work that is all freed again; `each` adds to a round.
fn rounds(mut each: impl FnMut(&mut String, u64)) -> String {
    let mut text = "op,block,size,stream,event,host_us,device_us\n".to_owned();
    for round in 0..200 {
        let (at, block) = (round * 1000, round * 10);
        for (number, size) in [(0, 40 << 20), (1, 24 << 20), (2, 8 << 20)] {
            writeln!(text, "alloc,{},{size},0,,{at},", block + number).unwrap();
        }
        each(&mut text, round);
        for (number, size) in [(2, 8 << 20), (0, 40 << 20), (1, 24 << 20)] {
            let done = at + 600;
            writeln!(
                text,
                "free,{},{size},0,,{},{done}",
                block + number,
                at + 500
            )
            .unwrap();
        }
    }
    text
}

#[test]
fn a_planted_leak_is_named_first_and_only_where_it_is() {
    let sound = first_line(&rounds(|_, _| {}));
    assert!(!sound.contains("leak"), "{sound}");
    // A megabyte stays of every fourth round.
    let leaking = first_line(&rounds(|text, round| {
        if round % 4 == 0 {
            let (at, block) = (round * 1000 + 1, round * 10 + 5);
            writeln!(text, "alloc,{block},1048576,0,,{at},").unwrap();
        }
    }));
    let named = "job: Suspected leak: blocks of 1.0 MiB";
    assert!(leaking.starts_with(named), "{leaking}");
    // So it is where blocks of the same size are there from the beginning, and are freed at the end.
    let mut cleared = "op,block,size,stream,event,host_us,device_us\n".to_owned();
    for number in 0..8 {
        writeln!(cleared, "alloc,{},1048576,0,,0,", 5000 + number).unwrap();
    }
    let leaking = rounds(|text, round| {
        if round % 4 == 0 {
            let (at, block) = (round * 1000 + 1, round * 10 + 5);
            writeln!(text, "alloc,{block},1048576,0,,{at},").unwrap();
        }
    });
    let (_head, rest) = leaking.split_once('\n').unwrap();
    cleared.push_str(rest);
    for number in 0..8 {
        writeln!(cleared, "free,{},1048576,0,,300000,", 5000 + number).unwrap();
    }
    let said = first_line(&cleared);
    assert!(said.starts_with(named), "{said}");
}

#[test]
fn what_is_set_up_once_and_what_comes_and_goes_is_no_leak() {
    let sawtooth = first_line(&rounds(|text, round| {
        // Kept for ten rounds each, and for good at the beginning.
        let (at, block) = (round * 1000 + 1, round * 10 + 5);
        writeln!(text, "alloc,{block},1048576,0,,{at},").unwrap();
        if round >= 20 {
            let old = (round - 10) * 10 + 5;
            writeln!(text, "free,{old},1048576,0,,{at},").unwrap();
        }
    }));
    assert!(!sawtooth.contains("leak"), "{sawtooth}");
}

#[test]
fn a_planted_hold_by_a_side_stream_is_named_first() {
    let held = first_line(&rounds(|text, round| {
        let (at, block) = (round * 1000, round * 10);
        writeln!(text, "use,{block},41943040,7,,{at},").unwrap();
        // The copy is over long after the block's own stream.
        let end = at + 9000;
        writeln!(text, "use_end,{block},41943040,7,,{at},{end}").unwrap();
    }));
    assert!(held.starts_with("job: Stream 7 holds up to "), "{held}");
}

#[test]
fn a_planted_fragmentation_is_named_first() {
    // At first 40 segments of 20 MiB are filled, and all is freed but 2 MiB in each. Then 30 MiB are
    // asked for, again and again, and do not fit into any of them.
    let mut text = "action,addr,size,stream,time_us\n".to_owned();
    let mib = 1_u64 << 20;
    let mut call = |action: &str, at: u64, size: u64, time: u64| {
        writeln!(text, "{action},{},{},0,{time}", at * mib, size * mib).unwrap();
    };
    for segment in 1..=40 {
        call("segment_alloc", segment * 32, 20, segment);
        call("alloc", segment * 32, 2, segment);
        call("alloc", segment * 32 + 2, 18, segment);
        call("free_requested", segment * 32 + 2, 18, segment);
    }
    call("segment_alloc", 4096, 30, 50);
    for round in 0..2000 {
        call("alloc", 4096, 30, 100 + round);
        call("free_requested", 4096, 30, 100 + round);
    }
    let said = first_line(&text);
    assert!(said.starts_with("job: Fragmentation: "), "{said}");
}

#[test]
fn a_failed_request_with_memory_free_comes_before_all_else() {
    let mib = 1_u64 << 20;
    let text = format!(
        "action,addr,size,stream,time_us\nsegment_alloc,{0},{1},0,1\nalloc,{0},{2},0,2\n\
         alloc,{3},{2},0,3\nfree_requested,{0},{2},0,4\nfree_completed,{0},{2},0,4\n\
         oom,,{4},0,5\n",
        32 * mib,
        60 * mib,
        20 * mib,
        52 * mib,
        30 * mib,
    );
    let said = first_line(&text);
    let expected = "job: Out of memory with memory free: a request of 30.0 MiB failed while 20.0 MiB \
                    were live; 40.0 MiB that the recording allocator held were free";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn the_page_has_all_in_it_and_asks_for_nothing() {
    let traces = ["gnn_sampled.csv.gz", "small_full_context.pickle.gz"].map(trace);
    let (_folder, page, output) = report(&["--policy", "millpond,caching"], &traces);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.len() < 8_000_000);
    for foreign in ["http://", "https://", "src=\"", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    for mark in ["/*STYLE*/", "<!--DATA-->", "/*SCRIPT*/"] {
        assert!(!page.contains(mark), "{mark}");
    }
}

#[test]
fn the_object_says_what_the_text_says() {
    let (_folder, _page, output) = report(&["--json"], &[trace("offload_streams.ordered.csv.gz")]);
    let object = objects(&output).remove(0);
    let first = object["findings"][0]["what"].as_str().unwrap();
    assert!(first.starts_with("Stream 1 holds up to "), "{first}");
    assert_eq!(object["streams"][0]["name"], "1");
    assert_eq!(object["runs"][0]["policy"], "millpond");
    assert_eq!(object["runs"][0]["failed_allocations"], 0);
    assert_eq!(object["peak_live_bytes"], 571_572_224);
}

#[test]
fn an_empty_recording_has_a_page_too() {
    let said = first_line("op,block,size,stream,event,host_us,device_us\n");
    assert!(said.contains("0 B live at most"), "{said}");
}

#[test]
fn sizes_beyond_every_device_do_no_harm() {
    let size = u64::MAX / 2;
    let said = first_line(&format!(
        "op,block,size,stream,event,host_us,device_us\nalloc,0,{size},0,,0,\nalloc,1,{size},0,,1,\n\
         use,1,{size},9,,1,\nuse_end,1,{size},9,,2,99\nfree,1,{size},0,,2,50\n\
         alloc,2,{size},0,,3,\nfree,2,{size},0,,4,60\nfree,0,{size},0,,5,70\n"
    ));
    let expected = "job: Out of memory: 3 allocations fail in a device of 141 GB with millpond";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn what_cannot_be_read_or_written_is_said() {
    let (_folder, _page, output) = report(&[], &[PathBuf::from("nowhere.csv")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nowhere.csv"));
    let mut command = Command::cargo_bin("millpond").unwrap();
    command.arg("report").arg(trace("rmm_cupy_log.csv.gz"));
    command.args(["-o", "/nonexistent/page.html"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot be written"));
    assert!(!Path::new("/nonexistent").exists());
}
