//! Free runs against a map of grains that is searched from end to end at every step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::*;
use super::{at, ends};
use crate::order::Ends;

const GRAINS: u64 = 96;

/// Nothing may merge across these.
const WALLS: [u64; 4] = [0, 40, 64, GRAINS];

const STREAMS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Frees the taken grains of a range.
    Insert(u64, u64, Vec<(u32, u64)>),
    /// Takes the free grains of a range.
    Carve(u64, u64),
    /// Nothing of a stream is remembered any more.
    Forget(u32),
    /// What ended on no stream or several is this one's.
    Gather(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..GRAINS, 1..24_u64);
    let ends = proptest::collection::vec((0..STREAMS, 1..12_u64), 0..3);
    prop_oneof![
        6 => (range.clone(), ends).prop_map(|((s, l), e)| Step::Insert(s, l, e)),
        4 => range.prop_map(|(s, l)| Step::Carve(s, l)),
        1 => (0..STREAMS).prop_map(Step::Forget),
        1 => (0..STREAMS).prop_map(Step::Gather),
    ]
}

/// As if a marker stood at every fourth position.
fn alike(one: &Ends, other: &Ends) -> bool {
    match (one.only_end(), other.only_end()) {
        (Some(a), Some(b)) if a.stream == b.stream => a.position / 4 == b.position / 4,
        _ => one == other,
    }
}

fn forget(ends: &Ends, stream: u32) -> Option<Ends> {
    let named = ends.iter().any(|end| end.stream.0 == stream);
    named.then(|| ends.iter().filter(|end| end.stream.0 != stream).collect())
}

fn gather(ends: &Ends, stream: u32) -> Option<Ends> {
    (ends.only_stream().is_none()).then(|| super::ends(&[(stream, 0)]))
}

fn names(ends: &Ends, stream: u32) -> bool {
    ends.iter().any(|end| end.stream.0 == stream)
}

struct Pair {
    runs: FreeRuns,
    /// The free grains: where their uses ended, and the number of their free.
    model: BTreeMap<u64, (Ends, u64)>,
    frees: u64,
}

impl Pair {
    fn new() -> Pair {
        let mut runs = FreeRuns::new();
        for wall in WALLS {
            runs.add_wall(at(wall));
        }
        Pair {
            runs,
            model: BTreeMap::new(),
            frees: 0,
        }
    }

    /// The ranges as long as they can be of grains of which `wanted` holds, cut at walls.
    fn ranges(&self, from: u64, to: u64, wanted: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for grain in (from..to).filter(|&grain| wanted(grain)) {
            match ranges.last_mut() {
                Some((_, end)) if *end == grain && !WALLS.contains(&grain) => *end += 1,
                _ => ranges.push((grain, grain + 1)),
            }
        }
        ranges
    }

