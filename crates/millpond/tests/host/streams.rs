//! Who runs after whom. What must come later is held behind a gate that the test opens; no time
//! is measured.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millpond::device::{Device, EventId, HostDevice, Pattern, Status, StreamId, StreamOrder};

use super::{GRANULE, device, gate, mapped, status};

fn stream(device: &HostDevice) -> StreamId {
    device.create_stream(StreamOrder::Independent).unwrap()
}

/// A diary in which streams write what they do, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<u32>>>);

impl Diary {
    fn note(&self, device: &HostDevice, stream: StreamId, entry: u32) {
        let diary = self.clone();
        let write = move || diary.0.lock().unwrap().push(entry);
        device.host_function(stream, Box::new(write)).unwrap();
    }

    fn entries(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

fn recorded(device: &HostDevice, stream: StreamId) -> EventId {
    let event = device.create_event().unwrap();
    device.record_event(event, stream).unwrap();
    event
}

#[test]
fn a_stream_runs_in_order_with_delays_and_without() {
    for delays in [false, true] {
        let builder = HostDevice::builder().total_memory(16 * GRANULE);
        let device = if delays {
            builder
                .delays(1, Duration::from_micros(100))
                .build()
                .unwrap()
        } else {
            builder.build().unwrap()
        };
        let (stream, diary) = (stream(&device), Diary::default());
        (0..100).for_each(|n| diary.note(&device, stream, n));
        device.synchronize_stream(stream).unwrap();
        assert_eq!(diary.entries(), Vec::from_iter(0..100));
    }
}

#[test]
fn a_wait_orders_streams() {
    let device = device();
    let (first, second, diary) = (stream(&device), stream(&device), Diary::default());
    let open = gate(&device, first);
    diary.note(&device, first, 1);
    let event = recorded(&device, first);
    device.wait_event(second, event).unwrap();
    diary.note(&device, second, 2);
    // Destroying what is waited for changes nothing.
    device.destroy_event(event).unwrap();
    device.destroy_stream(first).unwrap();
    assert_eq!(status(device.query_event(event)), Status::INVALID_HANDLE);
    assert_eq!(
        status(device.synchronize_stream(first)),
        Status::INVALID_HANDLE
    );
    assert_eq!(diary.entries(), []);
    drop(open);
    device.synchronize_stream(second).unwrap();
    assert_eq!(diary.entries(), [1, 2]);
}

#[test]
fn default_streams_cannot_be_destroyed() {
    let device = device();
    assert_eq!(
        status(device.destroy_stream(StreamId::DEFAULT)),
        Status::INVALID_HANDLE
    );
    assert_eq!(
        status(device.destroy_stream(StreamId::PER_THREAD)),
        Status::INVALID_HANDLE
    );
}

#[test]
fn stream_values_come_again_if_asked_for_but_identities_never() {
    let builder = HostDevice::builder().total_memory(GRANULE);
    let device = builder.stream_values_recur(true).build().unwrap();
    assert!(device.capabilities().stream_values_recur);
    let (first, second) = (stream(&device), stream(&device));
    let identity = device.stream_identity(second).unwrap();
    // The old stream's work goes on beside the new one's.
    let open = gate(&device, second);
    device.destroy_stream(first).unwrap();
    device.destroy_stream(second).unwrap();
    assert_eq!(stream(&device), second);
    assert!(device.stream_identity(second).unwrap() > identity);
    device.synchronize_stream(second).unwrap();
    assert_eq!(stream(&device), first);
    drop(open);

    let device = super::device();
    let first = stream(&device);
    device.destroy_stream(first).unwrap();
    assert_ne!(stream(&device), first);
}

#[test]
fn dropping_the_device_lets_queued_work_run() {
    let device = device();
    let base = mapped(&device, 8 * GRANULE);
    let (stream, diary) = (stream(&device), Diary::default());
    let open = gate(&device, stream);
    device.fill(stream, base, 8 * GRANULE, Pattern(1)).unwrap();
    diary.note(&device, stream, 1);
    device.destroy_stream(stream).unwrap();
    drop(open);
    drop(device);
    assert_eq!(diary.entries(), [1]);
}

#[test]
fn a_host_function_may_be_the_last_to_own_the_device() {
    let device = Arc::new(device());
    let (stream, waiter) = (stream(&device), stream(&device));
    let (told, tell) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let owned = Arc::clone(&device);
    let own = move || {
        let _ = told.1.recv();
        drop(owned);
        drop(tell.0);
    };
    device.host_function(stream, Box::new(own)).unwrap();
    let event = recorded(&device, stream);
    device.wait_event(waiter, event).unwrap();
    drop(device);
    drop(told.0);
    assert!(tell.1.recv().is_err(), "the function ended");
}

#[test]
fn a_host_function_that_panics_fails_the_device() {
    let device = device();
    let stream = stream(&device);
    device
        .host_function(stream, Box::new(|| panic!("on purpose")))
        .unwrap();
    let error = device.synchronize().unwrap_err();
    assert_eq!(error.status, Status::LAUNCH_FAILED);
    assert!(error.detail.contains("panicked"), "{error}");
}

#[test]
fn work_behind_a_failure_is_over_but_not_done() {
    let device = device();
    let (stream, diary) = (stream(&device), Diary::default());
    let open = gate(&device, stream);
    device.fill(stream, 0x1000, 8, Pattern(0)).unwrap();
    diary.note(&device, stream, 1);
    let event = recorded(&device, stream);
    drop(open);
    assert_eq!(
        status(device.synchronize_event(event)),
        Status::ILLEGAL_ADDRESS
    );
    drop(device);
    assert_eq!(diary.entries(), []);
}

#[test]
fn streams_of_many_threads_wait_for_each_other_under_delays() {
    // Each stream writes a range in turn, ordered by events alone; every byte tells if one was
    // early.
    let builder = HostDevice::builder().total_memory(16 * GRANULE);
    let device = builder
        .delays(3, Duration::from_micros(200))
        .build()
        .unwrap();
    let base = mapped(&device, GRANULE);
    let streams = [(); 4].map(|()| stream(&device));
    let findings = millpond::device::Findings::new();
    let event = device.create_event().unwrap();
    for turn in 0..100 {
        let stream = streams[turn as usize % 4];
        device.wait_event(stream, event).unwrap();
        if turn > 0 {
            device
                .verify(stream, base, 10_001, Pattern(turn - 1), &findings)
                .unwrap();
        }
        device.fill(stream, base, 10_001, Pattern(turn)).unwrap();
        device.record_event(event, stream).unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(findings.wrong_bytes(), 0);
}
