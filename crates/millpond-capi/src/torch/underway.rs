//! The captures that are under way in this process, and which streams they take in.
//!
//! Invariants: a filter is called only between its capture's beginning and its end, one call at a
//! time; a pool of captures is closed only while nothing is captured.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::filter::Filter;
use super::millpond_torch_pool_id as PoolId;
use engine::device::StreamId;

struct Capture {
    device: i32,
    pool: PoolId,
    filter: Filter,
}

/// All captures under way, of all devices: what the driver forbids during one, it forbids the
/// whole process.
#[derive(Default)]
pub(super) struct Underway {
    /// In order of their beginnings. The filters are called under this lock, so that no capture
    /// ends while its filter runs: what the filter looks at is gone after that.
    captures: Mutex<Vec<Capture>>,
    count: AtomicUsize,
    /// Held while something is done that no capture may begin within.
    quiet: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Underway {
    pub(super) fn begin(&self, device: i32, pool: PoolId, filter: Filter) {
        let _quiet = lock(&self.quiet);
        let mut captures = lock(&self.captures);
        captures.push(Capture {
            device,
            pool,
            filter,
        });
        self.count.store(captures.len(), Ordering::Release);
    }

    /// Whether such a capture was under way.
    pub(super) fn end(&self, device: i32, pool: PoolId) -> bool {
        let mut captures = lock(&self.captures);
        let found = captures
            .iter()
            .rposition(|capture| capture.device == device && capture.pool == pool);
        if let Some(found) = found {
            captures.remove(found);
        }
        self.count.store(captures.len(), Ordering::Release);
        found.is_some()
    }

    /// Whether anything is being captured.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The pool that a stream's allocations come from, if it is being captured: that of the last
    /// capture that takes it in.
    pub(super) fn pool_of(&self, device: i32, stream: StreamId) -> Option<PoolId> {
        if !self.any() {
            return None;
        }
        let captures = lock(&self.captures);
        let mut of_device = captures.iter().rev().filter(|c| c.device == device);
        of_device
            .find(|capture| capture.filter.accepts(stream))
            .map(|capture| capture.pool)
    }

    /// Does something within which no capture begins; not at all if one is under way.
    pub(super) fn while_quiet(&self, action: impl FnOnce()) {
        let _quiet = lock(&self.quiet);
        if !self.any() {
            action();
        }
    }
}
