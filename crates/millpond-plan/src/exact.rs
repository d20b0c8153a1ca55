//! Exact search: is there a plan below a given capacity?
//!
//! Only plans in which nothing can be moved to a lower place are looked at; every plan can be
//! brought to that. In such a plan, let `i` be the open item whose top is lowest where it could be placed
//! now, at `head`. Either it lies there, or another item that meets it (shares a section) lies
//! below that top; and that one lies at its own head, because nothing open fits under it. So it
//! is enough to branch on `i` and its *rivals*: the items that meet it and could be placed below
//! its top. This holds for every `i` whose top is lowest among the items that meet those that it meets,
//! so that the search can choose where to go on: where there is no choice, and else by its strategy.
//!
//! What has been tried in one branch is *asleep* in the next: it will not lie at that head, until
//! something is placed under it. What is open and shares no section falls apart into independent
//! searches. In each section, who can be the lowest there and still leave room for the rest
//! raises the lower bounds of the others (`raise`), and above every height there must be room for what cannot
//! lie below it (`fits`).
//!
//! # Invariants
//! - `head` of an open item is where it rests on what is placed: the offset that it gets when it is
//!   placed next.
//! - Every part of every item has all of the item's bytes.
//! - The live bytes of each section are within the capacity.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::instance::{Instance, Item, Part, round_up};

/// How often bounds are raised at one node: the first times bring most.
const ROUNDS: usize = 4;
const NOBODY: u32 = u32::MAX;

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

/// Where to go on when several places are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Where something can lie lowest.
    Lowest,
    /// Where the item is that comes first in the order.
    Foremost,
}

/// What to try first in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// What can lie lowest.
    Lowest,
    /// What comes first in the order.
    Foremost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strategy {
    pub(crate) place: Place,
    pub(crate) first: First,
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
    /// Where it rests on what is placed.
    head: u64,
    /// It will not lie there: the plans in which it does have been looked at.
    asleep: bool,
}

/// What decides between places, the smallest first.
type Preference = (u64, u64, u64, u64);

struct Search<'a> {
    instance: &'a Instance,
    capacity: u64,
    strategy: Strategy,
    stop: Stop<'a>,
    nodes: u64,
    /// The item before it among those that are alike, or `NOBODY`.
    twin: Vec<u32>,
    placed: Vec<bool>,
    /// The items that share a section with an item, itself included.
    near: Vec<Vec<u32>>,
    /// Where an item is in the list of those that are open.
    at: Vec<u32>,
    offsets: Vec<u64>,
    /// Scratch: bytes of items in each section; zeros between uses.
    load: Vec<u64>,
    /// Scratch: the highest offset at which the lowest of a section may lie.
    latest: Vec<u64>,
    /// Scratch: the lowest place where the lowest of a section can end.
    firsts: Vec<u64>,
    /// Scratch: how far items reach that begin in a section, then which part the section is of.
    reach: Vec<u32>,
}

/// Looks for a plan with a peak of at most `capacity`, candidates at one height in `order`.
pub(crate) fn search(
    instance: &Instance,
    order: &[u32],
    strategy: Strategy,
    capacity: u64,
    stop: Stop<'_>,
) -> Outcome {
    // Items that are alike are placed in their order.
    let mut twin = vec![NOBODY; order.len()];
    let mut seen = HashMap::new();
    for &index in order {
        let item = &instance.items[index as usize];
        if item.fixed.is_none() {
            let alike = (&item.parts, item.alignment);
            twin[index as usize] = seen.insert(alike, index).unwrap_or(NOBODY);
        }
    }
    let mut search = Search {
        instance,
        capacity,
        stop,
        nodes: 0,
        twin,
        placed: vec![false; instance.items.len()],
        near: near(instance),
        strategy,
        at: vec![0; instance.items.len()],
        offsets: vec![0; instance.items.len()],
        load: vec![0; instance.sections],
        latest: vec![0; instance.sections],
        firsts: vec![0; instance.sections],
        reach: Vec::new(),
    };
    let open: Vec<Open> = order
        .iter()
        .map(|&item| Open {
            item,
            head: instance.items[item as usize].fixed.unwrap_or(0),
            asleep: false,
        })
        .collect();
    let verdict = search.parts(open);
    match verdict {
        Verdict::Placed => Outcome::Found(search.offsets),
        Verdict::Impossible => Outcome::None,
        Verdict::Stopped => Outcome::Stopped,
    }
}

