//! Rules 9 and 11, implicit orders, identities, host functions.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use millpond::device::{EventId, Pattern, StreamId, StreamOrder};

use super::{OTHER, PATTERN};
use crate::conformance::{Fixture, Outcome};

/// Gives streams and events back.
fn clear(fixture: &Fixture, streams: &[StreamId], events: &[EventId]) {
    for &event in events {
        fixture.device().destroy_event(event).unwrap();
    }
    for &stream in streams {
        fixture.device().destroy_stream(stream).unwrap();
    }
}

/// Rule 9. GUIDE, streams: "operations are performed in order".
pub(super) fn a_stream_runs_in_order(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let stream = fixture.stream();
    let diary = Arc::new(Mutex::new(Vec::new()));
    for entry in 0..100 {
        let diary = Arc::clone(&diary);
        let write = move || diary.lock().unwrap().push(entry);
        device.host_function(stream, Box::new(write)).unwrap();
    }
    device.synchronize_stream(stream).unwrap();
    assert_eq!(*diary.lock().unwrap(), Vec::from_iter(0..100));
    clear(fixture, &[stream], &[]);
    Ok(())
}

/// Rule 9. DRV `cuEventQuery`: an event that was never recorded is complete; `cuEventRecord`: what
/// is recorded again stands for the later work alone.
pub(super) fn an_event_stands_for_the_work_before_its_last_record(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let stream = fixture.stream();
    let event = device.create_event().unwrap();
    assert!(device.query_event(event).unwrap());
    device.synchronize_event(event).unwrap();
    device.record_event(event, stream).unwrap();
    device.synchronize_event(event).unwrap();
    assert!(device.query_event(event).unwrap());

    let hold = fixture.hold(stream);
    assert!(device.query_event(event).unwrap(), "later work is not its");
    device.record_event(event, stream).unwrap();
    assert!(!device.query_event(event).unwrap());
    drop(hold);
    device.synchronize_event(event).unwrap();
    assert!(device.query_event(event).unwrap());
    clear(fixture, &[stream], &[event]);
    Ok(())
}

/// Rule 9. DRV `cuStreamWaitEvent`: later work of the stream waits for the event's.
pub(super) fn a_wait_orders_two_streams(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let (first, second, third) = (fixture.stream(), fixture.stream(), fixture.stream());
    let address = device.allocate(4096).unwrap();
    device.fill(first, address, 4096, OTHER).unwrap();
    device.synchronize_stream(first).unwrap();

    let hold = fixture.hold(first);
    device.fill(first, address, 4096, PATTERN).unwrap();
    let written = fixture.recorded(first);
    device.wait_event(second, written).unwrap();
    let waited = fixture.recorded(second);
    let apart = fixture.recorded(third);
    device.synchronize_event(apart).unwrap();
    assert!(!device.query_event(waited).unwrap());
    drop(hold);
    assert_eq!(fixture.wrong(second, address, 4096, PATTERN), 0);
    assert!(device.query_event(written).unwrap());
    device.free(address).unwrap();
    clear(fixture, &[first, second, third], &[written, waited, apart]);
    Ok(())
}

/// Rule 9. DRV `cuStreamWaitEvent`: the wait is for the record made last when it is queued,
/// whatever is recorded afterwards.
pub(super) fn a_wait_binds_to_the_record_made_last_before_it(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let (first, second, third) = (fixture.stream(), fixture.stream(), fixture.stream());
    let event = fixture.recorded(first);
    device.synchronize_event(event).unwrap();
    let hold = fixture.hold(first);
    device.wait_event(second, event).unwrap();
    device.record_event(event, first).unwrap();
    // Would hang if it waited for the later record.
    device.synchronize_stream(second).unwrap();
    assert!(!device.query_event(event).unwrap());

    // And the other way: a later record, complete at once, does not let the waiter go.
    device.wait_event(second, event).unwrap();
    device.record_event(event, third).unwrap();
    device.synchronize_event(event).unwrap();
    let waited = fixture.recorded(second);
    assert!(!device.query_event(waited).unwrap());
    drop(hold);
    device.synchronize_event(waited).unwrap();
    clear(fixture, &[first, second, third], &[event, waited]);
    Ok(())
}

