//! Exact search: is there a plan below a given capacity?
//!
//! Only plans that are *pushed down* are looked at: every item lies on the floor or on another one,
//! and items are placed in the order of their offsets, equal ones by their rank in an order given
//! beforehand. Every plan can be pushed down, so that nothing is missed. What is
//! unplaced and shares no section falls apart into independent searches.
//!
//! A branch ends when
//! - in some section, the unplaced items that cannot lie below some height do not fit between that
//!   height and the capacity;
//! - an item that was passed over has nothing left that could lie under it;
//! - a candidate would lie at or above the place where an unplaced item could end: that one
//!   would fall down beside it.
//!
//! # Invariants
//! - `head` of an open item is where it rests on what is placed: the offset that it gets when it is
//!   placed next.
//! - All items are flat (every part begins with the item's first byte).

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::instance::{Instance, round_up};

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Offsets of a plan within the capacity.
    Found(Vec<u64>),
    /// There is none.
    None,
    /// The budget, the deadline or a cancel came first.
    Stopped,
}

/// When to stop a search.
pub(crate) struct Stop<'a> {
    pub(crate) nodes: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) flags: [&'a AtomicBool; 2],
}

/// Nodes between two looks at the clock.
const BETWEEN_LOOKS: u64 = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Placed,
    Impossible,
    Stopped,
}

/// An unplaced item during the search.
#[derive(Clone, Copy)]
struct Open {
    item: u32,
    /// It rests on something placed at this offset, or higher.
    head: u64,
}

struct Search<'a> {
    instance: &'a Instance,
    capacity: u64,
    stop: Stop<'a>,
    nodes: u64,
    rank: Rc<[u32]>,
    offsets: Vec<u64>,
    /// Scratch: bytes of items in each section; zeros between uses.
    load: Vec<u64>,
    /// Scratch: how far items reach that begin in a section, then which part the section is of.
    reach: Vec<u32>,
}

/// Looks for a plan with a peak of at most `capacity`, candidates at one height in `order`.
pub(crate) fn search(
    instance: &Instance,
    order: &[u32],
    capacity: u64,
    stop: Stop<'_>,
) -> (Outcome, u64) {
    let mut rank = vec![0_u32; order.len()];
    for (at, &item) in order.iter().enumerate() {
        rank[item as usize] = at as u32;
    }
    let mut search = Search {
        instance,
        capacity,
        stop,
        nodes: 0,
        rank: rank.into(),
        offsets: vec![0; instance.items.len()],
        load: vec![0; instance.sections],
        reach: Vec::new(),
    };
    let open: Vec<Open> = order
        .iter()
        .map(|&item| Open {
            item,
            head: instance.items[item as usize].fixed.unwrap_or(0),
        })
        .collect();
    let verdict = search.parts(open, None);
    let nodes = search.nodes;
    match verdict {
        Verdict::Placed => (Outcome::Found(search.offsets), nodes),
        Verdict::Impossible => (Outcome::None, nodes),
        Verdict::Stopped => (Outcome::Stopped, nodes),
    }
}

