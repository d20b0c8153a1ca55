//! Regions by their rules, and small blocks at random against a plain model: cells of regions, with
//! what stands in them and where their uses ended.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::order::End;
use crate::order::clockwork::{Clockwork, REASONS};

const CELL: u64 = SMALL;
const CELLS: usize = (REGION / CELL) as usize;
const BASE: u64 = 1 << 40;
const STREAMS: usize = 3;

fn ends(stream: StreamIndex, position: u64) -> Ends {
    Ends::from(End { stream, position })
}

/// The past of what is made a stream's own.
fn ends_of(stream: StreamIndex) -> Ends {
    ends(stream, 0)
}

fn take(small: &mut Small, clockwork: &Clockwork, size: u64, asker: StreamIndex) -> Option<Taken> {
    small.take_usable(&clockwork.order, size, 256, asker, REASONS)
}

#[test]
fn an_empty_region_is_kept_and_a_second_one_goes_back_with_all_its_ends() {
    let mut clockwork = Clockwork::new();
    let [a, b] = [clockwork.stream(), clockwork.stream()];
    let mut small = Small::new();
    let first = small.add_region(BASE, ends(a, 0), CELL, 256);
    let second = small.add_region(BASE + REGION, ends(a, 0), REGION / 2, 256);
    let third = take(&mut small, &clockwork, REGION / 2, a).unwrap();
    assert_eq!(third.address, BASE + REGION + REGION / 2);
    assert!(small.release(first.extent, ends(a, 1)).is_none(), "kept");
    assert_eq!(small.free_bytes(), REGION);
    assert!(small.release(second.extent, ends(a, 2)).is_none());
    let empty = small.release(third.extent, ends(b, 7)).unwrap();
    assert_eq!(empty.address, BASE + REGION);
    let of_both: Ends = ends(a, 2).iter().chain(ends(b, 7).iter()).collect();
    assert_eq!(empty.ends, of_both);
    assert_eq!(small.validate(), Ok(REGION));
    // The kept one serves the next block, and is then no longer there to be given up.
    let again = take(&mut small, &clockwork, CELL, a).unwrap();
    assert_eq!((again.address, &again.ends), (BASE, &ends(a, 1)));
    assert!(small.give_up_kept().is_none());
    assert!(small.release(again.extent, ends(b, 8)).is_none());
    let given_up = small.give_up_kept().unwrap();
    assert_eq!(given_up.address, BASE);
    assert_eq!((small.validate(), small.free_bytes()), (Ok(0), 0));
    assert!(small.give_up_kept().is_none());
}

#[test]
fn the_past_of_a_region_is_that_of_its_first_blocks() {
    let mut clockwork = Clockwork::new();
    let [a, b] = [clockwork.stream(), clockwork.stream()];
    let used = ends(a, clockwork.order.advance(a).position);
    let mut small = Small::new();
    let taken = small.add_region(BASE, used.clone(), CELL, CELL);
    assert_eq!((taken.address, &taken.ends), (BASE, &used));
    assert!(
        take(&mut small, &clockwork, CELL, b).is_none(),
        "a is not done"
    );
    let any = small.take_any(CELL, CELL, |_| true).unwrap();
    assert_eq!(any.ends, used);
    assert_eq!(small.block(any.extent), Some((BASE + CELL, CELL)));
    let own = take(&mut small, &clockwork, CELL, a).unwrap();
    assert_eq!(own.ends, used);
}

