//! The pool's memory: which bytes of which handles are free, and through which addresses they can
//! be reached.
//!
//! A handle may stand under several ranges of addresses, its *aliases*: they are one memory. A
//! block is placed through one of them; its bytes are then taken in all. So memory that is free
//! anywhere serves a request anywhere, without being moved: a free handle, or the free end of one
//! that is partly in use, is mapped at a further address, where the request fits, and the older
//! mappings stay for the next request of their size. What is free is known once for each handle;
//! its aliases have only a summary of it, which is told to them when next a place is looked for.
//!
//! # Invariants
//!
//! 1. A byte of a handle is free through all its mappings or through none. Through a mapping that is
//!    *dormant* nothing is placed any more, and nothing is in use.
//! 2. `live` of a handle are its bytes that are not free: in blocks, in regions of small blocks,
//!    or held by a call that is under way. `occupied` is the sum.
//! 3. A handle that is not mapped anywhere is wholly free, completed, or wholly held.
//! 4. A range that is given to a block holds no byte of a handle twice.
//! 5. A handle with pins is not released, and keeps a mapping if it has one.
//! 6. Summaries of all handles that are not marked as changed are those of their pieces.

#![forbid(unsafe_code)]

mod account;
mod bases;
mod build;
mod place;
mod vacate;

use slab::Slab;
use smallvec::SmallVec;

pub(crate) use build::{Build, Lack, Part, Terms};
pub(crate) use place::Wanted;
pub(crate) use vacate::{Leaving, LeavingPlain, Vacated};

use crate::mapping::{MappedParts, MappingRecord, MappingSlot, Mappings};
use crate::order::{Ends, Order};
use crate::pages::{Handle, HandleSlot};
use crate::space::{Free, Pieces, Reservations, Summary};

