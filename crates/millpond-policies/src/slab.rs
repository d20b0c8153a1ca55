//! `slab`: classes of size, each with slabs of equal slots.
//!
//! Source: J. Bonwick, "The slab allocator: an object-caching kernel memory allocator", 1994. That
//! has a cache for each kind of object; since sizes here are any, they are rounded up to classes as
//! general allocators do it (four classes from one power of two to the next, so that a slot wastes
//! less than a fifth).
//!
//! # Rules
//!
//! - Classes are the multiples of 256 bytes up to 1 KiB, and above that 5/4, 6/4, 7/4 and 8/4 of
//!   each power of two. Every stream has its own slabs of every class.
//! - A slab is a plain allocation of whole multiples of 2 MiB. Up to 4 MiB a slot it holds at least
//!   8 slots and as many as fit; above that, one.
//! - A request takes a slot of the oldest slab of its class that has a free one: the slot that was
//!   freed last.
//! - A slab whose slots are all free stays with its class, and is given back when the device has no
//!   room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millpond::device::{Device, StreamId};
use rustc_hash::FxHashMap;

use crate::policy::Policy;
use crate::{MIB, PolicyError};

const SMALLEST: u64 = 256;
/// Above it, classes are quarters of powers of two.
const FINE_UP_TO: u64 = 1024;
const SLAB_ROUNDING: u64 = 2 * MIB;
/// Up to this many bytes a slot, a slab holds several.
const SHARED_UP_TO: u64 = 4 * MIB;
const SLOTS: u64 = 8;

#[derive(Debug)]
struct OneSlab {
    base: u64,
    slots: u64,
    stream: StreamId,
    class: u64,
    /// Addresses of free slots, the one to be used next last.
    free: Vec<u64>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Slab {
    device: Arc<dyn Device>,
    /// By number; older slabs have smaller ones.
    slabs: BTreeMap<u64, OneSlab>,
    next: u64,
    /// Slabs with a free slot, for each stream and class.
    usable: FxHashMap<(StreamId, u64), BTreeSet<u64>>,
    /// The slab of each live block.
    blocks: FxHashMap<u64, u64>,
}

impl Slab {
    pub(crate) fn new(device: Arc<dyn Device>) -> Slab {
        Slab {
            device,
            slabs: BTreeMap::new(),
            next: 0,
            usable: FxHashMap::default(),
            blocks: FxHashMap::default(),
        }
    }

    fn new_slab(
        &mut self,
        requested: u64,
        class: u64,
        stream: StreamId,
    ) -> Result<u64, PolicyError> {
        let size = slab_size(class).ok_or(PolicyError::TooLarge(requested))?;
        let base = self
            .device
            .allocate(size)
            .map_err(|cause| PolicyError::growing(requested, size, cause))?;
        let slots = if class > SHARED_UP_TO {
            1
        } else {
            size / class
        };
        let number = self.next;
        self.next += 1;
        let slab = OneSlab {
            base,
            slots,
            stream,
            class,
            free: (0..slots).rev().map(|slot| base + slot * class).collect(),
        };
        self.slabs.insert(number, slab);
        let usable = self.usable.entry((stream, class)).or_default();
        usable.insert(number);
        Ok(number)
    }
}

impl Policy for Slab {
    fn allocate(&mut self, requested: u64, stream: StreamId) -> Result<u64, PolicyError> {
        let too_large = PolicyError::TooLarge(requested);
        let class = class_of(requested).ok_or(too_large.clone())?;
        let oldest = self.usable.get(&(stream, class)).and_then(BTreeSet::first);
        let number = match oldest {
            Some(&number) => number,
            None => self.new_slab(requested, class, stream)?,
        };
        let slab = self.slabs.get_mut(&number).ok_or(too_large.clone())?;
        let address = slab.free.pop().ok_or(too_large)?;
        if slab.free.is_empty()
            && let Some(usable) = self.usable.get_mut(&(stream, class))
        {
            usable.remove(&number);
        }
        self.blocks.insert(address, number);
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), PolicyError> {
        let number = self.blocks.remove(&address);
        let number = number.ok_or(PolicyError::NotLive(address))?;
        let slab = self.slabs.get_mut(&number);
        let slab = slab.ok_or(PolicyError::NotLive(address))?;
        slab.free.push(address);
        let usable = self.usable.entry((slab.stream, slab.class)).or_default();
        usable.insert(number);
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), PolicyError> {
        self.device.synchronize()?;
        let all_free = |slab: &OneSlab| slab.free.len() as u64 == slab.slots;
        let empty: Vec<u64> = self
            .slabs
            .iter()
            .filter(|(_, slab)| all_free(slab))
            .map(|(&number, _)| number)
            .collect();
        for number in empty {
            if let Some(slab) = self.slabs.remove(&number) {
                if let Some(usable) = self.usable.get_mut(&(slab.stream, slab.class)) {
                    usable.remove(&number);
                }
                self.device.free(slab.base)?;
            }
        }
        Ok(())
    }
}

/// The smallest class that serves.
fn class_of(size: u64) -> Option<u64> {
    if size <= FINE_UP_TO {
        return Some(size.max(1).next_multiple_of(SMALLEST));
    }
    // The power of two below it, which is at least 1 KiB.
    let quarter = (1_u64 << (size - 1).ilog2()) / 4;
    size.checked_next_multiple_of(quarter)
}

/// The size of a class's slabs.
fn slab_size(class: u64) -> Option<u64> {
    let slots = if class > SHARED_UP_TO { 1 } else { SLOTS };
    class
        .checked_mul(slots)?
        .checked_next_multiple_of(SLAB_ROUNDING)
}

#[cfg(test)]
mod tests {
    use millpond::device::SimDevice;

    use super::*;

    const STREAM: StreamId = StreamId::DEFAULT;

    #[test]
    fn classes_waste_less_than_a_fifth_of_a_slot() {
        let classes = [
            1,
            256,
            257,
            1024,
            1025,
            1281,
            2048,
            2049,
            5 * MIB,
            5 * MIB + 1,
        ];
        assert_eq!(
            classes.map(|size| class_of(size).unwrap()),
            [
                256,
                256,
                512,
                1024,
                1280,
                1536,
                2048,
                2560,
                5 * MIB,
                6 * MIB
            ]
        );
        for size in (FINE_UP_TO..4 * MIB).step_by(977) {
            let class = class_of(size).unwrap();
            assert!(
                class >= size && (class - size) * 5 < class,
                "{size} in {class}"
            );
        }
        assert_eq!(class_of(u64::MAX), None);
    }

    #[test]
    fn a_slot_serves_its_class_again_and_no_other() {
        let device = Arc::new(SimDevice::new());
        let full = device.memory_info().unwrap().free;
        let taken = || full - device.memory_info().unwrap().free;
        let mut slab = Slab::new(Arc::clone(&device) as _);
        let first = slab.allocate(MIB, STREAM).unwrap();
        slab.free(first).unwrap();
        assert_eq!(slab.allocate(MIB, STREAM).unwrap(), first);
        assert_eq!(taken(), 8 * MIB);
        slab.free(first).unwrap();
        slab.allocate(MIB / 2, STREAM).unwrap();
        assert_eq!(taken(), 12 * MIB);
        slab.release_cached().unwrap();
        assert_eq!(taken(), 4 * MIB);
    }
}