#[test]
fn neighbours_of_several_streams_serve_together_one_that_comes_after_both() {
    let mut clockwork = Clockwork::new();
    let [a, b] = [clockwork.stream(), clockwork.stream()];
    let mut small = Small::new();
    let lower = small.add_region(BASE, Ends::default(), REGION / 2, 256);
    let upper = take(&mut small, &clockwork, REGION / 2, a).unwrap();
    let [of_a, of_b] = [a, b].map(|s| Ends::from(clockwork.order.advance(s)));
    small.release(lower.extent, of_a.clone());
    small.release(upper.extent, of_b.clone());
    assert!(take(&mut small, &clockwork, REGION, a).is_none());
    let knowledge = clockwork.order.knowledge(b);
    clockwork.order.learn(a, &knowledge);
    let both = take(&mut small, &clockwork, REGION, a).unwrap();
    let expected: Ends = of_a.iter().chain(of_b.iter()).collect();
    assert_eq!((both.address, both.ends), (BASE, expected));
    small.validate().unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Take(u64, u32, usize),
    TakeAny(u64, u32),
    Release(usize, usize),
    GiveUp,
    Gather(usize),
    Learn(usize, usize),
    Synchronize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    let cells = prop_oneof![3 => 1..6_u64, 1 => 5..30_u64];
    prop_oneof![
        9 => (cells.clone(), 0..5_u32, stream.clone()).prop_map(|(c, a, s)| Step::Take(c, a, s)),
        1 => (cells, 0..5_u32).prop_map(|(c, a)| Step::TakeAny(c, a)),
        8 => (0..64_usize, 0..2 * STREAMS).prop_map(|(w, s)| Step::Release(w, s)),
        1 => Just(Step::GiveUp),
        1 => stream.clone().prop_map(Step::Gather),
        2 => (stream.clone(), stream.clone()).prop_map(|(a, b)| Step::Learn(a, b)),
        1 => stream.prop_map(Step::Synchronize),
    ]
}

struct Live {
    extent: ExtentId,
    region: u64,
    cells: std::ops::Range<usize>,
    stream: StreamIndex,
}

struct World {
    small: Small,
    clockwork: Clockwork,
    streams: Vec<StreamIndex>,
    /// Regions by address: of every cell whether it is free, and where its uses ended.
    regions: BTreeMap<u64, Vec<(bool, Ends)>>,
    blocks: Vec<Live>,
    next: u64,
}