/// Mappings of one handle beyond which it is worth a driver call to learn which of them are idle.
/// Dormant ones take nothing but address space and entries in the page tables of the device.
const CROWD: usize = 64;

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
    /// What is free of it.
    pieces: Pieces,
    /// What its aliases were last told of that.
    told: Summary,
    /// Whether the pieces have changed since.
    changed: bool,
    /// Where it is mapped, the oldest first.
    aliases: SmallVec<[u64; 4]>,
    /// Further mappings, through which nothing is placed any more.
    dormant: SmallVec<[MappingSlot; 2]>,
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
    /// Handles whose aliases have to be told what is free.
    changed: Vec<HandleSlot>,
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
            mappings: Mappings::new(),
            changed: Vec::new(),
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
        let mapped = self.handles.iter().filter(|(_, h)| !h.aliases.is_empty());
        let free = mapped.flat_map(|(_, record)| record.pieces.iter());
        let pending = free.filter(|free| !order.completed(free.ends));
        pending.map(|free| free.end - free.start).sum()
    }

    /// The bytes of the longest free range. Looks at all that is free.
    pub(crate) fn longest_free(&self) -> u64 {
        let (mut start, mut end, mut longest) = (0, 0, 0);
        for (free, walled) in self.all_free() {
            if free.start != end || walled {
                start = free.start;
            }
            end = free.end;
            longest = longest.max(end - start);
        }
        longest
    }

    /// Tells the aliases of all handles that have changed what is free of them.
    fn tell_aliases(&mut self) {
        let strips = &mut self.mappings.strips;
        for slot in self.changed.drain(..) {
            let Some(record) = self.handles.get_mut(slot.0) else {
                continue;
            };
            record.changed = false;
            let free = record.pieces.summary(record.handle.size);
            if std::mem::replace(&mut record.told, free) != free {
                for &alias in &record.aliases {
                    strips.set(alias, free);
                }
            }
        }
        strips.refresh();
    }

    /// What is free of the handle under a mapping of the strips.
    fn pieces_of(&self, key: u32) -> &Pieces {
        &self.handles[self.mappings.handle_of(key).0].pieces
    }

    /// The free bytes in a range of addresses, lowest first.
    fn inside(&self, start: u64, end: u64) -> impl Iterator<Item = Free<'_>> {
        self.mappings.parts(start, end).flat_map(|part| {
            let pieces = &self.handles[part.slot.0].pieces;
            let free = pieces.inside(part.offset, part.offset + part.length);
            free.map(move |free| free.through(part.mapping))
        })
    }

    /// Adds address space.
    pub(crate) fn add_reservation(&mut self, base: u64, size: u64) {
        self.reservations.add(base, size);
        self.mappings.strips.add_wall(base);
        self.mappings.strips.add_wall(base + size);
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
        self.attach(slot, address, fresh);
        slot
    }

    fn add(&mut self, handle: Handle, kind: Kind) -> HandleSlot {
        self.bytes += handle.size;
        let pieces = Pieces::whole(handle.size, Ends::default());
        HandleSlot(self.handles.insert(HandleRecord {
            handle,
            kind,
            live: 0,
            pins: 0,
            told: pieces.summary(handle.size),
            pieces,
            changed: false,
            aliases: SmallVec::new(),
            dormant: SmallVec::new(),
        }))
    }

    /// Forgets a handle, which is mapped nowhere.
    pub(crate) fn remove_handle(&mut self, slot: HandleSlot) -> Handle {
        let record = self.handles.remove(slot.0);
        if record.changed {
            self.changed.retain(|&changed| changed != slot);
        }
        debug_assert!(record.live == 0 && record.pins == 0 && record.mappings() == 0);
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
    pub(crate) fn attach(&mut self, slot: HandleSlot, address: u64, fresh: &Ends) {
        let record = &mut self.handles[slot.0];
        let size = record.handle.size;
        if record.mappings() == 0 {
            debug_assert_eq!(record.live, 0);
            record.pieces = Pieces::whole(size, fresh.clone());
            record.change(slot, &mut self.changed);
        }
        self.mappings.add(address, slot, size);
        self.list(slot, address);
    }

    /// A mapping of the strips is one of its handle's aliases from now on.
    fn list(&mut self, slot: HandleSlot, address: u64) {
        let record = &mut self.handles[slot.0];
        record.aliases.push(address);
        self.crowded |= record.mappings() > CROWD;
        self.mappings.strips.set(address, record.told);
    }

    /// A mapping is about to be taken away: nothing is placed through it any more.
    fn detach(&mut self, address: u64) -> Option<MappingRecord> {
        let record = self.mappings.remove(address)?;
        self.handles[record.slot.0]
            .aliases
            .retain(|alias| *alias != address);
        Some(record)
    }

    /// The mapping could not be taken away.
    fn reattach(&mut self, record: MappingRecord) {
        let (slot, address) = (record.slot, record.address);
        self.mappings.restore(record);
        self.list(slot, address);
    }

    /// Where the last uses of what is free in a range ended.
    pub(crate) fn ends(&self, start: u64, size: u64) -> Ends {
        let mut ends = Ends::default();
        for free in self.inside(start, start + size) {
            ends.merge(free.ends);
        }
        ends
    }

    /// Places a block: the range is wholly free, and holds no byte twice.
    pub(crate) fn occupy(&mut self, start: u64, size: u64) {
        let parts: MappedParts = self.mappings.parts(start, start + size).collect();
        for part in &parts {
            self.mappings.occupied(part);
            let record = &mut self.handles[part.slot.0];
            record.live += part.length;
            record.pieces.carve(part.offset, part.offset + part.length);
            record.change(part.slot, &mut self.changed);
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
            let end = part.offset + part.length;
            record.pieces.insert(part.offset, end, ends, freed, alike);
            record.change(part.slot, &mut self.changed);
        }
        self.occupied -= size;
    }

    /// Takes free bytes of a handle for a call that is under way, and pins it.
    fn hold(&mut self, slot: HandleSlot, offset: u64, length: u64) -> Held {
        let record = &mut self.handles[slot.0];
        record.live += length;
        record.pins += 1;
        self.occupied += length;
        let free = record.pieces.inside(offset, offset + length);
        let parts = free.map(|free| HeldPart {
            offset: free.start,
            length: free.end - free.start,
            ends: free.ends.clone(),
            freed: free.freed,
        });
        let parts = parts.collect();
        record.pieces.carve(offset, offset + length);
        record.change(slot, &mut self.changed);
        Held { slot, parts }
    }

    /// Gives back what was held, as it was.
    fn unhold(&mut self, order: &Order, held: Held) {
        let alike = |a: &Ends, b: &Ends| order.alike(a, b);
        let record = &mut self.handles[held.slot.0];
        record.pins -= 1;
        for part in held.parts {
            record.live -= part.length;
            self.occupied -= part.length;
            let end = part.offset + part.length;
            let pieces = &mut record.pieces;
            pieces.insert(part.offset, end, &part.ends, part.freed, alike);
        }
        record.change(held.slot, &mut self.changed);
    }

    /// Changes what is remembered of the pasts of free bytes, where `change` has an answer.
    pub(crate) fn rewrite(&mut self, order: &Order, change: impl Fn(&Ends) -> Option<Ends>) {
        for (_, record) in &mut self.handles {
            record.pieces.rewrite(&change, |a, b| order.alike(a, b));
        }
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
        match self.inside(start, start + size).next() {
            Some(free) => Err(format!("{:#x} is free inside a block", free.start)),
            None => Ok(()),
        }
    }

    /// Checks the room's invariants.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let mut occupied = 0;
        let mut bytes = 0;
        let mut mapped = 0;
        for (slot, record) in &self.handles {
            let size = record.handle.size;
            occupied += record.live;
            bytes += size;
            mapped += record.mappings();
            record.pieces.validate(size)?;
            let free: u64 = record.pieces.iter().map(|free| free.end - free.start).sum();
            if free + record.live != size {
                return Err(format!(
                    "handle {slot}: {free} bytes are free, {} live of {size}",
                    record.live
                ));
            }
            let changed = self.changed.contains(&HandleSlot(slot));
            if record.changed != changed || (!changed && record.told != record.pieces.summary(size))
            {
                return Err(format!("handle {slot}: a change is not known"));
            }
            let here = |known: &MappingRecord| known.slot.0 == slot && known.size == size;
            for &alias in &record.aliases {
                if !self.mappings.get(alias).is_some_and(here) {
                    return Err(format!("the mapping at {alias:#x} is not handle {slot}'s"));
                }
            }
            let dormant = record.dormant.iter();
            let mut dormant = dormant.map(|&mapping| self.mappings.record(mapping));
            if dormant.any(|known| !here(known) || known.used > 0) {
                return Err(format!(
                    "handle {slot}: a dormant mapping is not its, or in use"
                ));
            }
            if record.aliases.is_empty() && !record.dormant.is_empty() {
                return Err(format!("handle {slot} has none but dormant mappings"));
            }
        }
        if (occupied, bytes) != (self.occupied, self.bytes) {
            return Err(format!(
                "{occupied} bytes of {bytes} are occupied, not {} of {}",
                self.occupied, self.bytes
            ));
        }
        let listed: usize = self.handles.iter().map(|(_, h)| h.aliases.len()).sum();
        if mapped != self.mappings.count() || listed != self.mappings.strips.len() {
            return Err("there are mappings of no handle".to_owned());
        }
        let told = |key: u32| self.handles[self.mappings.handle_of(key).0].told;
        self.mappings.strips.validate(told)
    }
}

impl HandleRecord {
    /// What is free has changed.
    fn change(&mut self, slot: HandleSlot, changed: &mut Vec<HandleSlot>) {
        if !std::mem::replace(&mut self.changed, true) {
            changed.push(slot);
        }
    }

    /// How many there are, dormant ones among them.
    fn mappings(&self) -> usize {
        self.aliases.len() + self.dormant.len()
    }
}

#[cfg(test)]
mod tests;
