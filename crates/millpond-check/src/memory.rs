//! Physical truth: reservations, handles and what stands where, from the device calls alone.
//!
//! Invariants:
//! - A handle is known by a serial number; its value may recur after its release.
//! - A mapping covers its handle whole, from the handle's first byte.
//! - A handle stays while it is unreleased or mapped.
//! - A mapping's `uses` hold, for every stream, the last end of a use through that mapping, unless
//!   the host has seen it complete.
//! - Memory of `Device::allocate` is a released handle under one mapping in a range of its own.

use std::collections::BTreeMap;

use millpond::device::{AccessGrant, Accessor, Call, HandleId, Protection};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::order::{Clock, End, Order};
use crate::segments::{Ends, Segment, Segments};
use crate::violation::{BlockSeen, Gap, Remaining, Violation};

/// Segments are pruned when this many have come together, and at every doubling.
const FIRST_PRUNE: usize = 4096;

/// A use through a mapping by a block that is freed.
#[derive(Clone, Debug)]
struct PastUse {
    end: End,
    block: BlockSeen,
}

/// A handle under an address.
#[derive(Debug)]
pub(crate) struct Mapping {
    size: u64,
    handle: u64,
    /// Tells it from later mappings at the same address.
    serial: u64,
    access: bool,
    /// Live blocks through it.
    live: u32,
    uses: SmallVec<[PastUse; 2]>,
}

#[derive(Debug)]
struct Handle {
    value: HandleId,
    size: u64,
    released: bool,
    mappings: u64,
    segments: Segments,
}

/// A part of a block: bytes of one handle, through one mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    handle: u64,
    offset: u64,
    length: u64,
    mapping: u64,
    serial: u64,
}

pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// What a call takes away, kept until it is known to have succeeded.
#[derive(Debug)]
pub(crate) struct Taken {
    mappings: Vec<(u64, Mapping)>,
    reservation: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct Memory {
    /// Whose access counts.
    ordinal: u32,
    reservations: BTreeMap<u64, u64>,
    /// Bases among the reservations that are memory of `Device::allocate`.
    allocations: FxHashSet<u64>,
    mappings: BTreeMap<u64, Mapping>,
    handles: FxHashMap<u64, Handle>,
    by_value: FxHashMap<HandleId, u64>,
    serials: u64,
    segments: usize,
    next_prune: usize,
}

impl Memory {
    pub(crate) fn new(ordinal: u32) -> Memory {
        Memory {
            ordinal,
            reservations: BTreeMap::new(),
            allocations: FxHashSet::default(),
            mappings: BTreeMap::new(),
            handles: FxHashMap::default(),
            by_value: FxHashMap::default(),
            serials: 0,
            segments: 0,
            next_prune: FIRST_PRUNE,
        }
    }

    fn serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    // --- What calls give ---------------------------------------------------------------------

    pub(crate) fn reserved(&mut self, base: u64, size: u64) -> Option<Violation> {
        let meets = self
            .reservations
            .range(..base.saturating_add(size))
            .next_back();
        if meets.is_some_and(|(&other, &length)| other + length > base) {
            return Some(contract(
                Call::Reserve,
                base,
                "it meets another reservation",
            ));
        }
        self.reservations.insert(base, size);
        None
    }

    pub(crate) fn created(&mut self, value: HandleId, size: u64) {
        let serial = self.add_handle(value, size, false);
        self.by_value.insert(value, serial);
    }

    fn add_handle(&mut self, value: HandleId, size: u64, released: bool) -> u64 {
        let serial = self.serial();
        let handle = Handle {
            value,
            size,
            released,
            mappings: 0,
            segments: Segments::default(),
        };
        self.handles.insert(serial, handle);
        serial
    }

    /// The handle that has this value now.
    pub(crate) fn handle(&self, value: HandleId) -> Option<u64> {
        self.by_value.get(&value).copied()
    }

    pub(crate) fn mapped(
        &mut self,
        address: u64,
        size: u64,
        handle: Option<u64>,
    ) -> Result<(), Violation> {
        let refuse = |reason| Err(contract(Call::Map, address, reason));
        let Some(serial) = handle else {
            return refuse("there is no such handle");
        };
        if self.reservation_of(address, size).is_none() {
            return refuse("it does not lie inside one reservation");
        }
        let below = self.mappings.range(..address + size).next_back();
        if below.is_some_and(|(&other, mapping)| other + mapping.size > address) {
            return refuse("it lies over another mapping");
        }
        match self.handles.get_mut(&serial) {
            Some(handle) if handle.size == size => handle.mappings += 1,
            Some(_) => return refuse("it is not the whole handle"),
            None => return refuse("the handle is gone"),
        }
        self.add_mapping(address, size, serial, false);
        Ok(())
    }

    fn add_mapping(&mut self, address: u64, size: u64, handle: u64, access: bool) {
        let mapping = Mapping {
            size,
            handle,
            serial: self.serial(),
            access,
            live: 0,
            uses: SmallVec::new(),
        };
        self.mappings.insert(address, mapping);
    }

