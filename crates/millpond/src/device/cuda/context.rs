//! The context in which a device works, and making it the calling thread's current one.
//!
//! Invariants: a thread's current context is after every call what it was before; a retained
//! primary context is released once; a thread's capture mode is after every call what it was before;
//! nothing reaches the driver from a forked process, or from
//! inside a host function, where the driver forbids it.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::driver::Driver;
use super::jobs;
use super::types::{CUcontext, CUdevice, SUCCESS};
use crate::device::{Call, DeviceError, Status};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_MODE_RELAXED: c_int = 2;

/// A context of a device.
pub(super) struct Context {
    pub(super) driver: Arc<Driver>,
    pub(super) device: CUdevice,
    raw: CUcontext,
    retained: bool,
    /// Streams that are being captured, as far as the device is told.
    captured: AtomicUsize,
}

impl Context {
    /// One more stream is being captured, or one less.
    pub(super) fn capturing(&self, begins: bool) {
        if begins {
            self.captured.fetch_add(1, Ordering::Relaxed);
        } else {
            self.captured.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Retains the device's primary context, the one that the CUDA runtime uses.
    pub(super) fn primary(driver: Arc<Driver>, ordinal: u32) -> Result<Context, DeviceError> {
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(DeviceError::new(
                Call::Open,
                Status::INVALID_DEVICE,
                format!(
                    "asked for device {ordinal}, and this process sees {count}, numbered from 0; \
                     choose one of them, or see CUDA_VISIBLE_DEVICES"
                ),
            ));
        }
        let mut device = 0;
        // SAFETY: the driver is initialised; `device` outlives the call; the ordinal is below a
        // count that is an `int`.
        let code = unsafe { (driver.functions.device_get)(&raw mut device, ordinal.cast_signed()) };
        driver.check(Call::Open, code, || format!("asked for device {ordinal}"))?;
        let raw = retain(&driver, device)?;
        Ok(Context {
            driver,
            device,
            raw,
            retained: true,
            captured: AtomicUsize::new(0),
        })
    }

    /// Takes the calling thread's current context. If it is a primary context it is retained;
    /// otherwise it stays the caller's.
    pub(super) fn current(driver: Arc<Driver>) -> Result<Context, DeviceError> {
        driver.check_process(Call::Open)?;
        let raw = current(&driver, Call::Open)?;
        if raw == 0 {
            return Err(DeviceError::new(
                Call::Open,
                Status::INVALID_CONTEXT,
                "asked for the current context, and this thread has none; make one current, or \
                 open the device by its ordinal",
            ));
        }
        let mut device = 0;
        // SAFETY: the driver is initialised and a context is current; `device` outlives the call.
        let code = unsafe { (driver.functions.ctx_get_device)(&raw mut device) };
        driver.check(Call::Open, code, || "asked for the current device".into())?;
        let retained = is_active_primary(&driver, device, raw)?;
        Ok(Context {
            driver,
            device,
            raw,
            retained,
            captured: AtomicUsize::new(0),
        })
    }

    /// Makes the context current, where it is not, until the guard is dropped.
    pub(super) fn enter(&self, call: Call) -> Result<Entered<'_>, DeviceError> {
        self.driver.check_process(call)?;
        if jobs::inside_host_function() {
            return Err(DeviceError::new(
                call,
                Status::NOT_PERMITTED,
                "called from inside a host function, where the driver must not be called; hand the \
                 work to another thread",
            ));
        }
        let pushed = current(&self.driver, call)? != self.raw;
        if pushed {
            // SAFETY: the driver is initialised; the context is retained by this object, or the
            // caller keeps it alive.
            let code = unsafe { (self.driver.functions.ctx_push_current)(self.raw) };
            self.driver.check(call, code, || {
                format!(
                    "asked to make the context of device {} current",
                    self.device
                )
            })?;
        }
        let captured = self.captured.load(Ordering::Relaxed) > 0;
        Ok(Entered {
            driver: &self.driver,
            pushed,
            capture_mode: captured
                .then(|| exchange_capture_mode(&self.driver, CAPTURE_MODE_RELAXED))
                .flatten(),
            not_send: PhantomData,
        })
    }

    /// Releases the primary context, if it was retained. Errors are not told: the context is given
    /// up either way.
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.retained) {
            // SAFETY: the driver is initialised, and this undoes the one retaining of this object.
            unsafe { (self.driver.functions.device_primary_ctx_release)(self.device) };
        }
    }
}

/// A context that is current on this thread until this is dropped.
pub(super) struct Entered<'a> {
    pub(super) driver: &'a Driver,
    pushed: bool,
    /// The thread's capture mode before it was relaxed, if it was.
    capture_mode: Option<c_int>,
    /// What is current is so on one thread: the guard stays on it.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.capture_mode {
            exchange_capture_mode(self.driver, mode);
        }
        if self.pushed {
            let mut popped = 0;
            // SAFETY: the context on top of this thread's stack is the one pushed by `enter`:
            // guards are dropped in the reverse order, and on their own thread. A failure (the
            // driver is gone) leaves nothing to restore.
            unsafe { (self.driver.functions.ctx_pop_current)(&raw mut popped) };
        }
    }
}

/// Sets the calling thread's capture mode, and gives what it was. By default the driver refuses
/// much to all threads while any captures, and ends the capture for it; relaxed, it refuses only
/// what touches captured streams (DRV `cuThreadExchangeStreamCaptureMode`).
fn exchange_capture_mode(driver: &Driver, mode: c_int) -> Option<c_int> {
    let exchange = driver.functions.thread_exchange_stream_capture_mode?;
    let mut mode = mode;
    // SAFETY: the driver is initialised, and `mode` outlives the call.
    let code = unsafe { exchange(&raw mut mode) };
    (code == SUCCESS).then_some(mode)
}

fn current(driver: &Driver, call: Call) -> Result<CUcontext, DeviceError> {
    let mut raw = 0;
    // SAFETY: the driver is initialised; `raw` outlives the call.
    let code = unsafe { (driver.functions.ctx_get_current)(&raw mut raw) };
    driver.check(call, code, || "asked for the current context".into())?;
    Ok(raw)
}

fn retain(driver: &Driver, device: CUdevice) -> Result<CUcontext, DeviceError> {
    let mut raw = 0;
    // SAFETY: the driver is initialised, `device` came from it, and `raw` outlives the call.
    let code = unsafe { (driver.functions.device_primary_ctx_retain)(&raw mut raw, device) };
    driver.check(Call::Open, code, || {
        format!("asked for the primary context of device {device}")
    })?;
    Ok(raw)
}

/// Whether `context` is the device's primary one; if so, it is retained.
fn is_active_primary(
    driver: &Driver,
    device: CUdevice,
    context: CUcontext,
) -> Result<bool, DeviceError> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the driver is initialised, `device` came from it, and the results outlive the call.
    let code = unsafe {
        (driver.functions.device_primary_ctx_get_state)(device, &raw mut flags, &raw mut active)
    };
    // Retaining an inactive primary context would create it, and it is not the current one.
    if code != SUCCESS || active == 0 {
        return Ok(false);
    }
    if retain(driver, device)? == context {
        return Ok(true);
    }
    // SAFETY: this undoes the retaining just made.
    unsafe { (driver.functions.device_primary_ctx_release)(device) };
    Ok(false)
}
