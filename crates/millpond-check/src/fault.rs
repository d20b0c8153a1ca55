//! Making one of the next calls fail, on demand.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond::device::{Call, CallRecord, DeviceError, Observer, Outcome, Status};

/// An [`Observer`] that fails one call when it is told to. Calls that only the driver of a test
/// makes (streams, fills, checks) are left alone.
#[derive(Debug, Default)]
pub(crate) struct Trigger {
    /// Whether calls are counted and failed.
    begun: AtomicBool,
    /// Calls until one fails, counting it; 0: none. The top bit says how.
    countdown: AtomicU64,
    failed: AtomicU64,
    seen: AtomicU64,
}

const OTHERWISE: u64 = 1 << 63;

impl Trigger {
    /// Lets `after` calls succeed and the next one fail, counted from the begin, or from now.
    pub(crate) fn arm(&self, after: u64, out_of_memory: bool) {
        let how = if out_of_memory { 0 } else { OTHERWISE };
        self.countdown.store((after + 1) | how, Ordering::Relaxed);
    }

    /// Counts, and fails what it is told to, from now on.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Counts and fails nothing any more.
    pub(crate) fn end(&self) {
        self.begun.store(false, Ordering::Relaxed);
    }

    /// Calls that were failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Calls that could have been failed.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Observer for Trigger {
    fn before(&self, record: &CallRecord) -> Result<(), DeviceError> {
        let call = record.call();
        let drivers_own = [
            Call::CreateStream,
            Call::DestroyStream,
            Call::Fill,
            Call::Verify,
            Call::Copy,
            Call::HostFunction,
        ];
        if !self.begun.load(Ordering::Relaxed) || drivers_own.contains(&call) {
            return Ok(());
        }
        self.seen.fetch_add(1, Ordering::Relaxed);
        let one_less = |left: u64| (left & !OTHERWISE > 0).then(|| left - 1);
        let Ok(left) = self
            .countdown
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
        else {
            return Ok(());
        };
        if left & !OTHERWISE != 1 {
            return Ok(());
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
        let status = match left & OTHERWISE {
            0 => Status::OUT_OF_MEMORY,
            _ => Status::INVALID_VALUE,
        };
        Err(DeviceError::new(call, status, "injected fault".to_owned()))
    }

    fn after(&self, _: &CallRecord, _: Outcome<'_>, _: u64, _: u64) {}
}