    pub(crate) fn access_set(&mut self, address: u64, size: u64, grants: &[AccessGrant]) {
        let mine = |grant: &&AccessGrant| grant.accessor == Accessor::Device(self.ordinal);
        let Some(grant) = grants.iter().rfind(mine) else {
            return;
        };
        for (_, mapping) in self
            .mappings
            .range_mut(address..address.saturating_add(size))
        {
            mapping.access = grant.protection == Protection::ReadWrite;
        }
    }

    pub(crate) fn allocated(&mut self, base: u64, size: u64) -> Option<Violation> {
        let violation = self.reserved(base, size);
        if violation.is_none() {
            self.allocations.insert(base);
            let serial = self.add_handle(HandleId(base), size, true);
            if let Some(handle) = self.handles.get_mut(&serial) {
                handle.mappings = 1;
            }
            self.add_mapping(base, size, serial, true);
        }
        violation
    }

    // --- What calls take ---------------------------------------------------------------------

    /// Takes the mappings of a range away, and says which uses that breaks.
    pub(crate) fn unmapping(
        &mut self,
        call: Call,
        address: u64,
        size: u64,
        order: &Order,
        found: &mut Vec<Violation>,
    ) -> Taken {
        let end = address.saturating_add(size);
        let mut mappings = Vec::new();
        while let Some((&at, _)) = self.mappings.range(address..end).next() {
            let Some(mapping) = self.mappings.remove(&at) else {
                break;
            };
            self.judge_taking(call, at, &mapping, order, found);
            mappings.push((at, mapping));
        }
        Taken {
            mappings,
            reservation: None,
        }
    }

    fn judge_taking(
        &self,
        call: Call,
        address: u64,
        mapping: &Mapping,
        order: &Order,
        found: &mut Vec<Violation>,
    ) {
        let size = mapping.size;
        if mapping.live > 0
            && let Some(owner) = self
                .handles
                .get(&mapping.handle)
                .and_then(|handle| handle.segments.live_block_within(address, size))
        {
            found.push(Violation::TakenFromLive {
                call,
                address,
                size,
                owner,
            });
        }
        for past in &mapping.uses {
            if !order.completed().covers(past.end) {
                found.push(Violation::TakenInUse {
                    call,
                    address,
                    size,
                    earlier: past.block,
                    used_on: order.name(past.end.stream),
                    position: past.end.position,
                    completed: order.completed().get(past.end.stream),
                });
            }
        }
    }

    pub(crate) fn freeing_allocation(
        &mut self,
        base: u64,
        order: &Order,
        found: &mut Vec<Violation>,
    ) -> Taken {
        let size = match self.allocations.remove(&base) {
            true => self.reservations.get(&base).copied().unwrap_or(0),
            false => 0,
        };
        let mut taken = self.unmapping(Call::Free, base, size, order, found);
        if size > 0 {
            taken.reservation = self.reservations.remove_entry(&base);
        }
        taken
    }

    pub(crate) fn freeing_reservation(&mut self, base: u64) -> Taken {
        Taken {
            mappings: Vec::new(),
            reservation: self.reservations.remove_entry(&base),
        }
    }

    /// The call that took this succeeded.
    pub(crate) fn gone(&mut self, taken: Taken) {
        for (_, mapping) in taken.mappings {
            if let Some(handle) = self.handles.get_mut(&mapping.handle) {
                handle.mappings = handle.mappings.saturating_sub(1);
            }
            self.drop_if_unheld(mapping.handle);
        }
    }

    /// The call that took this failed. `call` is that call.
    pub(crate) fn restored(&mut self, call: Call, taken: Taken) {
        self.mappings.extend(taken.mappings);
        if let Some((base, size)) = taken.reservation {
            self.reservations.insert(base, size);
            if call == Call::Free {
                self.allocations.insert(base);
            }
        }
    }

    /// A handle's value is given up; says which handle that was.
    pub(crate) fn releasing(&mut self, value: HandleId, found: &mut Vec<Violation>) -> Option<u64> {
        let serial = self.by_value.remove(&value)?;
        let live = self.handles.get(&serial)?.segments.live_block();
        found.extend(live.map(|owner| Violation::ReleasedUnderLive {
            handle: value,
            owner,
        }));
        Some(serial)
    }

    pub(crate) fn released(&mut self, serial: u64) {
        if let Some(handle) = self.handles.get_mut(&serial) {
            handle.released = true;
        }
        self.drop_if_unheld(serial);
    }

    /// The release failed.
    pub(crate) fn unreleased(&mut self, value: HandleId, serial: u64) {
        self.by_value.insert(value, serial);
    }

    fn drop_if_unheld(&mut self, serial: u64) {
        let unheld = |handle: &Handle| handle.released && handle.mappings == 0;
        if self.handles.get(&serial).is_some_and(unheld)
            && let Some(handle) = self.handles.remove(&serial)
        {
            self.segments -= handle.segments.len();
        }
    }

    // --- Blocks ------------------------------------------------------------------------------

