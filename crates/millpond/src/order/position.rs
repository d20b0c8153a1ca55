//! How far a stream has come.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::sync::AtomicU64;

/// How far a stream has come, as frees and records count it. Only `order` raises it; others may
/// read it without the pool's lock, and number with it what they free.
///
/// # Invariants
///
/// 1. A free that is numbered with [`Position::next`] has a number that nobody had taken yet when
///    it was read. An event stands for that number only if it was recorded after somebody had
///    raised the position to it: so after all that was submitted before the free. A reader for
///    whom it is raised already numbers his free higher, which is never wrong. The steps are
///    sequentially consistent, so that none is done before the driver's lock is let go under which
///    the work was submitted.
#[derive(Clone, Debug)]
pub(crate) struct Position(Arc<AtomicU64>);

impl Position {
    pub(super) fn new(start: u64) -> Position {
        Position(Arc::new(AtomicU64::new(start)))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// The position that a free has that happens now.
    pub(crate) fn next(&self) -> u64 {
        self.get() + 1
    }

    pub(super) fn raise_by_one(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn raise_to(&self, position: u64) {
        self.0.fetch_max(position, Ordering::SeqCst);
    }
}