impl Search<'_> {
    /// Splits what is open where nothing spans a time, and places each part.
    fn parts(&mut self, open: Vec<Open>) -> Verdict {
        if open.is_empty() {
            return Verdict::Placed;
        }
        let items = &self.instance.items;
        let span = |o: &Open| {
            (
                items[o.item as usize].first(),
                items[o.item as usize].last(),
            )
        };
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
            return self.place(&open);
        }
        let mut split: Vec<Vec<Open>> = vec![Vec::new(); parts as usize];
        for o in open {
            let part = self.reach[(span(&o).0 - from) as usize];
            split[part as usize - 1].push(o);
        }
        split.sort_by_key(Vec::len);
        for done in 0..split.len() {
            let verdict = self.place(&split[done]);
            if verdict != Verdict::Placed {
                for o in split[..done].iter().flatten() {
                    self.placed[o.item as usize] = false;
                }
                return verdict;
            }
        }
        Verdict::Placed
    }

    /// Places all of `open`, which share sections.
    fn place(&mut self, open: &[Open]) -> Verdict {
        self.nodes += 1;
        if self.nodes.is_multiple_of(BETWEEN_LOOKS) && self.interrupted() {
            return Verdict::Stopped;
        }
        let Some(choices) = self.choices(open) else {
            return Verdict::Impossible;
        };
        let mut tried: Vec<u32> = Vec::new();
        for at in choices {
            let Open {
                item: chosen,
                head: offset,
                ..
            } = open[at as usize];
            let below = &self.instance.items[chosen as usize];
            let top = offset + below.size;
            let mut rest = Vec::with_capacity(open.len() - 1);
            let mut fine = true;
            for (other, o) in open.iter().enumerate().filter(|(_, o)| o.item != chosen) {
                let item = &self.instance.items[o.item as usize];
                let mut next = *o;
                next.asleep |= tried.contains(&(other as u32));
                if meet(item, below) {
                    let head = round_up(top, item.alignment);
                    if head > next.head {
                        next.head = head;
                        next.asleep = false;
                        fine &= item.fixed.is_none();
                    }
                }
                rest.push(next);
            }
            self.offsets[chosen as usize] = offset;
            self.placed[chosen as usize] = true;
            let verdict = match fine {
                true => self.parts(rest),
                false => Verdict::Impossible,
            };
            if verdict != Verdict::Impossible {
                return verdict;
            }
            self.placed[chosen as usize] = false;
            tried.push(at);
        }
        Verdict::Impossible
    }

    fn interrupted(&self) -> bool {
        self.nodes > self.stop.nodes
            || self.stop.flags.iter().any(|f| f.load(Ordering::Relaxed))
            || self.stop.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// Who may be next, in order; `None` if there is no plan.
    fn choices(&mut self, open: &[Open]) -> Option<Vec<u32>> {
        let items = &self.instance.items;
        let item_of = |o: &Open| &items[o.item as usize];
        for (at, o) in open.iter().enumerate() {
            self.at[o.item as usize] = at as u32;
        }
        // Lower bounds of the offsets: what sleeps will lie on something that is still open.
        let mut heads: Vec<u64> = open.iter().map(|o| o.head).collect();
        for (at, o) in open.iter().enumerate().filter(|(_, o)| o.asleep) {
            let item = item_of(o);
            let near = self.near[o.item as usize].iter();
            let under = near.filter(|&&n| !self.placed[n as usize] && n != o.item);
            let under = under.map(|&n| &open[self.at[n as usize] as usize]);
            let head = under.map(|u| u.head + item_of(u).size).min()?;
            heads[at] = round_up(head, item.alignment);
        }
        if !self.raise(open, &mut heads) {
            return None;
        }
        // The lowest top of what shares a section, and of what shares one with that.
        let tops = |at: usize| heads[at] + item_of(&open[at]).size;
        let first_tops: Vec<u64> = (0..open.len()).map(tops).collect();
        let near = self.lowest_near(open, &first_tops);
        let near = self.lowest_near(open, &near);
        let mut best: Option<(Preference, u64, usize)> = None;
        for (at, o) in open.iter().enumerate() {
            let top = o.head + item_of(o).size;
            if top > near[at] {
                continue;
            }
            let (mut count, mut lead) = (0_u64, (u64::MAX, u32::MAX));
            for rival in self.rivals(open, &heads, o, top) {
                count += 1;
                lead = lead.min((open[rival as usize].head, rival));
            }
            if count == 0 {
                return None;
            }
            let choice = u64::from(count > 1);
            let rank = u64::from(lead.1);
            let key = match self.strategy.place {
                Place::Lowest => (choice, lead.0, rank, top),
                Place::Foremost => (choice, rank, lead.0, count),
            };
            if best.is_none_or(|best| (key, top, at) < best) {
                best = Some((key, top, at));
            }
        }
        let (_, top, at) = best?;
        let mut choices: Vec<u32> = self.rivals(open, &heads, &open[at], top).collect();
        match self.strategy.first {
            First::Lowest => choices.sort_unstable_by_key(|&at| (open[at as usize].head, at)),
            First::Foremost => choices.sort_unstable(),
        }
        Some(choices)
    }

    /// What may be placed below `top` where `o` is, itself included.
    fn rivals<'s>(
        &'s self,
        open: &'s [Open],
        heads: &'s [u64],
        o: &Open,
        top: u64,
    ) -> impl Iterator<Item = u32> + 's {
        let fixed = self.instance.items[o.item as usize]
            .fixed
            .is_some()
            .then_some(o.item);
        let near = self.near[o.item as usize]
            .iter()
            .filter(|&&item| !self.placed[item as usize]);
        near.filter_map(move |&item| {
            let at = self.at[item as usize];
            let rival = &open[at as usize];
            let twin = self.twin[item as usize];
            let free = rival.head < top && !rival.asleep && heads[at as usize] == rival.head;
            let first = twin == NOBODY || self.placed[twin as usize];
            (free && first && fixed.is_none_or(|f| f == item)).then_some(at)
        })
    }

    /// For each open item the lowest of `numbers` of those that it shares a section with.
    fn lowest_near(&mut self, open: &[Open], numbers: &[u64]) -> Vec<u64> {
        let items = &self.instance.items;
        for o in open {
            let item = &items[o.item as usize];
            self.load[item.first() as usize..item.last() as usize].fill(u64::MAX);
        }
        for (o, &number) in open.iter().zip(numbers) {
            for part in &items[o.item as usize].parts {
                for least in &mut self.load[part.first as usize..part.last as usize] {
                    *least = number.min(*least);
                }
            }
        }
        let lowest = open.iter().map(|o| {
            let parts = &items[o.item as usize].parts;
            let sections = parts
                .iter()
                .flat_map(|p| &self.load[p.first as usize..p.last as usize]);
            sections.min().copied().unwrap_or(0)
        });
        let lowest = lowest.collect();
        for o in open {
            let item = &items[o.item as usize];
            self.load[item.first() as usize..item.last() as usize].fill(0);
        }
        lowest
    }

    /// Raises lower bounds of offsets by what each section says about who can be its lowest;
    /// `false` if there is no plan.
    fn raise(&mut self, open: &[Open], heads: &mut [u64]) -> bool {
        let items = &self.instance.items;
        let from = open
            .iter()
            .map(|o| items[o.item as usize].first())
            .min()
            .unwrap_or(0) as usize;
        let to = open
            .iter()
            .map(|o| items[o.item as usize].last())
            .max()
            .unwrap_or(0) as usize;
        let parts = |o: &Open| {
            items[o.item as usize]
                .parts
                .iter()
                .map(|p| p.first as usize..p.last as usize)
        };
        let latest = &mut self.latest;
        latest[from..to].fill(self.capacity);
        for o in open {
            let size = items[o.item as usize].size;
            for range in parts(o) {
                for l in &mut latest[range] {
                    *l = l.wrapping_sub(size);
                }
            }
        }
        for round in 0..ROUNDS {
            let firsts = &mut self.firsts;
            firsts[from..to].fill(u64::MAX);
            for (o, &head) in open.iter().zip(&*heads) {
                let top = head + items[o.item as usize].size;
                for range in parts(o) {
                    for (first, &latest) in firsts[range.clone()].iter_mut().zip(&latest[range]) {
                        *first = if head <= latest {
                            top.min(*first)
                        } else {
                            *first
                        };
                    }
                }
            }
            let mut changed = false;
            for (o, head) in open.iter().zip(heads.iter_mut()) {
                let item = &items[o.item as usize];
                let mut high = *head;
                for range in parts(o) {
                    for (&first, &latest) in firsts[range.clone()].iter().zip(&latest[range]) {
                        high = if *head > latest {
                            first.max(high)
                        } else {
                            high
                        };
                    }
                }
                if high > *head {
                    if high > self.capacity - item.size || item.fixed.is_some() {
                        return false;
                    }
                    *head = round_up(high, item.alignment);
                    changed = true;
                }
            }
            if !changed || round + 1 == ROUNDS {
                break;
            }
        }
        self.fits(open, heads)
    }

    /// Whether in each section, above every height, there is room for what cannot lie below it.
    fn fits(&mut self, open: &[Open], heads: &[u64]) -> bool {
        let items = &self.instance.items;
        let mut by_head: Vec<u32> = (0..open.len() as u32).collect();
        by_head.sort_unstable_by_key(|&at| heads[at as usize]);
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

/// For each item those that share a section with it, itself included.
pub(crate) fn near(instance: &Instance) -> Vec<Vec<u32>> {
    let items = &instance.items;
    let mut by_first: Vec<u32> = (0..items.len() as u32).collect();
    by_first.sort_by_key(|&i| items[i as usize].first());
    let mut near: Vec<Vec<u32>> = (0..items.len() as u32).map(|i| vec![i]).collect();
    let mut live: Vec<u32> = Vec::new();
    for i in by_first {
        let item = &items[i as usize];
        live.retain(|&l| items[l as usize].last() > item.first());
        for &other in &live {
            if meet(item, &items[other as usize]) {
                near[i as usize].push(other);
                near[other as usize].push(i);
            }
        }
        live.push(i);
    }
    near
}

/// Whether two items share a section.
fn meet(a: &Item, b: &Item) -> bool {
    let apart = a.last() <= b.first() || b.last() <= a.first();
    if apart || (a.parts.len() == 1 && b.parts.len() == 1) {
        return !apart;
    }
    let meets = |part: &Part| {
        b.parts
            .iter()
            .any(|o| part.first < o.last && o.first < part.last)
    };
    a.parts.iter().any(meets)
}
