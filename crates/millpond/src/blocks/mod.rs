//! Who owns what: from an address to the live block that starts there, in O(1).
//!
//! # Invariants
//!
//! 1. All memory that was handed out has one record, and every record's memory is taken.
//! 2. A record's serial number is its own for ever: a handle of a block that was freed never
//!    matches the block that has its address now.

#![forbid(unsafe_code)]

mod directory;
mod usage;

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::order::{Ends, StreamIndex};
use crate::space::ExtentId;

pub(crate) use directory::{Directory, Held};
pub(crate) use usage::ThreadUsage;

/// Where a block stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// By itself in mapped memory.
    Backed,
    /// In a region, of this heap.
    Cut(HeapIndex, ExtentId),
}

/// A heap of blocks that are cut out of regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeapIndex {
    /// Small blocks of streams that have no front.
    Common,
    /// Small blocks of a front.
    OfFront(usize),
    /// The leases of a front.
    Leases(usize),
}

/// A live block.
#[derive(Clone, Debug)]
pub(crate) struct BlockRecord {
    pub(crate) place: Place,
    /// Bytes asked for.
    pub(crate) requested: u64,
    /// Bytes taken.
    pub(crate) size: u64,
    pub(crate) serial: u64,
    pub(crate) owner: StreamIndex,
    /// The streams that use it, its owner among them until it is done.
    pub(crate) users: SmallVec<[StreamIndex; 2]>,
    /// Where uses ended that are over before the block is freed.
    pub(crate) ended: Ends,
}

/// The live blocks of a pool.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    by_address: FxHashMap<u64, BlockRecord>,
    next_serial: u64,
    live_bytes: u64,
    live_rounded: u64,
}

impl Blocks {
    /// Records a block; gives its serial number.
    pub(crate) fn add(
        &mut self,
        address: u64,
        place: Place,
        requested: u64,
        size: u64,
        owner: StreamIndex,
    ) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.add_numbered(address, place, requested, size, owner, serial);
        serial
    }

    /// Records a block that has a serial number already.
    pub(crate) fn add_numbered(
        &mut self,
        address: u64,
        place: Place,
        requested: u64,
        size: u64,
        owner: StreamIndex,
        serial: u64,
    ) {
        let users = smallvec![owner];
        let ended = Ends::default();
        let record = BlockRecord {
            place,
            requested,
            size,
            serial,
            owner,
            users,
            ended,
        };
        self.by_address.insert(address, record);
        self.live_bytes += requested;
        self.live_rounded += size;
    }

    pub(crate) fn get(&self, address: u64) -> Option<&BlockRecord> {
        self.by_address.get(&address)
    }

    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut BlockRecord> {
        self.by_address.get_mut(&address)
    }

    /// Takes the record of the block at an address out; with a serial number, only if it is still
    /// the block's.
    pub(crate) fn remove(&mut self, address: u64, serial: Option<u64>) -> Option<BlockRecord> {
        let Entry::Occupied(entry) = self.by_address.entry(address) else {
            return None;
        };
        if serial.is_some_and(|serial| serial != entry.get().serial) {
            return None;
        }
        let record = entry.remove();
        self.live_bytes -= record.requested;
        self.live_rounded -= record.size;
        Some(record)
    }

    /// The block that an address lies in, and where it starts. Looks at every block: for errors
    /// only.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, &BlockRecord)> {
        self.by_address
            .iter()
            .map(|(&start, record)| (start, record))
            .find(|(start, record)| *start <= address && address - start < record.size)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &BlockRecord)> {
        self.by_address
            .iter()
            .map(|(&address, record)| (address, record))
    }

    pub(crate) fn count(&self) -> u64 {
        self.by_address.len() as u64
    }

    /// Bytes asked for and not freed.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes taken by live blocks, rounding included.
    pub(crate) fn live_rounded(&self) -> u64 {
        self.live_rounded
    }
}
