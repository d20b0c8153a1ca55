//! Streams and events of a device's own, for programs that have no CUDA runtime beside them, and
//! work to queue on them.

use std::ffi::c_void;

use engine::device::{EventId, Pattern, StreamId, StreamOrder};

use crate::boundary::{Out, address, call, pointer, required};
use crate::device::millpond_device;
use crate::status::millpond_status;

pub(crate) fn stream(raw: *mut c_void) -> StreamId {
    StreamId(address(raw))
}

pub(crate) fn event(raw: *mut c_void) -> EventId {
    EventId(address(raw))
}

/// Creates a stream (a `CUstream` on a CUDA device) without implicit order with the legacy stream.
///
/// To be destroyed with `millpond_stream_destroy`, after the pools were told
/// (`millpond_pool_stream_destroyed`).
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `device` is null or open; `result` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_create(
    device: *const millpond_device,
    result: *mut *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(result, "result") }?;
        let created = device
            .opened
            .device
            .create_stream(StreamOrder::Independent)?;
        out.set(pointer(created.0));
        Ok(())
    })
}

/// Destroys a stream that `millpond_stream_create` made. Does not wait: what was queued still runs.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, or no such stream),
/// `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `device` is null or open; `stream` is a stream of its, not destroyed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_destroy(
    device: *const millpond_device,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        Ok(device.opened.device.destroy_stream(self::stream(stream))?)
    })
}

/// Waits until all work queued on a stream is done.
///
/// A pool learns nothing from this: `millpond_pool_synchronize_stream` does the same, and tells it.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, or no such stream),
/// `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST` (among them: earlier work has failed).
///
/// # Safety
///
/// `device` is null or open; `stream` is a stream of its.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_synchronize(
    device: *const millpond_device,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        let stream = self::stream(stream);
        Ok(device.opened.device.synchronize_stream(stream)?)
    })
}

/// Queues on a stream: fill `size` bytes at `to` with the 8 bytes of `pattern` (little-endian),
/// repeated from the range's first byte.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, no such stream), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`. That the memory may not be touched shows when the stream is
/// synchronised.
///
/// # Safety
///
/// `device` is null or open; `stream` is a stream of its, which may write there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_fill(
    device: *const millpond_device,
    stream: *mut c_void,
    to: *mut c_void,
    size: u64,
    pattern: u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        let stream = self::stream(stream);
        let pattern = Pattern(pattern);
        Ok(device
            .opened
            .device
            .fill(stream, address(to), size, pattern)?)
    })
}

/// Queues on a stream: copy `size` bytes between two ranges of the device that do not overlap.
///
/// Errors: as `millpond_stream_fill`.
///
/// # Safety
///
/// `device` is null or open; `stream` is a stream of its, which may read and write there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_stream_copy(
    device: *const millpond_device,
    stream: *mut c_void,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        let stream = self::stream(stream);
        let (to, from) = (address(to), address(from));
        Ok(device.opened.device.copy(stream, to, from, size)?)
    })
}

/// Creates an event (a `CUevent` on a CUDA device), without timing. To be destroyed with
/// `millpond_event_destroy`.
///
/// Errors: as `millpond_stream_create`.
///
/// # Safety
///
/// `device` is null or open; `result` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_create(
    device: *const millpond_device,
    result: *mut *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(result, "result") }?;
        out.set(pointer(device.opened.device.create_event()?.0));
        Ok(())
    })
}

/// Destroys an event that `millpond_event_create` made. Does not wait. Pools that recorded it are
/// to be told first (`millpond_pool_forget_event`).
///
/// Errors: as `millpond_stream_destroy`.
///
/// # Safety
///
/// `device` is null or open; `event` is an event of its, not destroyed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_event_destroy(
    device: *const millpond_device,
    event: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        Ok(device.opened.device.destroy_event(self::event(event))?)
    })
}
