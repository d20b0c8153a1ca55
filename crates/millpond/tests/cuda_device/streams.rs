//! Streams and events: rules 9 and 11, implicit orders, identities.

use std::collections::HashSet;

use millpond::device::cuda::CudaDevice;
use millpond::device::{Device, HandleProperties, Pattern, Status, StreamId, StreamOrder};

use crate::{Mapped, OTHER, PATTERN, device, hold, mapping_device, status, wrong};

/// Rule 9 (DRV cuEventQuery: an event that was never recorded is complete; cuStreamWaitEvent: a
/// wait is for the record that was last made when it is queued).
#[test]
fn rule_9_events() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let [first, second] = [(); 2].map(|()| device.create_stream(StreamOrder::Independent).unwrap());
    let event = device.create_event().unwrap();
    let mark = device.create_event().unwrap();
    assert!(device.query_event(event).unwrap());
    device.synchronize_event(event).unwrap();
    device.wait_event(first, event).unwrap();

    // A wait for an earlier record is not one for a later.
    device.record_event(event, first).unwrap();
    device.synchronize_event(event).unwrap();
    let held = hold(device, first);
    device.wait_event(second, event).unwrap();
    device.record_event(event, first).unwrap();
    device.synchronize_stream(second).unwrap();
    assert!(!device.query_event(event).unwrap());

    // A wait for this record holds the other stream.
    device.wait_event(second, event).unwrap();
    device.record_event(mark, second).unwrap();
    assert!(!device.query_event(mark).unwrap());
    drop(held);
    device.synchronize_event(mark).unwrap();
    assert!(device.query_event(event).unwrap() && device.query_event(mark).unwrap());
    for event in [event, mark] {
        device.destroy_event(event).unwrap();
    }
    for stream in [first, second] {
        device.destroy_stream(stream).unwrap();
    }
}

/// Rule 11 (DRV cuStreamDestroy, cuEventDestroy: both return at once, and what was queued runs).
#[test]
fn rule_11_destroying_does_not_wait() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let [first, second] = [(); 2].map(|()| device.create_stream(StreamOrder::Independent).unwrap());
    let event = device.create_event().unwrap();
    let address = device.allocate(4096).unwrap();
    device.fill(first, address, 4096, OTHER).unwrap();
    device.synchronize_stream(first).unwrap();

    let held = hold(device, first);
    device.fill(first, address, 4096, PATTERN).unwrap();
    device.record_event(event, first).unwrap();
    device.wait_event(second, event).unwrap();
    device.destroy_event(event).unwrap();
    device.destroy_stream(first).unwrap();
    drop(held);
    assert_eq!(wrong(device, second, address, 4096, PATTERN), 0);
    device.free(address).unwrap();
    device.destroy_stream(second).unwrap();
}

/// DRV "Stream synchronization behavior": the legacy stream and blocking streams wait for each
/// other; a non-blocking one stands apart.
#[test]
fn the_legacy_stream_has_its_implicit_order() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let blocking = device.create_stream(StreamOrder::WithLegacy).unwrap();
    let independent = device.create_stream(StreamOrder::Independent).unwrap();
    let event = device.create_event().unwrap();
    let apart = device.create_event().unwrap();
    for legacy in [StreamId::DEFAULT, StreamId::LEGACY] {
        let held = hold(device, blocking);
        device.record_event(event, legacy).unwrap();
        device.record_event(apart, independent).unwrap();
        device.synchronize_event(apart).unwrap();
        assert!(!device.query_event(event).unwrap());
        drop(held);
        device.synchronize_event(event).unwrap();

        let held = hold(device, legacy);
        device.record_event(event, blocking).unwrap();
        device.record_event(apart, independent).unwrap();
        device.synchronize_event(apart).unwrap();
        assert!(!device.query_event(event).unwrap());
        drop(held);
        device.synchronize_event(event).unwrap();
    }
    for event in [event, apart] {
        device.destroy_event(event).unwrap();
    }
    for stream in [blocking, independent] {
        device.destroy_stream(stream).unwrap();
    }
}

/// DRV cuStreamGetId: unique for the life of the program.
#[test]
fn identities_tell_streams_apart() {
    let Some(turn) = device() else { return };
    let device = &turn.device;
    let mut seen = HashSet::new();
    let mut values = HashSet::new();
    for _ in 0..100 {
        let stream = device.create_stream(StreamOrder::Independent).unwrap();
        let identity = device.stream_identity(stream).unwrap();
        assert_eq!(device.stream_identity(stream).unwrap(), identity);
        assert!(seen.insert(identity));
        values.insert(stream);
        device.destroy_stream(stream).unwrap();
    }
    println!("100 streams had {} handle values", values.len());
    let legacy = device.stream_identity(StreamId::LEGACY).unwrap();
    assert_eq!(device.stream_identity(StreamId::DEFAULT).unwrap(), legacy);
    assert!(seen.insert(legacy));
    let own = || device.stream_identity(StreamId::PER_THREAD).unwrap();
    assert_eq!(own(), own());
    assert!(seen.insert(own()));
    std::thread::scope(|scope| {
        let others = [(); 2].map(|()| scope.spawn(own));
        for other in others {
            assert!(seen.insert(other.join().unwrap()));
        }
    });
}

/// The per-thread stream of each thread is a stream of its own, ordered by itself.
#[test]
fn per_thread_streams_do_their_own_work() {
    let Some(turn) = device() else { return };
    let device = &turn.device;
    let address = device.allocate(1 << 20).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            scope.spawn(move || {
                let at = address + thread * 65536;
                for round in 0..100 {
                    let pattern = Pattern(thread << 32 | round);
                    device
                        .fill(StreamId::PER_THREAD, at, 65536, pattern)
                        .unwrap();
                    assert_eq!(wrong(device, StreamId::PER_THREAD, at, 65536, pattern), 0);
                }
            });
        }
    });
    device.free(address).unwrap();
}

#[test]
fn streams_and_events_of_others_can_be_named() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let other = CudaDevice::open(0).unwrap();
    let stream = other.create_stream(StreamOrder::Independent).unwrap();
    let event = other.create_event().unwrap();
    let address = device.allocate(4096).unwrap();
    device.fill(stream, address, 4096, PATTERN).unwrap();
    device.record_event(event, stream).unwrap();
    device.wait_event(StreamId::PER_THREAD, event).unwrap();
    assert_eq!(
        wrong(device, StreamId::PER_THREAD, address, 4096, PATTERN),
        0
    );
    assert_eq!(
        device.stream_identity(stream).unwrap(),
        other.stream_identity(stream).unwrap()
    );
    device.free(address).unwrap();
    other.destroy_event(event).unwrap();
    other.destroy_stream(stream).unwrap();
}

#[test]
fn threads_without_a_context_may_call() {
    let Some(turn) = mapping_device() else { return };
    let (device, unit) = (&turn.device, turn.granularity);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                assert_eq!(
                    status(CudaDevice::from_current_context().map(|_| ())),
                    Status::INVALID_CONTEXT
                );
                let stream = device.create_stream(StreamOrder::Independent).unwrap();
                let range = Mapped::new(device, &[unit], HandleProperties::default());
                device.fill(stream, range.base, unit, PATTERN).unwrap();
                assert_eq!(wrong(device, stream, range.base, unit, PATTERN), 0);
                range.take_down();
                device.destroy_stream(stream).unwrap();
                assert_eq!(
                    status(CudaDevice::from_current_context().map(|_| ())),
                    Status::INVALID_CONTEXT
                );
            });
        }
    });
}
