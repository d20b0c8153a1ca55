//! What the room should say: every cell of every handle, what stands in it and how it was used,
//! and every mapping with all its uses. A cell is the smallest part of a handle that the tests use.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use crate::order::{End, StreamIndex};

/// Cells of the granularity.
pub(super) const GRANULE: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Free,
    Block(u64),
    Build(u64),
    Leaving,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) owner: Owner,
    /// Where its last uses ended; nothing of it is ever forgotten.
    pub(super) ends: Ends,
    pub(super) freed: u64,
}

#[derive(Debug)]
pub(super) struct ModelHandle {
    pub(super) handle: Handle,
    pub(super) plain: bool,
    pub(super) cells: Vec<Cell>,
}

#[derive(Debug)]
pub(super) struct ModelMapping {
    pub(super) slot: HandleSlot,
    pub(super) cells: u64,
    /// Where all uses through it ended.
    pub(super) ends: Ends,
    /// Whether it was taken out, and is being unmapped.
    pub(super) vacated: bool,
}

/// A cell of a handle.
pub(super) type CellAt = (HandleSlot, usize);

#[derive(Debug)]
pub(super) struct ModelBlock {
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) stream: StreamIndex,
    pub(super) cells: Vec<CellAt>,
}

#[derive(Debug)]
pub(super) struct ModelBuild {
    pub(super) number: u64,
    pub(super) build: Build,
    pub(super) stream: StreamIndex,
    /// Of handles that were there before.
    pub(super) held: Vec<CellAt>,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) cell: u64,
    pub(super) handles: BTreeMap<HandleSlot, ModelHandle>,
    pub(super) mappings: BTreeMap<u64, ModelMapping>,
    /// Start to end.
    pub(super) reservations: BTreeMap<u64, u64>,
    pub(super) blocks: Vec<ModelBlock>,
    pub(super) builds: Vec<ModelBuild>,
    pub(super) frees: u64,
}

impl Model {
    pub(super) fn add_handle(&mut self, slot: HandleSlot, handle: Handle, plain: bool) {
        let cell = Cell {
            owner: Owner::Free,
            ends: Ends::default(),
            freed: 0,
        };
        let cells = vec![cell; (handle.size / self.cell) as usize];
        let record = ModelHandle {
            handle,
            plain,
            cells,
        };
        let before = self.handles.insert(slot, record);
        assert!(before.is_none(), "a slot was given twice");
    }

    pub(super) fn add_mapping(&mut self, address: u64, slot: HandleSlot) {
        let cells = self.handles[&slot].cells.len() as u64;
        let end = address + cells * self.cell;
        let overlaps = self
            .mappings
            .range(..end)
            .next_back()
            .is_some_and(|(&start, m)| start + m.cells * self.cell > address);
        assert!(!overlaps, "a mapping at {address:#x} over another one");
        self.reservation_of(address, end);
        let mapping = ModelMapping {
            slot,
            cells,
            ends: Ends::default(),
            vacated: false,
        };
        self.mappings.insert(address, mapping);
    }

    /// The range lies in one reservation.
    pub(super) fn reservation_of(&self, start: u64, end: u64) {
        let around = self.reservations.range(..=start).next_back();
        let inside = around.is_some_and(|(_, &border)| end <= border);
        assert!(inside, "{start:#x}..{end:#x} lies in no one reservation");
    }

    pub(super) fn aliases(&self, slot: HandleSlot) -> Vec<u64> {
        let aliases = self.mappings.iter();
        let aliases = aliases.filter(|(_, m)| m.slot == slot && !m.vacated);
        aliases.map(|(&address, _)| address).collect()
    }

