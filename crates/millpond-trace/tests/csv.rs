//! The three text formats on tiny inputs: what becomes a step, what a note, what an error.

mod support;

use std::num::NonZeroU64;

use millpond_trace::{ErrorKind, Format, Limits, Op, Position, ReservedAction, Trace};
use support::{gzip, read, read_within, refusal};

const EVENTS: &str = "action,addr,size,stream,time_us\n";
const ORDERED: &str = "op,block,size,stream,event,host_us,device_us\n";
const RMM: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn events(rows: &str) -> Trace {
    read(format!("{EVENTS}{rows}").as_bytes()).unwrap()
}

fn ordered(rows: &str) -> Trace {
    read(format!("{ORDERED}{rows}").as_bytes()).unwrap()
}

fn rmm(rows: &str) -> Trace {
    read(format!("{RMM}{rows}").as_bytes()).unwrap()
}

fn ops(trace: &Trace) -> Vec<Op> {
    trace.steps.iter().map(|step| step.op).collect()
}

fn alloc(block: u32, size: u64, stream: u32) -> Op {
    Op::Alloc {
        block,
        size,
        stream,
    }
}

fn free(block: u32, stream: u32) -> Op {
    Op::Free {
        block,
        stream,
        device_ns: None,
    }
}

#[test]
fn event_csv_takes_the_jobs_calls_and_keeps_the_allocators_apart() {
    let trace = events(
        "segment_alloc,4096,2097152,0,5\n\
         alloc,4096,100,0,10\n\
         alloc,8192,0,77,11\n\
         free_requested,4096,100,0,12\n\
         free_completed,4096,100,0,13\n\
         alloc,4096,7,0,14\n\
         snapshot,0,107,0,14\n\
         oom,,99,0,14\n\
         segment_free,4096,2097152,0,15\n",
    );
    assert_eq!(trace.format, Format::EventCsv);
    assert!(!trace.ordered);
    assert_eq!(
        ops(&trace),
        [alloc(0, 100, 0), alloc(1, 0, 1), free(0, 0), alloc(2, 7, 0)]
    );
    assert_eq!(
        trace.steps.iter().map(|s| s.host_ns).collect::<Vec<_>>(),
        [0, 1000, 2000, 4000]
    );
    assert_eq!(trace.streams, ["0", "77"]);
    assert_eq!(trace.peak_live_bytes(), 100);
    let reserved: Vec<_> = trace.reserved.iter().map(|r| (r.step, r.action)).collect();
    assert_eq!(
        reserved,
        [
            (0, ReservedAction::SegmentAlloc),
            (4, ReservedAction::SegmentFree)
        ]
    );
    assert_eq!(trace.recorded_peak_reserved_bytes(), Some(2_097_152));
    assert_eq!(trace.notes, ["1 out-of-memory events in the recording"]);
}

#[test]
fn a_completed_free_counts_only_without_a_request() {
    let trace = events("alloc,1,5,0,1\nfree_completed,1,5,0,2\n");
    assert_eq!(ops(&trace), [alloc(0, 5, 0), free(0, 0)]);
    // The address is handed out again while the first free has not completed.
    let gap = events(
        "alloc,1,5,0,1\nfree_requested,1,5,0,2\nalloc,1,6,0,3\nfree_requested,1,6,0,4\n\
         free_completed,1,6,0,5\n",
    );
    assert_eq!(
        ops(&gap),
        [alloc(0, 5, 0), free(0, 0), alloc(1, 6, 0), free(1, 0)]
    );
    assert!(gap.notes.is_empty());
}

#[test]
fn frees_of_unknown_blocks_are_noted_once_each() {
    let trace = events(
        "free_requested,9,5,0,1\nfree_completed,9,5,0,2\nfree_completed,10,5,0,2\n\
         alloc,9,5,0,3\n",
    );
    assert_eq!(ops(&trace), [alloc(0, 5, 0)]);
    assert_eq!(trace.notes, ["2 frees of unknown blocks ignored"]);
}

#[test]
fn an_address_that_is_live_is_not_allocated_again() {
    let line = refusal(format!("{EVENTS}alloc,64,5,0,1\n\nalloc,64,5,0,2\n").as_bytes());
    assert!(
        line.starts_with("event CSV, line 4: allocates 64, which is live since line 2; "),
        "{line}"
    );
}

#[test]
fn malformed_lines_are_named_by_line_and_field() {
    for (rows, expected) in [
        (
            "alloc,1,5,0\n",
            "line 2: the line is `alloc,1,5,0`, expected 5 fields",
        ),
        ("alloc,x,5,0,1\n", "line 2: addr is `x`"),
        ("alloc,1,-5,0,1\n", "line 2: size is `-5`"),
        (
            "alloc,1,5,0,1\nalloc,2,5,zero,1",
            "line 3: stream is `zero`",
        ),
        ("alloc,1,5,0,1e9\n", "line 2: time_us is `1e9`"),
        ("grow,1,5,0,1\n", "line 2: action is `grow`"),
        (
            "alloc,1,18446744073709551615,0,1\nalloc,2,1,0,1\n",
            "line 3: the live blocks add up",
        ),
        ("\u{1b}[2J,1,5,0,1\n", "line 2: action is `\\x1b[2J`"),
    ] {
        let line = refusal(format!("{EVENTS}{rows}").as_bytes());
        assert!(line.contains(expected), "{rows:?}: {line}");
    }
}

