//! Blocks cut out of regions that the pool takes like any larger block.
//!
//! So that many small blocks do not pin many handles, and do not each cost the care that a larger
//! one is worth, they share regions of [`REGION`] bytes. Where threads would meet too often in the
//! pool, larger blocks share regions too: *leases* of [`LEASE`] bytes that a front has for itself.
//! A region in which nothing lives any more goes back to the pool; one of each heap is kept for the
//! next block.
//!
//! # Invariants
//!
//! 1. `blocks` of a region are the blocks in it, those claimed by a call under way among them.
//! 2. The kept region, if there is one, has none; no other region has none.

#![forbid(unsafe_code)]

use slab::Slab;

use crate::order::{Ends, Order, Reasons, StreamIndex};
use crate::space::{ExtentId, Extents, Silo, align_up};

/// Bytes of a region.
pub(crate) const REGION: u64 = 2 << 20;

/// Bytes; a block that is smaller is a small one.
pub(crate) const SMALL: u64 = 64 << 10;

/// Bytes of a lease.
pub(crate) const LEASE: u64 = 32 << 20;

/// Bytes; a larger block is never cut out of a lease.
pub(crate) const LEASED: u64 = LEASE / 8;

#[derive(Debug)]
struct Region {
    address: u64,
    blocks: u32,
}

/// A region in which nothing lives, to be given back.
#[derive(Clone, Debug)]
pub(crate) struct EmptyRegion {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Where the last uses of its blocks ended.
    pub(crate) ends: Ends,
}

/// A small block that was taken, and where the earlier uses of its memory ended.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) extent: ExtentId,
    pub(crate) address: u64,
    pub(crate) ends: Ends,
}

/// A heap of small blocks, or of leased ones, in regions of its own.
#[derive(Debug)]
pub(crate) struct Small {
    /// Bytes of each region.
    region: u64,
    extents: Extents,
    regions: Slab<Region>,
    kept: Option<u32>,
}

/// A run of neighbouring free extents.
struct Run {
    first: ExtentId,
    start: u64,
    length: u64,
}

impl Small {
    /// A heap for small blocks.
    pub(crate) fn new() -> Small {
        Small::with_regions(REGION)
    }

    /// A heap for blocks in leases.
    pub(crate) fn of_leases() -> Small {
        Small::with_regions(LEASE)
    }

    fn with_regions(region: u64) -> Small {
        Small {
            region,
            extents: Extents::new(),
            regions: Slab::new(),
            kept: None,
        }
    }

