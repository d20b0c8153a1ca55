//! Address ranges: which are backed, which of these are free, and who may use the free ones.
//!
//! Backed address space is cut into *extents*. Neighbouring extents are linked, so that a freed
//! one finds those it can merge with at once; free extents stand in an index by size. A free
//! extent belongs to a *silo*: that of the one stream on which all its uses ended, or the common
//! one (used on several streams, or by nobody). Only extents of one silo merge: across silos a
//! merged range would have to wait for the latest of its parts.
//!
//! This room knows addresses, never handles: what backs an extent is the business of `mapping`.
//!
//! # Invariants
//!
//! 1. Extents do not overlap, and every backed byte is in exactly one.
//! 2. Linked extents touch, and lie in one reservation; extents that touch in one reservation are
//!    linked.
//! 3. No two linked free extents are of the same silo.
//! 4. An extent is in the index of its silo exactly if it is free.
//! 5. Addresses and sizes are multiples of [`GRAIN`].

#![forbid(unsafe_code)]

mod extents;
mod free_index;
mod reservations;

pub(crate) use extents::{ExtentId, Extents, Silo};
pub(crate) use reservations::{Gap, Reservations};

/// Bytes; the size and alignment of the smallest range. CUDA's own allocations have this
/// alignment, and programs rely on it (DRV `cuMemAlloc`: "suitably aligned for any kind of
/// variable"; RMM and the driver's pools promise 256).
pub(crate) const GRAIN: u64 = 256;

/// The next multiple of `alignment` (a power of two) at or above `value`, unless it overflows.
pub(crate) fn align_up(value: u64, alignment: u64) -> Option<u64> {
    Some(value.checked_add(alignment - 1)? & !(alignment - 1))
}

#[cfg(test)]
mod tests;
