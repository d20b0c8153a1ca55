//! Streams and events in virtual time.

use super::*;
use crate::device::Pattern;

#[test]
fn events_cost_what_the_table_says() {
    let device = SimDevice::new();
    let stream = stream(&device);
    let start = device.now();
    let event = device.create_event().unwrap();
    device.record_event(event, stream).unwrap();
    assert_eq!(device.now(), start + 220 + 540);
    device.query_event(event).unwrap();
    device.wait_event(stream, event).unwrap();
    device.synchronize_event(event).unwrap();
    device.stream_identity(stream).unwrap();
    device.destroy_event(event).unwrap();
    assert_eq!(device.now(), start + 220 + 540 + 440 + 630 + 440 + 60 + 220);
}

#[test]
fn an_event_completes_when_its_stream_has_come_to_it() {
    let device = SimDevice::new();
    let stream = stream(&device);
    let event = device.create_event().unwrap();
    assert_eq!(device.query_event(event), Ok(true), "never recorded");
    assert_eq!(device.event_completed_at(event), None);

    let end = device.enqueue_work(stream, LONG).unwrap();
    device.record_event(event, stream).unwrap();
    device.enqueue_work(stream, LONG).unwrap();
    assert_eq!(device.event_completed_at(event), Some(end));
    // A query costs 440 ns, and looks at its end.
    device.advance_host_to(end - 441);
    assert_eq!(device.query_event(event), Ok(false));
    assert_eq!(device.query_event(event), Ok(true));

    device.record_event(event, stream).unwrap();
    assert_eq!(device.query_event(event), Ok(false), "recorded again");
    device.synchronize_event(event).unwrap();
    assert_eq!(device.now(), end + LONG);
}

#[test]
fn work_begins_when_its_stream_is_ready_but_not_before_the_host_asks() {
    let device = SimDevice::new();
    let stream = stream(&device);
    let asked = device.now();
    assert_eq!(device.enqueue_work(stream, 100), Ok(asked + 100));
    assert_eq!(device.enqueue_work(stream, 100), Ok(asked + 200));
    device.advance_host_to(asked + 1000);
    assert_eq!(device.enqueue_work(stream, 100), Ok(asked + 1100));
    device.advance_host_to(asked);
    assert_eq!(device.now(), asked + 1000, "the clock does not go back");
}

#[test]
fn a_wait_binds_to_the_last_record_before_it() {
    let device = SimDevice::new();
    let (first, second) = (stream(&device), stream(&device));
    let end = device.enqueue_work(first, LONG).unwrap();
    let event = recorded(&device, first);
    device.wait_event(second, event).unwrap();
    device.enqueue_work(first, LONG).unwrap();
    device.record_event(event, first).unwrap();
    device.destroy_event(event).unwrap();
    assert_eq!(device.enqueue_work(second, 5), Ok(end + 5));
    // A wait for what was never recorded is none.
    let never = device.create_event().unwrap();
    device.wait_event(second, never).unwrap();
    assert_eq!(device.stream_ready_at(second), Some(end + 5));
}

#[test]
fn waits_carry_through_streams_without_work() {
    let device = SimDevice::new();
    let [a, b, c] = [(); 3].map(|()| stream(&device));
    let end = device.enqueue_work(a, LONG).unwrap();
    let first = recorded(&device, a);
    device.wait_event(b, first).unwrap();
    let second = recorded(&device, b);
    assert_eq!(device.event_completed_at(second), Some(end));
    device.wait_event(c, second).unwrap();
    assert_eq!(device.enqueue_work(c, 1), Ok(end + 1));
}