    /// Bytes that are free in regions.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.extents.free_bytes()
    }

    /// Of the free bytes: those whose last uses are not seen to be completed.
    pub(crate) fn pending_bytes(&self, order: &Order) -> u64 {
        let pending = self.extents.free().map(|id| self.extents.get(id));
        let pending = pending.filter(|extent| !order.completed(&extent.ends));
        pending.map(|extent| extent.size).sum()
    }

    /// Takes a block that was used last by one stream alone, for that stream.
    pub(crate) fn take_own(
        &mut self,
        size: u64,
        alignment: u64,
        owner: StreamIndex,
    ) -> Option<Taken> {
        let own = Silo::of_stream(owner);
        let fit = self.extents.find(own, size, alignment, |_| true)?;
        let (extent, ends) = self.extents.take(fit.id, fit.address, size);
        Some(self.taken(extent, ends))
    }

    /// Takes a block that the stream may use at once: from its own silo, then from what is ordered
    /// or completed in the others, then from neighbours of several silos together.
    pub(crate) fn take_usable(
        &mut self,
        order: &Order,
        size: u64,
        alignment: u64,
        asker: StreamIndex,
        reasons: Reasons,
    ) -> Option<Taken> {
        let usable = |ends: &Ends| order.usable(ends, asker, reasons);
        let own = Silo::of_stream(asker);
        let others = self.extents.silos().filter(|&silo| silo != own);
        let fit = std::iter::once(own)
            .chain(others)
            .find_map(|silo| self.extents.find(silo, size, alignment, usable));
        if let Some(fit) = fit {
            let (extent, ends) = self.extents.take(fit.id, fit.address, size);
            return Some(self.taken(extent, ends));
        }
        // Neighbours of one silo are merged already.
        if self.extents.silos_in_use() < 2 {
            return None;
        }
        self.take_run(size, alignment, usable)
    }

    /// Takes a block out of memory that `acceptable` accepts, whoever used it last.
    pub(crate) fn take_any(
        &mut self,
        size: u64,
        alignment: u64,
        acceptable: impl Fn(&Ends) -> bool,
    ) -> Option<Taken> {
        let silos = self.extents.silos();
        let fits = silos.filter_map(|silo| self.extents.find(silo, size, alignment, &acceptable));
        let smallest = fits.min_by_key(|fit| (self.extents.get(fit.id).size, fit.address));
        if let Some(fit) = smallest {
            let (extent, ends) = self.extents.take(fit.id, fit.address, size);
            return Some(self.taken(extent, ends));
        }
        self.take_run(size, alignment, acceptable)
    }

    /// Takes neighbouring free extents that `accept` accepts and that together are large enough.
    fn take_run(
        &mut self,
        size: u64,
        alignment: u64,
        accept: impl Fn(&Ends) -> bool,
    ) -> Option<Taken> {
        let accepted =
            |id: ExtentId| self.extents.is_free(id) && accept(&self.extents.get(id).ends);
        let mut best: Option<Run> = None;
        for first in self.extents.free() {
            let continued = self.extents.previous(first).is_some_and(accepted);
            if continued || !accepted(first) {
                continue;
            }
            let start = self.extents.get(first).address;
            let mut last = first;
            while let Some(next) = self.extents.next(last).filter(|&next| accepted(next)) {
                last = next;
            }
            let end = self.extents.get(last).end();
            let Some(aligned) = align_up(start, alignment) else {
                continue;
            };
            let fits = aligned
                .checked_add(size)
                .is_some_and(|needed| needed <= end);
            let run = Run {
                first,
                start,
                length: end - start,
            };
            let better = |b: &Run| (run.length, run.start) < (b.length, b.start);
            if fits && best.as_ref().is_none_or(better) {
                best = Some(run);
            }
        }
        let run = best?;
        let start = align_up(run.start, alignment)?;
        let (extent, ends) = self.extents.take_across(run.first, start, start + size);
        Some(self.taken(extent, ends))
    }

    fn taken(&mut self, extent: ExtentId, ends: Ends) -> Taken {
        let taken = self.extents.get(extent);
        let region = taken.region;
        let address = taken.address;
        self.regions[region as usize].blocks += 1;
        if self.kept == Some(region) {
            self.kept = None;
        }
        Taken {
            extent,
            address,
            ends,
        }
    }

    /// Adds a region, and takes a block out of it. The earlier uses of the region's memory ended
    /// at `ends`.
    pub(crate) fn add_region(
        &mut self,
        address: u64,
        ends: Ends,
        size: u64,
        alignment: u64,
    ) -> Taken {
        let region = self.regions.insert(Region { address, blocks: 0 }) as u32;
        let id = self.extents.insert_taken(address, self.region, region);
        let id = self.extents.free_extent(id, ends);
        let place = align_up(address, alignment).unwrap_or(address);
        let (extent, ends) = self.extents.take(id, place, size);
        self.taken(extent, ends)
    }

    /// Frees a block whose uses ended at `ends`. Gives its region if that is to be given back.
    pub(crate) fn release(&mut self, extent: ExtentId, ends: Ends) -> Option<EmptyRegion> {
        let region = self.extents.get(extent).region;
        let id = self.extents.free_extent(extent, ends);
        let record = &mut self.regions[region as usize];
        record.blocks -= 1;
        if record.blocks > 0 {
            return None;
        }
        if self.kept.is_none() {
            self.kept = Some(region);
            return None;
        }
        Some(self.remove_region(region, id))
    }

    fn remove_region(&mut self, region: u32, part: ExtentId) -> EmptyRegion {
        let ends = self.extents.remove_free_region(part);
        let Region { address, .. } = self.regions.remove(region as usize);
        let size = self.region;
        EmptyRegion {
            address,
            size,
            ends,
        }
    }

    /// Gives up the kept region.
    pub(crate) fn give_up_kept(&mut self) -> Option<EmptyRegion> {
        let region = self.kept.take()?;
        let mut free = self.extents.free();
        let part = free.find(|&id| self.extents.get(id).region == region)?;
        drop(free);
        Some(self.remove_region(region, part))
    }

    /// Changes what is remembered of the pasts of free bytes, where `change` has an answer.
    pub(crate) fn rewrite(&mut self, change: impl Fn(&Ends) -> Option<Ends>) {
        for id in self.extents.free().collect::<Vec<_>>() {
            // An earlier change may have merged this extent into another one.
            if self.extents.is_free(id)
                && let Some(ends) = change(&self.extents.get(id).ends)
            {
                self.extents.change_ends(id, |old| *old = ends);
            }
        }
    }

    /// Where a block stands: its address and size, if the extent is taken.
    pub(crate) fn block(&self, extent: ExtentId) -> Option<(u64, u64)> {
        let record = self.extents.get(extent);
        (!self.extents.is_free(extent)).then_some((record.address, record.size))
    }

    /// Checks the room's invariants; gives the bytes of all regions.
    pub(crate) fn validate(&self) -> Result<u64, String> {
        let covered = self.extents.validate()?;
        let regions = self.regions.len() as u64 * self.region;
        if covered != regions {
            return Err(format!(
                "extents cover {covered} bytes of {regions} in regions"
            ));
        }
        for (number, region) in &self.regions {
            let kept = self.kept == Some(number as u32);
            if kept != (region.blocks == 0) {
                return Err(format!(
                    "the region at {:#x} has {} blocks",
                    region.address, region.blocks
                ));
            }
        }
        Ok(covered)
    }
}

#[cfg(test)]
mod tests;
