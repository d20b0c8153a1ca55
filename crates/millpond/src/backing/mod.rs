//! The pool's memory: which bytes of which handles are free, and through which addresses they can
//! be reached.
//!
//! A handle may stand under several ranges of addresses, its *aliases*: they are one memory. A
//! block is placed through one of them; its bytes are then taken in all. So memory that is free
//! anywhere serves a request anywhere, without being moved: a free handle, or the free end of one
//! that is partly in use, is mapped at a further address, where the request fits, and the older
//! mappings stay for the next request of their size.
//!
//! # Invariants
//!
//! 1. A byte of a handle is free through all its mappings or through none.
//! 2. `live` of a handle are its bytes that are not free: in blocks, in regions of small blocks,
//!    or held by a call that is under way. `occupied` is the sum.
//! 3. A handle that is not mapped anywhere is wholly free, completed, or wholly held.
//! 4. A range that is given to a block holds no byte of a handle twice.
//! 5. A handle with pins is not released, and keeps a mapping if it has one.

#![forbid(unsafe_code)]

mod account;
mod build;
mod place;
mod vacate;

use slab::Slab;
use smallvec::{SmallVec, smallvec};

pub(crate) use build::{Build, Lack, Part, Terms};
pub(crate) use place::Wanted;
pub(crate) use vacate::{Leaving, LeavingPlain, Vacated};

use crate::mapping::{MappedParts, MappingRecord, Mappings};
use crate::order::{Ends, Order};
use crate::pages::{Handle, HandleSlot};
use crate::space::{FreeRuns, Reservations};

/// Mappings of one handle beyond which it is worth a driver call to learn which of them are idle.
/// Every block in a handle is marked in all its mappings.
const CROWD: usize = 16;

/// What a handle's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A physical handle, which can be mapped again.
    Physical,
    /// A plain allocation at the one address that the device gave it.
    Plain,
}

#[derive(Debug)]
struct HandleRecord {
    handle: Handle,
    kind: Kind,
    live: u64,
    /// Calls under way that rely on the handle.
    pins: u32,
    /// Where it is mapped, the oldest first.
    aliases: SmallVec<[u64; 4]>,
}

/// Free bytes of one handle that were taken by a call that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    slot: HandleSlot,
    parts: SmallVec<[HeldPart; 1]>,
}

#[derive(Clone, Debug)]
struct HeldPart {
    offset: u64,
    length: u64,
    ends: Ends,
    freed: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Backing {
    handles: Slab<HandleRecord>,
    mappings: Mappings,
    free: FreeRuns,
    pub(crate) reservations: Reservations,
    occupied: u64,
    bytes: u64,
    /// Rises with every free.
    frees: u64,
    /// Whether a handle has got more mappings than should be, since this was last asked.
    crowded: bool,
}

impl Backing {
    pub(crate) fn new() -> Backing {
        Backing {
            handles: Slab::new(),
            mappings: Mappings::default(),
            free: FreeRuns::new(),
            reservations: Reservations::default(),
            occupied: 0,
            bytes: 0,
            frees: 0,
            crowded: false,
        }
    }

    /// Whether a handle has got so many mappings that it should be found out which are idle; once.
    pub(crate) fn take_crowded(&mut self) -> bool {
        std::mem::take(&mut self.crowded)
    }

    /// Handles and plain allocations.
    pub(crate) fn handles(&self) -> u64 {
        self.handles.len() as u64
    }

    /// Bytes that are not free.
    pub(crate) fn occupied(&self) -> u64 {
        self.occupied
    }

    /// Bytes that are free, mapped or not.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.bytes - self.occupied
    }

    /// Of the free bytes: in handles that are mapped nowhere.
    pub(crate) fn unmapped_bytes(&self) -> u64 {
        let unmapped = self.handles.iter().filter(|(_, h)| h.aliases.is_empty());
        unmapped.map(|(_, h)| h.handle.size - h.live).sum()
    }

    /// Of the free bytes: those whose last uses are not seen to be completed.
    pub(crate) fn pending_bytes(&self, order: &Order) -> u64 {
        let mapped = self.handles.iter().filter_map(|(_, record)| {
            let &alias = record.aliases.first()?;
            Some(self.free.inside(alias, alias + record.handle.size))
        });
        let pending = mapped.flatten().filter(|free| !order.completed(free.ends));
        pending.map(|free| free.end - free.start).sum()
    }

    /// The bytes of the longest free range.
    pub(crate) fn longest_free(&self) -> u64 {
        self.free.longest()
    }

    /// Adds address space.
    pub(crate) fn add_reservation(&mut self, base: u64, size: u64) {
        self.reservations.add(base, size);
        self.free.add_wall(base);
        self.free.add_wall(base + size);
    }

    /// Adds a handle that is mapped nowhere.
    pub(crate) fn add_handle(&mut self, handle: Handle) -> HandleSlot {
        self.add(handle, Kind::Physical)
    }

