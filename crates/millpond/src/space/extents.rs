//! Regions cut into extents: take, free, merge.
//!
//! Neighbouring extents of a region are linked, so that a freed one finds those it can merge with
//! at once; free extents stand in an index by size.
//!
//! # Invariants
//!
//! 1. Extents do not overlap, and every byte of a region is in exactly one.
//! 2. Extents are linked exactly if they touch and are of one region.
//! 3. No two linked free extents are of the same silo.
//! 4. An extent is in the index of its silo exactly if it is free.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::free_index::{Entry, FreeIndex};
use super::{GRAIN, align_up};
use crate::order::{Ends, StreamIndex};

/// An extent, by its slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ExtentId(pub(crate) u32);

impl ExtentId {
    fn slot(self) -> usize {
        self.0 as usize
    }
}

/// Whose free memory an extent is: see the [room's documentation](super).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Silo(u32);

impl Silo {
    pub(crate) const COMMON: Silo = Silo(0);

    pub(crate) fn of_stream(stream: StreamIndex) -> Silo {
        Silo(stream.0 + 1)
    }

    fn of(ends: &Ends) -> Silo {
        ends.only_stream().map_or(Silo::COMMON, Silo::of_stream)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Vacant,
    Taken,
    Free(Silo),
}

/// A range of backed addresses.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Which region it is a part of: a range that was added as a whole.
    pub(crate) region: u32,
    previous: Option<ExtentId>,
    next: Option<ExtentId>,
    state: State,
    /// Where its last uses ended, while it is free.
    pub(crate) ends: Ends,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// A place for a request: part of one free extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fit {
    pub(crate) id: ExtentId,
    pub(crate) address: u64,
}

/// All extents of a pool.
#[derive(Default, Debug)]
pub(crate) struct Extents {
    slots: Vec<Extent>,
    vacant: Vec<ExtentId>,
    /// In their order. Most often there are one or two.
    silos: Vec<(Silo, FreeIndex)>,
    free_bytes: u64,
}

impl Extents {
    pub(crate) fn new() -> Extents {
        Extents {
            slots: Vec::new(),
            vacant: Vec::new(),
            silos: Vec::new(),
            free_bytes: 0,
        }
    }

    pub(crate) fn get(&self, id: ExtentId) -> &Extent {
        &self.slots[id.slot()]
    }

    pub(crate) fn is_free(&self, id: ExtentId) -> bool {
        matches!(self.get(id).state, State::Free(_))
    }

