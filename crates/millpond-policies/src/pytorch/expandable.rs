//! `expandable`: PyTorch's caching allocator with expandable segments.
//!
//! # Rules, beside those of both kinds
//!
//! - A segment is a range of addresses for one stream and kind, 9/8 of the device's memory, under
//!   which handles are put: 2 MiB each for small blocks, 20 MiB for large ones.
//! - Best fit values a free block at its size and that of the unmapped block behind it; among the
//!   blocks that fit, in order of their own size, it goes on while the next one is worth less.
//! - If no free block fits, the lowest place is taken where free and unmapped blocks, side by side
//!   and beginning at an unmapped one or the free one before it, are large enough together. Memory
//!   is put under as much of it as the request needs, in whole handles. So holes are filled before
//!   the end moves on.
//! - What is left of a block is split off if it is at least 512 bytes.
//! - Handles are kept. When the device has no room, all that lie in a free block as a whole are
//!   taken away and released, after a wait for the segment's stream; a segment without any goes.
//!
//! # Invariants
//!
//! - Unmapped blocks begin and end with a handle's place. `handles` has a handle for each other
//!   place.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond::device::{
    AccessGrant, Accessor, Device, DeviceError, HandleId, HandleProperties, Protection, StreamId,
};

use super::blocks::{Block, BlockId, Blocks, State};
use super::{GRAIN, Kind, LARGE_SEGMENT, SMALL_SEGMENT, rounded};
use crate::PolicyError;
use crate::policy::Policy;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Expandable {
    device: Arc<dyn Device>,
    blocks: Blocks,
    /// What is mapped, by its address.
    handles: BTreeMap<u64, HandleId>,
}

impl Expandable {
    pub(crate) fn new(device: Arc<dyn Device>) -> Expandable {
        Expandable {
            device,
            blocks: Blocks::default(),
            handles: BTreeMap::new(),
        }
    }

