//! Which pool is which.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::{Inner, Pool};

/// The number of the pool that was built last.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that no other pool of the process has.
pub(super) fn next() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Pool {
    /// A number that no other pool of the process ever has.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// The pool, for as long as others keep it.
    pub(crate) fn downgrade(&self) -> WeakPool {
        WeakPool(Arc::downgrade(&self.inner))
    }
}

/// Clones are equal, and equal to no other pool.
impl PartialEq for Pool {
    fn eq(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Pool {}

/// A pool that others may let go.
#[derive(Debug)]
pub(crate) struct WeakPool(Weak<Inner>);

impl WeakPool {
    /// The pool, if it is still there: if somebody has it or a block of it, or if it was destroyed
    /// and has memory.
    pub(crate) fn upgrade(&self) -> Option<Pool> {
        let inner = self.0.upgrade()?;
        Some(Pool { inner })
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