    /// Adds a plain allocation.
    pub(crate) fn add_plain(&mut self, handle: Handle, address: u64, fresh: &Ends) -> HandleSlot {
        self.add_reservation(address, handle.size);
        self.reservations.claim(address, address + handle.size);
        let slot = self.add(handle, Kind::Plain);
        self.attach(slot, address, fresh, |_, _| false);
        slot
    }

    fn add(&mut self, handle: Handle, kind: Kind) -> HandleSlot {
        self.bytes += handle.size;
        HandleSlot(self.handles.insert(HandleRecord {
            handle,
            kind,
            live: 0,
            pins: 0,
            aliases: SmallVec::new(),
        }))
    }

    /// Forgets a handle, which is mapped nowhere.
    pub(crate) fn remove_handle(&mut self, slot: HandleSlot) -> Handle {
        let record = self.handles.remove(slot.0);
        debug_assert!(record.live == 0 && record.pins == 0 && record.aliases.is_empty());
        self.bytes -= record.handle.size;
        record.handle
    }

    pub(crate) fn handle(&self, slot: HandleSlot) -> Handle {
        self.handles[slot.0].handle
    }

    /// A call relies on the handle until [`Backing::unpin`].
    pub(crate) fn pin(&mut self, slot: HandleSlot) {
        self.handles[slot.0].pins += 1;
    }

    pub(crate) fn unpin(&mut self, slot: HandleSlot) {
        self.handles[slot.0].pins -= 1;
    }

    /// A handle is mapped at a further address, of claimed address space. Where it was mapped
    /// nowhere, all of it is free, with the past `fresh`.
    pub(crate) fn attach(
        &mut self,
        slot: HandleSlot,
        address: u64,
        fresh: &Ends,
        alike: impl Fn(&Ends, &Ends) -> bool,
    ) {
        let size = self.handles[slot.0].handle.size;
        self.mappings.add(address, slot, size);
        self.mirror(slot, address, fresh, alike);
    }

    /// Makes what is free of a handle free through one more address.
    fn mirror(
        &mut self,
        slot: HandleSlot,
        address: u64,
        fresh: &Ends,
        alike: impl Fn(&Ends, &Ends) -> bool,
    ) {
        let record = &mut self.handles[slot.0];
        let size = record.handle.size;
        let other = record.aliases.first().copied();
        record.aliases.push(address);
        self.crowded |= record.aliases.len() > CROWD;
        let Some(other) = other else {
            debug_assert_eq!(record.live, 0);
            self.free
                .insert(address, address + size, fresh.clone(), 0, alike);
            return;
        };
        let copies: Vec<(u64, u64, Ends, u64)> = self
            .free
            .inside(other, other + size)
            .map(|free| {
                let offset = free.start - other;
                let length = free.end - free.start;
                (address + offset, length, free.ends.clone(), free.freed)
            })
            .collect();
        for (start, length, ends, freed) in copies {
            self.free.insert(start, start + length, ends, freed, &alike);
        }
    }

    /// A mapping is about to be taken away: nothing is placed through it any more.
    fn detach(&mut self, address: u64) -> Option<MappingRecord> {
        let record = self.mappings.remove(address)?;
        let ranges: SmallVec<[(u64, u64); 4]> = self
            .free
            .inside(address, address + record.size)
            .map(|free| (free.start, free.end))
            .collect();
        for (start, end) in ranges {
            self.free.carve(start, end);
        }
        self.handles[record.slot.0]
            .aliases
            .retain(|a| *a != address);
        Some(record)
    }

    /// The mapping could not be taken away.
    fn reattach(&mut self, address: u64, record: MappingRecord) {
        let slot = record.slot;
        self.mappings.restore(address, record);
        self.mirror(slot, address, &Ends::default(), |_, _| false);
    }

    /// Where the last uses of what is free in a range ended.
    pub(crate) fn ends(&self, start: u64, size: u64) -> Ends {
        let mut ends = Ends::default();
        for free in self.free.inside(start, start + size) {
            ends.merge(free.ends);
        }
        ends
    }

    /// Places a block: the range is wholly free, and holds no byte twice.
    pub(crate) fn occupy(&mut self, start: u64, size: u64) {
        let parts: MappedParts = self.mappings.parts(start, start + size).collect();
        self.free.carve(start, start + size);
        for part in &parts {
            self.mappings.occupied(part);
            let record = &mut self.handles[part.slot.0];
            record.live += part.length;
            for &alias in record.aliases.iter().filter(|&&a| a != part.mapping) {
                let start = alias + part.offset;
                self.free.carve(start, start + part.length);
            }
        }
        self.occupied += size;
    }

    /// The number of a free that happens now.
    pub(crate) fn number_free(&mut self) -> u64 {
        self.frees += 1;
        self.frees
    }