    fn is_free(&self, grain: u64) -> bool {
        self.model.contains_key(&grain)
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert(start, length, list) => {
                let to = (start + length).min(GRAINS);
                for (start, end) in self.ranges(start, to, |grain| !self.is_free(grain)) {
                    self.frees += 1;
                    let (ends, freed) = (ends(&list), self.frees);
                    self.runs
                        .insert(at(start), at(end), ends.clone(), freed, alike);
                    for grain in start..end {
                        self.model.insert(grain, (ends.clone(), freed));
                    }
                }
            }
            Step::Carve(start, length) => {
                // A carved range may go on through several pieces, and across walls.
                let end = (start..(start + length).min(GRAINS))
                    .find(|&grain| !self.is_free(grain))
                    .unwrap_or((start + length).min(GRAINS));
                if start < end {
                    self.runs.carve(at(start), at(end));
                    self.model.retain(|grain, _| !(start..end).contains(grain));
                }
            }
            Step::Forget(stream) => self.rewrite(|ends| forget(ends, stream)),
            Step::Gather(stream) => self.rewrite(|ends| gather(ends, stream)),
        }
    }

    fn rewrite(&mut self, change: impl Fn(&Ends) -> Option<Ends>) {
        self.runs.rewrite(&change, alike);
        for (ends, _) in self.model.values_mut() {
            if let Some(changed) = change(ends) {
                *ends = changed;
            }
        }
    }

    /// What was found covers just the free grains of a range, with their pasts or alike ones.
    fn compare<'a>(&self, found: impl Iterator<Item = Free<'a>>, start: u64, end: u64) {
        let mut grains = BTreeSet::new();
        for free in found {
            assert!(free.start < free.end);
            for address in (free.start..free.end).step_by(GRAIN as usize) {
                let grain = (address - at(0)) / GRAIN;
                assert!(grains.insert(grain), "grain {grain} came twice");
                let (ends, freed) = &self.model[&grain];
                assert!(alike(ends, free.ends), "{ends:?} became {:?}", free.ends);
                let later = ends.iter().all(|end| {
                    let known = free.ends.iter().find(|e| e.stream == end.stream);
                    known.is_some_and(|known| known.position >= end.position)
                });
                assert!(later, "{ends:?} became {:?}", free.ends);
                assert!(*freed <= free.freed);
            }
        }
        let expected: BTreeSet<u64> = self.model.range(start..end).map(|(&g, _)| g).collect();
        assert_eq!(grains, expected);
    }

    fn check(&self, probe: u64, size: u64, alignment: u64) {
        let Pair { runs, .. } = self;
        runs.validate().unwrap();
        self.compare(runs.iter(), 0, GRAINS);
        let end = (probe + size).min(GRAINS);
        self.compare(runs.inside(at(probe), at(end)), probe, end);
        let taken_or_wall = |grain: &u64, from: u64| {
            !self.is_free(*grain) || (*grain != from && WALLS.contains(grain))
        };
        let top = (probe..GRAINS)
            .find(|grain| taken_or_wall(grain, probe))
            .unwrap_or(GRAINS);
        assert_eq!(runs.reach_above(at(probe), |_| true), at(top));
        let bottom = (0..probe)
            .rev()
            .find(|&grain| {
                let above = grain + 1;
                !self.is_free(grain) || (above != probe && WALLS.contains(&above))
            })
            .map_or(0, |grain| grain + 1);
        assert_eq!(runs.reach_below(at(probe), |_| true), at(bottom));
        for stream in 0..STREAMS {
            let expected = self.ranges(0, GRAINS, |grain| {
                let ends = self.model.get(&grain);
                ends.is_some_and(|(ends, _)| !names(ends, stream))
            });
            let found = runs.stretches(|free| !names(free.ends, stream));
            let expected: Vec<_> = expected.iter().map(|&(s, e)| (at(s), at(e))).collect();
            assert_eq!(found, expected);
        }
        let all = self.ranges(0, GRAINS, |grain| self.is_free(grain));
        let longest = all.iter().map(|(s, e)| e - s).max().unwrap_or(0);
        let long: Vec<(u64, u64)> = all
            .iter()
            .filter(|(start, end)| end - start >= size)
            .map(|&(start, end)| (at(start), at(end)))
            .collect();
        let mut found: Vec<(u64, u64)> = runs.at_least(size * GRAIN).collect();
        // A class is an eighth wide.
        let lengths: Vec<u64> = found.iter().map(|(start, end)| end - start).collect();
        assert!(lengths.windows(2).all(|two| two[0] * 8 <= two[1] * 9));
        found.sort_unstable();
        assert_eq!(found, long);
        for unwanted in [u64::MAX, at(probe)] {
            let accept = |start: u64, end: u64| {
                let place = start.next_multiple_of(alignment * GRAIN);
                (place + size * GRAIN <= end && place != unwanted).then_some(place)
            };
            let expected = long.iter().find_map(|&(start, end)| accept(start, end));
            assert_eq!(runs.first_fit(size * GRAIN, accept), expected);
        }
        for &(start, end) in &all {
            for stream in 0..STREAMS {
                let expected =
                    self.ranges(start, end, |grain| !names(&self.model[&grain].0, stream));
                let found = runs.stretches_of(at(start), |free| !names(free.ends, stream));
                let expected: Vec<_> = expected.iter().map(|&(s, e)| (at(s), at(e))).collect();
                assert_eq!(found.to_vec(), expected);
            }
        }
        assert_eq!(runs.longest(), longest * GRAIN);
    }
}

proptest! {
    #[test]
    fn free_runs_are_those_of_a_map_of_grains(
        steps in proptest::collection::vec((step(), 0..GRAINS, 1..20_u64, 0..4_u32), 1..80),
    ) {
        let mut pair = Pair::new();
        for (step, probe, size, alignment) in steps {
            pair.apply(step);
            pair.check(probe, size, 1 << alignment);
        }
    }
}

#[test]
fn pieces_that_somebody_tells_apart_stay_apart_in_one_run() {
    let mut runs = FreeRuns::new();
    runs.insert(at(0), at(4), ends(&[(0, 1)]), 1, alike);
    runs.insert(at(4), at(8), ends(&[(0, 3)]), 2, alike);
    runs.insert(at(8), at(12), ends(&[(0, 5)]), 3, alike);
    runs.validate().unwrap();
    let pieces: Vec<(u64, u64, u64)> = runs
        .iter()
        .map(|free| (free.start, free.end, free.freed))
        .collect();
    assert_eq!(pieces, [(at(0), at(8), 2), (at(8), at(12), 3)]);
    assert_eq!(
        runs.first_fit(12 * GRAIN, |start, _| Some(start)),
        Some(at(0))
    );
}

#[test]
fn what_is_cut_out_of_a_piece_leaves_its_past_on_both_sides() {
    let mut runs = FreeRuns::new();
    runs.insert(at(0), at(9), ends(&[(0, 1), (1, 2)]), 7, alike);
    runs.carve(at(3), at(5));
    runs.validate().unwrap();
    let pieces: Vec<Free<'_>> = runs.iter().collect();
    assert_eq!(pieces.len(), 2);
    for (piece, (start, end)) in pieces.iter().zip([(0, 3), (5, 9)]) {
        assert_eq!((piece.start, piece.end), (at(start), at(end)));
        assert_eq!((piece.ends, piece.freed), (&ends(&[(0, 1), (1, 2)]), 7));
    }
}
