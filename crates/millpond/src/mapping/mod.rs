//! Which handle is under which address, and putting handles there.
//!
//! # Invariants
//!
//! 1. A mapping covers its handle whole, and no two mappings overlap.
//! 2. Backing a range is all or nothing: on failure what was mapped is unmapped again. What even
//!    the unmapping failed for is *stranded*: it is told to the caller, and its address range is
//!    not used until a later unmapping succeeds.
//! 3. A mapping's `used` are the bytes of live blocks through it, and its `ends` cover every
//!    earlier use through it: it may be taken away when nothing is used and the ends are completed.
//! 4. A mapping is in the strips, or *retired*: it stands, nothing is used through it, and no block
//!    is placed through it any more.

#![forbid(unsafe_code)]

use slab::Slab;
use smallvec::SmallVec;

use crate::device::{AccessGrant, Device, DeviceError};
use crate::order::Ends;
use crate::pages::{Handle, HandleSlot};
use crate::space::{Mapped, Strips};

/// A handle under an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) address: u64,
    pub(crate) handle: Handle,
}

/// Where the pool keeps what it knows of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MappingSlot(u32);

/// What is known of a mapping.
#[derive(Clone, Debug)]
pub(crate) struct MappingRecord {
    pub(crate) address: u64,
    pub(crate) slot: HandleSlot,
    pub(crate) size: u64,
    /// Bytes of live blocks that are reached through it.
    pub(crate) used: u64,
    /// Where the earlier uses through it ended.
    pub(crate) ends: Ends,
    /// Rises with every mapping that was made: which of two is older.
    pub(crate) stamp: u64,
}

/// A part of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MappedPart {
    /// Where the mapping begins.
    pub(crate) mapping: u64,
    of: MappingSlot,
    pub(crate) slot: HandleSlot,
    /// Bytes from the handle's start.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl MappedPart {
    /// The address where it begins.
    pub(crate) fn start(&self) -> u64 {
        self.mapping + self.offset
    }

    /// The address where it ends.
    pub(crate) fn end(&self) -> u64 {
        self.mapping + self.offset + self.length
    }
}

/// A range is most often in one mapping or a few.
pub(crate) type MappedParts = SmallVec<[MappedPart; 4]>;

/// The pool's mappings, by address.
#[derive(Debug)]
pub(crate) struct Mappings {
    records: Slab<MappingRecord>,
    /// Those that blocks may be placed through.
    pub(crate) strips: Strips,
    stamps: u64,
}

impl Mappings {
    pub(crate) fn new() -> Mappings {
        Mappings {
            records: Slab::new(),
            strips: Strips::new(),
            stamps: 0,
        }
    }

    pub(crate) fn add(&mut self, address: u64, slot: HandleSlot, size: u64) {
        self.stamps += 1;
        self.restore(MappingRecord {
            address,
            slot,
            size,
            used: 0,
            ends: Ends::default(),
            stamp: self.stamps,
        });
    }

    /// Takes out the mapping at an address.
    pub(crate) fn remove(&mut self, address: u64) -> Option<MappingRecord> {
        let of = self.retire(address)?;
        Some(self.remove_retired(of))
    }

    /// Puts back what was removed.
    pub(crate) fn restore(&mut self, record: MappingRecord) {
        let (start, end) = (record.address, record.address + record.size);
        let key = self.records.insert(record) as u32;
        self.strips.insert(Mapped { start, end, key });
    }

    /// Nothing is placed through the mapping at an address any more.
    pub(crate) fn retire(&mut self, address: u64) -> Option<MappingSlot> {
        Some(MappingSlot(self.strips.remove(address)?.key))
    }

    /// Takes out a mapping that nothing is placed through.
    pub(crate) fn remove_retired(&mut self, of: MappingSlot) -> MappingRecord {
        self.records.remove(of.0 as usize)
    }

    /// The mapping that begins at an address, if blocks may be placed through it.
    pub(crate) fn get(&self, address: u64) -> Option<&MappingRecord> {
        let place = self.strips.place_of(address)?;
        Some(&self.records[self.strips.get(place)?.key as usize])
    }

    /// What is known of a mapping.
    pub(crate) fn record(&self, of: MappingSlot) -> &MappingRecord {
        &self.records[of.0 as usize]
    }

    /// The handle under a mapping of the strips.
    pub(crate) fn handle_of(&self, key: u32) -> HandleSlot {
        self.records[key as usize].slot
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.records.len()
    }

    /// The parts of mappings that a range consists of, lowest first.
    pub(crate) fn parts(
        &self,
        start: u64,
        end: u64,
    ) -> impl DoubleEndedIterator<Item = MappedPart> {
        let first = self.strips.first_above(start);
        let last = self.strips.first_above_from(first, end);
        self.strips.within(first..last).iter().map(move |mapped| {
            let from = start.max(mapped.start);
            let to = end.min(mapped.end);
            MappedPart {
                mapping: mapped.start,
                of: MappingSlot(mapped.key),
                slot: self.handle_of(mapped.key),
                offset: from - mapped.start,
                length: to - from,
            }
        })
    }

    /// A block stands in this part from now on.
    pub(crate) fn occupied(&mut self, part: &MappedPart) {
        self.records[part.of.0 as usize].used += part.length;
    }

    /// The block that stood in this part is freed, its uses end there.
    pub(crate) fn vacated(&mut self, part: &MappedPart, ends: &Ends) {
        let record = &mut self.records[part.of.0 as usize];
        record.used -= part.length;
        record.ends.merge(ends);
    }
}

/// Why a range could not be backed, and what is stranded.
#[derive(Debug)]
pub(crate) struct BackingFailed {
    pub(crate) error: DeviceError,
    pub(crate) stranded: Vec<Mapping>,
}

/// Puts handles under consecutive addresses from `address` on, with access for `grants`.
/// All or nothing (invariant 2). Calls the device: to be called without the pool's lock.
pub(crate) fn back(
    device: &dyn Device,
    address: u64,
    handles: &[Handle],
    grants: &[AccessGrant],
) -> Result<(), BackingFailed> {
    let mut mapped: Vec<Mapping> = Vec::with_capacity(handles.len());
    let mut at = address;
    let mut result = Ok(());
    for &handle in handles {
        result = device.map(at, handle.size, handle.id);
        if result.is_err() {
            break;
        }
        mapped.push(Mapping {
            address: at,
            handle,
        });
        at += handle.size;
    }
    let result = result.and_then(|()| device.set_access(address, at - address, grants));
    result.map_err(|error| {
        let stranded = mapped
            .into_iter()
            .filter(|mapping| device.unmap(mapping.address, mapping.handle.size).is_err())
            .collect();
        BackingFailed { error, stranded }
    })
}