    /// The free block that a request takes, if one is large enough.
    fn best_fit(&self, kind: Kind, stream: StreamId, size: u64) -> Option<BlockId> {
        let worth = |id| {
            let block = self.blocks.get(id);
            let behind = block.after.map(|after| self.blocks.get(after));
            let unmapped = behind.filter(|behind| behind.state == State::Unmapped);
            block.size + unmapped.map_or(0, |behind| behind.size)
        };
        let mut fitting = self.blocks.fitting(kind, stream, size);
        let mut best = fitting.next()?;
        for next in fitting {
            if worth(next) >= worth(best) {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// The first block of the lowest place that can be made large enough.
    fn place_to_grow(&self, kind: Kind, stream: StreamId, size: u64) -> Option<BlockId> {
        self.blocks.unmapped(kind, stream).find_map(|unmapped| {
            let before = self.blocks.get(unmapped).before;
            let free = before.filter(|&before| self.blocks.get(before).state == State::Free);
            let first = free.unwrap_or(unmapped);
            let (mut together, mut at) = (0, Some(first));
            while let Some(block) = at.map(|id| self.blocks.get(id))
                && block.state != State::Live
                && together < size
            {
                together += block.size;
                at = block.after;
            }
            (together >= size).then_some(first)
        })
    }

    fn new_segment(
        &mut self,
        requested: u64,
        kind: Kind,
        stream: StreamId,
    ) -> Result<BlockId, PolicyError> {
        let total = self.device.capabilities().total_memory;
        let size = total
            .saturating_add(total / 8)
            .checked_next_multiple_of(handle_size(kind))
            .filter(|&size| size >= requested)
            .ok_or(PolicyError::TooLarge(requested))?;
        let base = self
            .device
            .reserve(size, 0)
            .map_err(|cause| PolicyError::growing(requested, size, cause))?;
        let range = (base, size);
        Ok(self
            .blocks
            .add_segment(range, State::Unmapped, stream, kind))
    }

    /// Puts memory under blocks from this one on until the first is free and large enough; gives
    /// it. What was mapped before a failure stays, as free memory.
    fn grow(&mut self, first: BlockId, requested: u64, size: u64) -> Result<BlockId, PolicyError> {
        let mut id = first;
        loop {
            let block = self.blocks.get(id);
            let (unmapped, missing) = match block.state {
                State::Unmapped => (id, size),
                _ if block.size >= size => return Ok(id),
                _ => match block.after {
                    Some(after) => (after, size - block.size),
                    None => return Err(PolicyError::TooLarge(requested)),
                },
            };
            id = self.map(unmapped, requested, missing)?;
        }
    }

    /// Puts memory under the front of an unmapped block, `wanted` bytes or all of it; gives the
    /// free block that this is now in.
    fn map(&mut self, id: BlockId, requested: u64, wanted: u64) -> Result<BlockId, PolicyError> {
        let block = self.blocks.get(id);
        let handle_size = handle_size(block.kind);
        // No overflow: the block is whole handles, and no smaller.
        let size = wanted.min(block.size).next_multiple_of(handle_size);
        self.back(block.address, size, handle_size)
            .map_err(|cause| PolicyError::growing(requested, size, cause))?;
        if size < block.size {
            self.blocks.split(id, size);
        }
        Ok(self.blocks.set(id, State::Free))
    }

    /// Puts handles under a range; all or none.
    fn back(&mut self, address: u64, size: u64, handle_size: u64) -> Result<(), DeviceError> {
        let range = address..address + size;
        for place in range.clone().step_by(handle_size as usize) {
            if let Err(error) = self.back_place(place, handle_size) {
                self.unback(range.start, place, handle_size)?;
                return Err(error);
            }
        }
        let grant = AccessGrant {
            accessor: Accessor::Device(self.device.capabilities().ordinal),
            protection: Protection::ReadWrite,
        };
        if let Err(error) = self.device.set_access(address, size, &[grant]) {
            self.unback(range.start, range.end, handle_size)?;
            return Err(error);
        }
        Ok(())
    }

    fn back_place(&mut self, place: u64, handle_size: u64) -> Result<(), DeviceError> {
        let handle = self
            .device
            .create(handle_size, HandleProperties::default())?;
        if let Err(error) = self.device.map(place, handle_size, handle) {
            self.device.release(handle)?;
            return Err(error);
        }
        self.handles.insert(place, handle);
        Ok(())
    }

    /// Takes the handles under a range away, one by one.
    fn unback(&mut self, from: u64, to: u64, handle_size: u64) -> Result<(), DeviceError> {
        for place in (from..to).step_by(handle_size as usize) {
            if let Some(handle) = self.handles.remove(&place) {
                self.device.unmap(place, handle_size)?;
                self.device.release(handle)?;
            }
        }
        Ok(())
    }

    /// Takes away the whole handles of a free block.
    fn shrink(&mut self, id: BlockId) -> Result<(), DeviceError> {
        let mut id = id;
        let Block {
            address,
            size,
            kind,
            stream,
            ..
        } = self.blocks.get(id);
        let handle_size = handle_size(kind);
        let segment_base = self.segment_base(id);
        // Handles are aligned to the segment, not to addresses.
        let from = (address - segment_base).next_multiple_of(handle_size) + segment_base;
        let end = address + size;
        let to = end - (end - segment_base) % handle_size;
        if from >= to {
            return Ok(());
        }
        self.device.synchronize_stream(stream)?;
        self.unback(from, to, handle_size)?;
        if to < end {
            self.blocks.split(id, to - address);
        }
        if from > address {
            id = self.blocks.split(id, from - address);
        }
        self.blocks.set(id, State::Unmapped);
        Ok(())
    }

    fn segment_base(&self, id: BlockId) -> u64 {
        let mut block = self.blocks.get(id);
        while let Some(before) = block.before {
            block = self.blocks.get(before);
        }
        block.address
    }
}

impl Policy for Expandable {
    fn allocate(&mut self, requested: u64, stream: StreamId) -> Result<u64, PolicyError> {
        let size = rounded(requested)?;
        let kind = Kind::of(size);
        let id = match self.best_fit(kind, stream, size) {
            Some(id) => id,
            None => {
                let place = self.place_to_grow(kind, stream, size);
                let first = match place {
                    Some(first) => first,
                    None => self.new_segment(requested, kind, stream)?,
                };
                self.grow(first, requested, size)?
            }
        };
        if self.blocks.get(id).size - size >= GRAIN {
            self.blocks.split(id, size);
        }
        self.blocks.set(id, State::Live);
        Ok(self.blocks.get(id).address)
    }

    fn free(&mut self, address: u64) -> Result<(), PolicyError> {
        let id = self.blocks.live_at(address);
        let id = id.ok_or(PolicyError::NotLive(address))?;
        self.blocks.set(id, State::Free);
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), PolicyError> {
        for id in self.blocks.all_free() {
            self.shrink(id)?;
        }
        for id in self.blocks.all_unmapped() {
            let block = self.blocks.get(id);
            if block.before.is_none() && block.after.is_none() {
                self.device.free_reservation(block.address, block.size)?;
                self.blocks.remove_segment(id);
            }
        }
        Ok(())
    }
}

/// The size of a segment's handles.
fn handle_size(kind: Kind) -> u64 {
    match kind {
        Kind::Small => SMALL_SEGMENT,
        Kind::Large => LARGE_SEGMENT,
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::{Observed, SimDevice};

    use super::*;
    use crate::{MIB, Reserved};

    const STREAM: StreamId = StreamId::DEFAULT;

    fn expandable() -> (Expandable, Arc<Reserved>) {
        let reserved = Arc::new(Reserved::new(None));
        let observers = vec![Arc::clone(&reserved) as _];
        let device = Observed::new(Arc::new(SimDevice::new()), observers);
        (Expandable::new(Arc::new(device)), reserved)
    }

    #[test]
    fn growth_uses_the_free_end_of_what_is_mapped() {
        let (mut expandable, reserved) = expandable();
        let first = expandable.allocate(15 * MIB, STREAM).unwrap();
        assert_eq!(reserved.bytes(), 20 * MIB);
        let second = expandable.allocate(24 * MIB, STREAM).unwrap();
        assert_eq!(second, first + 15 * MIB);
        assert_eq!(reserved.bytes(), 40 * MIB);
        expandable.free(second).unwrap();
        assert_eq!(expandable.allocate(25 * MIB, STREAM).unwrap(), second);
        assert_eq!(reserved.bytes(), 40 * MIB, "even 512 bytes are split off");
    }

    #[test]
    fn whole_handles_are_taken_from_free_blocks_and_holes_are_filled_first() {
        let (mut expandable, reserved) = expandable();
        let [first, hole, last] =
            [10 * MIB, 50 * MIB, 20 * MIB].map(|size| expandable.allocate(size, STREAM).unwrap());
        assert_eq!(reserved.bytes(), 80 * MIB);
        expandable.free(hole).unwrap();
        expandable.release_cached().unwrap();
        assert_eq!(reserved.bytes(), 40 * MIB, "10 MiB share a handle");
        assert_eq!(expandable.allocate(12 * MIB, STREAM).unwrap(), hole);
        assert_eq!(reserved.bytes(), 60 * MIB);
        for block in [first, hole, last] {
            expandable.free(block).unwrap();
        }
        expandable.release_cached().unwrap();
        assert_eq!(reserved.bytes(), 0);
    }

    #[test]
    fn best_fit_spares_the_block_that_can_grow() {
        let (mut expandable, reserved) = expandable();
        let [inner, fence, last] =
            [30 * MIB, 5 * MIB, 25 * MIB].map(|size| expandable.allocate(size, STREAM).unwrap());
        expandable.free(inner).unwrap();
        expandable.free(last).unwrap();
        assert_eq!(
            expandable.allocate(20 * MIB, STREAM).unwrap(),
            inner,
            "the smaller one is at the end, and can still grow"
        );
        assert_eq!(reserved.bytes(), 60 * MIB);
        expandable.free(fence).unwrap();
    }

    #[test]
    fn a_growth_that_fails_leaves_nothing_behind() {
        let reserved = Arc::new(Reserved::new(Some(50 * MIB)));
        let observers = vec![Arc::clone(&reserved) as _];
        let device = Observed::new(Arc::new(SimDevice::new()), observers);
        let mut expandable = Expandable::new(Arc::new(device));
        let first = expandable.allocate(30 * MIB, STREAM).unwrap();
        let error = expandable.allocate(40 * MIB, STREAM).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(reserved.bytes(), 40 * MIB);
        assert_eq!(
            expandable.allocate(10 * MIB, STREAM).unwrap(),
            first + 30 * MIB
        );
    }
}
