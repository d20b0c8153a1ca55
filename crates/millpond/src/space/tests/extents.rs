//! Extents against a list of intervals that is searched from end to end at every step.

use proptest::prelude::*;

use super::super::*;
use super::{at, ends};
use crate::order::{Ends, StreamIndex};

/// Regions of the model, in grains: they touch, and nothing merges from one into another.
const REGIONS: u64 = 4;
const REGION: u64 = 24;

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    RemoveFree(usize),
    Free(usize, Vec<(u32, u64)>),
    Take(u32, u64, u32, u32),
    TakeAcross(usize, u64, u64),
    ForgetStream(usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..3_u32;
    let ends = proptest::collection::vec((stream.clone(), 1..9_u64), 0..3);
    let which = 0..64_usize;
    prop_oneof![
        2 => (0..REGIONS).prop_map(Step::Insert),
        1 => which.clone().prop_map(Step::RemoveFree),
        6 => (which.clone(), ends).prop_map(|(w, e)| Step::Free(w, e)),
        4 => (0..4_u32, 1..9_u64, 0..4_u32, stream.clone())
            .prop_map(|(silo, size, alignment, s)| Step::Take(silo, size, alignment, s)),
        4 => (which.clone(), 0..9_u64, 1..24_u64).prop_map(|(w, o, l)| Step::TakeAcross(w, o, l)),
        1 => (which, stream).prop_map(|(w, s)| Step::ForgetStream(w, s)),
    ]
}

/// What an interval is; ends by stream, in order.
#[derive(Clone, PartialEq, Debug)]
enum Is {
    Taken(ExtentId),
    Free(Vec<(u32, u64)>),
}

#[derive(Clone, PartialEq, Debug)]
struct Interval {
    start: u64,
    end: u64,
    is: Is,
}

fn plain(ends: &Ends) -> Vec<(u32, u64)> {
    let mut all: Vec<(u32, u64)> = ends.iter().map(|e| (e.stream.0, e.position)).collect();
    all.sort_unstable();
    all
}

/// The latest end on each stream.
fn merged<'a>(all: impl Iterator<Item = &'a Vec<(u32, u64)>>) -> Vec<(u32, u64)> {
    let mut all: Vec<(u32, u64)> = all.flatten().copied().collect();
    all.sort_unstable_by_key(|&(stream, position)| (stream, u64::MAX - position));
    all.dedup_by_key(|end| end.0);
    all
}

fn silo_of(ends: &[(u32, u64)]) -> Silo {
    match ends {
        [(stream, _)] => Silo::of_stream(StreamIndex(*stream)),
        _ => Silo::COMMON,
    }
}

struct Pair {
    extents: Extents,
    /// Sorted.
    model: Vec<Interval>,
}

impl Pair {
    fn free_places(&self) -> Vec<usize> {
        let is_free = |&place: &usize| matches!(self.model[place].is, Is::Free(_));
        (0..self.model.len()).filter(is_free).collect()
    }

    fn free(&self, which: usize) -> Option<usize> {
        let free = self.free_places();
        (!free.is_empty()).then(|| free[which % free.len()])
    }

    fn taken(&self, which: usize) -> Option<(usize, ExtentId)> {
        let taken = self.model.iter().enumerate();
        let taken: Vec<(usize, ExtentId)> = taken
            .filter_map(|(place, i)| match i.is {
                Is::Taken(id) => Some((place, id)),
                Is::Free(_) => None,
            })
            .collect();
        (!taken.is_empty()).then(|| taken[which % taken.len()])
    }

    fn ends(&self, place: usize) -> &Vec<(u32, u64)> {
        match &self.model[place].is {
            Is::Free(ends) => ends,
            Is::Taken(_) => panic!("not free: {:?}", self.model[place]),
        }
    }

    fn id_at(&self, grain: u64) -> ExtentId {
        let mut free = self.extents.free();
        free.find(|&id| self.extents.get(id).address == at(grain))
            .expect("a free extent starts there")
    }

