//! Counting what an allocator has of its device, from its calls alone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond::device::{Call, CallRecord, DeviceError, HandleId, Observer, Outcome, Status};
use rustc_hash::FxHashMap;

/// An observer that adds up the bytes of handles and plain allocations, and, with a limit, fails
/// what goes beyond it as a device without room does.
///
/// A handle counts from its creation to its release: whoever is counted unmaps first.
#[derive(Debug, Default)]
pub struct Reserved {
    limit: Option<u64>,
    count: Mutex<Count>,
}

#[derive(Debug, Default)]
struct Count {
    bytes: u64,
    peak: u64,
    handles: FxHashMap<HandleId, u64>,
    allocations: FxHashMap<u64, u64>,
}

impl Reserved {
    /// An observer with nothing counted. At most `limit` bytes may be taken.
    pub fn new(limit: Option<u64>) -> Reserved {
        Reserved {
            limit,
            count: Mutex::default(),
        }
    }

    /// Bytes now.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// The most bytes there were since the peak was reset.
    pub fn peak_bytes(&self) -> u64 {
        self.lock().peak
    }

    /// From now on the peak is that of what comes, and begins with what there is.
    pub fn reset_peak(&self) {
        let mut count = self.lock();
        count.peak = count.bytes;
    }

    fn lock(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, call: Call, size: u64) -> Result<(), DeviceError> {
        let Some(limit) = self.limit else {
            return Ok(());
        };
        let taken = self.lock().bytes;
        if size <= limit.saturating_sub(taken) {
            return Ok(());
        }
        Err(DeviceError::new(
            call,
            Status::OUT_OF_MEMORY,
            format!(
                "{size} bytes were asked for, {taken} of the {limit} allowed are taken; release \
                 memory, or raise the limit"
            ),
        ))
    }
}

impl Observer for Reserved {
    fn before(&self, call: &CallRecord) -> Result<(), DeviceError> {
        match *call {
            CallRecord::Create { size, .. } | CallRecord::Allocate { size } => {
                self.check(call.call(), size)
            }
            _ => Ok(()),
        }
    }

    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, _started: u64, _ended: u64) {
        let mut count = self.lock();
        match (call, outcome) {
            (&CallRecord::Create { size, .. }, Outcome::Value(handle)) => {
                count.handles.insert(HandleId(handle), size);
                count.add(size);
            }
            (&CallRecord::Allocate { size }, Outcome::Value(address)) => {
                count.allocations.insert(address, size);
                count.add(size);
            }
            (CallRecord::Release { handle }, Outcome::Done) => {
                count.bytes -= count.handles.remove(handle).unwrap_or(0);
            }
            (CallRecord::Free { address }, Outcome::Done) => {
                count.bytes -= count.allocations.remove(address).unwrap_or(0);
            }
            _ => {}
        }
    }
}

impl Count {
    fn add(&mut self, size: u64) {
        self.bytes += size;
        self.peak = self.peak.max(self.bytes);
    }
}
