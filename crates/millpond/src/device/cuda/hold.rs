//! Holding a stream, for tests: it waits for a word in host memory, so that neither a kernel nor
//! the driver's one thread for host functions is kept busy.

use super::CudaDevice;
use super::contract::raw_stream;
use super::slots::Slot;
use crate::device::{Call, DeviceError, Status, StreamId};

/// Keeps a stream from going on until it is dropped.
#[doc(hidden)]
#[derive(Debug)]
#[must_use = "the stream goes on when this is dropped"]
pub struct Hold {
    slot: Slot,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.slot.set(1);
    }
}

impl CudaDevice {
    /// Holds a stream until the answer is dropped (`cuStreamWaitValue64`). For tests: each hold
    /// takes a few bytes of pinned memory until the device is dropped.
    #[doc(hidden)]
    pub fn hold(&self, stream: StreamId) -> Result<Hold, DeviceError> {
        let entered = self.context.enter(Call::WaitEvent)?;
        let Some(wait) = entered.driver.functions.stream_wait_value64 else {
            let detail = "this driver has no cuStreamWaitValue64";
            return Err(DeviceError::new(
                Call::WaitEvent,
                Status::NOT_SUPPORTED,
                detail,
            ));
        };
        let slot = self.slots.take(&entered)?;
        // SAFETY: a context is current; the slot's memory lives as long as the device, and is given
        // to nobody else.
        let code = unsafe { wait(raw_stream(stream), slot.device, 1, WAIT_VALUE_GEQ) };
        self.check(Call::WaitEvent, code, || {
            format!("asked to hold stream {stream}")
        })?;
        Ok(Hold { slot })
    }
}

/// `CU_STREAM_WAIT_VALUE_GEQ`.
const WAIT_VALUE_GEQ: u32 = 0;
