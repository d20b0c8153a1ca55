//! `buddy`: powers of two, halved and joined.
//!
//! Source: K. Knowlton, "A fast storage allocator", 1965; D. Knuth, The Art of Computer
//! Programming, volume 1, section 2.5, "the buddy system".
//!
//! # Rules
//!
//! - A request is rounded up to a power of two, 256 bytes at least.
//! - A block of twice the size is halved until it fits; the lower half is used first. A freed block
//!   joins its buddy (the other half of the block that both came from) whenever that is free and
//!   whole, and so on upwards.
//! - Of the free blocks of the smallest size that serves, the one at the lowest place is taken.
//! - Every stream has arenas of its own, of 64 MiB; a larger request gets an arena of its size. They
//!   are kept, and given back whole when the device has no room.
//!
//! # Invariants
//!
//! - A block's offset in its arena is a multiple of its size.
//! - Of two buddies, never both are free.

use std::collections::BTreeSet;
use std::sync::Arc;

use millpond::device::{Device, StreamId};
use rustc_hash::FxHashMap;

use crate::policy::Policy;
use crate::{MIB, PolicyError};

/// The binary logarithm of the smallest block.
const SMALLEST: u32 = 8;
/// That of the smallest arena.
const ARENA: u32 = (64 * MIB).ilog2();
/// That of the largest arena.
const LARGEST: u32 = 62;

/// The free blocks of one size and stream: arena, offset.
type FreeBlocks = BTreeSet<(usize, u64)>;

#[derive(Debug)]
struct Arena {
    base: u64,
    /// The binary logarithm of its size.
    order: u32,
    stream: StreamId,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Block {
    arena: usize,
    order: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Buddy {
    device: Arc<dyn Device>,
    /// `None` where an arena was given back.
    arenas: Vec<Option<Arena>>,
    free: FxHashMap<(StreamId, u32), FreeBlocks>,
    blocks: FxHashMap<u64, Block>,
}

impl Buddy {
    pub(crate) fn new(device: Arc<dyn Device>) -> Buddy {
        Buddy {
            device,
            arenas: Vec::new(),
            free: FxHashMap::default(),
            blocks: FxHashMap::default(),
        }
    }

    /// The lowest free block of the smallest size that serves.
    fn take_free(&mut self, order: u32, stream: StreamId) -> Option<(usize, u64, u32)> {
        (order..=LARGEST).find_map(|order| {
            let (arena, offset) = self.free.get_mut(&(stream, order))?.pop_first()?;
            Some((arena, offset, order))
        })
    }

    fn new_arena(
        &mut self,
        requested: u64,
        order: u32,
        stream: StreamId,
    ) -> Result<(usize, u64, u32), PolicyError> {
        let order = order.max(ARENA);
        let size = 1 << order;
        let base = self
            .device
            .allocate(size)
            .map_err(|cause| PolicyError::growing(requested, size, cause))?;
        let place = self.arenas.iter().position(Option::is_none);
        let index = place.unwrap_or_else(|| {
            self.arenas.push(None);
            self.arenas.len() - 1
        });
        self.arenas[index] = Some(Arena {
            base,
            order,
            stream,
        });
        Ok((index, 0, order))
    }
}

impl Policy for Buddy {
    fn allocate(&mut self, requested: u64, stream: StreamId) -> Result<u64, PolicyError> {
        let order = requested
            .checked_next_power_of_two()
            .map_or(u32::MAX, u64::ilog2)
            .max(SMALLEST);
        if order > LARGEST {
            return Err(PolicyError::TooLarge(requested));
        }
        let (arena, offset, mut whole) = match self.take_free(order, stream) {
            Some(found) => found,
            None => self.new_arena(requested, order, stream)?,
        };
        while whole > order {
            whole -= 1;
            let upper = (arena, offset + (1 << whole));
            self.free.entry((stream, whole)).or_default().insert(upper);
        }
        let Some(Arena { base, .. }) = &self.arenas[arena] else {
            return Err(PolicyError::TooLarge(requested));
        };
        let address = base + offset;
        self.blocks.insert(address, Block { arena, order });
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), PolicyError> {
        let Block { arena, mut order } = self
            .blocks
            .remove(&address)
            .ok_or(PolicyError::NotLive(address))?;
        let Some(Arena {
            base,
            order: arena_order,
            stream,
        }) = self.arenas[arena]
        else {
            return Err(PolicyError::NotLive(address));
        };
        let mut offset = address - base;
        while order < arena_order {
            let buddy = (arena, offset ^ (1 << order));
            let free = self.free.entry((stream, order)).or_default();
            if !free.remove(&buddy) {
                break;
            }
            offset = offset.min(buddy.1);
            order += 1;
        }
        let free = self.free.entry((stream, order)).or_default();
        free.insert((arena, offset));
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), PolicyError> {
        self.device.synchronize()?;
        for (index, place) in self.arenas.iter_mut().enumerate() {
            if let Some(arena) = place
                && let Some(free) = self.free.get_mut(&(arena.stream, arena.order))
                && free.remove(&(index, 0))
            {
                self.device.free(arena.base)?;
                *place = None;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::SimDevice;

    use super::*;

    const STREAM: StreamId = StreamId::DEFAULT;

    #[test]
    fn blocks_are_halved_downwards_and_joined_upwards() {
        let mut buddy = Buddy::new(Arc::new(SimDevice::new()));
        let first = buddy.allocate(100, STREAM).unwrap();
        let second = buddy.allocate(257, STREAM).unwrap();
        let third = buddy.allocate(256, STREAM).unwrap();
        assert_eq!((second, third), (first + 512, first + 256));
        buddy.free(first).unwrap();
        buddy.free(second).unwrap();
        assert_eq!(
            buddy.allocate(513, STREAM).unwrap(),
            first + 1024,
            "the third block keeps its neighbours apart"
        );
        buddy.free(first + 1024).unwrap();
        buddy.free(third).unwrap();
        assert_eq!(buddy.allocate(1 << ARENA, STREAM).unwrap(), first);
    }

    #[test]
    fn a_request_just_over_a_power_of_two_takes_twice_as_much() {
        let device = Arc::new(SimDevice::new());
        let full = device.memory_info().unwrap().free;
        let mut buddy = Buddy::new(Arc::clone(&device) as _);
        buddy.allocate((1 << 30) + 1, STREAM).unwrap();
        assert_eq!(full - device.memory_info().unwrap().free, 2 << 30);
        let error = buddy.allocate(u64::MAX, STREAM).unwrap_err();
        assert_eq!(error, PolicyError::TooLarge(u64::MAX));
    }
}
