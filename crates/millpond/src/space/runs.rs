//! Free bytes, by the addresses through which they can be reached.
//!
//! A *run* is a range of free addresses, as long as it can be; it consists of *pieces*, which
//! remember where the last uses of their bytes ended, and when they were freed. Pieces stay apart as
//! long as somebody may have to wait for one and not for the other.
//!
//! # Invariants
//!
//! 1. Runs do not overlap, and touch only where a wall stands between them.
//! 2. A run's pieces cover it without a gap, lowest first.
//! 3. Every run is in the index, and nothing else is.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

use super::run_index::RunIndex;
use crate::order::Ends;

/// Free bytes with one past: from `start` to the next piece.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    start: u64,
    ends: Ends,
    freed: u64,
}

#[derive(Clone, Debug)]
struct Run {
    end: u64,
    pieces: SmallVec<[Piece; 1]>,
}

/// Free bytes with one past, as others see them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Free<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where their last uses ended.
    pub(crate) ends: &'a Ends,
    /// A number that rises with every free.
    pub(crate) freed: u64,
}

/// All free runs of a pool.
#[derive(Debug)]
pub(crate) struct FreeRuns {
    by_start: BTreeMap<u64, Run>,
    index: RunIndex,
    /// Addresses across which nothing merges: where one allocation or reservation ends and
    /// another one begins.
    walls: FxHashSet<u64>,
}

impl FreeRuns {
    pub(crate) fn new() -> FreeRuns {
        FreeRuns {
            by_start: BTreeMap::new(),
            index: RunIndex::new(),
            walls: FxHashSet::default(),
        }
    }

    /// Nothing merges across this address from now on.
    pub(crate) fn add_wall(&mut self, address: u64) {
        self.walls.insert(address);
    }

    /// Whether nothing merges across this address.
    pub(crate) fn is_wall(&self, address: u64) -> bool {
        self.walls.contains(&address)
    }

    /// Frees a range. `alike` says of two pasts that nobody will ever have to tell them apart.
    pub(crate) fn insert(
        &mut self,
        start: u64,
        end: u64,
        ends: Ends,
        freed: u64,
        alike: impl Fn(&Ends, &Ends) -> bool,
    ) {
        debug_assert!(start < end);
        let mut run = Run {
            end,
            pieces: smallvec![Piece { start, ends, freed }],
        };
        let mut run_start = start;
        if let Some((&below, _)) = self
            .by_start
            .range(..start)
            .next_back()
            .filter(|(_, below)| below.end == start)
            && !self.walls.contains(&start)
        {
            let mut lower = self.unlist(below);
            lower.end = run.end;
            append(&mut lower.pieces, run.pieces, &alike);
            run = lower;
            run_start = below;
        }
        if self.by_start.contains_key(&end) && !self.walls.contains(&end) {
            let upper = self.unlist(end);
            run.end = upper.end;
            append(&mut run.pieces, upper.pieces, &alike);
        }
        self.list(run_start, run);
    }

