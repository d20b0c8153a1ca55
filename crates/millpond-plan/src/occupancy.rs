//! Which bytes are taken at which time, so that the lowest free place is found fast.
//!
//! A segment tree over the sections. Each node has two unions of byte ranges: `cover`, taken during
//! all of its time, and `below`, taken at some time in it. What is taken at some time of an
//! interval is then the union of `below` of the few nodes that make it up, and of `cover` of
//! their ancestors. The unions of well packed buffers melt into few ranges, so that a search
//! looks at few, however many buffers there are.
//!
//! # Invariants
//! - Ranges of a union are sorted, apart from each other and not empty.
//! - `below` of a node contains its `cover` and its children's `below`.

use crate::instance::{Item, Part, round_up};

/// Sorted, disjoint, not touching byte ranges.
type Ranges = Vec<(u64, u64)>;

pub(crate) struct Occupancy {
    leaves: usize,
    cover: Vec<Ranges>,
    below: Vec<Ranges>,
}

/// How far a search has come in one union.
struct Cursor<'o> {
    ranges: &'o [(u64, u64)],
    /// The bytes of the piece that is to be placed, at this time.
    lo: u64,
    hi: u64,
}

impl Occupancy {
    pub(crate) fn new(sections: usize) -> Occupancy {
        let leaves = sections.max(1).next_power_of_two();
        Occupancy {
            leaves,
            cover: vec![Vec::new(); 2 * leaves],
            below: vec![Vec::new(); 2 * leaves],
        }
    }

    pub(crate) fn clear(&mut self) {
        for ranges in self.cover.iter_mut().chain(&mut self.below) {
            ranges.clear();
        }
    }

    pub(crate) fn insert(&mut self, item: &Item, offset: u64) {
        for part in &item.parts {
            let range = (offset + part.lo, offset + part.hi);
            let (mut l, mut r) = (
                part.first as usize + self.leaves,
                part.last as usize + self.leaves,
            );
            let (mut above_l, mut above_r) = (l, r - 1);
            while l < r {
                if l & 1 == 1 {
                    add(&mut self.cover[l], range);
                    add(&mut self.below[l], range);
                    l += 1;
                }
                if r & 1 == 1 {
                    r -= 1;
                    add(&mut self.cover[r], range);
                    add(&mut self.below[r], range);
                }
                l >>= 1;
                r >>= 1;
            }
            // All ancestors of the nodes above are ancestors of the first or the last leaf; those
            // inside the interval are full anyway.
            while above_l > 1 {
                above_l >>= 1;
                above_r >>= 1;
                add(&mut self.below[above_l], range);
                if above_r != above_l {
                    add(&mut self.below[above_r], range);
                }
            }
        }
    }

    /// The lowest offset of `item` from `from` on, a multiple of its alignment, at which nothing is in
    /// its way.
    pub(crate) fn first_fit(&self, item: &Item, from: u64) -> u64 {
        let mut cursors = self.cursors(item);
        let mut offset = from;
        loop {
            let before = offset;
            for cursor in &mut cursors {
                offset = cursor.past(offset, item.alignment);
            }
            if offset == before {
                return offset;
            }
        }
    }

    /// The offset of `item` in the smallest gap that it fits into, the lowest of equal ones; above
    /// everything if it fits into none. Only for an item of one part.
    pub(crate) fn best_fit(&self, item: &Item) -> u64 {
        let mut cursors = self.cursors(item);
        let mut best: Option<(u64, u64)> = None;
        let mut free = 0;
        loop {
            let before = free;
            for cursor in &mut cursors {
                free = cursor.out_of(free);
            }
            if free != before {
                continue;
            }
            let offset = round_up(free, item.alignment);
            let end = cursors
                .iter()
                .filter_map(|c| c.ranges.first())
                .map(|r| r.0)
                .min();
            let Some(end) = end else {
                return best.map_or(offset, |(_, at)| at);
            };
            if offset + item.size <= end && best.is_none_or(|(gap, _)| end - free < gap) {
                best = Some((end - free, offset));
            }
            free = end;
        }
    }

    fn cursors(&self, item: &Item) -> Vec<Cursor<'_>> {
        let mut cursors = Vec::with_capacity(48);
        for part in &item.parts {
            self.collect(part, &mut cursors);
        }
        cursors
    }

    fn collect<'o>(&'o self, part: &Part, cursors: &mut Vec<Cursor<'o>>) {
        let mut push = |ranges: &'o Ranges| {
            if !ranges.is_empty() {
                cursors.push(Cursor {
                    ranges,
                    lo: part.lo,
                    hi: part.hi,
                });
            }
        };
        let (mut l, mut r) = (
            part.first as usize + self.leaves,
            part.last as usize + self.leaves,
        );
        let (mut above_l, mut above_r) = (l >> 1, (r - 1) >> 1);
        while l < r {
            if l & 1 == 1 {
                push(&self.below[l]);
                l += 1;
            }
            if r & 1 == 1 {
                r -= 1;
                push(&self.below[r]);
            }
            l >>= 1;
            r >>= 1;
        }
        while above_l >= 1 {
            push(&self.cover[above_l]);
            if above_r != above_l {
                push(&self.cover[above_r]);
            }
            above_l >>= 1;
            above_r >>= 1;
        }
    }
}

impl Cursor<'_> {
    /// The lowest offset from `offset` on that these ranges leave free.
    fn past(&mut self, mut offset: u64, alignment: u64) -> u64 {
        loop {
            self.skip_to(offset + self.lo);
            match self.ranges.first() {
                Some(&(start, end)) if start < offset + self.hi => {
                    offset = round_up(end - self.lo, alignment);
                }
                _ => return offset,
            }
        }
    }

    /// The lowest byte from `free` on that is in none of these ranges.
    fn out_of(&mut self, free: u64) -> u64 {
        self.skip_to(free);
        match self.ranges.first() {
            Some(&(start, end)) if start <= free => end,
            _ => free,
        }
    }

    /// Drops the ranges that end at or before `byte`.
    fn skip_to(&mut self, byte: u64) {
        const NEAR: usize = 8;
        let near = self.ranges.len().min(NEAR);
        let passed = self.ranges[..near]
            .iter()
            .take_while(|r| r.1 <= byte)
            .count();
        self.ranges = &self.ranges[passed..];
        if passed == NEAR {
            let passed = self.ranges.partition_point(|r| r.1 <= byte);
            self.ranges = &self.ranges[passed..];
        }
    }
}

/// Unites `ranges` with one more.
fn add(ranges: &mut Ranges, (mut start, mut end): (u64, u64)) {
    let from = ranges.partition_point(|r| r.1 < start);
    let mut to = from;
    while let Some(&(other_start, other_end)) = ranges.get(to)
        && other_start <= end
    {
        start = start.min(other_start);
        end = end.max(other_end);
        to += 1;
    }
    if to == from {
        ranges.insert(from, (start, end));
    } else {
        ranges[from] = (start, end);
        ranges.drain(from + 1..to);
    }
}