/// Rule 9. DRV `cuStreamWaitEvent`: an event that was never recorded is no obstacle.
pub(super) fn a_wait_for_an_event_never_recorded_is_none(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let (waiter, other) = (fixture.stream(), fixture.stream());
    let event = device.create_event().unwrap();
    device.wait_event(waiter, event).unwrap();
    let hold = fixture.hold(other);
    device.record_event(event, other).unwrap();
    device.synchronize_stream(waiter).unwrap();
    assert!(!device.query_event(event).unwrap());
    drop(hold);
    device.synchronize().unwrap();
    clear(fixture, &[waiter, other], &[event]);
    Ok(())
}

/// Rule 9. DRV `cuEventRecord`: an event captures all that the stream was given, waits included.
pub(super) fn waits_carry_through_streams_without_work(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let (first, second, third) = (fixture.stream(), fixture.stream(), fixture.stream());
    let hold = fixture.hold(first);
    let one = fixture.recorded(first);
    device.wait_event(second, one).unwrap();
    let two = fixture.recorded(second);
    device.wait_event(third, two).unwrap();
    let three = fixture.recorded(third);
    for event in [one, two, three] {
        assert!(!device.query_event(event).unwrap());
    }
    drop(hold);
    device.synchronize_event(three).unwrap();
    assert!(device.query_event(one).unwrap());
    clear(fixture, &[first, second, third], &[one, two, three]);
    Ok(())
}

/// Rule 11. DRV `cuStreamDestroy`, `cuEventDestroy`: both return at once; what was queued runs, and
/// what waits on the event still waits.
pub(super) fn destroying_does_not_wait(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let (first, second) = (fixture.stream(), fixture.stream());
    let address = device.allocate(4096).unwrap();
    device.fill(first, address, 4096, OTHER).unwrap();
    device.synchronize_stream(first).unwrap();

    let hold = fixture.hold(first);
    device.fill(first, address, 4096, PATTERN).unwrap();
    let event = fixture.recorded(first);
    device.wait_event(second, event).unwrap();
    device.destroy_event(event).unwrap();
    device.destroy_stream(first).unwrap();
    let end = fixture.recorded(second);
    assert!(!device.query_event(end).unwrap());
    drop(hold);
    assert_eq!(fixture.wrong(second, address, 4096, PATTERN), 0);
    device.free(address).unwrap();
    clear(fixture, &[second], &[end]);
    Ok(())
}

/// DRV, stream synchronization behavior: the legacy stream and the blocking streams, the calling
/// thread's own among them, wait for each other; a non-blocking one stands apart.
pub(super) fn the_legacy_stream_is_ordered_with_those_that_are_with_it(
    fixture: &Fixture,
) -> Outcome {
    let device = fixture.device();
    let blocking = device.create_stream(StreamOrder::WithLegacy).unwrap();
    let independent = fixture.stream();
    for legacy in [StreamId::DEFAULT, StreamId::LEGACY] {
        for ordered in [blocking, StreamId::PER_THREAD] {
            for (held, later) in [(ordered, legacy), (legacy, ordered)] {
                let hold = fixture.hold(held);
                let event = fixture.recorded(later);
                let apart = fixture.recorded(independent);
                device.synchronize_event(apart).unwrap();
                assert!(!device.query_event(event).unwrap(), "{held} before {later}");
                drop(hold);
                device.synchronize_event(event).unwrap();
                clear(fixture, &[], &[event, apart]);
            }
        }
        let hold = fixture.hold(independent);
        device.synchronize_stream(legacy).unwrap();
        drop(hold);
    }
    device.synchronize().unwrap();
    clear(fixture, &[blocking, independent], &[]);
    Ok(())
}

/// Rule 11: what a destroyed blocking stream still does comes before the legacy stream's work.
pub(super) fn the_legacy_stream_comes_after_destroyed_streams_too(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let blocking = device.create_stream(StreamOrder::WithLegacy).unwrap();
    let hold = fixture.hold(blocking);
    device.destroy_stream(blocking).unwrap();
    let event = fixture.recorded(StreamId::LEGACY);
    assert!(!device.query_event(event).unwrap());
    drop(hold);
    device.synchronize_event(event).unwrap();
    clear(fixture, &[], &[event]);
    Ok(())
}