    /// Takes a range, all of which is free.
    pub(crate) fn carve(&mut self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let Some((run_start, run_end)) = self.bounds_around(at) else {
                debug_assert!(false, "{at:#x} is not free");
                return;
            };
            let mut run = self.unlist(run_start);
            let to = end.min(run_end);
            if to < run_end {
                let upper = run.split(to);
                self.list(to, upper);
            }
            if run_start < at {
                run.split(at);
                self.list(run_start, run);
            }
            at = to;
        }
    }

    /// The free bytes in a range, lowest first.
    pub(crate) fn inside(&self, start: u64, end: u64) -> impl Iterator<Item = Free<'_>> {
        let first = self.bounds_around(start).map_or(start, |(first, _)| first);
        self.by_start
            .range(first..end)
            .flat_map(|(_, run)| run.iter())
            .map(move |free| Free {
                start: free.start.max(start),
                end: free.end.min(end),
                ..free
            })
            .filter(|free| free.start < free.end)
    }

    /// Ranges as long as they can be of free bytes that `wanted` wants, whatever their silos,
    /// lowest first.
    pub(crate) fn stretches(&self, wanted: impl Fn(&Free<'_>) -> bool) -> Vec<(u64, u64)> {
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        for free in self.iter().filter(wanted) {
            match stretches.last_mut() {
                Some((_, end)) if *end == free.start && !self.walls.contains(end) => {
                    *end = free.end;
                }
                _ => stretches.push((free.start, free.end)),
            }
        }
        stretches
    }

    /// The first answer of `accept` to the bounds of runs of at least `size` bytes, lowest first as
    /// far as a bounded search goes.
    pub(crate) fn first_fit<T>(
        &self,
        size: u64,
        mut accept: impl FnMut(u64, u64) -> Option<T>,
    ) -> Option<T> {
        self.index
            .first_fit(size, |start, length| accept(start, start + length))
    }

    /// Bounds of runs of at least `size` bytes: the shorter ones first.
    pub(crate) fn at_least(&self, size: u64) -> impl Iterator<Item = (u64, u64)> {
        let runs = self.index.at_least(size);
        runs.map(|(start, length)| (start, start + length))
    }

    /// How far above an address all is free that `wanted` wants: the address if nothing is.
    pub(crate) fn reach_above(&self, start: u64, wanted: impl Fn(&Free<'_>) -> bool) -> u64 {
        // Runs touch only at walls.
        let around = self.by_start.range(..=start).next_back();
        let Some((_, run)) = around.filter(|(_, run)| run.end > start) else {
            return start;
        };
        let pieces = run.iter().skip_while(|free| free.end <= start);
        let reached = pieces.take_while(|free| wanted(free)).last();
        reached.map_or(start, |free| free.end)
    }

    /// How far below an address all is free that `wanted` wants: the address if nothing is.
    pub(crate) fn reach_below(&self, end: u64, wanted: impl Fn(&Free<'_>) -> bool) -> u64 {
        let around = self.by_start.range(..end).next_back();
        let Some((_, run)) = around.filter(|(_, run)| run.end >= end) else {
            return end;
        };
        let pieces = run.iter().rev().skip_while(|free| free.start >= end);
        let reached = pieces.take_while(|free| wanted(free)).last();
        reached.map_or(end, |free| free.start)
    }

    /// Ranges of the run that begins at `start`, as long as they can be, of bytes that `wanted`
    /// wants, lowest first.
    pub(crate) fn stretches_of(
        &self,
        start: u64,
        wanted: impl Fn(&Free<'_>) -> bool,
    ) -> SmallVec<[(u64, u64); 4]> {
        let mut stretches: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        let pieces = self.by_start.get(&start).into_iter().flat_map(Run::iter);
        for free in pieces.filter(wanted) {
            match stretches.last_mut() {
                Some((_, end)) if *end == free.start => *end = free.end,
                _ => stretches.push((free.start, free.end)),
            }
        }
        stretches
    }

    /// All free bytes, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Free<'_>> {
        self.by_start.values().flat_map(Run::iter)
    }

    /// The bytes of the longest run.
    pub(crate) fn longest(&self) -> u64 {
        let lengths = self.by_start.iter().map(|(start, run)| run.end - start);
        lengths.max().unwrap_or(0)
    }

    /// Changes what is remembered of the pasts of all free bytes, where `change` has an answer.
    pub(crate) fn rewrite(
        &mut self,
        change: impl Fn(&Ends) -> Option<Ends>,
        alike: impl Fn(&Ends, &Ends) -> bool,
    ) {
        let changed: Vec<(u64, u64, Ends, u64)> = self
            .iter()
            .filter_map(|free| Some((free.start, free.end, change(free.ends)?, free.freed)))
            .collect();
        for (start, end, ends, freed) in changed {
            self.carve(start, end);
            self.insert(start, end, ends, freed, &alike);
        }
    }

    /// The run that holds an address.
    fn bounds_around(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, run) = self.by_start.range(..=address).next_back()?;
        (address < run.end).then_some((start, run.end))
    }

    fn list(&mut self, start: u64, run: Run) {
        self.index.insert(start, run.end - start);
        self.by_start.insert(start, run);
    }

    /// Takes out the run that begins at `start`, which there is.
    fn unlist(&mut self, start: u64) -> Run {
        let Some(run) = self.by_start.remove(&start) else {
            unreachable!("the caller found a run there");
        };
        let found = self.index.remove(start, run.end - start);
        debug_assert!(found, "a run was not in the index");
        run
    }

    /// Checks the room's invariants.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let mut below: Option<u64> = None;
        for (&start, run) in &self.by_start {
            let fault = |what: &str| Err(format!("the free run at {start:#x} {what}: {run:?}"));
            if start >= run.end {
                return fault("is empty");
            }
            if below
                .is_some_and(|end| end > start || (end == start && !self.walls.contains(&start)))
            {
                return fault("overlaps or belongs to the one below");
            }
            below = Some(run.end);
            let starts: Vec<u64> = run.pieces.iter().map(|piece| piece.start).collect();
            if starts.first() != Some(&start)
                || !starts.is_sorted_by(|a, b| a < b)
                || starts.last().is_none_or(|&last| last >= run.end)
            {
                return fault("is not covered by its pieces");
            }
        }
        let mut listed: Vec<u64> = self.index.iter().collect();
        listed.sort_unstable();
        if !listed.iter().eq(self.by_start.keys()) {
            return Err("the index does not hold just the free runs".to_owned());
        }
        Ok(())
    }
}

impl Run {
    fn iter(&self) -> impl DoubleEndedIterator<Item = Free<'_>> {
        (0..self.pieces.len()).map(|number| {
            let piece = &self.pieces[number];
            let next = self.pieces.get(number + 1);
            Free {
                start: piece.start,
                end: next.map_or(self.end, |next| next.start),
                ends: &piece.ends,
                freed: piece.freed,
            }
        })
    }

    /// Keeps what is below an address inside the run; gives the rest.
    fn split(&mut self, at: u64) -> Run {
        let place = self.pieces.partition_point(|piece| piece.start < at);
        let mut upper: SmallVec<[Piece; 1]> = self.pieces.drain(place..).collect();
        if upper.first().is_none_or(|piece| piece.start > at)
            && let Some(cut) = self.pieces.last()
        {
            let rest = Piece {
                start: at,
                ..cut.clone()
            };
            upper.insert(0, rest);
        }
        let end = std::mem::replace(&mut self.end, at);
        Run { end, pieces: upper }
    }
}

/// Adds the pieces of the run above; where the two meet, makes one piece of two alike ones.
fn append(
    lower: &mut SmallVec<[Piece; 1]>,
    upper: SmallVec<[Piece; 1]>,
    alike: impl Fn(&Ends, &Ends) -> bool,
) {
    let mut upper = upper.into_iter();
    if let (Some(last), Some(first)) = (lower.last_mut(), upper.next()) {
        if alike(&last.ends, &first.ends) {
            last.ends.merge(&first.ends);
            last.freed = last.freed.max(first.freed);
        } else {
            lower.push(first);
        }
    }
    lower.extend(upper);
}
