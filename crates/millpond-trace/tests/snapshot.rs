//! PyTorch snapshots: forms, versions, histories that begin in the middle, devices.

mod support;

use std::sync::Arc;

use millpond_trace::{Format, Frame, Op, ReservedAction, Site, Trace};
use support::{Py, entry, pickle, read, refusal, segment, snapshot};

const LIVE: &str = "active_allocated";
const PENDING: &str = "active_pending_free";
const FREE: &str = "inactive";

fn read_value(value: &Py) -> Trace {
    let first = read(&pickle(2, value)).unwrap();
    for protocol in 3..=5 {
        assert_eq!(
            read(&pickle(protocol, value)).unwrap(),
            first,
            "protocol {protocol}"
        );
    }
    first
}

fn sizes(trace: &Trace) -> Vec<i64> {
    let mut of = vec![];
    trace
        .steps
        .iter()
        .map(|step| match step.op {
            Op::Alloc { size, .. } => {
                of.push(size as i64);
                size as i64
            }
            Op::Free { block, .. } => -of[block as usize],
            _ => 0,
        })
        .collect()
}

/// The files in `data/` are what CPython 3.11 writes for one snapshot at each protocol: one
/// segment with blocks of 500 (live) and 400 bytes (pending), and four entries that free a block
/// of 300 bytes at the second one's address and allocate and free the 400 bytes.
#[test]
fn cpython_pickles_of_every_protocol_are_one_trace() {
    for protocol in 2..=5 {
        let path = format!(
            "{}/tests/data/cpython_protocol{protocol}.pickle",
            env!("CARGO_MANIFEST_DIR")
        );
        let trace = read(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(trace.format, Format::PytorchSnapshot);
        assert_eq!(
            sizes(&trace),
            [500, 300, -300, 400, -400],
            "protocol {protocol}"
        );
        let last = (1 << 40) - 10;
        let times: Vec<_> = trace.steps.iter().map(|s| s.host_ns / 1000).collect();
        assert_eq!(times, [0, 0, 0, 2, last]);
        assert_eq!(trace.streams, ["7"]);
        let note = "the history begins in the middle: 2 live blocks rebuilt from segments";
        assert_eq!(trace.notes, [note]);
    }
}

#[test]
fn a_whole_history_rebuilds_nothing() {
    let history = vec![
        entry("segment_alloc", 4096, 2048, 1),
        entry("alloc", 4096, 100, 2),
        entry("alloc", 4608, 200, 3),
        entry("free_requested", 4096, 100, 4),
        entry("free_completed", 4096, 100, 5),
        entry("snapshot", 0, 200, 6),
        entry("from_the_future", 0, 0, 6),
    ];
    let segments = vec![segment(0, 4096, &[(512, 100, FREE), (1536, 200, LIVE)])];
    let trace = read_value(&snapshot(segments, vec![history]));
    assert_eq!(sizes(&trace), [100, 200, -100]);
    assert_eq!(trace.notes, ["1 entries of unknown action ignored"]);
    assert_eq!(trace.recorded_peak_reserved_bytes(), Some(2048));
    assert_eq!(trace.reserved.len(), 1);
}

#[test]
fn a_history_that_begins_in_the_middle_is_rewound() {
    let history = vec![
        // Freed by the job before the history, completed in it: never live here.
        entry("free_completed", 4096, 111, 1),
        // Live before the history, freed in it, its address used again.
        entry("free_requested", 4608, 222, 2),
        entry("free_completed", 4608, 222, 2),
        entry("alloc", 4608, 333, 3),
        // Live before, freed in it, not completed at the end.
        entry("free_requested", 5120, 444, 4),
        entry("segment_map", 8192, 4096, 5),
        entry("segment_unmap", 16384, 1024, 6),
    ];
    let blocks = [
        (512, 0, FREE),
        (512, 333, LIVE),
        (512, 444, PENDING),
        (512, 555, LIVE),
        (4096, 0, FREE),
    ];
    let trace = read_value(&snapshot(vec![segment(0, 4096, &blocks)], vec![history]));
    assert_eq!(sizes(&trace), [222, 444, 555, -222, 333, -444]);
    let note = "the history begins in the middle: 3 live blocks rebuilt from segments";
    assert_eq!(trace.notes, [note]);
    // 6144 at the end, 4096 of them mapped and 1024 unmapped since the beginning.
    let initial = trace.reserved[0];
    assert_eq!(
        (initial.action, initial.bytes),
        (ReservedAction::Initial, 3072)
    );
    assert_eq!(trace.recorded_peak_reserved_bytes(), Some(7168));
}

#[test]
fn without_a_history_the_live_blocks_are_the_trace() {
    let segments = vec![segment(
        0,
        4096,
        &[(512, 100, LIVE), (512, 0, FREE), (512, 300, LIVE)],
    )];
    let list = read_value(&Py::List(segments.clone()));
    assert_eq!(sizes(&list), [100, 300]);
    assert_eq!(
        list.notes,
        ["no history in the snapshot: its live blocks are the trace"]
    );
    let dict = read_value(&Py::Dict(vec![("segments", Py::List(segments))]));
    assert_eq!(dict, list);
}

#[test]
fn blocks_of_old_versions_have_neither_address_nor_requested_size() {
    let block = |size, real| {
        let history = Py::List(vec![Py::Dict(vec![
            ("addr", Py::Int(0)),
            ("real_size", Py::Int(real)),
        ])]);
        let state = Py::Str(LIVE);
        Py::Dict(vec![
            ("size", Py::Int(size)),
            ("state", state),
            ("history", history),
        ])
    };
    let segment = Py::Dict(vec![
        ("address", Py::Int(4096)),
        ("total_size", Py::Int(1024)),
        ("stream", Py::Int(0)),
        ("blocks", Py::List(vec![block(512, 10), block(512, 20)])),
    ]);
    assert_eq!(sizes(&read_value(&Py::List(vec![segment]))), [10, 20]);
}

#[test]
fn the_device_with_the_longest_history_is_taken() {
    let segments = vec![
        segment(0, 4096, &[(512, 100, LIVE)]),
        segment(1, 4096, &[(512, 200, LIVE)]),
        segment(1, 9216, &[(512, 300, LIVE)]),
    ];
    let short = vec![entry("alloc", 4096, 100, 1)];
    let long = vec![entry("alloc", 4096, 200, 1), entry("alloc", 9216, 300, 2)];
    let trace = read_value(&snapshot(segments.clone(), vec![short, long, vec![]]));
    assert_eq!(sizes(&trace), [200, 300]);
    assert_eq!(
        trace.notes,
        ["2 devices have a history: device 1 with 2 entries was taken"]
    );
    let trace = read_value(&Py::List(segments));
    assert_eq!(sizes(&trace), [200, 300]);
    assert_eq!(trace.notes[1], "2 devices have memory: device 1 was taken");
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let with = |entry: Py| pickle(4, &snapshot(vec![], vec![vec![entry]]));
    let short = Py::Dict(vec![("action", Py::Str("alloc")), ("addr", Py::Int(1))]);
    let typed = Py::Dict(vec![("action", Py::Str("alloc")), ("addr", Py::Str("x"))]);
    for (bytes, expected) in [
        (
            pickle(4, &Py::Int(5)),
            "the snapshot is the number 5, expected a dict",
        ),
        (
            pickle(4, &Py::Dict(vec![])),
            "the snapshot without `segments`",
        ),
        (with(short), "a history entry without `size`"),
        (with(typed), "addr is the string `x`, expected a number"),
        (
            with(Py::List(vec![])),
            "a history entry is a list, expected a dict",
        ),
        (with(entry("alloc", -5, 1, 1)), "addr is the number -5"),
        (
            with(entry("alloc", 1, 1, i64::MAX)),
            "time_us is `9223372036854775807`",
        ),
    ] {
        let line = refusal(&bytes);
        assert!(
            line.starts_with("PyTorch snapshot, byte ") && line.contains(expected),
            "{line}"
        );
    }
    let twice = vec![entry("alloc", 64, 1, 1), entry("alloc", 64, 1, 2)];
    let line = refusal(&pickle(4, &snapshot(vec![], vec![twice])));
    assert!(
        line.contains("allocates 64, which is live since byte "),
        "{line}"
    );
}

#[test]
fn a_call_site_is_named_by_the_frame_that_tells_most() {
    let label = |frames: &[(&str, u32, &str)]| {
        let frame = |&(file, line, function): &(&str, u32, &str)| {
            Arc::new(Frame {
                file: file.to_owned(),
                line,
                function: function.to_owned(),
            })
        };
        let frames = frames.iter().map(frame).collect();
        Site { frames }.label()
    };
    let allocator = (
        "??",
        0,
        "c10::cuda::CUDACachingAllocator::Native::malloc(void**)",
    );
    let operator = (
        "x.cpp",
        0,
        "at::native::(anonymous namespace)::add<float>(int)",
    );
    let torch = ("/site/torch/nn/linear.py", 134, "forward");
    let own = ("/home/train.py", 12, "step");
    assert_eq!(
        label(&[allocator, operator, torch, own]),
        "train.py:12 step"
    );
    assert_eq!(
        label(&[allocator, operator, torch]),
        "linear.py:134 forward"
    );
    assert_eq!(label(&[allocator, operator]), "at::native::add");
    assert_eq!(label(&[allocator, ("", 0, "main")]), "main");
    assert_eq!(label(&[]), "no frames");
}
