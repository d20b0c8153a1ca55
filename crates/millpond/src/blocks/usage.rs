//! How much is live, and how much ever was, without a number that two threads write.
//!
//! # Invariants
//!
//! 1. What a thread allocated and freed is in its own numbers, so their sum is what is live; a
//!    thread that frees what others allocated has a negative share.
//! 2. Only its own thread raises a thread's `high`; [`Usage::gather`] begins it again. With one
//!    thread the peaks are exact. With several they are the sum of what the others have live and
//!    of the most that one had, when it is gathered: at times a little off, never by more than what
//!    threads allocated and freed between two gatherings.

use std::sync::atomic::{AtomicI64, Ordering};

use thread_local::ThreadLocal;

/// What one thread did.
#[derive(Default, Debug)]
#[repr(align(128))]
struct OfThread {
    live: AtomicI64,
    high: AtomicI64,
}

/// The live bytes of a pool, as its threads see them.
#[derive(Default, Debug)]
pub(crate) struct Usage {
    threads: ThreadLocal<OfThread>,
}

impl Usage {
    /// Bytes were allocated.
    pub(crate) fn allocated(&self, bytes: u64) {
        let own = self.threads.get_or_default();
        // Only this thread writes `live`: no other order of the two steps is seen.
        let live = own.live.load(Ordering::Relaxed) + bytes as i64;
        own.live.store(live, Ordering::Relaxed);
        if live > own.high.load(Ordering::Relaxed) {
            own.high.store(live, Ordering::Relaxed);
        }
    }

    /// Bytes were freed.
    pub(crate) fn freed(&self, bytes: u64) {
        let own = self.threads.get_or_default();
        let live = own.live.load(Ordering::Relaxed) - bytes as i64;
        own.live.store(live, Ordering::Relaxed);
    }

    /// Bytes that are live.
    pub(crate) fn live(&self) -> u64 {
        let threads = self.threads.iter();
        let live: i64 = threads.map(|t| t.live.load(Ordering::Relaxed)).sum();
        // While others allocate and free, the one may be seen before the other.
        live.max(0) as u64
    }

    /// The most bytes that were live since the last time, and those that are.
    pub(crate) fn gather(&self) -> (u64, u64) {
        let mut live = 0;
        let mut rise = 0;
        for thread in &self.threads {
            let own = thread.live.load(Ordering::Relaxed);
            live += own;
            rise = rise.max(thread.high.load(Ordering::Relaxed) - own);
            thread.high.store(own, Ordering::Relaxed);
        }
        let live = live.max(0) as u64;
        (live.saturating_add_signed(rise.max(0)), live)
    }
}
