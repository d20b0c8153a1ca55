//! From the address of a block to the front that holds it, without a lock.
//!
//! The addresses of a pool lie in few reservations. They fall into chunks of 8 GiB, found by their
//! number in a table; a chunk's leaves of 8 MiB have an entry for every grain, and are made when
//! the first block begins in them.
//!
//! # Invariants
//!
//! 1. An entry is a hint: whoever reads it asks the front, under its lock, whether the block is
//!    there. Only who holds that lock changes entries that name the front.
//! 2. A chunk that has a place in the table keeps it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::space::GRAIN;

const CHUNK: u32 = 33;
const LEAF: u32 = 23;
const LEAVES: usize = 1 << (CHUNK - LEAF);
const ENTRIES: usize = (1 << LEAF) / GRAIN as usize;

/// Chunks that can be known: 2 TiB of addresses. Blocks elsewhere are not held by fronts.
const CHUNKS: usize = 256;

/// No chunk has this number: addresses end before.
const NONE: u64 = u64::MAX;

type Leaf = Box<[AtomicU32]>;

struct Chunk {
    number: AtomicU64,
    leaves: OnceLock<Box<[OnceLock<Leaf>]>>,
}

/// See the [module](self).
pub(crate) struct Directory {
    chunks: Box<[Chunk]>,
}

/// A front and the slot of a block in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) front: usize,
    pub(crate) slot: usize,
}

/// Bits of an entry that are the block's slot; the rest is the front's number, from one on.
const SLOT: u32 = 24;

impl Held {
    /// Fronts that can be told apart.
    pub(crate) const FRONTS: usize = (1 << (32 - SLOT)) - 1;
    /// Blocks that a front can hold.
    pub(crate) const SLOTS: usize = 1 << SLOT;

    fn entry(self) -> u32 {
        ((self.front as u32 + 1) << SLOT) | self.slot as u32
    }

    fn of(entry: u32) -> Option<Held> {
        let front = (entry >> SLOT).checked_sub(1)?;
        Some(Held {
            front: front as usize,
            slot: entry as usize & (Held::SLOTS - 1),
        })
    }
}

impl Directory {
    pub(crate) fn new() -> Directory {
        let chunk = || Chunk {
            number: AtomicU64::new(NONE),
            leaves: OnceLock::new(),
        };
        Directory {
            chunks: std::iter::repeat_with(chunk).take(CHUNKS).collect(),
        }
    }

    /// The front that may hold the block at an address.
    #[inline]
    pub(crate) fn get(&self, address: u64) -> Option<Held> {
        let chunk = self.chunk(address >> CHUNK)?;
        let leaf = chunk.leaves.get()?[leaf_of(address)].get()?;
        Held::of(leaf[entry_of(address)].load(Ordering::Relaxed))
    }

    /// Notes who holds the block at an address. Gives whether that could be noted.
    pub(crate) fn set(&self, address: u64, held: Held) -> bool {
        let Some(chunk) = self.chunk_or_new(address >> CHUNK) else {
            return false;
        };
        let leaves = chunk
            .leaves
            .get_or_init(|| std::iter::repeat_with(OnceLock::new).take(LEAVES).collect());
        // Zeroed by the system, page by page, when they are touched.
        let leaf = leaves[leaf_of(address)]
            .get_or_init(|| bytemuck::allocation::zeroed_slice_box(ENTRIES));
        let entry = &leaf[entry_of(address)];
        let noted = held.entry();
        if entry.load(Ordering::Relaxed) != noted {
            entry.store(noted, Ordering::Relaxed);
        }
        true
    }

    /// Nobody holds the block any more.
    pub(crate) fn clear(&self, address: u64) {
        let chunk = self.chunk(address >> CHUNK);
        let leaf = chunk.and_then(|chunk| chunk.leaves.get()?[leaf_of(address)].get());
        if let Some(leaf) = leaf {
            leaf[entry_of(address)].store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn chunk(&self, number: u64) -> Option<&Chunk> {
        // Most often it has its first choice.
        let first = &self.chunks[number as usize % CHUNKS];
        if first.number.load(Ordering::Relaxed) == number {
            return Some(first);
        }
        self.chunk_elsewhere(number)
    }

    #[cold]
    fn chunk_elsewhere(&self, number: u64) -> Option<&Chunk> {
        for place in places(number) {
            let chunk = &self.chunks[place];
            match chunk.number.load(Ordering::Relaxed) {
                known if known == number => return Some(chunk),
                NONE => return None,
                _ => {}
            }
        }
        None
    }

    fn chunk_or_new(&self, number: u64) -> Option<&Chunk> {
        places(number).find_map(|place| {
            let chunk = &self.chunks[place];
            let taken =
                chunk
                    .number
                    .compare_exchange(NONE, number, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => Some(chunk),
                Err(known) => (known == number).then_some(chunk),
            }
        })
    }
}

/// Where a chunk may stand in the table, the first choice first.
fn places(number: u64) -> impl Iterator<Item = usize> {
    // Chunks of one reservation follow each other: so do their places.
    (0..CHUNKS).map(move |step| (number as usize + step) % CHUNKS)
}

fn leaf_of(address: u64) -> usize {
    (address >> LEAF) as usize & (LEAVES - 1)
}

fn entry_of(address: u64) -> usize {
    (address / GRAIN) as usize & (ENTRIES - 1)
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(front: usize, slot: usize) -> Held {
        Held { front, slot }
    }

    #[test]
    fn what_is_noted_is_found_at_its_address_alone() {
        let directory = Directory::new();
        let last = held(Held::FRONTS - 1, Held::SLOTS - 1);
        let addresses = [
            0,
            256,
            (8 << 20) - 256,
            8 << 20,
            (8 << 30) - 256,
            8 << 30,
            7 << 44,
        ];
        for (number, &address) in addresses.iter().enumerate() {
            assert_eq!(directory.get(address), None);
            assert!(directory.set(address, held(number, number * 1000)));
        }
        for (number, &address) in addresses.iter().enumerate() {
            assert_eq!(directory.get(address), Some(held(number, number * 1000)));
        }
        assert!(directory.set(256, last));
        assert_eq!(directory.get(256), Some(last));
        assert_eq!(directory.get(0), Some(held(0, 0)));
        directory.clear(256);
        assert_eq!(directory.get(256), None);
        assert_eq!(directory.get(512), None);
    }

    #[test]
    fn what_has_no_place_is_refused_and_takes_nothing_from_others() {
        let directory = Directory::new();
        for number in 0..CHUNKS as u64 {
            assert!(directory.set(number << CHUNK, held(1, number as usize)));
        }
        let beyond = (CHUNKS as u64) << CHUNK;
        assert!(!directory.set(beyond, held(2, 0)));
        assert_eq!(directory.get(beyond), None);
        directory.clear(beyond);
        assert_eq!(directory.get(0), Some(held(1, 0)));
        assert!(directory.set(256, held(3, 3)), "a known chunk has room");
    }
}