    fn reservation_of(&self, address: u64, size: u64) -> Option<u64> {
        let (&base, &length) = self.reservations.range(..=address).next_back()?;
        let end = address.checked_add(size)?;
        (end <= base + length).then_some(base)
    }

    /// The physical bytes under a range; up to the first gap, if there is one.
    pub(crate) fn translate(&self, address: u64, size: u64) -> (Pieces, Option<(u64, Gap)>) {
        let mut pieces = Pieces::new();
        if self.reservation_of(address, size).is_none() {
            return (pieces, Some((address, Gap::OutsideReservation)));
        }
        let end = address + size;
        let mut at = address;
        let first = self.mappings.range(..=address).next_back();
        let from = first.map_or(address, |(&start, _)| start);
        for (&start, mapping) in self.mappings.range(from..end) {
            let until = (start + mapping.size).min(end);
            if start > at || until <= at {
                break;
            }
            if !mapping.access {
                return (pieces, Some((at, Gap::NoAccess)));
            }
            pieces.push(Piece {
                handle: mapping.handle,
                offset: at - start,
                length: until - at,
                mapping: start,
                serial: mapping.serial,
            });
            at = until;
        }
        let gap = (at < end).then_some((at, Gap::Unmapped));
        (pieces, gap)
    }

    /// Gives the pieces to a block; shows for each what was there, with the handle's value.
    pub(crate) fn claim(
        &mut self,
        pieces: &[Piece],
        block: BlockSeen,
        mut formerly: impl FnMut(HandleId, u64, &Segment),
    ) {
        for piece in pieces {
            if let Some(mapping) = self.mapping(piece) {
                mapping.live += 1;
            }
            if let Some(handle) = self.handles.get_mut(&piece.handle) {
                let value = handle.value;
                let before = handle.segments.len();
                let show = |offset, segment: &Segment| formerly(value, offset, segment);
                handle
                    .segments
                    .claim(piece.offset, piece.length, block, show);
                self.segments = self.segments + handle.segments.len() - before;
            }
        }
    }

    /// The block gives up its pieces; its uses hold them until these ends.
    pub(crate) fn vacate(
        &mut self,
        pieces: &[Piece],
        block: &BlockSeen,
        ends: &Ends,
        completed: &Clock,
    ) {
        for piece in pieces {
            if let Some(mapping) = self.mapping(piece) {
                mapping.live = mapping.live.saturating_sub(1);
                for &end in ends {
                    mapping.add_use(end, block, completed);
                }
            }
            if let Some(handle) = self.handles.get_mut(&piece.handle) {
                handle
                    .segments
                    .vacate(piece.offset, piece.length, block, ends);
            }
        }
    }

    fn mapping(&mut self, piece: &Piece) -> Option<&mut Mapping> {
        let mapping = self.mappings.get_mut(&piece.mapping)?;
        (mapping.serial == piece.serial).then_some(mapping)
    }

    /// Forgets what is complete, now and then.
    pub(crate) fn prune(&mut self, completed: &Clock) {
        if self.segments < self.next_prune {
            return;
        }
        self.segments = 0;
        for handle in self.handles.values_mut() {
            handle.segments.prune(completed);
            self.segments += handle.segments.len();
        }
        self.next_prune = FIRST_PRUNE.max(self.segments * 2);
    }

    // --- Totals ------------------------------------------------------------------------------

    /// Bytes of all handles that exist, each counted once.
    pub(crate) fn physical_bytes(&self) -> u64 {
        self.handles.values().map(|handle| handle.size).sum()
    }

    /// Segments that are kept, to see that they stay few.
    pub(crate) fn segments(&self) -> usize {
        self.segments
    }

    pub(crate) fn remaining(&self) -> Vec<Remaining> {
        let handles = self.by_value.keys().map(|value| Remaining::Handle(value.0));
        let is_allocation = |base: &&u64| self.allocations.contains(base);
        let mappings = self.mappings.keys().filter(|base| !is_allocation(base));
        let reservations = self.reservations.keys().filter(|base| !is_allocation(base));
        let mut remaining: Vec<Remaining> = handles
            .chain(mappings.map(|&address| Remaining::Mapping(address)))
            .chain(reservations.map(|&base| Remaining::Reservation(base)))
            .chain(
                self.allocations
                    .iter()
                    .map(|&base| Remaining::Allocation(base)),
            )
            .collect();
        remaining.sort_unstable();
        remaining
    }
}

impl Mapping {
    fn add_use(&mut self, end: End, block: &BlockSeen, completed: &Clock) {
        let same = |past: &&mut PastUse| past.end.stream == end.stream;
        if let Some(past) = self.uses.iter_mut().find(same) {
            // A use may have ended long before its block was freed.
            if past.end.position <= end.position {
                *past = PastUse { end, block: *block };
            }
            return;
        }
        self.uses.retain(|past| !completed.covers(past.end));
        self.uses.push(PastUse { end, block: *block });
    }
}

fn contract(call: Call, address: u64, reason: &'static str) -> Violation {
    Violation::Contract {
        call,
        address,
        reason,
    }
}