#[test]
fn time_never_runs_backwards() {
    let trace = events("alloc,1,5,0,100\nalloc,2,5,0,90\nalloc,3,5,0,101\n");
    assert_eq!(
        trace.steps.iter().map(|s| s.host_ns).collect::<Vec<_>>(),
        [0, 0, 1000]
    );
    assert_eq!(
        trace.notes,
        ["1 times before the step ahead of them moved up to it"]
    );
}

#[test]
fn ordered_csv_has_uses_events_and_device_times() {
    let trace = ordered(
        "alloc,0,64,5,,10.5,\n\
         record,,,5,40,11.0,12\n\
         wait,,,6,40,11.25,\n\
         use,0,64,6,,12.0,13\n\
         use_end,0,64,6,,14.0,20.125\n\
         free,0,64,5,,15.0,10.5\n",
    );
    let at = NonZeroU64::new;
    assert!(trace.ordered);
    assert_eq!((trace.block_count, trace.event_count), (1, 1));
    assert_eq!(
        ops(&trace),
        [
            alloc(0, 64, 0),
            Op::Record {
                event: 0,
                stream: 0,
                device_ns: at(1_500)
            },
            Op::Wait {
                event: 0,
                stream: 1
            },
            Op::Use {
                block: 0,
                stream: 1
            },
            Op::UseEnd {
                block: 0,
                stream: 1,
                device_ns: at(9_625)
            },
            // The device's time equals the first step's: it is given as 1.
            Op::Free {
                block: 0,
                stream: 0,
                device_ns: at(1)
            },
        ]
    );
    assert_eq!(trace.steps[2].host_ns, 750);
    assert!(trace.notes.is_empty());
}

#[test]
fn what_does_not_fit_in_an_ordered_csv_is_left_out_and_noted() {
    let trace = ordered(
        "wait,,,0,7,1,\n\
         use,3,64,1,,2,\n\
         alloc,3,64,0,,3,\n\
         use_end,3,64,1,,4,5\n\
         use,3,64,1,,5,\n\
         use,3,64,2,,5,\n\
         use,3,64,1,,5,\n\
         free,3,65,0,,6,2\n\
         free,3,64,0,,7,8\n",
    );
    assert_eq!(
        ops(&trace),
        [
            alloc(0, 64, 0),
            Op::Use {
                block: 0,
                stream: 1
            },
            Op::Use {
                block: 0,
                stream: 2
            },
            Op::Use {
                block: 0,
                stream: 1
            },
            Op::UseEnd {
                block: 0,
                stream: 1,
                device_ns: None
            },
            Op::UseEnd {
                block: 0,
                stream: 2,
                device_ns: None
            },
            Op::Free {
                block: 0,
                stream: 0,
                device_ns: NonZeroU64::new(1)
            },
        ]
    );
    assert_eq!(
        trace.notes,
        [
            "1 frees of unknown blocks ignored",
            "1 frees name another size than the allocation, whose is kept",
            "2 uses or ends of uses without a live block in use ignored",
            "2 uses without an end were ended at the free",
            "1 waits for events never recorded ignored",
            "1 device times before the first step moved up to it",
        ]
    );
}

#[test]
fn blocks_and_events_of_any_number_become_dense() {
    let trace = ordered(
        "record,,,0,18446744073709551615,1,1\nrecord,,,0,5,1,1\n\
         record,,,0,18446744073709551615,2,2\nwait,,,0,18446744073709551615,3,\n\
         alloc,900,1,0,,4,\nfree,900,1,0,,5,\nalloc,900,2,0,,6,\n",
    );
    assert_eq!((trace.block_count, trace.event_count), (2, 2));
    assert_eq!(
        trace.steps[3].op,
        Op::Wait {
            event: 0,
            stream: 0
        }
    );
    assert_eq!(trace.steps[6].op, alloc(1, 2, 0));
}

