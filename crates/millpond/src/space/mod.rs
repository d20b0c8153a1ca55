//! Address ranges: which are free, who may use the free ones, and which addresses there are.
//!
//! - [`Pieces`]: what is free of one handle, with all its pasts.
//! - [`Strips`]: mappings in order of address, and the long free ranges through them.
//! - [`Extents`]: regions that are cut into small blocks; every part, taken or free, has a record.
//! - [`Reservations`]: address space, and which of it is taken for mappings.
//!
//! A free extent belongs to a *silo*: that of the one stream on which all its uses ended, or the
//! common one (used on several streams, or by nobody). Only free extents of one silo merge: across
//! silos a merged one would have to wait for the latest of its parts. Runs need no silos: the
//! pieces that they consist of keep their pasts.
//!
//! This room knows addresses, never handles: what backs an address is the business of `backing`.
//! Addresses and sizes are multiples of [`GRAIN`].

#![forbid(unsafe_code)]

mod extents;
mod free_index;
mod pieces;
mod reservations;
mod strips;

pub(crate) use extents::{ExtentId, Extents, Silo};
pub(crate) use pieces::{Free, Pieces};
pub(crate) use reservations::Reservations;
pub(crate) use strips::{Mapped, Strips, Summary};

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
