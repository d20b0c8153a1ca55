//! The recordings in `traces/`: what is known of them must come out.

mod support;

use std::collections::BTreeMap;

use millpond_trace::{Op, Trace, read_path};
use support::{RECORDINGS, recording};

const MIB: f64 = 1048576.0;

fn golden(name: &str) -> Trace {
    let trace = read_path(&recording(name)).unwrap();
    trace.validate().unwrap();
    trace
}

fn count(trace: &Trace, wanted: impl Fn(&Op) -> bool) -> usize {
    trace.steps.iter().filter(|step| wanted(&step.op)).count()
}

#[test]
fn every_recording_has_its_known_facts() {
    // Name, steps, blocks, events, streams, peak live MiB, recorded reserved MiB.
    let facts = [
        ("fsdp_prefetch.ordered", 8537, 2029, 1400, 3, 1460, None),
        ("gnn_sampled", 9174, 4587, 0, 1, 4128, Some(13_574)),
        ("gnn_sampled", 9177, 4590, 0, 1, 4193, Some(13_640)),
        ("mixed_dynamic.ordered", 12_196, 6100, 0, 2, 1532, None),
        ("offload_streams.ordered", 13_970, 4682, 1152, 2, 545, None),
        ("rmm_cupy_log", 4652, 2326, 0, 15, 2694, None),
        ("small_full_context", 254, 135, 0, 1, 108, Some(128)),
    ];
    for (file, fact) in RECORDINGS.iter().zip(facts) {
        let trace = golden(file);
        let mib = |bytes: u64| (bytes as f64 / MIB).round() as u64;
        let found = (
            trace.name.as_str(),
            trace.steps.len(),
            trace.block_count,
            trace.event_count,
            trace.streams.len(),
            mib(trace.peak_live_bytes()),
            trace.recorded_peak_reserved_bytes().map(mib),
        );
        assert_eq!(found, fact, "{file}");
        assert_eq!(trace.ordered, file.contains(".ordered."), "{file}");
    }
}

#[test]
fn notes_tell_what_was_rebuilt_and_nothing_was_dropped() {
    for file in RECORDINGS {
        let expected: &[&str] = match file {
            "gnn_sampled.pickle.gz" => {
                &["the history begins in the middle: 3 live blocks rebuilt from segments"]
            }
            "small_full_context.pickle.gz" => &["1 out-of-memory events in the recording"],
            _ => &[],
        };
        assert_eq!(golden(file).notes, expected, "{file}");
    }
}

#[test]
fn the_snapshot_and_the_events_of_one_job_agree() {
    let mut snapshot = golden("gnn_sampled.pickle.gz");
    let events = golden("gnn_sampled.csv.gz");
    snapshot.steps.drain(..3);
    let shapes = |trace: &Trace, shift: u32| -> Vec<(u64, Op)> {
        let down = |block| block - shift;
        let steps = trace.steps.iter().map(|step| match step.op {
            Op::Alloc {
                block,
                size,
                stream,
            } => (
                step.host_ns,
                Op::Alloc {
                    block: down(block),
                    size,
                    stream,
                },
            ),
            Op::Free {
                block,
                stream,
                device_ns,
            } => (
                step.host_ns,
                Op::Free {
                    block: down(block),
                    stream,
                    device_ns,
                },
            ),
            op => (step.host_ns, op),
        });
        steps.collect()
    };
    assert_eq!(shapes(&snapshot, 3), shapes(&events, 0));
}

#[test]
fn ordered_recordings_balance_uses_and_events() {
    for (file, uses, waits) in [
        ("fsdp_prefetch.ordered.csv.gz", 840, 1400),
        ("offload_streams.ordered.csv.gz", 1152, 1152),
        ("mixed_dynamic.ordered.csv.gz", 0, 0),
    ] {
        let trace = golden(file);
        assert_eq!(
            count(&trace, |op| matches!(op, Op::Use { .. })),
            uses,
            "{file}"
        );
        assert_eq!(
            count(&trace, |op| matches!(op, Op::UseEnd { .. })),
            uses,
            "{file}"
        );
        assert_eq!(
            count(&trace, |op| matches!(op, Op::Record { .. })),
            waits,
            "{file}"
        );
        assert_eq!(
            count(&trace, |op| matches!(op, Op::Wait { .. })),
            waits,
            "{file}"
        );
    }
}

/// The lag of a free, and the bytes live or freed but not complete, need both clocks right; the
/// figures come from another program's reading of the same files.
#[test]
fn device_times_give_the_known_lags_and_bytes_in_use() {
    // Lag of a free on its own stream in ns: median and 90th percentile. Peak MiB in use, and
    // in use if only blocks used on a second stream are held until they are complete.
    for (file, median, p90, in_use, in_use_shared) in [
        (
            "fsdp_prefetch.ordered.csv.gz",
            19_450_500,
            29_565_200,
            11_596,
            4369,
        ),
        (
            "offload_streams.ordered.csv.gz",
            20_126_800,
            58_833_000,
            10_753,
            4657,
        ),
        (
            "mixed_dynamic.ordered.csv.gz",
            37_477_600,
            86_072_400,
            17_087,
            1532,
        ),
    ] {
        let trace = golden(file);
        let (mut lags, mut sizes) = (Vec::new(), Vec::new());
        let mut last_use = BTreeMap::<u32, u64>::new();
        let (mut all, mut shared) = (Vec::new(), Vec::new());
        for step in &trace.steps {
            match step.op {
                Op::Alloc { size, .. } => {
                    sizes.push(size as i64);
                    all.push((step.host_ns, size as i64));
                    shared.push((step.host_ns, size as i64));
                }
                Op::UseEnd {
                    block, device_ns, ..
                } => {
                    let end = last_use.entry(block).or_default();
                    *end = device_ns.unwrap().get().max(*end);
                }
                Op::Free {
                    block, device_ns, ..
                } => {
                    let own = device_ns.unwrap().get();
                    lags.push(own - step.host_ns);
                    let other = last_use.get(&block);
                    let done = own.max(other.copied().unwrap_or(0));
                    let size = sizes[block as usize];
                    all.push((done, -size));
                    shared.push((other.map_or(step.host_ns, |_| done), -size));
                }
                _ => {}
            }
        }
        lags.sort_unstable();
        assert_eq!(lags[lags.len() / 2], median, "{file}");
        assert_eq!(lags[lags.len() * 9 / 10], p90, "{file}");
        assert_eq!(
            (peak_mib(all), peak_mib(shared)),
            (in_use, in_use_shared),
            "{file}"
        );
    }
}

/// The peak of bytes taken (+) and given back (-) at times; at one time, gifts come first.
fn peak_mib(mut changes: Vec<(u64, i64)>) -> u64 {
    changes.sort_unstable();
    let (mut held, mut peak) = (0, 0);
    for (_, change) in changes {
        held += change;
        peak = peak.max(held);
    }
    (peak as f64 / MIB).round() as u64
}
