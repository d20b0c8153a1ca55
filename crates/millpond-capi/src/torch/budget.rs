//! The bytes that all pools of one device may take together.
//!
//! Invariant: `used` is what the device has given and not got back, plus what is being asked for;
//! it passes `limit` only if the limit was lowered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use engine::device::HandleId;
use rustc_hash::FxHashMap;

/// A piece of memory that the device has given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Piece {
    Handle(HandleId),
    Plain(u64),
}

#[derive(Debug)]
pub(super) struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    pieces: Mutex<FxHashMap<Piece, u64>>,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            pieces: Mutex::default(),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Release);
    }

    /// Sets bytes aside; gives how many are used if these do not fit.
    pub(super) fn promise(&self, bytes: u64) -> Result<(), u64> {
        let limit = self.limit();
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|&sum| sum <= limit)
            })
            .map(drop)
    }

    /// The device gave the promised bytes.
    pub(super) fn kept(&self, piece: Piece, bytes: u64) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.insert(piece, bytes);
    }

    /// The device did not give the promised bytes.
    pub(super) fn broken(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// The device got a piece back.
    pub(super) fn returned(&self, piece: Piece) {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = pieces.remove(&piece) {
            self.used.fetch_sub(bytes, Ordering::AcqRel);
        }
    }
}
