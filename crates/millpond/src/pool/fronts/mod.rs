//! Fronts: what a stream has and freed lately, under a lock of its own.
//!
//! Jobs ask for the same sizes again and again, often right after they freed them, and streams
//! have little to do with each other. So each stream that allocates gets a *front*. Its requests
//! are served there as long as something fits: a block of the same size that was *parked* when it
//! was freed, or a small block out of regions that are the front's. Nothing of that is seen by
//! other streams, and threads that work on streams of their own do not meet. What a front cannot
//! serve, the pool does, under its own lock.
//!
//! What is parked counts as free, and goes back to all as soon as anybody finds nothing: before
//! the pool grows, lets a stream wait, or gives memory back.
//!
//! # Invariants
//!
//! 1. The pool's lock comes before a front's, and a front's before none.
//! 2. Memory moves between a front and the pool only under both locks, but for an empty region that
//!    a free found: that is nobody's until the pool has it.

mod books;
mod front;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use thread_local::ThreadLocal;

use super::Inner;
use super::state::{Granted, MarkerRequests, Need};
use crate::blocks::{Directory, Held, ThreadUsage};
use crate::order::StreamKey;
use crate::sync::AtomicUsize;
pub(super) use books::{Bindings, Heaps};
use front::Front;
pub(super) use front::Wish;

/// Streams that can have a front at a time; others do without.
pub(super) const FRONTS: usize = 128;
const _: () = assert!(FRONTS < Held::FRONTS && FRONTS < u8::MAX as usize);

/// The share of the live bytes that is parked in one front at most, beside the last block and the
/// small ones.
const SHARE: u64 = 256;

/// Streams whose fronts a thread remembers.
const NEAR: usize = 8;

/// All fronts of a pool.
#[derive(Debug)]
pub(super) struct Fronts {
    fronts: [OnceLock<Box<Front>>; FRONTS],
    directory: Directory,
    threads: ThreadLocal<OfThread>,
    /// Bytes that one front may park, beside its last block: follows what is live.
    allowance: AtomicU64,
    /// Requests that are with the pool just now.
    visits: AtomicUsize,
}

/// A request that is with the pool.
pub(super) struct Visit<'a> {
    visits: &'a AtomicUsize,
    others: usize,
}

impl Visit<'_> {
    /// Whether others were with the pool when it came.
    pub(super) fn meets_others(&self) -> bool {
        self.others > 0
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.visits.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one thread keeps to itself. No two are on a cache line.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(super) struct OfThread {
    pub(super) usage: ThreadUsage,
    near: Near,
}

/// Which front a thread found last for a stream. Only hints, which only its own thread writes: a
/// front knows whose it is.
#[derive(Default, Debug)]
struct Near([NearFront; NEAR]);

#[derive(Default, Debug)]
struct NearFront {
    stream: AtomicU64,
    identity: AtomicU64,
    /// The front's number, from one on.
    front: AtomicU8,
}

impl Near {
    fn entry(&self, key: StreamKey) -> &NearFront {
        // Handles are addresses, or small numbers.
        let hash = key.stream.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.identity;
        &self.0[(hash >> 56) as usize % NEAR]
    }
}

impl NearFront {
    fn get(&self, key: StreamKey) -> Option<usize> {
        let same = self.stream.load(Ordering::Relaxed) == key.stream.0
            && self.identity.load(Ordering::Relaxed) == key.identity;
        let front = self.front.load(Ordering::Relaxed).checked_sub(1)?;
        same.then_some(front as usize)
    }

    fn set(&self, key: StreamKey, front: usize) {
        self.stream.store(key.stream.0, Ordering::Relaxed);
        self.identity.store(key.identity, Ordering::Relaxed);
        self.front.store(front as u8 + 1, Ordering::Relaxed);
    }
}

impl Fronts {
    pub(super) fn new() -> Fronts {
        Fronts {
            fronts: [const { OnceLock::new() }; FRONTS],
            directory: Directory::new(),
            threads: ThreadLocal::new(),
            allowance: AtomicU64::new(0),
            visits: AtomicUsize::new(0),
        }
    }

    fn front(&self, number: usize) -> Option<&Front> {
        self.fronts.get(number)?.get().map(Box::as_ref)
    }

    /// All fronts that there are.
    fn all(&self) -> impl Iterator<Item = (usize, &Front)> {
        let numbered = self.fronts.iter().enumerate();
        // They are made one after the other.
        let made = numbered.map_while(|(number, front)| Some((number, front.get()?)));
        made.map(|(number, front)| (number, front.as_ref()))
    }

    /// What the calling thread keeps to itself.
    #[inline]
    pub(super) fn of_thread(&self) -> &OfThread {
        self.threads.get_or_default()
    }

    /// A request comes to the pool.
    pub(super) fn visit(&self) -> Visit<'_> {
        let others = self.visits.fetch_add(1, Ordering::Relaxed);
        let visits = &self.visits;
        Visit { visits, others }
    }

    /// Bytes asked for and not freed.
    pub(super) fn live_bytes(&self) -> u64 {
        ThreadUsage::live(self.threads.iter().map(|thread| &thread.usage))
    }

    /// The most bytes that were live since the last time, and those that are.
    pub(super) fn gather_usage(&self) -> (u64, u64) {
        ThreadUsage::gather(self.threads.iter().map(|thread| &thread.usage))
    }

    /// Fronts that there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.all().count()
    }

    fn allowance(&self) -> u64 {
        self.allowance.load(Ordering::Relaxed)
    }
}

impl Need {
    pub(super) fn wish(&self) -> Wish {
        Wish {
            requested: self.requested,
            size: self.size,
            alignment: self.alignment,
        }
    }
}

impl Inner {
    /// Serves a request from the front of its stream, if that has something.
    #[inline]
    pub(super) fn allocate_in_front(&self, key: StreamKey, wish: Wish) -> Option<Granted> {
        let thread = self.fronts.of_thread();
        let front = self.fronts.front(thread.near.entry(key).get(key)?)?;
        let taken = front.lock().take(&self.fronts.directory, key, wish);
        let (address, serial) = taken?;
        thread.usage.allocated(wish.requested);
        Some(Granted { address, serial })
    }

    /// Remembers the front of a stream, for this thread's next request.
    pub(super) fn remember_front(&self, key: StreamKey, number: Option<usize>) {
        if let Some(number) = number {
            self.fronts.of_thread().near.entry(key).set(key, number);
        }
    }

    /// Frees a block that is in a front. Gives whether it was.
    #[inline]
    pub(super) fn free_in_front(&self, address: u64, serial: Option<u64>) -> bool {
        let fronts = &self.fronts;
        let Some(Held {
            front: number,
            slot,
        }) = fronts.directory.get(address)
        else {
            return false;
        };
        let Some(front) = fronts.front(number) else {
            return false;
        };
        let block = (slot, address, serial);
        let freed = front
            .lock()
            .free(&fronts.directory, block, fronts.allowance());
        let Some((requested, surplus)) = freed else {
            return false;
        };
        fronts.of_thread().usage.freed(requested);
        if surplus {
            let requests = self.lock().take_from_front(number);
            self.mark_all(requests);
        }
        true
    }
}
