//! When to stop, and on how many threads to work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub(crate) struct Control<'a> {
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: &'a AtomicBool,
    /// At least 1.
    pub(crate) threads: usize,
}

impl Control<'_> {
    /// Whether the deadline has passed or the caller has cancelled.
    pub(crate) fn over(&self) -> bool {
        self.cancel.load(Ordering::Relaxed) || self.deadline.is_some_and(|d| Instant::now() >= d)
    }
}