    fn put(&mut self, start: u64, end: u64, is: Is) {
        if start < end {
            let place = self.model.partition_point(|i| i.start < start);
            self.model.insert(place, Interval { start, end, is });
        }
    }

    /// Merges free neighbours of one silo until there are none.
    fn merge(&mut self) {
        let mut place = 1;
        while place < self.model.len() {
            let (lower, upper) = (&self.model[place - 1], &self.model[place]);
            if let (Is::Free(a), Is::Free(b)) = (&lower.is, &upper.is)
                && lower.end == upper.start
                && !upper.start.is_multiple_of(REGION)
                && silo_of(a) == silo_of(b)
            {
                let is = Is::Free(merged([a, b].into_iter()));
                let (start, end) = (lower.start, upper.end);
                self.model.remove(place);
                self.model[place - 1] = Interval { start, end, is };
            } else {
                place += 1;
            }
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert(region) => {
                let start = region * REGION;
                if self.model.iter().all(|i| i.start / REGION != region) {
                    let id = self
                        .extents
                        .insert_taken(at(start), REGION * GRAIN, region as u32);
                    self.put(start, start + REGION, Is::Taken(id));
                }
            }
            Step::RemoveFree(which) => {
                let Some(place) = self.free(which) else {
                    return;
                };
                let region = self.model[place].start / REGION;
                let inside = |i: &&Interval| i.start / REGION == region;
                let all: Option<Vec<Vec<(u32, u64)>>> = self
                    .model
                    .iter()
                    .filter(inside)
                    .map(|i| match &i.is {
                        Is::Free(ends) => Some(ends.clone()),
                        Is::Taken(_) => None,
                    })
                    .collect();
                if let Some(all) = all {
                    let id = self.id_at(self.model[place].start);
                    let ends = self.extents.remove_free_region(id);
                    assert_eq!(plain(&ends), merged(all.iter()));
                    self.model.retain(|i| i.start / REGION != region);
                }
            }
            Step::Free(which, list) => {
                if let Some((place, id)) = self.taken(which) {
                    let ends = ends(&list);
                    self.model[place].is = Is::Free(plain(&ends));
                    let start = self.model[place].start;
                    let became = self.extents.free_extent(id, ends);
                    self.merge();
                    let holding = self.extents.get(became);
                    assert!((holding.address..holding.end()).contains(&at(start)));
                }
            }
            Step::Take(number, size, alignment, stream) => {
                let silo = match number {
                    0 => Silo::COMMON,
                    stream => Silo::of_stream(StreamIndex(stream - 1)),
                };
                self.take(silo, size, 1 << alignment, stream);
            }
            Step::TakeAcross(which, offset, length) => self.take_across(which, offset, length),
            Step::ForgetStream(which, stream) => {
                if let Some(place) = self.free(which) {
                    let id = self.id_at(self.model[place].start);
                    self.extents.change_ends(id, |ends| {
                        *ends = ends.iter().filter(|end| end.stream.0 != stream).collect();
                    });
                    if let Is::Free(ends) = &mut self.model[place].is {
                        ends.retain(|end| end.0 != stream);
                    }
                    self.merge();
                }
            }
        }
    }

