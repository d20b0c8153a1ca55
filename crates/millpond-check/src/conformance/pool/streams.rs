//! Streams of every kind, and their coming and going.

use std::thread;

use millpond::device::{Device, Findings, Pattern, StreamId, StreamOrder};

use super::MIB;
use super::bench::Bench;
use crate::conformance::{Fixture, Kind, Outcome, Skipped};

/// Per-thread default streams: one handle value, and memory freed on one thread's is not free for
/// another's.
pub(super) fn default_streams_of_threads_are_many(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let own = StreamId::PER_THREAD;
    drop(bench.allocate(4 * MIB, own));
    bench.pool().synchronize().unwrap();
    let hold = fixture.hold(own);
    let block = bench.allocate(4 * MIB, own);
    let address = block.address();
    drop(block);
    thread::scope(|scope| {
        let bench = &bench;
        let other = scope.spawn(move || {
            let block = bench.allocate(4 * MIB, own);
            assert_ne!(block.address(), address);
            block.verify_on(own);
            // Would hang if it were the stream that is held, or waited for it.
            bench.device.synchronize_stream(own).unwrap();
        });
        other.join().unwrap();
    });
    assert_eq!(bench.allocate(4 * MIB, own).address(), address);
    drop(hold);
    bench.end();
    Ok(())
}

/// `CU_STREAM_LEGACY` and the null handle are one stream.
pub(super) fn the_legacy_stream_has_two_names(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    drop(bench.allocate(4 * MIB, StreamId::DEFAULT));
    let hold = fixture.hold(StreamId::DEFAULT);
    let block = bench.allocate(4 * MIB, StreamId::DEFAULT);
    let address = block.address();
    drop(block);
    assert_eq!(bench.allocate(4 * MIB, StreamId::LEGACY).address(), address);
    drop(hold);
    bench.end();
    Ok(())
}

/// DRV, stream synchronization behavior: the legacy stream is ordered with blocking streams, but
/// not with others. With all memory on one of these, each of them gets it only after a wait.
pub(super) fn the_legacy_streams_order_is_no_licence(fixture: &Fixture) -> Outcome {
    for order in [StreamOrder::WithLegacy, StreamOrder::Independent] {
        let bench = Bench::new(fixture, 8 * MIB);
        let stream = bench.device.create_stream(order).unwrap();
        for (first, second) in [(stream, StreamId::LEGACY), (StreamId::LEGACY, stream)] {
            drop(bench.allocate(8 * MIB, first));
            bench.pool().synchronize().unwrap();
            let hold = fixture.hold(first);
            drop(bench.allocate(8 * MIB, first));
            let block = bench.allocate(8 * MIB, second);
            let written = bench.recorded(second);
            assert!(!bench.is_done(written), "{first} before {second}");
            drop(hold);
            drop(block);
            bench.pool().synchronize().unwrap();
        }
        bench.end();
    }
    Ok(())
}

/// RMM pool suite, deleted stream: what was freed on a stream that is gone serves others, and no
/// earlier than its work is over.
pub(super) fn memory_of_a_destroyed_stream_serves_again(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 8 * MIB);
    let stream = bench.stream();
    for _ in 0..20 {
        let gone = bench.stream();
        drop(bench.allocate(8 * MIB, gone));
        drop(bench.allocate(10_000, gone));
        bench.destroy(gone);
        drop(bench.allocate(10_000, stream));
        drop(bench.allocate(8 * MIB, stream));
    }
    bench.pool().synchronize().unwrap();
    let gone = bench.stream();
    let hold = fixture.hold(gone);
    drop(bench.allocate(8 * MIB, gone));
    bench.destroy(gone);
    let block = bench.allocate(8 * MIB, stream);
    let written = bench.recorded(stream);
    assert!(!bench.is_done(written), "the old stream's work comes first");
    drop(hold);
    drop(block);
    bench.end();
    Ok(())
}

/// DRV `cuStreamGetId`: a handle value may be given to a new stream, which comes after nothing that
/// the old one did; the pool must tell them apart although nobody told it.
pub(super) fn a_handle_value_that_comes_again_is_another_stream(fixture: &Fixture) -> Outcome {
    if !fixture.device().capabilities().stream_values_recur {
        return Err(Skipped("stream values do not come again".into()));
    }
    let bench = Bench::new(fixture, 64 * MIB);
    let old = bench.stream();
    drop(bench.allocate(4 * MIB, old));
    let hold = fixture.hold(old);
    let block = bench.allocate(4 * MIB, old);
    let address = block.address();
    drop(block);
    bench.destroy_untold(old);
    let tried: Vec<StreamId> = std::iter::repeat_with(|| bench.stream())
        .take(64)
        .scan(false, |found, stream| {
            let before = std::mem::replace(found, *found || stream == old);
            (!before).then_some(stream)
        })
        .collect();
    let new = *tried.last().unwrap();
    if new == old {
        let block = bench.allocate(4 * MIB, new);
        assert_ne!(block.address(), address, "the old stream still uses it");
        block.verify_on(new);
        // Would hang if it came after the old one's work.
        bench.device.synchronize_stream(new).unwrap();
    }
    drop(hold);
    bench.pool().synchronize().unwrap();
    bench.end();
    match new == old {
        true => Ok(()),
        false => Err(Skipped("the value did not come again in 64 streams".into())),
    }
}

/// Streams that others created can be named: on a GPU those of another device object, elsewhere
/// those made without the pool's device seeing it.
pub(super) fn streams_of_others_are_served(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let other: std::sync::Arc<dyn Device> = match fixture.kind() {
        Kind::Cuda => std::sync::Arc::new(millpond::device::CudaDevice::open(0).unwrap()),
        _ => fixture.device().clone(),
    };
    let foreign = [StreamOrder::Independent, StreamOrder::WithLegacy]
        .map(|order| other.create_stream(order).unwrap());
    let findings = Findings::new();
    for round in 0..20 {
        for stream in foreign {
            let block = bench.allocate(4 * MIB, stream);
            // Work of theirs, through their own hands.
            let pattern = Pattern(round + 1);
            let (address, size) = (block.address(), block.size());
            block.verify_on(stream);
            other
                .verify(stream, address, size, pattern, &Findings::new())
                .unwrap();
            other
                .copy(stream, address, address + size / 2, size / 2)
                .unwrap();
            other.fill(stream, address, size, pattern).unwrap();
            other
                .verify(stream, address, size, pattern, &findings)
                .unwrap();
            block.free_unverified();
        }
    }
    for stream in foreign {
        other.synchronize_stream(stream).unwrap();
        bench.pool().stream_destroyed(stream).unwrap();
        other.destroy_stream(stream).unwrap();
    }
    assert_eq!(findings.wrong_bytes(), 0);
    bench.end();
    Ok(())
}