#[test]
fn rmm_rows_in_every_spelling() {
    let trace = rmm("586,23:59:59.999999,allocate,0x7fb6e2000000,100,0\n\
         587,00:00:00.000001,allocate,7FB6E2000100,50,0x302bc4d0\n\
         587,00:00:00:000002,allocate failure,(nil),9999,302bc4d0\n\
         587,00:00:00.000003,allocate,(nil),0,0\n\
         [2026-01-02 03:04:05.678] [rmm] [info] 587,00:00:00.000004,free,0x7fb6e2000000,100,302bc4d0\n\
         Thread,Time,Action,Pointer,Size,Stream\n\
         587,00:00:00.000005,free,0xdead,1,0\n");
    assert_eq!(trace.format, Format::RmmLog);
    // The free is on another stream than the allocation, as the log says.
    assert_eq!(ops(&trace), [alloc(0, 100, 0), alloc(1, 50, 1), free(0, 1)]);
    assert_eq!(
        trace.steps.iter().map(|s| s.host_ns).collect::<Vec<_>>(),
        [0, 2_000, 5_000]
    );
    assert_eq!(trace.streams, ["0", "0x302bc4d0"]);
    assert_eq!(
        trace.notes,
        [
            "1 failed allocations in the recording",
            "1 allocations and frees of (nil) ignored",
            "1 frees of unknown blocks ignored",
        ]
    );
    for (rows, expected) in [
        ("1,25:00:00.0,allocate,0x1,1,0\n", "line 2: Time is"),
        (
            "1,20:00:00.0,allocate,ptr,1,0\n",
            "line 2: Pointer is `ptr`",
        ),
        ("1,20:00:00.0,grow,0x1,1,0\n", "line 2: Action is `grow`"),
        (
            "1,20:00:00.0,allocate,0x1,1,0\n2,20:00:00.0,allocate,1,1,0\n",
            "line 3: allocates 0x1",
        ),
    ] {
        let line = refusal(format!("{RMM}{rows}").as_bytes());
        assert!(
            line.starts_with("RMM log, ") && line.contains(expected),
            "{rows:?}: {line}"
        );
    }
}

#[test]
fn the_format_is_found_by_content() {
    let row = "1,20:00:00.5,allocate,0x1,1,0\n";
    for (text, format) in [
        (format!("\u{feff}{EVENTS}"), Format::EventCsv),
        (
            format!("\r\n\n{}alloc,1,5,0,1\r\n", EVENTS.replace('\n', "\r\n")),
            Format::EventCsv,
        ),
        (ORDERED.to_owned(), Format::OrderedCsv),
        (format!("[info] {RMM}{row}"), Format::RmmLog),
        (row.to_owned(), Format::RmmLog),
    ] {
        for bytes in [text.clone().into_bytes(), gzip(text.as_bytes())] {
            assert_eq!(read(&bytes).unwrap().format, format, "{text:?}");
        }
    }
    // A log without a header loses no row, and positions count the lines before the first.
    assert_eq!(read(row.as_bytes()).unwrap().steps.len(), 1);
    let late = refusal(format!("\n\n{row}{row}").as_bytes());
    assert!(
        late.contains("line 4: allocates 0x1, which is live since line 3"),
        "{late}"
    );
}

#[test]
fn several_gzip_members_are_one_file() {
    let joined = [gzip(EVENTS.as_bytes()), gzip(b"alloc,1,5,0,1\n")].concat();
    assert_eq!(read(&joined).unwrap().steps.len(), 1);
}

#[test]
fn what_is_no_recording_says_so() {
    for (bytes, expected) in [
        (&b""[..], "at the start: the file is empty; "),
        (b"\n\n\n", "at the start: the file is empty; "),
        (
            b"PK\x03\x04zip",
            "no known format: it begins with `PK\\x03\\x04zip`; give a PyTorch",
        ),
        (b"(dp0\n.", "no known format: it begins with `(dp0`; "),
        (
            b"\x1f\x8b",
            "byte 0: the gzip stream is damaged or cut short",
        ),
    ] {
        let line = refusal(bytes);
        assert!(line.contains(expected), "{line}");
    }
    let mut cut = gzip(format!("{EVENTS}alloc,1,5,0,1\n").as_bytes());
    cut.truncate(cut.len() - 6);
    assert!(refusal(&cut).contains("the gzip stream is damaged or cut short"));
    let missing = millpond_trace::read_path("no/such/file".as_ref()).unwrap_err();
    assert!(matches!(missing.kind, ErrorKind::Io(_)));
    assert_eq!(missing.position, Position::Start);
}

#[test]
fn limits_end_in_an_error() {
    let rows: String = (0..100).map(|i| format!("alloc,{i},5,{i},{i}\n")).collect();
    let text = format!("{EVENTS}{rows}");
    let wide = Limits::default();
    for (limits, expected) in [
        (
            Limits {
                steps: 10,
                ..wide.clone()
            },
            "line 12: more than 10 steps",
        ),
        (
            Limits {
                streams: 10,
                ..wide.clone()
            },
            "line 12: more than 10 streams",
        ),
        (
            Limits {
                line_bytes: 20,
                ..wide.clone()
            },
            "line 1: more than 20 bytes in one line",
        ),
        (
            Limits {
                decompressed_bytes: 99,
                ..wide
            },
            "more than 99 bytes of content",
        ),
    ] {
        let line = read_within(text.as_bytes(), &limits)
            .unwrap_err()
            .to_string();
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn a_gzip_bomb_ends_at_the_expansion_limit() {
    let bomb = gzip(&vec![b'\n'; 64 << 20]);
    assert!(bomb.len() < 1 << 20);
    let line = refusal(&bomb);
    assert!(line.contains("bytes out of a gzip file so small"), "{line}");
}