    /// Bytes in free extents.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    pub(crate) fn previous(&self, id: ExtentId) -> Option<ExtentId> {
        self.get(id).previous
    }

    pub(crate) fn next(&self, id: ExtentId) -> Option<ExtentId> {
        self.get(id).next
    }

    /// The best place for `size` bytes at `alignment` in one free extent of a silo whose ends
    /// `usable` accepts.
    pub(crate) fn find(
        &self,
        silo: Silo,
        size: u64,
        alignment: u64,
        mut usable: impl FnMut(&Ends) -> bool,
    ) -> Option<Fit> {
        let index = self.silo(silo)?;
        index.at_least(size).find_map(|entry| {
            let address = align_up(entry.address, alignment)?;
            let fits = address.checked_add(size)? <= entry.address + entry.size;
            (fits && usable(&self.get(entry.id).ends)).then_some(Fit {
                id: entry.id,
                address,
            })
        })
    }

    /// Free extents of all silos, in no particular order that a caller may depend on but the same
    /// in every run.
    pub(crate) fn free(&self) -> impl Iterator<Item = ExtentId> + '_ {
        self.silos
            .iter()
            .flat_map(|(_, index)| index.iter().map(|entry| entry.id))
    }

    /// Silos that can hold anything.
    pub(crate) fn silos(&self) -> impl Iterator<Item = Silo> + use<> {
        let silos: SmallVec<[Silo; 4]> = self.silos.iter().map(|&(silo, _)| silo).collect();
        silos.into_iter()
    }

    /// Silos that hold anything.
    pub(crate) fn silos_in_use(&self) -> usize {
        let used = self.silos.iter().filter(|(_, index)| !index.is_empty());
        used.count()
    }

    fn silo(&self, silo: Silo) -> Option<&FreeIndex> {
        let found = self.silos.iter().find(|(known, _)| *known == silo);
        found.map(|(_, index)| index)
    }

    fn silo_or_new(&mut self, silo: Silo) -> &mut FreeIndex {
        let place = self.silos.partition_point(|(known, _)| *known < silo);
        if self
            .silos
            .get(place)
            .is_none_or(|(known, _)| *known != silo)
        {
            self.silos.insert(place, (silo, FreeIndex::new()));
        }
        &mut self.silos[place].1
    }

    /// Takes `size` bytes at `address` out of a free extent; what is left on either side stays
    /// free, with the extent's ends. Gives the taken extent, and those ends.
    pub(crate) fn take(&mut self, id: ExtentId, address: u64, size: u64) -> (ExtentId, Ends) {
        self.unlist(id);
        let ends = std::mem::take(&mut self.slots[id.slot()].ends);
        let mut id = id;
        if address > self.get(id).address {
            let upper = self.split(id, address);
            self.list(id, ends.clone());
            id = upper;
        }
        if address + size < self.get(id).end() {
            let rest = self.split(id, address + size);
            self.list(rest, ends.clone());
        }
        self.slots[id.slot()].state = State::Taken;
        (id, ends)
    }

    /// Frees a taken extent whose uses ended at `ends`, and merges it with its free neighbours of
    /// the same silo. Gives the extent that it became.
    pub(crate) fn free_extent(&mut self, id: ExtentId, ends: Ends) -> ExtentId {
        let silo = Silo::of(&ends);
        let mut id = id;
        let mut ends = ends;
        if let Some(next) = self
            .get(id)
            .next
            .filter(|&n| self.get(n).state == State::Free(silo))
        {
            self.unlist(next);
            ends.merge(&self.get(next).ends);
            self.join(id, next);
        }
        if let Some(below) = self
            .get(id)
            .previous
            .filter(|&p| self.get(p).state == State::Free(silo))
        {
            self.unlist(below);
            ends.merge(&self.get(below).ends);
            self.join(below, id);
            id = below;
        }
        self.list(id, ends);
        id
    }

    /// Puts a free extent where its ends say it belongs, after `change` has changed them.
    pub(crate) fn change_ends(&mut self, id: ExtentId, change: impl FnOnce(&mut Ends)) {
        self.unlist(id);
        let mut ends = std::mem::take(&mut self.slots[id.slot()].ends);
        change(&mut ends);
        self.slots[id.slot()].state = State::Taken;
        self.free_extent(id, ends);
    }

    /// Takes `start..end` out of linked free extents, of which `from` is one at or below `start`.
    /// Gives the one taken extent that they become, and where its last uses ended.
    pub(crate) fn take_across(&mut self, from: ExtentId, start: u64, end: u64) -> (ExtentId, Ends) {
        let mut id = from;
        while self.get(id).end() <= start
            && let Some(next) = self.get(id).next
        {
            id = next;
        }
        let first_end = self.get(id).end().min(end);
        let (taken, mut ends) = self.take(id, start, first_end - start);
        let mut at = first_end;
        while at < end
            && let Some(next) = self.get(taken).next
        {
            let piece_end = self.get(next).end().min(end);
            let (piece, more) = self.take(next, at, piece_end - at);
            ends.merge(&more);
            self.join(taken, piece);
            at = piece_end;
        }
        (taken, ends)
    }

    /// Adds the range of a region, taken.
    pub(crate) fn insert_taken(&mut self, address: u64, size: u64, region: u32) -> ExtentId {
        debug_assert!(address.is_multiple_of(GRAIN) && size.is_multiple_of(GRAIN) && size > 0);
        self.new_slot(Extent {
            address,
            size,
            region,
            previous: None,
            next: None,
            state: State::Taken,
            ends: Ends::default(),
        })
    }

    /// Takes the range of a region out, of which `id` is one extent and all are free. Gives where
    /// their last uses ended.
    pub(crate) fn remove_free_region(&mut self, id: ExtentId) -> Ends {
        let mut first = id;
        while let Some(previous) = self.get(first).previous {
            first = previous;
        }
        let mut ends = Ends::default();
        let mut next = Some(first);
        while let Some(id) = next {
            debug_assert!(self.is_free(id), "a region that is in use was taken out");
            self.unlist(id);
            ends.merge(&self.get(id).ends);
            next = self.get(id).next;
            self.retire_slot(id);
        }
        ends
    }

    fn new_slot(&mut self, extent: Extent) -> ExtentId {
        match self.vacant.pop() {
            Some(id) => {
                self.slots[id.slot()] = extent;
                id
            }
            None => {
                self.slots.push(extent);
                ExtentId((self.slots.len() - 1) as u32)
            }
        }
    }

    fn retire_slot(&mut self, id: ExtentId) {
        let slot = &mut self.slots[id.slot()];
        slot.state = State::Vacant;
        slot.ends = Ends::default();
        self.vacant.push(id);
    }

    /// Cuts an extent that stands in no index; the upper part gets a slot of its own.
    fn split(&mut self, id: ExtentId, at: u64) -> ExtentId {
        let Extent {
            address,
            size,
            region,
            next,
            state,
            ..
        } = *self.get(id);
        debug_assert!(address < at && at < address + size && at.is_multiple_of(GRAIN));
        let upper = self.new_slot(Extent {
            address: at,
            size: address + size - at,
            region,
            previous: Some(id),
            next,
            state,
            ends: Ends::default(),
        });
        if let Some(next) = next {
            self.slots[next.slot()].previous = Some(upper);
        }
        let lower = &mut self.slots[id.slot()];
        lower.size = at - address;
        lower.next = Some(upper);
        upper
    }

    /// Makes one extent of two linked ones that stand in no index; the upper slot goes.
    fn join(&mut self, lower: ExtentId, upper: ExtentId) {
        let Extent { size, next, .. } = *self.get(upper);
        let merged = &mut self.slots[lower.slot()];
        merged.size += size;
        merged.next = next;
        if let Some(next) = next {
            self.slots[next.slot()].previous = Some(lower);
        }
        self.retire_slot(upper);
    }

    fn entry(&self, id: ExtentId) -> Entry {
        let extent = self.get(id);
        Entry {
            size: extent.size,
            address: extent.address,
            id,
        }
    }

    fn list(&mut self, id: ExtentId, ends: Ends) {
        let silo = Silo::of(&ends);
        let entry = self.entry(id);
        self.silo_or_new(silo).insert(entry);
        self.free_bytes += entry.size;
        let extent = &mut self.slots[id.slot()];
        extent.state = State::Free(silo);
        extent.ends = ends;
    }

    fn unlist(&mut self, id: ExtentId) {
        let entry = self.entry(id);
        if let State::Free(silo) = self.get(id).state {
            let found = self.silo_or_new(silo).remove(entry);
            debug_assert!(found, "a free extent was in no index");
            self.free_bytes -= entry.size;
        }
    }

    /// Checks the room's invariants; gives the bytes that extents cover.
    pub(crate) fn validate(&self) -> Result<u64, String> {
        let mut covered = 0;
        let mut free = 0;
        let mut by_address = BTreeMap::new();
        for (slot, extent) in self.slots.iter().enumerate() {
            if extent.state == State::Vacant {
                continue;
            }
            let id = ExtentId(slot as u32);
            covered += extent.size;
            if extent.size == 0 || extent.size % GRAIN != 0 || extent.address % GRAIN != 0 {
                return Err(format!(
                    "extent {id:?} is not a multiple of the grain: {extent:?}"
                ));
            }
            by_address.insert(extent.address, id);
            if let State::Free(silo) = extent.state {
                free += extent.size;
                if Silo::of(&extent.ends) != silo {
                    return Err(format!("free extent {id:?} stands in the wrong silo"));
                }
                let index = self.silo(silo);
                let listed = index.and_then(|index| index.at_least(extent.size).next());
                if listed.is_none() {
                    return Err(format!("free extent {id:?} is in no index"));
                }
                if let Some(next) = extent.next
                    && self.get(next).state == extent.state
                {
                    return Err(format!("free extents {id:?} and {next:?} were not merged"));
                }
            }
            if let Some(next) = extent.next {
                let linked = self.get(next);
                let touches = linked.address == extent.end() && linked.region == extent.region;
                if linked.previous != Some(id) || !touches {
                    return Err(format!("extents {id:?} and {next:?} are linked wrongly"));
                }
            }
        }
        let mut end = 0;
        for (&address, &id) in &by_address {
            if address < end {
                return Err(format!("extent {id:?} overlaps the one below it"));
            }
            end = self.get(id).end();
        }
        let indexed: usize = self.silos.iter().map(|(_, i)| i.iter().count()).sum();
        let listed = self
            .slots
            .iter()
            .filter(|e| matches!(e.state, State::Free(_)))
            .count();
        if indexed != listed || free != self.free_bytes {
            return Err(format!(
                "{listed} free extents, {indexed} indexed; {free} bytes free"
            ));
        }
        Ok(covered)
    }
}