/// DRV `CU_STREAM_PER_THREAD`: one handle value, and a stream of its own in every thread.
pub(super) fn per_thread_streams_are_one_a_thread(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let own = StreamId::PER_THREAD;
    let here = device.stream_identity(own).unwrap();
    let address = device.allocate(1 << 20).unwrap();
    let hold = fixture.hold(own);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_ne!(device.stream_identity(own).unwrap(), here);
            // Would hang if it were the stream that is held.
            device.synchronize_stream(own).unwrap();
        });
    });
    drop(hold);
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            scope.spawn(move || {
                let at = address + thread * 65536;
                for round in 0..50 {
                    let pattern = Pattern(thread << 32 | round);
                    device.fill(own, at, 65536, pattern).unwrap();
                    assert_eq!(fixture.wrong(own, at, 65536, pattern), 0);
                }
            });
        }
    });
    device.free(address).unwrap();
    Ok(())
}

/// DRV `cuStreamGetId`: "unique for the life of the program"; handle values may come again.
pub(super) fn identities_tell_streams_apart_for_ever(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let mut seen = HashSet::new();
    let mut values = HashSet::new();
    for _ in 0..100 {
        let stream = fixture.stream();
        let identity = device.stream_identity(stream).unwrap();
        assert_eq!(device.stream_identity(stream).unwrap(), identity);
        assert!(seen.insert(identity));
        values.insert(stream);
        device.destroy_stream(stream).unwrap();
    }
    println!("100 streams had {} handle values", values.len());
    assert!(values.len() == 100 || device.capabilities().stream_values_recur);
    let legacy = device.stream_identity(StreamId::LEGACY).unwrap();
    assert_eq!(device.stream_identity(StreamId::DEFAULT).unwrap(), legacy);
    assert!(seen.insert(legacy));
    let own = || device.stream_identity(StreamId::PER_THREAD).unwrap();
    assert_eq!(own(), own());
    assert!(seen.insert(own()));
    thread::scope(|scope| {
        let others = [(); 2].map(|()| scope.spawn(own));
        for other in others {
            assert!(seen.insert(other.join().unwrap()));
        }
    });
    Ok(())
}

/// The contract: "calls may be made from any thread, with any current context or none".
pub(super) fn any_thread_may_call(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = fixture.stream();
                for _ in 0..5 {
                    let range = fixture.mapped(&[unit]);
                    device.fill(stream, range.base, unit, PATTERN).unwrap();
                    assert_eq!(fixture.wrong(stream, range.base, unit, PATTERN), 0);
                    range.take_down();
                }
                clear(fixture, &[stream], &[]);
            });
        }
    });
    Ok(())
}

/// DRV `cuLaunchHostFunc`: called after the stream's work so far, and before what is queued later.
pub(super) fn a_host_function_comes_after_earlier_and_before_later_work(
    fixture: &Fixture,
) -> Outcome {
    let device = fixture.device();
    let stream = fixture.stream();
    let called = Arc::new(AtomicBool::new(false));
    let hold = fixture.hold(stream);
    let call = Arc::clone(&called);
    let function = move || call.store(true, Ordering::Release);
    device.host_function(stream, Box::new(function)).unwrap();
    let after = fixture.recorded(stream);
    assert!(!called.load(Ordering::Acquire));
    assert!(!device.query_event(after).unwrap());
    drop(hold);
    device.synchronize_event(after).unwrap();
    assert!(called.load(Ordering::Acquire));
    clear(fixture, &[stream], &[after]);
    Ok(())
}

/// DRV `cuCtxSynchronize`: "block until ... all preceding requested tasks" are done, on streams of
/// every kind.
pub(super) fn synchronizing_waits_for_every_stream(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let blocking = device.create_stream(StreamOrder::WithLegacy).unwrap();
    let independent = fixture.stream();
    let address = device.allocate(4 << 20).unwrap();
    let mut events = Vec::new();
    let streams = [
        independent,
        blocking,
        StreamId::PER_THREAD,
        StreamId::LEGACY,
    ];
    for (stream, part) in streams.into_iter().zip(0..) {
        device
            .fill(stream, address + (part << 20), 1 << 20, PATTERN)
            .unwrap();
        events.push(fixture.recorded(stream));
    }
    device.synchronize().unwrap();
    for &event in &events {
        assert!(device.query_event(event).unwrap());
    }
    device.free(address).unwrap();
    clear(fixture, &[blocking, independent], &events);
    Ok(())
}
