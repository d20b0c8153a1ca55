//! Extents against a list of intervals that is searched from end to end at every step.

use proptest::prelude::*;

use super::super::*;
use super::{at, ends};
use crate::order::Ends;

/// Two reservations that touch, in grains; nothing may merge across the border.
const BORDERS: [u64; 3] = [0, 40, 80];

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Remove(usize),
    Free(usize, Vec<(u32, u64)>),
    Take(u32, u64, u32, u32),
    TakeAcross(usize, u64, u64),
    Split(usize, u64),
    Join(usize),
    ForgetStream(usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..3_u32;
    let ends = proptest::collection::vec((stream.clone(), 1..9_u64), 0..3);
    let which = 0..64_usize;
    prop_oneof![
        3 => (0..80_u64, 1..30_u64).prop_map(|(s, l)| Step::Insert(s, l)),
        1 => which.clone().prop_map(Step::Remove),
        4 => (which.clone(), ends).prop_map(|(w, e)| Step::Free(w, e)),
        4 => (0..4_u32, 1..12_u64, 0..4_u32, stream.clone())
            .prop_map(|(silo, size, alignment, s)| Step::Take(silo, size, alignment, s)),
        2 => (which.clone(), 0..9_u64, 1..30_u64).prop_map(|(w, o, l)| Step::TakeAcross(w, o, l)),
        3 => (which.clone(), 1..30_u64).prop_map(|(w, o)| Step::Split(w, o)),
        1 => which.clone().prop_map(Step::Join),
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

/// Sorted intervals of what is backed, in grains.
#[derive(Default)]
struct Model(Vec<Interval>);

fn plain(ends: &Ends) -> Vec<(u32, u64)> {
    let mut all: Vec<(u32, u64)> = ends.iter().map(|e| (e.stream.0, e.position)).collect();
    all.sort_unstable();
    all
}

/// 0 is the common silo, else the stream after it.
fn silo_of(ends: &[(u32, u64)]) -> u32 {
    match ends {
        [(stream, _)] => stream + 1,
        _ => 0,
    }
}

fn silo(number: u32) -> Silo {
    match number {
        0 => Silo::COMMON,
        stream => Silo::of_stream(crate::order::StreamIndex(stream - 1)),
    }
}

impl Model {
    fn touching(lower: &Interval, upper: &Interval) -> bool {
        lower.end == upper.start && !BORDERS.contains(&upper.start)
    }

    fn put(&mut self, interval: Interval) {
        let place = self.0.partition_point(|i| i.start < interval.start);
        self.0.insert(place, interval);
    }

    fn taken(&self, which: usize) -> Option<(usize, ExtentId)> {
        let taken: Vec<(usize, ExtentId)> = self
            .0
            .iter()
            .enumerate()
            .filter_map(|(place, i)| match i.is {
                Is::Taken(id) => Some((place, id)),
                Is::Free(_) => None,
            })
            .collect();
        (!taken.is_empty()).then(|| taken[which % taken.len()])
    }

    fn free(&self, which: usize) -> Option<usize> {
        let is_free = |&place: &usize| matches!(self.0[place].is, Is::Free(_));
        let free: Vec<usize> = (0..self.0.len()).filter(is_free).collect();
        (!free.is_empty()).then(|| free[which % free.len()])
    }

    fn ends(&self, place: usize) -> &[(u32, u64)] {
        match &self.0[place].is {
            Is::Free(ends) => ends,
            Is::Taken(_) => panic!("not free: {:?}", self.0[place]),
        }
    }

    /// Merges equal-silo free neighbours until there are none.
    fn merge(&mut self) {
        let mut place = 1;
        while place < self.0.len() {
            let (lower, upper) = (&self.0[place - 1], &self.0[place]);
            if let (Is::Free(a), Is::Free(b)) = (&lower.is, &upper.is)
                && Model::touching(lower, upper)
                && silo_of(a) == silo_of(b)
            {
                let mut all = a.clone();
                all.extend(b);
                all.sort_unstable_by_key(|&(stream, position)| (stream, u64::MAX - position));
                all.dedup_by_key(|end| end.0);
                let end = upper.end;
                self.0.remove(place);
                self.0[place - 1].end = end;
                self.0[place - 1].is = Is::Free(all);
            } else {
                place += 1;
            }
        }
    }

    /// Takes part of a free interval away; the rest stays free.
    fn take(&mut self, place: usize, start: u64, end: u64) {
        let whole = self.0.remove(place);
        assert!(whole.start <= start && end <= whole.end);
        for (start, end) in [(whole.start, start), (end, whole.end)] {
            if start < end {
                let is = whole.is.clone();
                self.put(Interval { start, end, is });
            }
        }
    }
}

struct Pair {
    extents: Extents,
    model: Model,
}

impl Pair {
    fn id_at(&self, grain: u64) -> ExtentId {
        let mut free = self.extents.free();
        free.find(|&id| self.extents.get(id).address == at(grain))
            .expect("a free extent starts there")
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert(start, length) => self.insert(start, length),
            Step::Remove(which) => {
                if let Some((place, id)) = self.model.taken(which) {
                    self.extents.remove_taken(id);
                    self.model.0.remove(place);
                }
            }
            Step::Free(which, list) => {
                if let Some((place, id)) = self.model.taken(which) {
                    let ends = ends(&list);
                    self.model.0[place].is = Is::Free(plain(&ends));
                    self.extents.free_extent(id, ends);
                    self.model.merge();
                }
            }
            Step::Take(number, size, alignment, stream) => {
                self.take(number, size, 1 << alignment, stream);
            }
            Step::TakeAcross(which, offset, length) => self.take_across(which, offset, length),
            Step::Split(which, offset) => {
                if let Some((place, id)) = self.model.taken(which)
                    && offset < self.model.0[place].end - self.model.0[place].start
                {
                    let cut = self.model.0[place].start + offset;
                    let upper = self.extents.split_taken(id, at(cut));
                    let end = std::mem::replace(&mut self.model.0[place].end, cut);
                    let is = Is::Taken(upper);
                    self.model.put(Interval {
                        start: cut,
                        end,
                        is,
                    });
                }
            }
            Step::Join(which) => {
                if let Some((place, lower)) = self.model.taken(which)
                    && let Some(next) = self.model.0.get(place + 1)
                    && let Is::Taken(upper) = next.is
                    && Model::touching(&self.model.0[place], next)
                {
                    assert_eq!(self.extents.join_taken(lower, upper), lower);
                    self.model.0[place].end = self.model.0.remove(place + 1).end;
                }
            }
            Step::ForgetStream(which, stream) => {
                if let Some(place) = self.model.free(which) {
                    let id = self.id_at(self.model.0[place].start);
                    self.extents
                        .change_ends(id, |ends| ends.retain(|end| end.stream.0 != stream));
                    if let Is::Free(ends) = &mut self.model.0[place].is {
                        ends.retain(|end| end.0 != stream);
                    }
                    self.model.merge();
                }
            }
        }
    }

    fn insert(&mut self, start: u64, length: u64) {
        let border = BORDERS.into_iter().find(|&b| b > start).unwrap_or(start);
        let end = (start + length).min(border);
        let backed = |i: &Interval| i.start < end && start < i.end;
        if start >= end || self.model.0.iter().any(backed) {
            return;
        }
        let (below, above) = (!BORDERS.contains(&start), !BORDERS.contains(&end));
        let size = at(end) - at(start);
        let id = self.extents.insert_taken(at(start), size, below, above);
        let is = Is::Taken(id);
        self.model.put(Interval { start, end, is });
    }

    /// Takes the best fit among what has no end on `stream`.
    fn take(&mut self, number: u32, size: u64, alignment: u64, stream: u32) {
        let usable = |ends: &[(u32, u64)]| ends.iter().all(|end| end.0 != stream);
        let fits = |i: &Interval| {
            let start = i.start.next_multiple_of(alignment);
            let in_silo = matches!(&i.is, Is::Free(e) if silo_of(e) == number && usable(e));
            in_silo && start + size <= i.end
        };
        let best = (0..self.model.0.len())
            .filter(|&place| fits(&self.model.0[place]))
            .min_by_key(|&place| {
                let i = &self.model.0[place];
                (i.end - i.start, i.start)
            });
        let found = self
            .extents
            .find(silo(number), size * GRAIN, alignment * GRAIN, |ends| {
                usable(&plain(ends))
            });
        assert_eq!(found.is_some(), best.is_some());
        let (Some(fit), Some(place)) = (found, best) else {
            return;
        };
        let start = self.model.0[place].start.next_multiple_of(alignment);
        assert_eq!(fit.address, at(start));
        let expected = self.model.ends(place).to_vec();
        let (id, before) = self.extents.take(fit.id, fit.address, size * GRAIN);
        assert_eq!(plain(&before), expected);
        self.model.take(place, start, start + size);
        let (end, is) = (start + size, Is::Taken(id));
        self.model.put(Interval { start, end, is });
    }

    /// Takes a range that begins in one free extent and may go on through its free neighbours,
    /// as the pool does: piece by piece, made one.
    fn take_across(&mut self, which: usize, offset: u64, length: u64) {
        let Some(first) = self.model.free(which) else {
            return;
        };
        let start = self.model.0[first].start + offset;
        if start >= self.model.0[first].end {
            return;
        }
        let mut last = first;
        while let Some(next) = self.model.0.get(last + 1)
            && matches!(next.is, Is::Free(_))
            && Model::touching(&self.model.0[last], next)
        {
            last += 1;
        }
        let end = (start + length).min(self.model.0[last].end);
        let mut whole: Option<ExtentId> = None;
        let mut from = start;
        while from < end {
            let place = self.model.0.partition_point(|i| i.end <= from);
            let to = self.model.0[place].end.min(end);
            let expected = self.model.ends(place).to_vec();
            let id = self.id_at(self.model.0[place].start);
            let (piece, before) = self.extents.take(id, at(from), at(to) - at(from));
            assert_eq!(plain(&before), expected);
            self.model.take(place, from, to);
            whole = Some(match whole {
                None => piece,
                Some(lower) => {
                    assert_eq!(self.extents.next(lower), Some(piece));
                    self.extents.join_taken(lower, piece)
                }
            });
            from = to;
        }
        if let Some(id) = whole {
            let is = Is::Taken(id);
            self.model.put(Interval { start, end, is });
        }
    }

    fn check(&self) {
        let Pair { extents, model } = self;
        let covered = extents.validate().unwrap();
        let sum = |all: &mut dyn Iterator<Item = &Interval>| {
            all.map(|i| i.end - i.start).sum::<u64>() * GRAIN
        };
        assert_eq!(covered, sum(&mut model.0.iter()));
        let is_free = |i: &&Interval| matches!(i.is, Is::Free(_));
        assert_eq!(
            extents.free_bytes(),
            sum(&mut model.0.iter().filter(is_free))
        );
        for (place, interval) in model.0.iter().enumerate() {
            let id = match &interval.is {
                Is::Taken(id) => *id,
                Is::Free(expected) => {
                    let id = self.id_at(interval.start);
                    assert_eq!(&plain(&extents.get(id).ends), expected);
                    assert!(extents.free_in(silo(silo_of(expected))).contains(&id));
                    id
                }
            };
            let extent = extents.get(id);
            let expected = (at(interval.start), at(interval.end));
            assert_eq!((extent.address, extent.end()), expected);
            assert_eq!(extents.is_free(id), is_free(&interval));
            let next = model.0.get(place + 1);
            let linked = next.is_some_and(|next| Model::touching(interval, next));
            let next_address = extents.next(id).map(|next| extents.get(next).address);
            assert_eq!(next_address, linked.then(|| at(interval.end)));
            let found = extents.free_below_gap(at(interval.end));
            assert_eq!(found == Some(id), is_free(&interval) && !linked);
        }
        assert_eq!(
            extents.free().count(),
            model.0.iter().filter(is_free).count()
        );
    }
}

proptest! {
    #[test]
    fn extents_are_those_of_a_list_of_intervals(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut pair = Pair { extents: Extents::new(), model: Model::default() };
        for step in steps {
            pair.apply(step);
            pair.check();
        }
    }
}
