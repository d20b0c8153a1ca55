//! The room and its [`model`](super::model) side by side: every call is made of both.

use std::collections::BTreeMap;

use super::super::*;
use super::model::{CellAt, GRANULE, Model, ModelBuild, Owner};
use super::random::{Step, Wish};
use crate::device::HandleId;
use crate::order::StreamIndex;
use crate::order::clockwork::Clockwork;
use crate::pages::{Ladder, Pages};

pub(super) const STREAMS: usize = 3;

/// Reservations in cells, of which two touch; what is plain begins where the last one ends.
const RESERVED: [(u64, u64); 3] = [(0, 96), (96, 192), (256, 512)];

/// Cells that all handles together have at most.
const MOST: u64 = 112;

pub(super) struct World {
    pub(super) backing: Backing,
    pub(super) clockwork: Clockwork,
    streams: Vec<StreamIndex>,
    pages: Pages,
    pub(super) model: Model,
    pub(super) leaving: Vec<Leaving>,
    pub(super) vacated: Vec<Vacated>,
    /// Whether a completed past was ever forgotten, so that nothing depends on its being asked
    /// after.
    forgotten: bool,
    numbers: u64,
    plain: u64,
    base: u64,
}

impl World {
    pub(super) fn new(cell: u64) -> World {
        let base = 64 * cell * 1024;
        let mut backing = Backing::new();
        let mut reservations = BTreeMap::new();
        for (start, end) in RESERVED {
            backing.add_reservation(base + start * cell, (end - start) * cell);
            reservations.insert(base + start * cell, base + end * cell);
        }
        let mut clockwork = Clockwork::new();
        let streams = (0..STREAMS).map(|_| clockwork.stream()).collect();
        World {
            backing,
            clockwork,
            streams,
            pages: Pages::new(GRANULE * cell, u64::MAX),
            model: Model {
                cell,
                handles: BTreeMap::new(),
                mappings: BTreeMap::new(),
                reservations,
                blocks: Vec::new(),
                builds: Vec::new(),
                frees: 0,
            },
            leaving: Vec::new(),
            vacated: Vec::new(),
            forgotten: false,
            numbers: 0,
            plain: RESERVED[2].1,
            base,
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn wanted(&self, wish: &Wish) -> Wanted {
        Wanted {
            size: wish.cells * self.model.cell,
            alignment: wish.alignment * self.model.cell,
        }
    }

    pub(super) fn apply(&mut self, step: &Step) {
        match *step {
            Step::Occupy(ref wish) => self.occupy(wish),
            Step::OccupyOldest(ref wish) => self.occupy_oldest(wish),
            Step::Release(which, stream) => self.release(which, stream),
            Step::Begin(ref wish, budget, wait) => {
                let until = if wait { self.model.frees / 2 } else { 0 };
                if let Some(build) = self.begin(wish, budget, until) {
                    let owner = Owner::Build(build.number);
                    self.model.take(&build.held, owner);
                    self.model.builds.push(build);
                }
            }
            Step::BeginAndUndo(ref wish, budget) => self.begin_and_undo(wish, budget),
            Step::Settle(which, surplus) => self.settle(which, surplus),
            Step::Undo(which) => {
                if let Some(place) = pick(which, self.model.builds.len()) {
                    let build = self.model.release_build(place).build;
                    self.backing.undo(&self.clockwork.order, build);
                }
            }
            Step::TakeOut(which) => self.take_out(which),
            Step::Leave(which, unmapped) => self.leave(which, unmapped),
            Step::Vacated(which, unmapped) => {
                if let Some(place) = pick(which, self.vacated.len()) {
                    let vacated = self.vacated.remove(place);
                    self.end_vacated(vacated, unmapped);
                }
            }
            Step::Alias(which) => self.alias(which),
            Step::Plain(granules) => self.add_plain(granules),
            Step::TakeOutPlain => self.take_out_plain(),
            Step::Mark(stream) => self.clockwork.mark(self.streams[stream]),
            Step::See(stream) => self.clockwork.see(self.streams[stream]),
            Step::Learn(a, b) => {
                let order = &mut self.clockwork.order;
                let knowledge = order.knowledge(self.streams[b]);
                order.learn(self.streams[a], &knowledge);
            }
            Step::Synchronize(stream) => {
                let order = &mut self.clockwork.order;
                let knowledge = order.knowledge(self.streams[stream]);
                order.synchronized_knowledge(&knowledge);
            }
            Step::Gather(stream) => {
                let order = &self.clockwork.order;
                let stream = self.streams[stream];
                self.forgotten = true;
                self.backing.rewrite(order, |ends| {
                    let gather = ends.only_stream() != Some(stream) && order.completed(ends);
                    gather.then(|| fresh(stream))
                });
            }
        }
    }

    /// What is given to a stream at once is ordered before its next work.
    fn check_usable(&self, cells: &[CellAt], wish: &Wish, until: u64) {
        let asker = self.streams[wish.stream];
        let order = &self.clockwork.order;
        for &at in cells {
            let cell = self.model.cell(at);
            let awaited = until > 0 && cell.freed <= until;
            let before = cell.ends.iter().all(|end| order.is_before(end, asker));
            assert!(awaited || before, "{at:?} is in use: {:?}", cell.ends);
            let reasons_count = self.forgotten || order.usable(&cell.ends, asker, wish.reasons);
            assert!(awaited || reasons_count, "{at:?}: {:?}", cell.ends);
        }
    }

    fn check_ends(&self, cells: &[CellAt], ends: &Ends) {
        for &at in cells {
            for end in self.model.cell(at).ends.iter() {
                let known = ends.iter().find(|e| e.stream == end.stream);
                let covered = known.is_some_and(|known| known.position >= end.position);
                assert!(covered || self.clockwork.order.is_completed(end));
            }
        }
    }

    fn occupy(&mut self, wish: &Wish) {
        let wanted = self.wanted(wish);
        let stream = self.streams[wish.stream];
        let order = &self.clockwork.order;
        let Some(place) =
            self.backing
                .find_usable(order, wanted, stream, wish.reasons, wish.own_first)
        else {
            assert!(!self.something_fits(wish), "{wish:?} fits somewhere");
            return;
        };
        self.occupy_at(place, wish, 0);
    }

    fn occupy_oldest(&mut self, wish: &Wish) {
        let wanted = self.wanted(wish);
        let order = &self.clockwork.order;
        let stream = self.streams[wish.stream];
        let usable = |ends: &Ends| order.usable(ends, stream, wish.reasons);
        let waitable = |ends: &Ends| order.can_be_waited_for(ends);
        let Some((place, until)) = self.backing.find_oldest(wanted, usable, waitable) else {
            return;
        };
        self.occupy_at(place, wish, until);
    }

    fn occupy_at(&mut self, place: u64, wish: &Wish, until: u64) {
        let Wanted { size, alignment } = self.wanted(wish);
        assert!(place.is_multiple_of(alignment));
        let cells = self.model.cells(place, place + size).expect("it is mapped");
        assert!(Model::is_disjoint(&cells));
        self.check_usable(&cells, wish, until);
        self.check_ends(&cells, &self.backing.ends(place, size));
        self.backing.occupy(place, size);
        let number = self.number();
        let stream = self.streams[wish.stream];
        self.model.add_block(number, place, size, stream);
    }

    /// Whether a search of all addresses finds a place.
    fn something_fits(&self, wish: &Wish) -> bool {
        let model = &self.model;
        let Wanted { size, alignment } = self.wanted(wish);
        let order = &self.clockwork.order;
        let asker = self.streams[wish.stream];
        model.reservations.iter().any(|(&start, &end)| {
            let places = (start..end).step_by(model.cell as usize);
            let mut places = places.filter(|place| place.is_multiple_of(alignment));
            places.any(|place| {
                let mut reached = place;
                for free in self.backing.inside(place, place + size) {
                    if free.start != reached || !order.usable(free.ends, asker, wish.reasons) {
                        return false;
                    }
                    reached = free.end;
                }
                let fits = reached == place + size && reached <= end;
                let cells = || model.cells(place, reached);
                fits && cells().is_some_and(|cells| Model::is_disjoint(&cells))
            })
        })
    }

    fn release(&mut self, which: usize, other: usize) {
        let Some(place) = pick(which, self.model.blocks.len()) else {
            return;
        };
        let order = &mut self.clockwork.order;
        let mut ends = Ends::from(order.advance(self.model.blocks[place].stream));
        if let Some(&other) = self.streams.get(other) {
            ends.add(order.advance(other));
        }
        let block = self.model.remove_block(place, &ends);
        let freed = self.backing.number_free();
        self.backing
            .release(&self.clockwork.order, block.start, block.size, &ends, freed);
    }

    fn begin(&mut self, wish: &Wish, budget: u64, until: u64) -> Option<ModelBuild> {
        let cell = self.model.cell;
        let wanted = self.wanted(wish);
        let stream = self.streams[wish.stream];
        let order = &self.clockwork.order;
        let usable = |free: &crate::space::Free<'_>| {
            order.usable(free.ends, stream, wish.reasons) || (until > 0 && free.freed <= until)
        };
        let bytes: u64 = self.model.builds.iter().map(|b| b.build.created()).sum();
        let left = (MOST * cell).saturating_sub(self.model.bytes() + bytes);
        let terms = Terms {
            wanted,
            usable: &usable,
            pages: &self.pages,
            ladder: Ladder {
                parts: 4,
                smallest: GRANULE * cell,
                largest: 4 * GRANULE * cell,
            },
            budget: (budget.saturating_sub(20) * cell).min(left),
            strained: budget.is_multiple_of(2),
            forced: (budget * cell).min(left),
        };
        let can_build = self.backing.can_build(&terms);
        let begun = self.backing.begin(&terms);
        assert_eq!(begun.is_ok(), can_build);
        let build = begun.ok()?;
        assert!(build.created() <= terms.budget.max(terms.forced));
        assert_eq!(build.size, wanted.size);
        let held = self.check_begun(&build, wish);
        self.check_usable(&held, wish, until);
        self.check_ends(&held, &build.ends);
        let number = self.number();
        Some(ModelBuild {
            number,
            build,
            stream,
            held,
        })
    }

    /// Follows a build's addresses; gives the cells that it needs of handles that are there.
    fn check_begun(&self, build: &Build, wish: &Wish) -> Vec<CellAt> {
        let Wanted { size, alignment } = self.wanted(wish);
        let model = &self.model;
        let (start, end) = (build.block, build.block + size);
        assert!(start.is_multiple_of(alignment));
        model.reservation_of(start.min(build.map_from), end.max(build.map_to));
        assert!(build.map_from.is_multiple_of(GRANULE * model.cell));
        let overlaps = |from: u64, to: u64| from < build.map_to && build.map_from < to;
        let mapped = model.mappings.iter();
        let mut mapped = mapped.map(|(&from, m)| (from, from + m.cells * model.cell));
        assert!(!mapped.any(|(from, to)| overlaps(from, to)));
        let mut building = model.builds.iter();
        assert!(!building.any(|b| overlaps(b.build.map_from, b.build.map_to)));
        // What stands under each address of the block, once the parts are mapped.
        let mut held: Vec<CellAt> = Vec::new();
        let mut follow = |from: u64, to: u64| {
            if from < to {
                held.extend(model.cells(from, to).expect("it is mapped"));
            }
        };
        follow(start, end.min(build.map_from));
        follow(start.max(build.map_to), end);
        let mut at = build.map_from;
        for part in &build.parts {
            let part_start = at;
            match part {
                Part::Create(bytes) => at += bytes,
                Part::Map(handle, slot) => {
                    at += handle.size;
                    let record = &model.handles[slot];
                    assert!(!record.plain && record.handle == *handle);
                    let cells = (0..record.cells.len()).map(|cell| (*slot, cell));
                    let addresses = (part_start..at).step_by(model.cell as usize);
                    let inside = addresses.zip(cells);
                    let inside = inside.filter(|(address, _)| (start..end).contains(address));
                    held.extend(inside.map(|(_, cell)| cell));
                }
            }
            assert!(part_start < end && start < at, "a part that is not needed");
        }
        assert_eq!(at, build.map_to);
        assert!(
            Model::is_disjoint(&held),
            "a byte stands twice in {build:?}"
        );
        let taken = |at: &CellAt| model.cell(*at).owner != Owner::Free;
        assert!(!held.iter().any(taken));
        held
    }

    fn begin_and_undo(&mut self, wish: &Wish, budget: u64) {
        let before = self.all_ends();
        let free = self.backing.free_bytes();
        let Some(ModelBuild { build, held, .. }) = self.begin(wish, budget, 0) else {
            return;
        };
        let bytes = held.len() as u64 * self.model.cell;
        // A handle that is mapped nowhere may be held in part.
        assert_eq!(self.backing.free_bytes(), free - bytes);
        let order = &self.clockwork.order;
        self.backing.undo(order, build);
        let after = self.all_ends();
        assert!(before.keys().eq(after.keys()));
        for (at, ends) in &before {
            assert!(order.alike(ends, &after[at]), "{ends:?}: {:?}", after[at]);
        }
        assert_eq!(self.backing.free_bytes(), free);
    }

    /// What is remembered of every free cell that is mapped, by its handle and offset.
    fn all_ends(&self) -> BTreeMap<(usize, u64), Ends> {
        let handles = self.backing.handles.iter();
        let mapped = handles.filter(|(_, record)| record.mappings() > 0);
        let free = mapped.flat_map(|(slot, h)| h.pieces.iter().map(move |free| (slot, free)));
        free.flat_map(|(slot, free)| {
            let offsets = (free.start..free.end).step_by(self.model.cell as usize);
            offsets.map(move |offset| ((slot, offset), free.ends.clone()))
        })
        .collect()
    }

    fn settle(&mut self, which: usize, surplus: bool) {
        let Some(place) = pick(which, self.model.builds.len()) else {
            return;
        };
        let ModelBuild { build, stream, .. } = self.model.release_build(place);
        let mut created = Vec::new();
        for part in &build.parts {
            if let Part::Create(size) = *part {
                let id = HandleId(self.number());
                created.push(Handle { size, id });
            }
        }
        let (block, size) = (build.block, build.size);
        let (from, to) = (build.map_from, build.map_to);
        let sizes: Vec<u64> = build
            .parts
            .iter()
            .map(|part| match part {
                Part::Create(size) => *size,
                Part::Map(handle, _) => handle.size,
            })
            .collect();
        let slots: Vec<Option<HandleSlot>> = build
            .parts
            .iter()
            .map(|part| match part {
                Part::Create(_) => None,
                Part::Map(_, slot) => Some(*slot),
            })
            .collect();
        let order = &self.clockwork.order;
        self.backing.settle(order, build, &created, &fresh(stream));
        let mut at = from;
        let mut created = created.into_iter();
        for (slot, size) in slots.iter().zip(sizes) {
            let known = self.backing.mappings.get(at).expect("a part is mapped");
            match slot {
                Some(slot) => assert_eq!(known.slot, *slot),
                None => {
                    let handle = created.next().expect("one was created for each");
                    self.model.add_handle(known.slot, handle, false);
                }
            }
            self.model.add_mapping(at, known.slot);
            at += size;
        }
        let number = self.number();
        self.model.add_block(number, block, size, stream);
        if surplus {
            let slots = slots.into_iter().flatten();
            let order = &self.clockwork.order;
            let vacated = self.backing.vacate_surplus(order, slots, from, to, false);
            for mapping in &vacated {
                assert!(!(from..to).contains(&mapping.address));
                self.vacate(mapping);
            }
            self.vacated.extend(vacated);
        }
    }

    /// A mapping was taken out, which nothing uses.
    fn vacate(&mut self, vacated: &Vacated) {
        let order = &self.clockwork.order;
        let address = vacated.address;
        assert!(
            self.model.is_idle_mapping(order, address),
            "the mapping at {address:#x} is in use"
        );
        let mapping = self.model.mappings.get_mut(&address);
        mapping.expect("a known mapping").vacated = true;
    }

    fn end_vacated(&mut self, vacated: Vacated, unmapped: bool) {
        let address = vacated.address;
        if unmapped {
            let gone = self.model.mappings.remove(&address);
            let slot = self.backing.unmapped(vacated);
            assert_eq!(gone.map(|mapping| mapping.slot), Some(slot));
        } else {
            self.backing.still_mapped(vacated);
            let mapping = self.model.mappings.get_mut(&address);
            mapping.expect("a known mapping").vacated = false;
        }
    }

    fn take_out(&mut self, which: usize) {
        let order = &self.clockwork.order;
        let idle = self.backing.idle_handles(order);
        let listed: Vec<HandleSlot> = idle.iter().map(|(slot, _)| *slot).collect();
        for (&slot, handle) in &self.model.handles {
            let aliases = self.model.aliases(slot);
            let completed = aliases.iter().all(|&alias| {
                let mut free = self.backing.handles[slot.0].pieces.iter();
                order.completed(&self.model.mappings[&alias].ends)
                    && free.all(|free| order.completed(free.ends))
            });
            let expected = !handle.plain
                && self.model.is_wholly_free(slot)
                && !self.model.is_pinned(slot)
                && completed;
            assert_eq!(listed.contains(&slot), expected, "{slot:?}");
            let mut cells = handle.cells.iter();
            assert!(!expected || cells.all(|cell| order.completed(&cell.ends)));
        }
        let Some(place) = pick(which, idle.len()) else {
            return;
        };
        let slot = idle[place].0;
        let aliases = self.model.aliases(slot);
        let leaving = self.backing.take_out(slot);
        let mut taken: Vec<u64> = leaving.mappings.iter().map(|m| m.address).collect();
        taken.sort_unstable();
        assert_eq!(taken, aliases);
        for mapping in &leaving.mappings {
            self.vacate(mapping);
        }
        let cells: Vec<CellAt> = (0..self.model.handles[&slot].cells.len())
            .map(|cell| (slot, cell))
            .collect();
        self.model.take(&cells, Owner::Leaving);
        self.leaving.push(leaving);
    }

    /// Unmaps some mappings of a handle that leaves; it is gone if those were all.
    fn leave(&mut self, which: usize, unmapped: usize) {
        let Some(place) = pick(which, self.leaving.len()) else {
            return;
        };
        let mut leaving = self.leaving.remove(place);
        let of_handle = |known: &Handle| *known == leaving.handle;
        let known = self.model.handles.iter();
        let mut known = known.filter(|(_, h)| of_handle(&h.handle));
        let slot = *known.next().expect("a known handle").0;
        for vacated in leaving
            .mappings
            .split_off(leaving.mappings.len().saturating_sub(unmapped))
        {
            self.end_vacated(vacated, true);
        }
        let order = &self.clockwork.order;
        if leaving.mappings.is_empty() && unmapped > 0 {
            self.backing.gone(order, leaving);
            self.model.handles.remove(&slot);
            return;
        }
        for mapping in &leaving.mappings {
            let mapping = self.model.mappings.get_mut(&mapping.address);
            mapping.expect("a known mapping").vacated = false;
        }
        self.backing.stays(order, leaving);
        self.forgotten = true;
        let handle = self.model.handles.get_mut(&slot).expect("a known handle");
        for cell in &mut handle.cells {
            cell.owner = Owner::Free;
        }
    }

    /// Maps a handle once more, as a build would that needs all of it.
    fn alias(&mut self, which: usize) {
        let slots = self.model.handles.iter().filter(|(_, h)| !h.plain);
        let slots = slots.filter(|(slot, _)| !self.model.aliases(**slot).is_empty());
        let slots: Vec<HandleSlot> = slots.map(|(&slot, _)| slot).collect();
        let Some(place) = pick(which, slots.len()) else {
            return;
        };
        let slot = slots[place];
        let size = self.backing.handle(slot).size;
        let granularity = self.pages.granularity();
        if let Some(site) = self.backing.reservations.site(size, granularity) {
            self.backing.reservations.claim(site, site + size);
            self.backing.attach(slot, site, &Ends::default());
            self.model.add_mapping(site, slot);
        }
    }

    fn add_plain(&mut self, granules: u64) {
        let size = granules * GRANULE * self.model.cell;
        let address = self.base + self.plain * self.model.cell;
        self.plain += granules * GRANULE;
        let id = HandleId(self.number());
        let handle = Handle { size, id };
        let slot = self
            .backing
            .add_plain(handle, address, &fresh(self.streams[0]));
        self.model.reservations.insert(address, address + size);
        self.model.add_handle(slot, handle, true);
        self.model.add_mapping(address, slot);
    }

    fn take_out_plain(&mut self) {
        let idle = self.backing.idle_plain(&self.clockwork.order);
        for (slot, handle) in idle {
            let known = &self.model.handles[&slot];
            assert!(known.plain && known.handle == handle && self.model.is_wholly_free(slot));
            let order = &self.clockwork.order;
            assert!(known.cells.iter().all(|cell| order.completed(&cell.ends)));
            let leaving = self.backing.take_out_plain(slot).expect("it is there");
            assert_eq!(self.model.aliases(slot), [leaving.address]);
            assert_eq!(leaving.handle, handle);
            self.model.handles.remove(&slot);
            self.model.mappings.remove(&leaving.address);
            self.model.reservations.remove(&leaving.address);
        }
    }
}

fn pick(which: usize, of: usize) -> Option<usize> {
    (of > 0).then(|| which % of)
}

fn fresh(stream: StreamIndex) -> Ends {
    Ends::from(crate::order::End {
        stream,
        position: 0,
    })
}
