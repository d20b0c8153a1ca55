//! Counting the driver calls of a pool, and their time.

use std::sync::atomic::{AtomicU64, Ordering};

use millpond::device::{Call, CallRecord, Observer, Outcome};
use serde::Serialize;

/// The driver calls that make, place and take away memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct DriverCalls {
    pub(crate) create: u64,
    pub(crate) map: u64,
    pub(crate) set_access: u64,
    pub(crate) unmap: u64,
    pub(crate) release: u64,
    /// Of plain memory.
    pub(crate) allocate: u64,
    /// Of plain memory.
    pub(crate) free: u64,
}

impl DriverCalls {
    pub(crate) fn total(&self) -> u64 {
        let mapped = self.create + self.map + self.set_access + self.unmap + self.release;
        mapped + self.allocate + self.free
    }

    fn since(self, before: DriverCalls) -> DriverCalls {
        DriverCalls {
            create: self.create - before.create,
            map: self.map - before.map,
            set_access: self.set_access - before.set_access,
            unmap: self.unmap - before.unmap,
            release: self.release - before.release,
            allocate: self.allocate - before.allocate,
            free: self.free - before.free,
        }
    }
}

/// Calls so far, and their time on the device's host clock, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct CallTotals {
    pub(super) calls: DriverCalls,
    /// Of `calls`.
    pub(super) driver_ns: u64,
    /// Of all other calls, such as those for events.
    pub(super) other_ns: u64,
}

impl CallTotals {
    /// What came after these, which were taken before.
    pub(super) fn since(self, before: CallTotals) -> CallTotals {
        CallTotals {
            calls: self.calls.since(before.calls),
            driver_ns: self.driver_ns - before.driver_ns,
            other_ns: self.other_ns - before.other_ns,
        }
    }
}

/// An observer that counts. A call that failed counts too: it took its time.
#[derive(Debug, Default)]
pub(super) struct CallCounter {
    create: AtomicU64,
    map: AtomicU64,
    set_access: AtomicU64,
    unmap: AtomicU64,
    release: AtomicU64,
    allocate: AtomicU64,
    free: AtomicU64,
    driver_ns: AtomicU64,
    other_ns: AtomicU64,
}

impl CallCounter {
    /// Takes the totals. Calls of other threads that are on their way may be counted in part.
    pub(super) fn totals(&self) -> CallTotals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CallTotals {
            calls: DriverCalls {
                create: get(&self.create),
                map: get(&self.map),
                set_access: get(&self.set_access),
                unmap: get(&self.unmap),
                release: get(&self.release),
                allocate: get(&self.allocate),
                free: get(&self.free),
            },
            driver_ns: get(&self.driver_ns),
            other_ns: get(&self.other_ns),
        }
    }
}

impl Observer for CallCounter {
    fn after(&self, call: &CallRecord, _outcome: Outcome<'_>, started: u64, ended: u64) {
        let counter = match call.call() {
            Call::Create => Some(&self.create),
            Call::Map => Some(&self.map),
            Call::SetAccess => Some(&self.set_access),
            Call::Unmap => Some(&self.unmap),
            Call::Release => Some(&self.release),
            Call::Allocate => Some(&self.allocate),
            Call::Free => Some(&self.free),
            _ => None,
        };
        let time = match counter {
            Some(counter) => {
                counter.fetch_add(1, Ordering::Relaxed);
                &self.driver_ns
            }
            None => &self.other_ns,
        };
        time.fetch_add(ended.saturating_sub(started), Ordering::Relaxed);
    }
}