impl Search<'_> {
    /// Splits what is open where nothing spans a time, and places each part.
    fn parts(&mut self, open: Vec<Open>, last: Option<(u64, u32)>) -> Verdict {
        if open.is_empty() {
            return Verdict::Placed;
        }
        let items = &self.instance.items;
        let span = |o: &Open| (items[o.item as usize].first(), items[o.item as usize].last());
        let from = open.iter().map(|o| span(o).0).min().unwrap_or(0);
        let to = open.iter().map(|o| span(o).1).max().unwrap_or(0);
        self.reach.clear();
        self.reach.resize((to - from) as usize, 0);
        for o in &open {
            let (first, last) = span(o);
            let at = &mut self.reach[(first - from) as usize];
            *at = (*at).max(last - from);
        }
        let (mut parts, mut end) = (0, 0);
        for (section, at) in self.reach.iter_mut().enumerate() {
            if *at > 0 && section as u32 >= end {
                parts += 1;
            }
            end = end.max(*at);
            *at = parts;
        }
        if parts == 1 {
            return self.place(&open, last);
        }
        let mut split: Vec<Vec<Open>> = vec![Vec::new(); parts as usize];
        for o in open {
            let part = self.reach[(span(&o).0 - from) as usize];
            split[part as usize - 1].push(o);
        }
        split.sort_by_key(Vec::len);
        for part in split {
            match self.place(&part, last) {
                Verdict::Placed => {}
                other => return other,
            }
        }
        Verdict::Placed
    }

    /// Places all of `open`, which is in the order of ranks and shares sections, above `last`.
    fn place(&mut self, open: &[Open], last: Option<(u64, u32)>) -> Verdict {
        self.nodes += 1;
        if self.nodes.is_multiple_of(BETWEEN_LOOKS) && self.interrupted() {
            return Verdict::Stopped;
        }
        let Some((heads, candidates)) = self.candidates(open, last) else {
            return Verdict::Impossible;
        };
        for at in candidates {
            let chosen = open[at as usize].item;
            let offset = heads[at as usize];
            self.offsets[chosen as usize] = offset;
            let top = offset + self.instance.items[chosen as usize].size;
            let mut rest = Vec::with_capacity(open.len() - 1);
            let (mut covered, mut fine) = (false, true);
            for o in open.iter().filter(|o| o.item != chosen) {
                let raised = self.raised(o.item, chosen, top);
                covered |= raised > 0;
                let head = o.head.max(raised);
                let fixed = self.instance.items[o.item as usize].fixed;
                fine &= fixed.is_none_or(|fixed| head <= fixed);
                rest.push(Open { item: o.item, head });
            }
            let verdict = match fine {
                true => self.parts(rest, Some((offset, self.rank[chosen as usize]))),
                false => Verdict::Impossible,
            };
            if verdict != Verdict::Impossible {
                return verdict;
            }
            if !covered {
                // Nothing lies on it, so that another choice here would help nobody.
                return Verdict::Impossible;
            }
        }
        Verdict::Impossible
    }

    fn interrupted(&self) -> bool {
        self.nodes > self.stop.nodes
            || self.stop.flags.iter().any(|f| f.load(Ordering::Relaxed))
            || self.stop.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// The offset above `top` that `item` gets when `below` ends there; 0 if they do not meet.
    fn raised(&self, item: u32, below: u32, top: u64) -> u64 {
        let (item, below) = (
            &self.instance.items[item as usize],
            &self.instance.items[below as usize],
        );
        if item.last() <= below.first() || below.last() <= item.first() {
            return 0;
        }
        if let ([_], [_]) = (&item.parts[..], &below.parts[..]) {
            return round_up(top, item.alignment);
        }
        let mut high = 0;
        let mut meet = false;
        for part in &item.parts {
            for other in &below.parts {
                if part.first < other.last && other.first < part.last {
                    meet = true;
                    high = high.max(top - below.size + other.hi);
                }
            }
        }
        if meet { round_up(high, item.alignment).max(1) } else { 0 }
    }

    /// Lower bounds of all offsets, and who may be next, in order; `None` if there is no plan.
    fn candidates(&mut self, open: &[Open], last: Option<(u64, u32)>) -> Option<(Vec<u64>, Vec<u32>)> {
        let items = &self.instance.items;
        let mut heads: Vec<u64> = open.iter().map(|o| o.head).collect();
        let rank = Rc::clone(&self.rank);
        let passed = |o: &Open| last.is_some_and(|last| (o.head, rank[o.item as usize]) < last);
        let mut lowest_top = u64::MAX;
        let mut any_passed = false;
        for o in open {
            lowest_top = lowest_top.min(o.head + items[o.item as usize].size);
            any_passed |= passed(o);
        }
        if any_passed {
            let bottom = last.map_or(0, |last| last.0);
            for (at, o) in open.iter().enumerate() {
                if !passed(o) {
                    continue;
                }
                let item = &items[o.item as usize];
                if item.fixed.is_some() {
                    return None;
                }
                let mut head = u64::MAX;
                for other in open {
                    let below = &items[other.item as usize];
                    if other.item != o.item
                        && item.first() < below.last()
                        && below.first() < item.last()
                    {
                        let least = below.parts.iter().map(|p| p.hi).min().unwrap_or(0);
                        head = head.min(other.head.max(bottom) + least);
                    }
                }
                if head == u64::MAX {
                    return None;
                }
                heads[at] = round_up(head, item.alignment);
            }
        }
        let mut by_head: Vec<u32> = (0..open.len() as u32).collect();
        by_head.sort_by_key(|&at| heads[at as usize]);
        if !self.fits(open, &heads, &by_head) {
            return None;
        }
        by_head.retain(|&at| {
            let o = &open[at as usize];
            !passed(o) && o.head < lowest_top
        });
        Some((heads, by_head))
    }

    /// Whether in each section, above every height, there is room for what cannot lie below it.
    fn fits(&mut self, open: &[Open], heads: &[u64], by_head: &[u32]) -> bool {
        let items = &self.instance.items;
        let mut fits = true;
        for &at in by_head.iter().rev() {
            let head = heads[at as usize];
            for part in &items[open[at as usize].item as usize].parts {
                let mut most = 0;
                for load in &mut self.load[part.first as usize..part.last as usize] {
                    *load += part.hi;
                    most = most.max(*load);
                }
                fits &= head + most <= self.capacity;
            }
            if !fits {
                break;
            }
        }
        for o in open {
            let item = &items[o.item as usize];
            self.load[item.first() as usize..item.last() as usize].fill(0);
        }
        fits
    }
}

pub(crate) fn orders(
    instance: &Instance,
    measures: &[crate::greedy::Measures],
) -> Vec<(String, Vec<u32>)> {
    ["TWA", "WAT", "TAW", "ZWT", "WTZ", "AWT"]
        .iter()
        .map(|name| {
            let mut v: Vec<u32> = (0..instance.items.len() as u32).collect();
            v.sort_by_cached_key(|&i| {
                let m = &measures[i as usize];
                let k: Vec<u128> = name
                    .chars()
                    .map(|c| match c {
                        'T' => m.contention.into(),
                        'W' => m.width.into(),
                        'A' => m.area,
                        _ => instance.items[i as usize].size.into(),
                    })
                    .collect();
                (std::cmp::Reverse(k), i)
            });
            ((*name).to_owned(), v)
        })
        .collect()
}