    /// The cell under an address.
    fn cell_at(&self, address: u64) -> Option<CellAt> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        let index = (address - start) / self.cell;
        (index < mapping.cells && !mapping.vacated).then_some((mapping.slot, index as usize))
    }

    /// The cells under a range, if all of it is mapped.
    pub(super) fn cells(&self, start: u64, end: u64) -> Option<Vec<CellAt>> {
        let addresses = (start..end).step_by(self.cell as usize);
        addresses.map(|address| self.cell_at(address)).collect()
    }

    pub(super) fn cell(&self, at: CellAt) -> &Cell {
        &self.handles[&at.0].cells[at.1]
    }

    pub(super) fn cell_mut(&mut self, at: CellAt) -> &mut Cell {
        let handle = self.handles.get_mut(&at.0).expect("a known handle");
        &mut handle.cells[at.1]
    }

    /// Takes free cells, each just once.
    pub(super) fn take(&mut self, cells: &[CellAt], owner: Owner) {
        for &at in cells {
            let cell = self.cell_mut(at);
            assert_eq!(cell.owner, Owner::Free, "{at:?} was given to {owner:?}");
            cell.owner = owner;
        }
    }

    /// A block stands in these cells, which were its own or free.
    pub(super) fn add_block(&mut self, number: u64, start: u64, size: u64, stream: StreamIndex) {
        self.reservation_of(start, start + size);
        let cells = self.cells(start, start + size).expect("a block is mapped");
        assert_eq!(cells.len() as u64 * self.cell, size);
        self.take(&cells, Owner::Block(number));
        self.blocks.push(ModelBlock {
            number,
            start,
            size,
            stream,
            cells,
        });
    }

    pub(super) fn remove_block(&mut self, place: usize, ends: &Ends) -> ModelBlock {
        let block = self.blocks.remove(place);
        self.frees += 1;
        let freed = self.frees;
        for &at in &block.cells {
            let cell = self.cell_mut(at);
            assert_eq!(cell.owner, Owner::Block(block.number));
            *cell = Cell {
                owner: Owner::Free,
                ends: ends.clone(),
                freed,
            };
        }
        let (start, end, size) = (block.start, block.start + block.size, self.cell);
        for (&address, mapping) in &mut self.mappings {
            if address < end && start < address + mapping.cells * size {
                mapping.ends.merge(ends);
            }
        }
        block
    }

    /// What a build holds is free again.
    pub(super) fn release_build(&mut self, place: usize) -> ModelBuild {
        let build = self.builds.remove(place);
        for &at in &build.held {
            let cell = self.cell_mut(at);
            assert_eq!(cell.owner, Owner::Build(build.number));
            cell.owner = Owner::Free;
        }
        build
    }

    /// Whether something lives, or is about to, in a range of addresses.
    pub(super) fn is_used(&self, start: u64, end: u64) -> bool {
        let blocks = self.blocks.iter().map(|b| (b.start, b.size));
        let builds = self.builds.iter().map(|b| (b.build.block, b.build.size));
        blocks
            .chain(builds)
            .any(|(from, size)| from < end && start < from + size)
    }

    /// Whether a call that is under way relies on a handle.
    pub(super) fn is_pinned(&self, slot: HandleSlot) -> bool {
        let vacated = self.mappings.values().any(|m| m.slot == slot && m.vacated);
        vacated
            || self.builds.iter().any(|b| {
                let mapped = |part: &Part| matches!(part, Part::Map(_, known) if *known == slot);
                b.held.iter().any(|at| at.0 == slot) || b.build.parts.iter().any(mapped)
            })
    }

    pub(super) fn is_wholly_free(&self, slot: HandleSlot) -> bool {
        let mut cells = self.handles[&slot].cells.iter();
        cells.all(|cell| cell.owner == Owner::Free)
    }

    /// Whether a mapping may be taken away.
    pub(super) fn is_idle_mapping(&self, order: &Order, address: u64) -> bool {
        let mapping = &self.mappings[&address];
        let end = address + mapping.cells * self.cell;
        order.completed(&mapping.ends) && !self.is_used(address, end)
    }

    /// Whether no cell is named twice.
    pub(super) fn is_disjoint(cells: &[CellAt]) -> bool {
        let distinct: BTreeSet<&CellAt> = cells.iter().collect();
        distinct.len() == cells.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.handles.values().map(|h| h.handle.size).sum()
    }

    /// Compares all that is free, through every mapping, and its pasts.
    pub(super) fn check(&self, backing: &Backing, order: &Order) {
        backing.validate().unwrap();
        let mut occupied = 0;
        for (&slot, handle) in &self.handles {
            let taken = handle.cells.iter().filter(|c| c.owner != Owner::Free);
            let live = taken.count() as u64 * self.cell;
            let record = &backing.handles[slot.0];
            assert_eq!(record.handle, handle.handle);
            occupied += live;
            let aliases = self.aliases(slot);
            let dormant = record.dormant.iter();
            let dormant = dormant.map(|&mapping| backing.mappings.record(mapping).address);
            let mut known: Vec<u64> = record.aliases.iter().copied().chain(dormant).collect();
            known.sort_unstable();
            assert_eq!(known, aliases);
            if record.pins == 0 {
                assert!(
                    !self.is_pinned(slot),
                    "{slot:?} is relied on and not pinned"
                );
            }
            if !aliases.is_empty() {
                assert_eq!(record.live, live, "{slot:?}");
            }
            for address in aliases {
                if record.aliases.contains(&address) {
                    self.check_mapping(backing, order, address, handle);
                } else {
                    let end = address + handle.handle.size;
                    assert!(!self.is_used(address, end), "{address:#x} is dormant");
                    assert_eq!(backing.inside(address, end).count(), 0);
                }
            }
        }
        assert_eq!(backing.handles(), self.handles.len() as u64);
        assert_eq!(backing.occupied(), occupied);
        assert_eq!(backing.free_bytes(), self.bytes() - occupied);
        let mapped = self.mappings.values().map(|m| m.cells * self.cell);
        let building = self.builds.iter();
        let building = building.map(|b| b.build.map_to - b.build.map_from);
        let claimed: u64 = mapped.chain(building).sum();
        assert_eq!(backing.reservations.claimed_bytes(), claimed);
        for block in &self.blocks {
            backing.validate_block(block.start, block.size).unwrap();
        }
    }

    fn check_mapping(&self, backing: &Backing, order: &Order, address: u64, handle: &ModelHandle) {
        for (index, cell) in handle.cells.iter().enumerate() {
            let start = address + index as u64 * self.cell;
            let mut found = backing.inside(start, start + self.cell);
            let free = found.next();
            assert_eq!(free.is_some(), cell.owner == Owner::Free, "{start:#x}");
            let Some(free) = free else { continue };
            assert_eq!((free.start, free.end), (start, start + self.cell));
            // No use is forgotten that is not over, and nobody waits for a stream that was not
            // there.
            for end in cell.ends.iter().filter(|&end| !order.is_completed(end)) {
                let known = free.ends.iter().find(|e| e.stream == end.stream);
                let covered = known.is_some_and(|known| known.position >= end.position);
                assert!(covered, "{:?} became {:?}", cell.ends, free.ends);
            }
            for end in free.ends.iter().filter(|&end| !order.is_completed(end)) {
                let there = cell.ends.iter().any(|e: End| e.stream == end.stream);
                assert!(there, "{:?} became {:?}", cell.ends, free.ends);
            }
            assert!(cell.freed <= free.freed || order.completed(&cell.ends));
        }
    }
}
