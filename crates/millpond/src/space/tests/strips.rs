//! Pieces and strips against a map of grains that is searched from end to end at every step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;

use super::super::*;
use super::{at, ends};
use crate::order::Ends;

const GRAINS: u64 = 96;

/// Nothing may merge across these.
const WALLS: [u64; 3] = [0, 40, 64];

/// The handles, in grains.
const HANDLES: [u64; 4] = [3, 8, 8, 13];

const STREAMS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Frees the taken grains of a range of a handle.
    Insert(usize, u64, u64, Vec<(u32, u64)>),
    /// Takes the free grains of a range of a handle.
    Carve(usize, u64, u64),
    /// Maps a handle.
    Map(usize, u64),
    /// Takes the mapping away around an address.
    Unmap(u64),
    /// Nothing of a stream is remembered any more.
    Forget(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..HANDLES.len(), 0..13_u64, 1..14_u64);
    let ends = proptest::collection::vec((0..STREAMS, 1..12_u64), 0..3);
    prop_oneof![
        5 => (range.clone(), ends).prop_map(|((h, s, l), e)| Step::Insert(h, s, l, e)),
        4 => range.prop_map(|(h, s, l)| Step::Carve(h, s, l)),
        4 => (0..HANDLES.len(), 0..GRAINS).prop_map(|(h, place)| Step::Map(h, place)),
        2 => (0..GRAINS).prop_map(Step::Unmap),
        1 => (0..STREAMS).prop_map(Step::Forget),
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

struct Pair {
    pieces: Vec<Pieces>,
    strips: Strips,
    /// The free grains of each handle: where their uses ended, and the number of their free.
    free: Vec<BTreeMap<u64, (Ends, u64)>>,
    /// Handles, by the grain where they are mapped.
    mapped: BTreeMap<u64, usize>,
    frees: u64,
}

impl Pair {
    fn new() -> Pair {
        let mut strips = Strips::new();
        for wall in WALLS {
            strips.add_wall(at(wall));
        }
        let whole = |&size: &u64| Pieces::whole(size * GRAIN, Ends::default());
        let free = |&size: &u64| (0..size).map(|grain| (grain, (Ends::default(), 0)));
        Pair {
            pieces: HANDLES.iter().map(whole).collect(),
            strips,
            free: HANDLES.iter().map(|size| free(size).collect()).collect(),
            mapped: BTreeMap::new(),
            frees: 0,
        }
    }

    /// What stands at an address: where it is mapped, the handle and the grain in it.
    fn under(&self, grain: u64) -> Option<(u64, usize, u64)> {
        let (&start, &handle) = self.mapped.range(..=grain).next_back()?;
        (grain - start < HANDLES[handle]).then_some((start, handle, grain - start))
    }

    /// The ranges as long as they can be of grains of which `wanted` holds, cut at walls.
    fn ranges(from: u64, to: u64, wanted: impl Fn(u64) -> bool, cut: bool) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for grain in (from..to).filter(|&grain| wanted(grain)) {
            match ranges.last_mut() {
                Some((_, end)) if *end == grain && !(cut && WALLS.contains(&grain)) => *end += 1,
                _ => ranges.push((grain, grain + 1)),
            }
        }
        ranges
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert(handle, start, length, list) => {
                let end = (start + length).min(HANDLES[handle]);
                let taken = |grain| !self.free[handle].contains_key(&grain);
                for (start, end) in Pair::ranges(start, end, taken, false) {
                    self.frees += 1;
                    let (ends, freed) = (ends(&list), self.frees);
                    let (from, to) = (start * GRAIN, end * GRAIN);
                    self.pieces[handle].insert(from, to, &ends, freed, alike);
                    let grains = (start..end).map(|grain| (grain, (ends.clone(), freed)));
                    self.free[handle].extend(grains);
                }
                self.tell(handle);
            }
            Step::Carve(handle, start, length) => {
                let end = (start + length).min(HANDLES[handle]);
                let free = |grain| self.free[handle].contains_key(&grain);
                for (start, end) in Pair::ranges(start, end, free, false) {
                    self.pieces[handle].carve(start * GRAIN, end * GRAIN);
                    self.free[handle].retain(|grain, _| !(start..end).contains(grain));
                }
                self.tell(handle);
            }
            Step::Map(handle, place) => {
                let end = place + HANDLES[handle];
                let across = |wall: u64| place < wall && wall < end;
                if end <= GRAINS
                    && !WALLS.into_iter().any(across)
                    && (place..end).all(|grain| self.under(grain).is_none())
                {
                    self.mapped.insert(place, handle);
                    self.strips.insert(Mapped {
                        start: at(place),
                        end: at(end),
                        key: handle as u32,
                    });
                    self.tell(handle);
                }
            }
            Step::Unmap(grain) => {
                if let Some((start, handle, _)) = self.under(grain) {
                    self.mapped.remove(&start);
                    let removed = self.strips.remove(at(start));
                    assert_eq!(removed.map(|mapped| mapped.key), Some(handle as u32));
                }
            }
            Step::Forget(stream) => {
                for pieces in &mut self.pieces {
                    pieces.rewrite(|ends| forget(ends, stream), alike);
                }
                for (ends, _) in self.free.iter_mut().flat_map(BTreeMap::values_mut) {
                    if let Some(changed) = forget(ends, stream) {
                        *ends = changed;
                    }
                }
            }
        }
    }

    fn tell(&mut self, handle: usize) {
        let free = self.pieces[handle].summary(HANDLES[handle] * GRAIN);
        for (&place, _) in self.mapped.iter().filter(|(_, of)| **of == handle) {
            self.strips.set(at(place), free);
        }
    }

    fn check_pieces(&self, probe: u64, length: u64) {
        for (handle, &size) in HANDLES.iter().enumerate() {
            let (pieces, free) = (&self.pieces[handle], &self.free[handle]);
            pieces.validate(size * GRAIN).unwrap();
            let is_free = |grain| free.contains_key(&grain);
            let (from, to) = (probe.min(size), (probe + length).min(size));
            let found = pieces.inside(from * GRAIN, to * GRAIN);
            let found = found.flat_map(|f| (f.start / GRAIN..f.end / GRAIN).map(move |g| (g, f)));
            let found: BTreeMap<u64, Free<'_>> = found.collect();
            assert!(
                found
                    .keys()
                    .eq(free.range(from..to).map(|(grain, _)| grain))
            );
            for (grain, known) in found {
                let (ends, freed) = &free[&grain];
                assert!(alike(ends, known.ends), "{ends:?} became {known:?}");
                let later = ends.iter().all(|end| {
                    let known = known.ends.iter().find(|e| e.stream == end.stream);
                    known.is_some_and(|known| known.position >= end.position)
                });
                assert!(later, "{ends:?} became {known:?}");
                assert!(*freed <= known.freed);
            }
            let ranges = Pair::ranges(0, size, is_free, false);
            let bytes = |&(start, end): &(u64, u64)| (start * GRAIN, end * GRAIN);
            assert!(pieces.ranges().eq(ranges.iter().map(bytes)));
            let length = |range: &(u64, u64)| (range.1 - range.0) * GRAIN;
            let first = ranges.first().filter(|range| range.0 == 0);
            let last = ranges.last().filter(|range| range.1 == size);
            let expected = Summary {
                prefix: first.map_or(0, length),
                suffix: last.map_or(0, length),
                longest: ranges.iter().map(length).max().unwrap_or(0),
            };
            assert_eq!(pieces.summary(size * GRAIN), expected);
            for stream in 0..STREAMS {
                let unnamed = |ends: &Ends| ends.iter().all(|end| end.stream.0 != stream);
                let wanted = |&grain: &u64| free.get(&grain).is_some_and(|f| unnamed(&f.0));
                let up = (0..size).take_while(wanted).count() as u64;
                let down = (0..size).rev().take_while(wanted).count() as u64;
                let unnamed = |free: &Free<'_>| unnamed(free.ends);
                assert_eq!(pieces.reach_from_start(unnamed), up * GRAIN);
                let from = pieces.reach_from_end(size * GRAIN, unnamed);
                assert_eq!(from, (size - down) * GRAIN);
            }
        }
    }

    fn check_strips(&mut self, probe: u64, length: u64) {
        let told = |key: u32| {
            let handle = key as usize;
            self.pieces[handle].summary(HANDLES[handle] * GRAIN)
        };
        self.strips.validate(told).unwrap();
        self.strips.refresh();
        self.strips.validate(told).unwrap();
        let is_free = |grain| {
            let under = self.under(grain);
            under.is_some_and(|(_, handle, grain)| self.free[handle].contains_key(&grain))
        };
        let all = Pair::ranges(0, GRAINS, is_free, true);
        let long = all.iter().filter(|(start, end)| end - start >= length);
        let long: Vec<(u64, u64)> = long.map(|&(start, end)| (at(start), at(end))).collect();
        let found = RefCell::new(Vec::new());
        let pieces = |key: u32| &self.pieces[key as usize];
        self.strips.runs(length * GRAIN, pieces, |start, end| {
            found.borrow_mut().push((start, end));
            ControlFlow::Continue(())
        });
        assert_eq!(found.take(), long);
        self.strips.runs(length * GRAIN, pieces, |start, end| {
            found.borrow_mut().push((start, end));
            ControlFlow::Break(())
        });
        assert_eq!(found.take().first(), long.first());
        let above = self
            .mapped
            .iter()
            .filter(|(start, handle)| *start + HANDLES[**handle] > probe);
        let place = self.strips.first_above(at(probe));
        let known = self.strips.get(place).map(|mapped| mapped.start);
        assert_eq!(known, above.map(|(&start, _)| at(start)).next());
        let below = self.mapped.range(..probe + length).count();
        assert_eq!(
            self.strips.first_above_from(place, at(probe + length)),
            below.max(place)
        );
    }
}

