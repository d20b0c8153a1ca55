//! The extents and their links: take, free, insert, remove.

use std::collections::BTreeMap;

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
#[derive(Debug)]
pub(crate) struct Extents {
    slots: Vec<Extent>,
    vacant: Vec<ExtentId>,
    silos: Vec<FreeIndex>,
    free_bytes: u64,
    /// Extents without a linked neighbour above, by their end; and below, by their start.
    open_above: BTreeMap<u64, ExtentId>,
    open_below: BTreeMap<u64, ExtentId>,
}

impl Extents {
    pub(crate) fn new() -> Extents {
        Extents {
            slots: Vec::new(),
            vacant: Vec::new(),
            silos: vec![FreeIndex::new()],
            free_bytes: 0,
            open_above: BTreeMap::new(),
            open_below: BTreeMap::new(),
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
        let index = self.silos.get(silo.0 as usize)?;
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
            .flat_map(|index| index.iter().map(|entry| entry.id))
    }

    /// Free extents of one silo.
    pub(crate) fn free_in(&self, silo: Silo) -> Vec<ExtentId> {
        let index = self.silos.get(silo.0 as usize);
        index.map_or_else(Vec::new, |index| {
            index.iter().map(|entry| entry.id).collect()
        })
    }

    /// Silos that can hold anything.
    pub(crate) fn silos(&self) -> impl Iterator<Item = Silo> + use<> {
        (0..self.silos.len() as u32).map(Silo)
    }

    /// The free extent that ends at `address` with nothing backed above it.
    pub(crate) fn free_below_gap(&self, address: u64) -> Option<ExtentId> {
        self.open_above
            .get(&address)
            .copied()
            .filter(|&id| self.is_free(id))
    }

    /// The free extent that starts at `address` with nothing backed below it.
    pub(crate) fn free_above_gap(&self, address: u64) -> Option<ExtentId> {
        self.open_below
            .get(&address)
            .copied()
            .filter(|&id| self.is_free(id))
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

    /// Makes one taken extent of two linked taken ones.
    pub(crate) fn join_taken(&mut self, lower: ExtentId, upper: ExtentId) -> ExtentId {
        debug_assert_eq!(self.get(lower).next, Some(upper));
        self.join(lower, upper);
        lower
    }

    /// Cuts a taken extent in two; both stay taken. Gives the upper part.
    pub(crate) fn split_taken(&mut self, id: ExtentId, at: u64) -> ExtentId {
        let upper = self.split(id, at);
        self.slots[upper.slot()].state = State::Taken;
        upper
    }

    /// Adds a newly backed range, taken, and links it with the extents that touch it if
    /// `link_below` and `link_above` say that they lie in the same reservation.
    pub(crate) fn insert_taken(
        &mut self,
        address: u64,
        size: u64,
        link_below: bool,
        link_above: bool,
    ) -> ExtentId {
        debug_assert!(address.is_multiple_of(GRAIN) && size.is_multiple_of(GRAIN) && size > 0);
        let previous = if link_below {
            self.open_above.remove(&address)
        } else {
            None
        };
        let next = if link_above {
            self.open_below.remove(&(address + size))
        } else {
            None
        };
        let id = self.new_slot(Extent {
            address,
            size,
            previous,
            next,
            state: State::Taken,
            ends: Ends::default(),
        });
        match previous {
            Some(p) => self.slots[p.slot()].next = Some(id),
            None => drop(self.open_below.insert(address, id)),
        }
        match next {
            Some(n) => self.slots[n.slot()].previous = Some(id),
            None => drop(self.open_above.insert(address + size, id)),
        }
        id
    }

    /// Takes a taken extent out: its range is no longer backed.
    pub(crate) fn remove_taken(&mut self, id: ExtentId) {
        let Extent {
            address,
            size,
            previous,
            next,
            ..
        } = *self.get(id);
        match previous {
            Some(p) => {
                self.slots[p.slot()].next = None;
                self.open_above.insert(address, p);
            }
            None => drop(self.open_below.remove(&address)),
        }
        match next {
            Some(n) => {
                self.slots[n.slot()].previous = None;
                self.open_below.insert(address + size, n);
            }
            None => drop(self.open_above.remove(&(address + size))),
        }
        self.retire_slot(id);
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
            next,
            state,
            ..
        } = *self.get(id);
        debug_assert!(address < at && at < address + size && at.is_multiple_of(GRAIN));
        let upper = self.new_slot(Extent {
            address: at,
            size: address + size - at,
            previous: Some(id),
            next,
            state,
            ends: Ends::default(),
        });
        match next {
            Some(n) => self.slots[n.slot()].previous = Some(upper),
            None => drop(self.open_above.insert(address + size, upper)),
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
        let end = merged.address + merged.size;
        match next {
            Some(n) => self.slots[n.slot()].previous = Some(lower),
            None => drop(self.open_above.insert(end, lower)),
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
        while self.silos.len() <= silo.0 as usize {
            self.silos.push(FreeIndex::new());
        }
        let entry = self.entry(id);
        self.silos[silo.0 as usize].insert(entry);
        self.free_bytes += entry.size;
        let extent = &mut self.slots[id.slot()];
        extent.state = State::Free(silo);
        extent.ends = ends;
    }

    fn unlist(&mut self, id: ExtentId) {
        let entry = self.entry(id);
        if let State::Free(silo) = self.get(id).state {
            let found = self.silos[silo.0 as usize].remove(entry);
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
                let listed = self.silos[silo.0 as usize].at_least(extent.size).next();
                if listed.is_none() {
                    return Err(format!("free extent {id:?} is in no index"));
                }
                if let Some(next) = extent.next
                    && self.get(next).state == extent.state
                {
                    return Err(format!("free extents {id:?} and {next:?} were not merged"));
                }
            }
            match extent.next {
                Some(next) => {
                    let linked = self.get(next);
                    if linked.previous != Some(id) || linked.address != extent.end() {
                        return Err(format!("extents {id:?} and {next:?} are linked wrongly"));
                    }
                }
                None if self.open_above.get(&extent.end()) != Some(&id) => {
                    return Err(format!("the open end of extent {id:?} is not listed"));
                }
                None => {}
            }
            if extent.previous.is_none() && self.open_below.get(&extent.address) != Some(&id) {
                return Err(format!("the open start of extent {id:?} is not listed"));
            }
        }
        let mut end = 0;
        for (&address, &id) in &by_address {
            if address < end {
                return Err(format!("extent {id:?} overlaps the one below it"));
            }
            end = self.get(id).end();
        }
        let indexed: usize = self.silos.iter().map(|index| index.iter().count()).sum();
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
