//! Streams of others, and threads without a context.

use millpond::device::cuda::CudaDevice;
use millpond::device::{Device, HandleProperties, Status, StreamId, StreamOrder};

use crate::{Mapped, PATTERN, device, mapping_device, status, wrong};

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
