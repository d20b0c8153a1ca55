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

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::device::{AccessGrant, Device, DeviceError};
use crate::order::Ends;
use crate::pages::{Handle, HandleSlot};

/// A handle under an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) address: u64,
    pub(crate) handle: Handle,
}

/// What is known of a mapping.
#[derive(Clone, Debug)]
pub(crate) struct MappingRecord {
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
    pub(crate) slot: HandleSlot,
    /// Bytes from the handle's start.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl MappedPart {
    /// The address where it ends.
    pub(crate) fn end(&self) -> u64 {
        self.mapping + self.offset + self.length
    }
}

/// A range is most often in one mapping or two.
pub(crate) type MappedParts = SmallVec<[MappedPart; 2]>;

/// The pool's mappings, by address.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    by_address: BTreeMap<u64, MappingRecord>,
    stamps: u64,
}

impl Mappings {
    pub(crate) fn add(&mut self, address: u64, slot: HandleSlot, size: u64) {
        self.stamps += 1;
        let record = MappingRecord {
            slot,
            size,
            used: 0,
            ends: Ends::default(),
            stamp: self.stamps,
        };
        self.by_address.insert(address, record);
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<MappingRecord> {
        self.by_address.remove(&address)
    }

    /// Puts back what was removed.
    pub(crate) fn restore(&mut self, address: u64, record: MappingRecord) {
        self.by_address.insert(address, record);
    }

    pub(crate) fn get(&self, address: u64) -> Option<&MappingRecord> {
        self.by_address.get(&address)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &MappingRecord)> + '_ {
        self.by_address
            .iter()
            .map(|(&address, record)| (address, record))
    }

    /// The parts of mappings that a range consists of, lowest first.
    pub(crate) fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = MappedPart> {
        let below = self.by_address.range(..=start).next_back();
        let first = below.map_or(start, |(&address, _)| address);
        self.by_address
            .range(first..end)
            .map(move |(&mapping, record)| {
                let from = start.max(mapping);
                let to = end.min(mapping + record.size);
                MappedPart {
                    mapping,
                    slot: record.slot,
                    offset: from - mapping,
                    length: to.saturating_sub(from),
                }
            })
            .filter(|part| part.length > 0)
    }

    /// A block stands in this part from now on.
    pub(crate) fn occupied(&mut self, part: &MappedPart) {
        if let Some(record) = self.by_address.get_mut(&part.mapping) {
            record.used += part.length;
        }
    }

    /// The block that stood in this part is freed, its uses end there.
    pub(crate) fn vacated(&mut self, part: &MappedPart, ends: &Ends) {
        if let Some(record) = self.by_address.get_mut(&part.mapping) {
            record.used -= part.length;
            record.ends.merge(ends);
        }
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