impl World {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Take(cells, alignment, stream) => {
                let (size, alignment) = (cells * CELL, CELL << alignment);
                let stream = self.streams[stream];
                let taken =
                    self.small
                        .take_usable(&self.clockwork.order, size, alignment, stream, REASONS);
                let taken = match taken {
                    Some(taken) => {
                        for ends in self.place(&taken, size, alignment) {
                            let order = &self.clockwork.order;
                            assert!(order.usable(&ends, stream, REASONS), "{ends:?}");
                        }
                        taken
                    }
                    None => {
                        assert!(!self.something_fits(size, alignment, stream));
                        let address = BASE + self.next * REGION;
                        self.next += 1;
                        let past = Ends::from(self.clockwork.order.advance(stream));
                        self.regions
                            .insert(address, vec![(true, past.clone()); CELLS]);
                        let taken = self.small.add_region(address, past, size, alignment);
                        self.place(&taken, size, alignment);
                        taken
                    }
                };
                self.live(&taken, cells, stream);
            }
            Step::TakeAny(cells, alignment) => {
                let (size, alignment) = (cells * CELL, CELL << alignment);
                // Where somebody's uses are still known.
                let acceptable = |ends: &Ends| ends.iter().next().is_some();
                if let Some(taken) = self.small.take_any(size, alignment, acceptable) {
                    self.place(&taken, size, alignment);
                    self.live(&taken, cells, self.streams[0]);
                }
            }
            Step::Release(which, other) => {
                if !self.blocks.is_empty() {
                    self.release(which % self.blocks.len(), other);
                }
            }
            Step::GiveUp => {
                if let Some(empty) = self.small.give_up_kept() {
                    self.is_gone(&empty);
                }
            }
            Step::Gather(stream) => {
                let (order, stream) = (&self.clockwork.order, self.streams[stream]);
                self.small.rewrite(|ends| {
                    let gather = ends.only_stream() != Some(stream) && order.completed(ends);
                    gather.then(|| ends_of(stream))
                });
            }
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
        }
    }

    /// Takes the cells of a block, which were free; gives where their uses ended.
    fn place(&mut self, taken: &Taken, size: u64, alignment: u64) -> Vec<Ends> {
        assert!(taken.address.is_multiple_of(alignment));
        assert_eq!(
            self.small.block(taken.extent),
            Some((taken.address, size)),
            "the extent is the block's"
        );
        let order = &self.clockwork.order;
        let (&region, cells) = self
            .regions
            .range_mut(..=taken.address)
            .next_back()
            .expect("in a region");
        let first = ((taken.address - region) / CELL) as usize;
        let cells = &mut cells[first..first + (size / CELL) as usize];
        cells
            .iter_mut()
            .map(|(free, ends)| {
                assert!(std::mem::replace(free, false), "taken twice");
                for end in ends.iter().filter(|&end| !order.is_completed(end)) {
                    let known = taken.ends.iter().find(|e| e.stream == end.stream);
                    assert!(known.is_some_and(|known| known.position >= end.position));
                }
                ends.clone()
            })
            .collect()
    }

    fn live(&mut self, taken: &Taken, cells: u64, stream: StreamIndex) {
        let region = (taken.address - BASE) / REGION * REGION + BASE;
        let first = ((taken.address - region) / CELL) as usize;
        self.blocks.push(Live {
            extent: taken.extent,
            region,
            cells: first..first + cells as usize,
            stream,
        });
    }

    /// Whether what is free side by side, and may be used by its own records, has room.
    fn something_fits(&self, size: u64, alignment: u64, stream: StreamIndex) -> bool {
        let order = &self.clockwork.order;
        let extents = &self.small.extents;
        let usable = extents.free().map(|id| extents.get(id));
        let usable = usable.filter(|extent| order.usable(&extent.ends, stream, REASONS));
        let usable: BTreeMap<u64, (u64, u32)> = usable
            .map(|extent| (extent.address, (extent.end(), extent.region)))
            .collect();
        usable.iter().any(|(&start, &(end, region))| {
            let mut reached = end;
            while let Some(&(further, same)) = usable.get(&reached)
                && same == region
            {
                reached = further;
            }
            start.next_multiple_of(alignment) + size <= reached
        })
    }

    fn release(&mut self, place: usize, other: usize) {
        let block = self.blocks.swap_remove(place);
        let mut ends = Ends::from(self.clockwork.order.advance(block.stream));
        if let Some(&other) = self.streams.get(other) {
            ends.add(self.clockwork.order.advance(other));
        }
        let cells = self.regions.get_mut(&block.region).expect("in a region");
        for cell in &mut cells[block.cells.clone()] {
            *cell = (true, ends.clone());
        }
        if let Some(empty) = self.small.release(block.extent, ends) {
            assert_eq!(empty.address, block.region);
            self.is_gone(&empty);
        }
    }

    /// A region was given back: nothing lives in it, and no use of it is forgotten.
    fn is_gone(&mut self, empty: &EmptyRegion) {
        let cells = self.regions.remove(&empty.address).expect("a region");
        let order = &self.clockwork.order;
        for (free, ends) in cells {
            assert!(free, "something lives in the region");
            for end in ends.iter().filter(|&end| !order.is_completed(end)) {
                let known = empty.ends.iter().find(|e| e.stream == end.stream);
                assert!(known.is_some_and(|known| known.position >= end.position));
            }
        }
    }

    fn check(&self) {
        let bytes = self.small.validate().unwrap();
        assert_eq!(bytes, self.regions.len() as u64 * REGION);
        let cells = self.regions.values().flatten();
        let free = cells.clone().filter(|(free, _)| *free).count() as u64 * CELL;
        assert_eq!(self.small.free_bytes(), free);
        let order = &self.clockwork.order;
        let pending = cells.filter(|(free, ends)| *free && !order.completed(ends));
        // What was merged waits for the latest of its parts.
        let pending = pending.count() as u64 * CELL;
        assert!(self.small.pending_bytes(order) >= pending);
        let unused = |address: &u64| self.blocks.iter().all(|b| b.region != *address);
        assert!(self.regions.keys().filter(|a| unused(a)).count() <= 1);
        for block in &self.blocks {
            let (start, cells) = (block.cells.start as u64, block.cells.len() as u64);
            let expected = (block.region + start * CELL, cells * CELL);
            assert_eq!(self.small.block(block.extent), Some(expected));
        }
    }
}

proptest! {
    #[test]
    fn small_blocks_are_those_of_the_model(
        steps in proptest::collection::vec(step(), 1..160),
    ) {
        let mut clockwork = Clockwork::new();
        let streams = (0..STREAMS).map(|_| clockwork.stream()).collect();
        let mut world = World {
            small: Small::new(),
            clockwork,
            streams,
            regions: BTreeMap::new(),
            blocks: Vec::new(),
            next: 0,
        };
        for step in &steps {
            world.apply(step);
            world.check();
        }
        while !world.blocks.is_empty() {
            world.apply(&Step::Release(0, STREAMS));
            world.check();
        }
        world.apply(&Step::GiveUp);
        prop_assert!(world.regions.is_empty());
        prop_assert_eq!(world.small.validate(), Ok(0));
    }
}