proptest! {
    #[test]
    fn runs_are_those_of_a_map_of_grains(
        steps in proptest::collection::vec((step(), 0..GRAINS, 1..20_u64), 1..80),
    ) {
        let mut pair = Pair::new();
        for (step, probe, length) in steps {
            pair.apply(step);
            pair.check_pieces(probe % 13, length);
            pair.check_strips(probe, length);
        }
    }

    /// What is told of several mappings before anything is looked for.
    #[test]
    fn many_changes_are_told_at_once(
        rounds in proptest::collection::vec(proptest::collection::vec(step(), 1..12), 1..16),
    ) {
        let mut pair = Pair::new();
        for steps in rounds {
            for step in steps {
                pair.apply(step);
            }
            pair.check_strips(0, 2);
        }
    }
}

#[test]
fn pieces_that_somebody_tells_apart_stay_apart_in_one_range() {
    let mut pieces = Pieces::default();
    pieces.insert(0, 4, &ends(&[(0, 1)]), 1, alike);
    pieces.insert(4, 8, &ends(&[(0, 3)]), 2, alike);
    pieces.insert(8, 12, &ends(&[(0, 5)]), 3, alike);
    let found: Vec<(u64, u64, u64)> = pieces.iter().map(|f| (f.start, f.end, f.freed)).collect();
    assert_eq!(found, [(0, 8, 2), (8, 12, 3)]);
    assert_eq!(pieces.ranges().collect::<Vec<_>>(), [(0, 12)]);
}

#[test]
fn what_is_cut_out_of_a_piece_leaves_its_past_on_both_sides() {
    let past = ends(&[(0, 1), (1, 2)]);
    let mut pieces = Pieces::default();
    pieces.insert(0, 9, &past, 7, alike);
    pieces.carve(3, 5);
    let found: Vec<Free<'_>> = pieces.iter().collect();
    assert_eq!(found.len(), 2);
    for (piece, (start, end)) in found.iter().zip([(0, 3), (5, 9)]) {
        assert_eq!((piece.start, piece.end), (start, end));
        assert_eq!((piece.ends, piece.freed), (&past, 7));
    }
}
