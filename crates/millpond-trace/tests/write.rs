//! Every recording, written in every format and read back, is the same as far as the format goes.

mod support;

use std::process::Command;

use millpond_trace::{Format, JobKind, Limits, Op, Trace, read_bytes, read_path, write};
use support::{RECORDINGS, recording};

const FORMATS: [Format; 4] = [
    Format::OrderedCsv,
    Format::EventCsv,
    Format::RmmLog,
    Format::PytorchSnapshot,
];

fn written(trace: &Trace, format: Format) -> (Vec<u8>, Vec<String>) {
    let mut bytes = Vec::new();
    let lost = write(trace, format, &mut bytes).unwrap();
    (bytes, lost)
}

fn read_back(bytes: &[u8]) -> Trace {
    let trace = read_bytes("again", bytes, &Limits::default()).unwrap();
    trace.validate().unwrap();
    trace
}

fn recordings() -> impl Iterator<Item = Trace> {
    let shipped = RECORDINGS
        .iter()
        .map(|name| read_path(&recording(name)).unwrap());
    let made = JobKind::ALL.into_iter().map(|kind| kind.generate(3));
    shipped.chain(made)
}

/// Allocations and frees: time in units of `unit` nanoseconds, block, size, stream.
fn calls(trace: &Trace, unit: u64) -> Vec<(u64, u32, Option<u64>, u64)> {
    let handle = |stream: u32| {
        let name = &trace.streams[stream as usize];
        match name.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
            None => name.parse().unwrap(),
        }
    };
    let call = |op| match op {
        Op::Alloc {
            block,
            size,
            stream,
        } => Some((block, Some(size), handle(stream))),
        Op::Free { block, stream, .. } => Some((block, None, handle(stream))),
        _ => None,
    };
    let steps = trace.steps.iter();
    steps
        .filter_map(|step| {
            let (block, size, stream) = call(step.op)?;
            Some((step.host_ns / unit, block, size, stream))
        })
        .collect()
}

#[test]
fn what_a_format_carries_comes_back() {
    for trace in recordings() {
        for format in FORMATS {
            let (bytes, lost) = written(&trace, format);
            let again = read_back(&bytes);
            let unit = match format {
                Format::PytorchSnapshot => 1000,
                _ => 1,
            };
            let name = &trace.name;
            assert!(
                calls(&trace, unit) == calls(&again, unit),
                "{name} as {format}"
            );
            if lost.is_empty() {
                assert_eq!(again.steps.len(), trace.steps.len(), "{name} as {format}");
            }
            if format == Format::OrderedCsv {
                assert!(again.steps == trace.steps, "{name}");
            }
            let Some(was) = trace.recorded_peak_reserved_bytes() else {
                continue;
            };
            let is = again.recorded_peak_reserved_bytes().unwrap_or(0);
            match format {
                Format::OrderedCsv | Format::RmmLog => {}
                Format::EventCsv => assert_eq!(is, was, "{name} as {format}"),
                // Blocks that were there before an event list began lie in segments that it does
                // not name.
                Format::PytorchSnapshot if trace.format == Format::EventCsv => {
                    assert!(is >= was && is - was < 1 << 20, "{name}: {is} for {was}");
                }
                Format::PytorchSnapshot => assert_eq!(is, was, "{name} as {format}"),
            }
        }
    }
}

#[test]
fn a_snapshot_comes_back_with_its_stacks_addresses_and_failures() {
    let trace = read_path(&recording("small_full_context.pickle.gz")).unwrap();
    let (bytes, lost) = written(&trace, Format::PytorchSnapshot);
    assert_eq!(lost, [""; 0]);
    let again = read_back(&bytes);
    assert_eq!(again.steps, trace.steps);
    assert_eq!(again.reserved, trace.reserved);
    assert_eq!(again.failures, trace.failures);
    assert_eq!(again.addresses, trace.addresses);
    assert!(!trace.sites.is_empty());
    for block in 0..trace.block_count {
        assert_eq!(again.site_of(block), trace.site_of(block));
    }
    // Once written, it is written the same again.
    assert!(written(&again, Format::PytorchSnapshot).0 == bytes);
}

#[test]
fn what_is_lost_is_said() {
    let trace = read_path(&recording("offload_streams.ordered.csv.gz")).unwrap();
    let (_, lost) = written(&trace, Format::RmmLog);
    assert_eq!(
        lost,
        [
            "1152 uses on further streams",
            "2304 records of events and waits for them",
            "6984 times of the device",
        ]
    );
    let trace = read_path(&recording("small_full_context.pickle.gz")).unwrap();
    let (_, lost) = written(&trace, Format::OrderedCsv);
    assert!(lost.iter().any(|l| l.contains("call stacks")), "{lost:?}");
    assert!(lost.iter().any(|l| l.contains("failed")), "{lost:?}");
}

/// PyTorch's viewer takes a snapshot only if all its parts agree; a script of our own checks that.
#[test]
fn snapshots_keep_the_rules_of_the_viewer() {
    let Ok(version) = Command::new("python3").arg("--version").output() else {
        println!("skipped: no python3");
        return;
    };
    assert!(version.status.success());
    let folder = std::env::temp_dir().join(format!("millpond-snapshots-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut check = Command::new("python3");
    check.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/check_snapshot.py"
    ));
    for (number, trace) in recordings().enumerate() {
        let path = folder.join(format!("{number}.pickle"));
        std::fs::write(&path, written(&trace, Format::PytorchSnapshot).0).unwrap();
        check.arg(path);
    }
    let output = check.output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn blocks_without_room_for_their_addresses_are_refused() {
    let size = u64::MAX / 2;
    let text = format!(
        "op,block,size,stream,event,host_us,device_us\nalloc,0,{size},0,,0,\nalloc,1,{size},0,,1,\n\
         free,0,{size},0,,2,\n"
    );
    let trace = read_back(text.as_bytes());
    for format in [Format::EventCsv, Format::RmmLog, Format::PytorchSnapshot] {
        let error = write(&trace, format, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{format}");
    }
    written(&trace, Format::OrderedCsv);
}

/// An expandable segment grows, shrinks and is there from before; two of its ranges touch.
#[test]
fn expandable_segments_are_put_together() {
    let text = "action,addr,size,stream,time_us\nsegment_map,4096000,2048,0,1\n\
                alloc,4096000,2000,0,2\nsegment_map,4098048,2048,0,3\nalloc,4098048,2048,0,4\n\
                segment_unmap,8192000,4096,0,5\nfree_requested,4096000,2000,0,6\n\
                segment_unmap,4096000,2048,0,7\n";
    let trace = read_back(text.as_bytes());
    let (bytes, lost) = written(&trace, Format::PytorchSnapshot);
    assert_eq!(lost, [""; 0]);
    let again = read_back(&bytes);
    let changes = |trace: &Trace| -> Vec<_> {
        let known = trace.reserved.iter().filter(|r| r.address.is_some());
        known
            .map(|r| (r.step, r.action, r.bytes, r.address))
            .collect()
    };
    assert_eq!(changes(&again), changes(&trace));
    // 4096 from before, and two times 2048.
    assert_eq!(again.recorded_peak_reserved_bytes(), Some(8192));
}