#[test]
fn a_recorded_trace_drives_the_streams() {
    // (stream, recorded host time, recorded device time, waits for the last event)
    let marks = [
        (0, 1_000_000, 5_000_000, false),
        (0, 2_000_000, 9_000_000, false),
        (1, 3_000_000, 12_000_000, true),
        (0, 20_000_000, 20_500_000, false),
    ];
    let device = SimDevice::new();
    let streams = [stream(&device), stream(&device)];
    let mut last_mark = [0; 2];
    let mut last_event: Option<(EventId, u64)> = None;
    for (index, host, reached, waits) in marks {
        device.advance_host_to(host);
        let mut from = host.max(last_mark[index]);
        if let Some((event, completed)) = last_event.filter(|_| waits) {
            device.wait_event(streams[index], event).unwrap();
            from = from.max(completed);
        }
        device.enqueue_work(streams[index], reached - from).unwrap();
        let event = recorded(&device, streams[index]);
        last_mark[index] = reached;
        last_event = Some((event, reached));
        // Progress is as recorded, later at most by what the calls of this test cost.
        let completed = device.event_completed_at(event).unwrap();
        assert!(
            (reached..reached + 10_000).contains(&completed),
            "{completed}"
        );
    }
}

#[test]
fn destroying_a_stream_does_not_wait_and_its_work_still_runs() {
    let device = SimDevice::new();
    let stream = stream(&device);
    let end = device.enqueue_work(stream, LONG).unwrap();
    let event = recorded(&device, stream);
    device.destroy_stream(stream).unwrap();
    assert!(device.now() < end);
    assert_eq!(device.query_event(event), Ok(false));
    device.synchronize().unwrap();
    assert_eq!(device.now(), end);
    assert_eq!(device.query_event(event), Ok(true));
}

#[test]
fn what_is_no_stream_or_event_is_refused() {
    let device = SimDevice::new();
    let stream = stream(&device);
    let event = device.create_event().unwrap();
    device.destroy_stream(stream).unwrap();
    device.destroy_event(event).unwrap();
    let invalid = Some(Status::INVALID_HANDLE);
    assert_eq!(status(device.destroy_stream(stream)), invalid);
    assert_eq!(status(device.destroy_stream(StreamId::DEFAULT)), invalid);
    assert_eq!(status(device.destroy_event(event)), invalid);
    assert_eq!(status(device.query_event(event)), invalid);
    assert_eq!(status(device.synchronize_event(event)), invalid);
    assert_eq!(
        status(device.record_event(event, StreamId::DEFAULT)),
        invalid
    );
    assert_eq!(status(device.wait_event(StreamId::DEFAULT, event)), invalid);
    assert_eq!(status(device.synchronize_stream(stream)), invalid);
    assert_eq!(status(device.stream_identity(stream)), invalid);
    assert_eq!(status(device.fill(stream, 0, 1, Pattern(0))), invalid);
    assert_eq!(device.stream_ready_at(stream), None);
    assert_eq!(device.event_completed_at(event), None);
}

#[test]
fn stream_values_recur_only_if_asked_and_identities_never() {
    for recur in [false, true] {
        let device = SimDevice::builder().stream_values_recur(recur).build();
        assert_eq!(device.capabilities().stream_values_recur, recur);
        let (first, second) = (stream(&device), stream(&device));
        let mut identities = vec![
            device.stream_identity(first).unwrap(),
            device.stream_identity(second).unwrap(),
        ];
        let end = device.enqueue_work(second, LONG).unwrap();
        device.destroy_stream(first).unwrap();
        device.destroy_stream(second).unwrap();
        let (third, fourth) = (stream(&device), stream(&device));
        assert_eq!((third == second, fourth == first), (recur, recur));
        // The value is old, the stream is new: it does not wait for the old one's work.
        assert!(device.enqueue_work(third, 1).unwrap() < end);
        for stream in [third, fourth, StreamId::LEGACY] {
            identities.push(device.stream_identity(stream).unwrap());
        }
        identities.sort_unstable();
        identities.dedup();
        assert_eq!(identities.len(), 5);
    }
}