    /// Frees what a block stood in, whose uses ended there; the free has this number.
    pub(crate) fn release(
        &mut self,
        order: &Order,
        start: u64,
        size: u64,
        ends: &Ends,
        freed: u64,
    ) {
        let alike = |a: &Ends, b: &Ends| order.alike(a, b);
        let parts: MappedParts = self.mappings.parts(start, start + size).collect();
        for part in &parts {
            self.mappings.vacated(part, ends);
            let record = &mut self.handles[part.slot.0];
            record.live -= part.length;
            for &alias in record.aliases.iter().filter(|&&a| a != part.mapping) {
                let start = alias + part.offset;
                let end = start + part.length;
                self.free.insert(start, end, ends.clone(), freed, alike);
            }
        }
        self.occupied -= size;
        self.free
            .insert(start, start + size, ends.clone(), freed, alike);
    }

    /// Takes free bytes of a handle for a call that is under way, and pins it.
    fn hold(&mut self, slot: HandleSlot, offset: u64, length: u64) -> Held {
        let record = &mut self.handles[slot.0];
        record.live += length;
        record.pins += 1;
        self.occupied += length;
        let Some(&first) = record.aliases.first() else {
            let part = HeldPart {
                offset,
                length,
                ends: Ends::default(),
                freed: 0,
            };
            return Held {
                slot,
                parts: smallvec![part],
            };
        };
        let start = first + offset;
        let parts = self
            .free
            .inside(start, start + length)
            .map(|free| HeldPart {
                offset: free.start - first,
                length: free.end - free.start,
                ends: free.ends.clone(),
                freed: free.freed,
            });
        let held = Held {
            slot,
            parts: parts.collect(),
        };
        for &alias in &record.aliases {
            self.free.carve(alias + offset, alias + offset + length);
        }
        held
    }

    /// Gives back what was held, as it was.
    fn unhold(&mut self, order: &Order, held: Held) {
        let alike = |a: &Ends, b: &Ends| order.alike(a, b);
        let record = &mut self.handles[held.slot.0];
        record.pins -= 1;
        for part in held.parts {
            record.live -= part.length;
            self.occupied -= part.length;
            for &alias in &record.aliases {
                let start = alias + part.offset;
                let end = start + part.length;
                self.free
                    .insert(start, end, part.ends.clone(), part.freed, alike);
            }
        }
    }

    /// Changes what is remembered of the pasts of free bytes, where `change` has an answer.
    pub(crate) fn rewrite(&mut self, order: &Order, change: impl Fn(&Ends) -> Option<Ends>) {
        self.free.rewrite(change, |a, b| order.alike(a, b));
    }

    /// Base and size of every reservation that is not a plain allocation's.
    pub(crate) fn mappable(&self) -> impl Iterator<Item = (u64, u64)> {
        let plain = |base: u64| {
            let mapping = self.mappings.get(base);
            mapping.is_some_and(|mapping| self.handles[mapping.slot.0].kind == Kind::Plain)
        };
        self.reservations
            .iter()
            .filter(move |&(base, _)| !plain(base))
    }

    /// Checks that a block's bytes are there, once, and not free.
    pub(crate) fn validate_block(&self, start: u64, size: u64) -> Result<(), String> {
        let mapped: u64 = self
            .mappings
            .parts(start, start + size)
            .map(|p| p.length)
            .sum();
        if mapped != size || !self.is_disjoint(start, size) {
            return Err(format!(
                "the block at {start:#x} is not wholly mapped, or twice"
            ));
        }
        match self.free.inside(start, start + size).next() {
            Some(free) => Err(format!("{:#x} is free inside a block", free.start)),
            None => Ok(()),
        }
    }

    /// Checks the room's invariants.
    pub(crate) fn validate(&self) -> Result<(), String> {
        self.free.validate()?;
        let mut occupied = 0;
        let mut bytes = 0;
        let mut mapped = 0;
        for (slot, record) in &self.handles {
            occupied += record.live;
            bytes += record.handle.size;
            let mut free_through: Option<Vec<(u64, u64)>> = None;
            for &alias in &record.aliases {
                mapped += 1;
                let known = self.mappings.get(alias);
                if known.is_none_or(|m| m.slot.0 != slot || m.size != record.handle.size) {
                    return Err(format!("the mapping at {alias:#x} is not handle {slot}'s"));
                }
                let ranges = joined(
                    self.free
                        .inside(alias, alias + record.handle.size)
                        .map(|free| (free.start - alias, free.end - alias)),
                );
                let free: u64 = ranges.iter().map(|(start, end)| end - start).sum();
                if free + record.live != record.handle.size {
                    return Err(format!(
                        "handle {slot}: {free} bytes free at {alias:#x}, {} live of {}",
                        record.live, record.handle.size
                    ));
                }
                if free_through.is_some_and(|before| before != ranges) {
                    return Err(format!(
                        "handle {slot} is not free alike through {alias:#x}"
                    ));
                }
                free_through = Some(ranges);
            }
        }
        if (occupied, bytes) != (self.occupied, self.bytes) {
            return Err(format!(
                "{occupied} bytes of {bytes} are occupied, not {} of {}",
                self.occupied, self.bytes
            ));
        }
        if mapped != self.mappings.iter().count() {
            return Err("there are mappings of no handle".to_owned());
        }
        Ok(())
    }
}

/// Makes one range of those that touch.
fn joined(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests;
