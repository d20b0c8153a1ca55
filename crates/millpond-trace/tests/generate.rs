//! Generated jobs, and writing: what is written reads back the same.

use std::collections::HashSet;
use std::num::NonZeroU64;

use millpond_trace::{
    Format, JobKind, Limits, Op, Step, Trace, read_bytes, read_path, write_ordered_csv,
};

fn written(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_ordered_csv(trace, &mut bytes).unwrap();
    bytes
}

fn read_back(name: &str, bytes: &[u8]) -> Trace {
    read_bytes(name, bytes, &Limits::default()).unwrap()
}

#[test]
fn what_is_generated_is_valid_and_reads_back_the_same() {
    for kind in JobKind::ALL {
        for seed in [0, 1, u64::MAX] {
            let trace = kind.generate(seed);
            trace.validate().unwrap();
            assert_eq!(trace.name, kind.name());
            assert_eq!(read_back(kind.name(), &written(&trace)), trace, "{kind:?}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    for kind in JobKind::ALL {
        let bytes = |seed| written(&kind.generate(seed));
        assert!(bytes(7) == bytes(7), "{kind:?}");
        assert!(bytes(7) != bytes(8), "{kind:?}");
    }
}

#[test]
fn names_are_told_apart_and_described() {
    let names: HashSet<_> = JobKind::ALL.map(JobKind::name).into();
    assert_eq!(names.len(), JobKind::ALL.len());
    for kind in JobKind::ALL {
        assert!(!kind.about().is_empty());
    }
}

#[test]
fn every_block_is_freed_and_every_wait_is_for_a_record() {
    for kind in JobKind::ALL {
        let trace = kind.generate(3);
        let mut live = HashSet::new();
        let mut recorded = HashSet::new();
        for step in &trace.steps {
            match step.op {
                Op::Alloc { block, .. } => assert!(live.insert(block)),
                Op::Free { block, .. } => assert!(live.remove(&block), "{kind:?}"),
                Op::Record { event, .. } => {
                    recorded.insert(event);
                }
                Op::Wait { event, .. } => assert!(recorded.contains(&event), "{kind:?}"),
                _ => {}
            }
        }
        assert!(live.is_empty(), "{kind:?}: {live:?}");
    }
}

/// Hundreds of MiB to a few GiB live, on as many streams as is said, with the host ahead.
#[test]
fn jobs_are_as_large_as_real_ones_and_their_hosts_are_ahead() {
    for kind in JobKind::ALL {
        let trace = kind.generate(0);
        let live = trace.peak_live_bytes() >> 20;
        assert!((256..8192).contains(&live), "{kind:?}: {live} MiB");
        let streams = match kind {
            JobKind::StageChain => 4,
            JobKind::IndependentStreams => 12,
            JobKind::ProducerConsumers => 7,
            _ => 1,
        };
        assert_eq!(trace.streams.len(), streams, "{kind:?}");
        assert!((5_000..200_000).contains(&trace.steps.len()), "{kind:?}");
        let ahead = |step: &Step| match step.op {
            Op::Free { device_ns, .. } => Some(device_ns.map_or(0, NonZeroU64::get) > step.host_ns),
            _ => None,
        };
        let frees: Vec<bool> = trace.steps.iter().filter_map(ahead).collect();
        let of_device = frees.iter().filter(|&&ahead| ahead).count();
        assert!(
            of_device * 2 > frees.len(),
            "{kind:?}: {of_device} of {}",
            frees.len()
        );
    }
}

/// Within a stream, work goes on in order: what is waited for is not later than what comes then.
#[test]
fn marks_of_a_stream_come_after_what_it_waited_for() {
    for kind in JobKind::ALL {
        let trace = kind.generate(5);
        let mut events = vec![0; trace.event_count as usize];
        let mut from = vec![0; trace.streams.len()];
        // A block's last use may be before a wait; a record comes after it.
        for step in &trace.steps {
            match step.op {
                Op::Record {
                    event,
                    stream,
                    device_ns,
                } => {
                    let reached = device_ns.unwrap().get();
                    assert!(reached >= from[stream as usize], "{kind:?}: {step:?}");
                    assert!(reached >= step.host_ns, "{kind:?}: {step:?}");
                    from[stream as usize] = reached;
                    events[event as usize] = reached;
                }
                Op::Wait { event, stream } => {
                    let from = &mut from[stream as usize];
                    *from = (*from).max(events[event as usize]);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_recording_is_written_as_it_was_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    for name in ["offload_streams", "fsdp_prefetch", "mixed_dynamic"] {
        let path = folder.join(format!("{name}.ordered.csv.gz"));
        let mut trace = read_path(&path).unwrap();
        let again = read_back(&trace.name, &written(&trace));
        trace.notes.clear();
        assert_eq!(again, trace);
    }
    // Another format: the handles are the same, in decimal; what was reserved is not written.
    let log = read_path(&folder.join("rmm_cupy_log.csv.gz")).unwrap();
    let again = read_back(&log.name, &written(&log));
    assert_eq!(again.steps, log.steps);
    assert_eq!(again.format, Format::OrderedCsv);
    let decimal = |name: &String| match name.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap().to_string(),
        None => name.clone(),
    };
    assert_eq!(
        again.streams,
        log.streams.iter().map(decimal).collect::<Vec<_>>()
    );
}

#[test]
fn times_are_written_to_the_nanosecond() {
    let text = "op,block,size,stream,event,host_us,device_us\nalloc,0,5,0,,0.000,\n\
                use,0,5,9,,0.001,\nuse_end,0,5,9,,1.010,7.000\nfree,0,5,0,,1.010,\n\
                record,,,9,0,12.345,4000000.001\nwait,,,0,0,12.345,\n";
    let trace = read_back("t.csv", text.as_bytes());
    assert_eq!(String::from_utf8(written(&trace)).unwrap(), text);
}

#[test]
fn what_does_not_hold_together_is_not_written() {
    let text = "op,block,size,stream,event,host_us,device_us\nalloc,0,5,0,,0,\n";
    let good = read_back("t.csv", text.as_bytes());
    let mut without_handle = good.clone();
    without_handle.streams = vec!["copy".to_owned()];
    let mut freed_twice = good.clone();
    let step = Step {
        host_ns: 1,
        op: Op::Free {
            block: 0,
            stream: 0,
            device_ns: None,
        },
    };
    freed_twice.steps.extend([step, step]);
    for (trace, what) in [
        (without_handle, "`copy` is no stream handle"),
        (freed_twice, "block 0 is not live"),
    ] {
        let mut bytes = Vec::new();
        let error = write_ordered_csv(&trace, &mut bytes).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(what), "{error}");
        assert!(bytes.is_empty());
    }
}
