//! Host functions: when they run, in which order, and what they may not do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;

use super::*;
use crate::device::{HostFunction, Pattern};

/// A function that leaves its number.
fn leaving(log: &Arc<Mutex<Vec<u32>>>, number: u32) -> HostFunction {
    let log = Arc::clone(log);
    Box::new(move || log.lock().unwrap().push(number))
}

#[test]
fn host_functions_run_in_the_order_of_their_times() {
    let device = SimDevice::new();
    let log = Arc::default();
    let (slow, fast) = (stream(&device), stream(&device));
    device.enqueue_work(slow, LONG).unwrap();
    device.host_function(slow, leaving(&log, 3)).unwrap();
    device.host_function(slow, leaving(&log, 4)).unwrap();
    device.enqueue_work(fast, LONG / 2).unwrap();
    device.host_function(fast, leaving(&log, 1)).unwrap();
    device.host_function(fast, leaving(&log, 2)).unwrap();
    assert!(log.lock().unwrap().is_empty());

    device.advance_host_by(LONG / 2);
    assert_eq!(*log.lock().unwrap(), [1, 2]);
    device.synchronize().unwrap();
    assert_eq!(*log.lock().unwrap(), [1, 2, 3, 4]);
    // On a stream without work it runs within the call.
    device.host_function(fast, leaving(&log, 5)).unwrap();
    assert_eq!(*log.lock().unwrap(), [1, 2, 3, 4, 5]);
}

#[test]
fn an_event_after_a_host_function_completes_after_it() {
    let device = SimDevice::new();
    let log = Arc::default();
    let stream = stream(&device);
    device.enqueue_work(stream, 2_000).unwrap();
    device.host_function(stream, leaving(&log, 1)).unwrap();
    let event = recorded(&device, stream);
    while !device.query_event(event).unwrap() {}
    assert_eq!(*log.lock().unwrap(), [1]);
}

#[test]
fn no_thread_sees_a_stream_past_a_host_function_that_runs() {
    let device = SimDevice::new();
    let stream = stream(&device);
    device.enqueue_work(stream, LONG).unwrap();
    let (entered, has_entered) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let log = Arc::new(Mutex::new(Vec::new()));
    let write = leaving(&log, 1);
    let function: HostFunction = Box::new(move || {
        entered.send(()).unwrap();
        may_leave.recv().unwrap();
        write();
    });
    device.host_function(stream, function).unwrap();
    let event = recorded(&device, stream);
    thread::scope(|scope| {
        scope.spawn(|| device.synchronize_stream(stream).unwrap());
        has_entered.recv().unwrap();
        // The clock has passed the event, but the function before it has not ended.
        let query = scope.spawn(|| {
            let done = device.query_event(event).unwrap();
            (done, log.lock().unwrap().len())
        });
        leave.send(()).unwrap();
        assert_eq!(query.join().unwrap(), (true, 1));
    });
}

#[test]
fn a_host_function_must_not_call_the_device() {
    let device = Arc::new(SimDevice::new());
    let answer = Arc::new(Mutex::new(None));
    let (inner, told) = (Arc::clone(&device), Arc::clone(&answer));
    let function: HostFunction = Box::new(move || {
        inner.advance_host_by(1);
        *told.lock().unwrap() = Some(inner.synchronize());
    });
    device.host_function(StreamId::DEFAULT, function).unwrap();
    let answer = answer.lock().unwrap().take().unwrap();
    assert_eq!(status(answer), Some(Status::NOT_PERMITTED));
    device.synchronize().unwrap();
}

#[test]
fn a_host_function_that_panics_does_not_stop_the_device() {
    let device = SimDevice::new();
    let call = AssertUnwindSafe(|| {
        device.host_function(StreamId::DEFAULT, Box::new(|| panic!("on purpose")))
    });
    assert!(catch_unwind(call).is_err());
    device.synchronize().unwrap();
}

#[test]
fn no_host_function_runs_after_a_fault() {
    let device = SimDevice::new();
    let log = Arc::default();
    let stream = stream(&device);
    device.enqueue_work(stream, LONG).unwrap();
    device.host_function(stream, leaving(&log, 1)).unwrap();
    device.enqueue_work(stream, LONG).unwrap();
    device.fill(stream, 0, 1, Pattern(0)).unwrap();
    device.enqueue_work(stream, LONG).unwrap();
    device.host_function(stream, leaving(&log, 2)).unwrap();
    assert!(device.synchronize().is_err());
    assert_eq!(*log.lock().unwrap(), [1]);
}