#[test]
fn the_legacy_stream_is_ordered_with_those_that_are_not_independent() {
    let device = SimDevice::new();
    let ordered = device.create_stream(StreamOrder::WithLegacy).unwrap();
    let independent = stream(&device);
    let free_end = device.enqueue_work(independent, 2 * LONG).unwrap();
    let ordered_end = device.enqueue_work(ordered, LONG).unwrap();

    let legacy_end = device.enqueue_work(StreamId::LEGACY, LONG).unwrap();
    assert_eq!(legacy_end, ordered_end + LONG);
    assert_eq!(device.enqueue_work(ordered, 7), Ok(legacy_end + 7));
    assert_eq!(device.enqueue_work(independent, 7), Ok(free_end + 7));
    // Both names are one stream, and work of a destroyed stream counts.
    device.destroy_stream(ordered).unwrap();
    assert_eq!(
        device.enqueue_work(StreamId::DEFAULT, 1),
        Ok(legacy_end + 8)
    );
    let identity = |stream| device.stream_identity(stream).unwrap();
    assert_eq!(identity(StreamId::DEFAULT), identity(StreamId::LEGACY));
}

#[test]
fn an_event_on_the_legacy_stream_stands_for_the_ordered_streams_too() {
    let device = SimDevice::new();
    let ordered = device.create_stream(StreamOrder::WithLegacy).unwrap();
    let end = device.enqueue_work(ordered, LONG).unwrap();
    let event = recorded(&device, StreamId::LEGACY);
    assert_eq!(device.event_completed_at(event), Some(end));
}

#[test]
fn every_thread_has_a_default_stream_of_its_own() {
    let device = SimDevice::new();
    let mine = device.stream_identity(StreamId::PER_THREAD).unwrap();
    let end = device.enqueue_work(StreamId::PER_THREAD, LONG).unwrap();
    let theirs = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let identity = device.stream_identity(StreamId::PER_THREAD).unwrap();
            assert!(device.enqueue_work(StreamId::PER_THREAD, 1).unwrap() < end);
            identity
        });
        other.join().unwrap()
    });
    assert_ne!(mine, theirs);
    assert_eq!(device.stream_identity(StreamId::PER_THREAD), Ok(mine));
    // It is ordered with the legacy stream.
    assert_eq!(device.enqueue_work(StreamId::LEGACY, 1), Ok(end + 1));
}

#[test]
fn identities_differ_between_devices() {
    let identity = |device: &SimDevice| device.stream_identity(StreamId::LEGACY).unwrap();
    assert_ne!(identity(&SimDevice::new()), identity(&SimDevice::new()));
}

/// Makes calls drawn from a seed, and writes down everything that they give.
fn script(seed: u64) -> Vec<String> {
    let device = SimDevice::new();
    let mut generator = seed;
    let mut draw = move |below: u64| {
        generator = generator
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (generator >> 33) % below
    };
    let mut bases = Vec::new();
    let mut streams = vec![StreamId::LEGACY];
    let mut events = vec![device.create_event().unwrap()];
    let mut seen = Vec::new();
    for _ in 0..2000 {
        let stream = streams[draw(streams.len() as u64) as usize];
        let event = events[draw(events.len() as u64) as usize];
        let what = match draw(8) {
            0 if bases.len() < 50 => {
                let (base, handle) = mapped(&device, 1 + draw(40));
                bases.push(base);
                format!("{base:#x} {handle:?}")
            }
            1 => {
                streams.push(super::stream(&device));
                events.push(device.create_event().unwrap());
                format!("{streams:?}")
            }
            2 => format!("{:?}", device.record_event(event, stream)),
            3 => format!("{:?}", device.query_event(event)),
            4 => format!("{:?}", device.wait_event(stream, event)),
            5 if !bases.is_empty() => {
                let base = bases[draw(bases.len() as u64) as usize];
                let size = 1 + draw(PAGE);
                format!("{:?}", device.fill(stream, base, size, Pattern(0)))
            }
            6 => format!("{:?}", device.synchronize_stream(stream)),
            _ => format!("{:?}", device.enqueue_work(stream, draw(1_000_000))),
        };
        seen.push(format!("{} {what}", device.now()));
    }
    seen
}

#[test]
fn the_same_calls_give_the_same_answers_at_the_same_times() {
    let first = script(1);
    assert_eq!(first, script(1));
    assert_ne!(first, script(2));
}