    /// Takes the best fit among what has no end on `stream`.
    fn take(&mut self, silo: Silo, size: u64, alignment: u64, stream: u32) {
        let usable = |ends: &[(u32, u64)]| ends.iter().all(|end| end.0 != stream);
        let fits = |&place: &usize| {
            let start = self.model[place].start.next_multiple_of(alignment);
            let ends = self.ends(place);
            silo_of(ends) == silo && usable(ends) && start + size <= self.model[place].end
        };
        let best = self.free_places().into_iter().filter(fits);
        let best = best.min_by_key(|&place| {
            let i = &self.model[place];
            (i.end - i.start, i.start)
        });
        let found = self
            .extents
            .find(silo, size * GRAIN, alignment * GRAIN, |ends| {
                usable(&plain(ends))
            });
        assert_eq!(found.is_some(), best.is_some());
        let (Some(fit), Some(place)) = (found, best) else {
            return;
        };
        let start = self.model[place].start.next_multiple_of(alignment);
        assert_eq!(fit.address, at(start));
        let (id, before) = self.extents.take(fit.id, fit.address, size * GRAIN);
        assert_eq!(&plain(&before), self.ends(place));
        let whole = self.model.remove(place);
        self.put(whole.start, start, whole.is.clone());
        self.put(start, start + size, Is::Taken(id));
        self.put(start + size, whole.end, whole.is);
    }

    /// Takes a range that begins in one free extent, or above it, and may go on through its free
    /// neighbours.
    fn take_across(&mut self, which: usize, offset: u64, length: u64) {
        let Some(first) = self.free(which) else {
            return;
        };
        let mut last = first;
        while let Some(next) = self.model.get(last + 1)
            && matches!(next.is, Is::Free(_))
            && self.model[last].end == next.start
            && !next.start.is_multiple_of(REGION)
        {
            last += 1;
        }
        let start = self.model[first].start + offset;
        let end = (start + length).min(self.model[last].end);
        if start >= end {
            return;
        }
        let from = self.id_at(self.model[first].start);
        let (id, before) = self.extents.take_across(from, at(start), at(end));
        let touched = |i: &Interval| i.start < end && start < i.end;
        let pieces: Vec<Interval> = self.model.iter().filter(|i| touched(i)).cloned().collect();
        let all = pieces.iter().map(|i| match &i.is {
            Is::Free(ends) => ends,
            Is::Taken(_) => panic!("not free: {i:?}"),
        });
        assert_eq!(plain(&before), merged(all));
        self.model.retain(|i| !touched(i));
        for piece in pieces {
            self.put(piece.start, start, piece.is.clone());
            self.put(end, piece.end, piece.is);
        }
        self.put(start, end, Is::Taken(id));
    }

    fn check(&self) {
        let Pair { extents, model } = self;
        let bytes =
            |all: &mut dyn Iterator<Item = u64>| all.map(|place| place * GRAIN).sum::<u64>();
        let covered = extents.validate().unwrap();
        assert_eq!(covered, bytes(&mut model.iter().map(|i| i.end - i.start)));
        let free = self.free_places();
        let free_bytes = free
            .iter()
            .map(|&place| model[place].end - model[place].start);
        assert_eq!(extents.free_bytes(), bytes(&mut free_bytes.into_iter()));
        assert_eq!(extents.free().count(), free.len());
        for (place, interval) in model.iter().enumerate() {
            let id = match &interval.is {
                Is::Taken(id) => *id,
                Is::Free(expected) => {
                    let id = self.id_at(interval.start);
                    assert_eq!(&plain(&extents.get(id).ends), expected);
                    id
                }
            };
            let extent = extents.get(id);
            let expected = (at(interval.start), at(interval.end));
            assert_eq!((extent.address, extent.end()), expected);
            assert_eq!(u64::from(extent.region), interval.start / REGION);
            assert_eq!(extents.is_free(id), matches!(interval.is, Is::Free(_)));
            let inside = !interval.end.is_multiple_of(REGION);
            let next = model.get(place + 1).filter(|_| inside);
            let next_address = extents.next(id).map(|next| extents.get(next).address);
            assert_eq!(next_address, next.map(|next| at(next.start)));
            if let Some(next) = extents.next(id) {
                assert_eq!(extents.previous(next), Some(id));
            }
        }
    }
}

proptest! {
    #[test]
    fn extents_are_those_of_a_list_of_intervals(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut pair = Pair { extents: Extents::new(), model: Vec::new() };
        for step in steps {
            pair.apply(step);
            pair.check();
        }
    }
}
