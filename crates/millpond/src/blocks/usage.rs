//! How much is live, and how much ever was, without a number that two threads write.
//!
//! # Invariants
//!
//! 1. What a thread allocated and freed is in its own numbers, so their sum is what is live; a
//!    thread that frees what others allocated has a negative share.
//! 2. Only its own thread raises a thread's `high`; [`ThreadUsage::gather`] begins it again. With
//!    one thread the peaks are exact. With several they are the sum of what the others have live and
//!    of the most that one had, when it is gathered: at times a little off, never by more than what
//!    threads allocated and freed between two gatherings.

use std::sync::atomic::{AtomicI64, Ordering};

/// What one thread allocated and freed, which only this thread calls.
#[derive(Default, Debug)]
pub(crate) struct ThreadUsage {
    live: AtomicI64,
    high: AtomicI64,
}

impl ThreadUsage {
    /// Bytes were allocated.
    #[inline]
    pub(crate) fn allocated(&self, bytes: u64) {
        let live = self.live.load(Ordering::Relaxed) + bytes as i64;
        self.live.store(live, Ordering::Relaxed);
        if live > self.high.load(Ordering::Relaxed) {
            self.high.store(live, Ordering::Relaxed);
        }
    }

    /// Bytes were freed.
    #[inline]
    pub(crate) fn freed(&self, bytes: u64) {
        let live = self.live.load(Ordering::Relaxed) - bytes as i64;
        self.live.store(live, Ordering::Relaxed);
    }

    /// Bytes that are live, by what all threads of a pool did.
    pub(crate) fn live<'a>(threads: impl Iterator<Item = &'a ThreadUsage>) -> u64 {
        let live: i64 = threads.map(|t| t.live.load(Ordering::Relaxed)).sum();
        // While others allocate and free, the one may be seen before the other.
        live.max(0) as u64
    }

    /// The most bytes that were live since the last time, and those that are.
    pub(crate) fn gather<'a>(threads: impl Iterator<Item = &'a ThreadUsage>) -> (u64, u64) {
        let mut live = 0;
        let mut rise = 0;
        for thread in threads {
            let own = thread.live.load(Ordering::Relaxed);
            live += own;
            rise = rise.max(thread.high.load(Ordering::Relaxed) - own);
            thread.high.store(own, Ordering::Relaxed);
        }
        let live = live.max(0) as u64;
        (live + rise.max(0) as u64, live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_one_thread_is_exact_however_seldom_it_is_gathered() {
        let thread = ThreadUsage::default();
        for bytes in [100, 50, 25] {
            thread.allocated(bytes);
            thread.freed(bytes);
        }
        thread.allocated(70);
        assert_eq!(ThreadUsage::gather([&thread].into_iter()), (100, 70));
        thread.freed(60);
        assert_eq!(ThreadUsage::gather([&thread].into_iter()), (70, 10));
        assert_eq!(ThreadUsage::live([&thread].into_iter()), 10);
    }

    #[test]
    fn a_thread_may_free_what_others_allocated() {
        let threads = [ThreadUsage::default(), ThreadUsage::default()];
        threads[0].allocated(100);
        threads[1].freed(100);
        threads[1].allocated(30);
        assert_eq!(ThreadUsage::live(threads.iter()), 30);
        let (high, live) = ThreadUsage::gather(threads.iter());
        assert!((100..=130).contains(&high), "{high}");
        assert_eq!(live, 30);
    }
}
