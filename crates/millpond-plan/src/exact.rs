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
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::instance::{Instance, Item, Part};
use crate::unit::Unit;

/// How often bounds are raised at one node: the first times bring most.
const ROUNDS: usize = 2;
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
struct Open<N> {
    item: u32,
    /// Where it rests on what is placed.
    head: N,
    /// It will not lie there: the plans in which it does have been looked at.
    asleep: bool,
}

/// What decides between places, the smallest first.
type Preference<N> = (bool, N, u32, N);

/// The items and the state of the search; bytes are counted in the instance's grain.
struct Search<'a, N> {
    size: Vec<N>,
    alignment: Vec<N>,
    fixed: Vec<bool>,
    /// The sections of each item: where its parts are in `parts`.
    ranges: Vec<Range<usize>>,
    parts: Vec<Range<usize>>,
    /// The items that share a section with an item, itself included.
    near: Vec<Vec<u32>>,
    /// The item before it among those that are alike, or `NOBODY`.
    twin: Vec<u32>,
    capacity: N,
    strategy: Strategy,
    stop: Stop<'a>,
    nodes: u64,
    offsets: Vec<N>,
    placed: Vec<bool>,
    /// Where an item is in the list of those that are open.
    at: Vec<u32>,
    /// The highest offset at which the lowest open item of a section may lie: what is open there fits above it.
    latest: Vec<N>,
    /// Scratch: the lowest place where the lowest of a section can end.
    firsts: Vec<N>,
    /// Scratch: numbers of sections.
    load: Vec<N>,
    /// Scratch: how far items reach that begin in a section, then which part the section is of.
    reach: Vec<u32>,
}

/// Looks for a plan with a peak of at most `capacity`, which is at least the lower bound; `order` is
/// what comes first.
pub(crate) fn search(
    instance: &Instance,
    order: &[u32],
    strategy: Strategy,
    capacity: u64,
    stop: Stop<'_>,
) -> Outcome {
    let grain = instance.grain();
    // Small numbers are searched faster: more of them fit into one operation of the processor.
    let units = instance
        .items
        .iter()
        .map(|i| i.size / grain + i.alignment)
        .sum::<u64>();
    if units.max(capacity / grain) < 1 << 29 {
        search_in::<i32>(instance, order, strategy, capacity, grain, stop)
    } else {
        search_in::<i64>(instance, order, strategy, capacity, grain, stop)
    }
}

fn search_in<N: Unit>(
    instance: &Instance,
    order: &[u32],
    strategy: Strategy,
    capacity: u64,
    grain: u64,
    stop: Stop<'_>,
) -> Outcome {
    let items = &instance.items;
    let mut parts = Vec::new();
    let mut ranges = Vec::with_capacity(items.len());
    for item in items {
        let from = parts.len();
        parts.extend(item.parts.iter().map(|p| p.first as usize..p.last as usize));
        ranges.push(from..parts.len());
    }
    let mut search = Search {
        size: items.iter().map(|i| N::of(i.size / grain)).collect(),
        alignment: items
            .iter()
            .map(|i| N::of((i.alignment / grain).max(1)))
            .collect(),
        fixed: items.iter().map(|i| i.fixed.is_some()).collect(),
        ranges,
        parts,
        near: near(instance),
        twin: twins(instance, order),
        capacity: N::of(capacity / grain),
        strategy,
        stop,
        nodes: 0,
        offsets: vec![N::ZERO; items.len()],
        placed: vec![false; items.len()],
        at: vec![0; items.len()],
        latest: vec![N::of(capacity / grain); instance.sections],
        firsts: vec![N::ZERO; instance.sections],
        load: vec![N::ZERO; instance.sections],
        reach: Vec::new(),
    };
    for item in 0..items.len() as u32 {
        search.reserve(item, true);
    }
    let open = order.iter().map(|&item| Open {
        item,
        head: N::of(items[item as usize].fixed.unwrap_or(0) / grain),
        asleep: false,
    });
    match search.split(open.collect()) {
        Verdict::Placed => Outcome::Found(search.offsets.iter().map(|o| o.get() * grain).collect()),
        Verdict::Impossible => Outcome::None,
        Verdict::Stopped => Outcome::Stopped,
    }
}

impl<N: Unit> Search<'_, N> {
    fn span(&self, item: u32) -> Range<usize> {
        let parts = &self.parts[self.ranges[item as usize].clone()];
        parts[0].start..parts[parts.len() - 1].end
    }

    /// An item is open, or no longer so.
    fn reserve(&mut self, item: u32, open: bool) {
        let size = self.size[item as usize];
        for part in &self.parts[self.ranges[item as usize].clone()] {
            for latest in &mut self.latest[part.clone()] {
                *latest = if open { *latest - size } else { *latest + size };
            }
        }
        self.placed[item as usize] = !open;
    }

    /// Splits what is open where nothing spans a time, and places each part.
    fn split(&mut self, open: Vec<Open<N>>) -> Verdict {
        if open.is_empty() {
            return Verdict::Placed;
        }
        let from = open
            .iter()
            .map(|o| self.span(o.item).start)
            .min()
            .unwrap_or(0);
        let to = open
            .iter()
            .map(|o| self.span(o.item).end)
            .max()
            .unwrap_or(0);
        self.reach.clear();
        self.reach.resize(to - from, 0);
        for o in &open {
            let span = self.span(o.item);
            let at = &mut self.reach[span.start - from];
            *at = (*at).max((span.end - from) as u32);
        }
        let (mut count, mut end) = (0, 0);
        for (section, at) in self.reach.iter_mut().enumerate() {
            if *at > 0 && section as u32 >= end {
                count += 1;
            }
            end = end.max(*at);
            *at = count;
        }
        if count == 1 {
            return self.place(&open);
        }
        let mut split: Vec<Vec<Open<N>>> = vec![Vec::new(); count as usize];
        for o in open {
            let part = self.reach[self.span(o.item).start - from];
            split[part as usize - 1].push(o);
        }
        split.sort_by_key(Vec::len);
        for done in 0..split.len() {
            let verdict = self.place(&split[done]);
            if verdict != Verdict::Placed {
                for o in split[..done].iter().flatten() {
                    self.reserve(o.item, true);
                }
                return verdict;
            }
        }
        Verdict::Placed
    }

    /// Places all of `open`, which share sections.
    fn place(&mut self, open: &[Open<N>]) -> Verdict {
        self.nodes += 1;
        if self.nodes > self.stop.nodes
            || (self.nodes.is_multiple_of(BETWEEN_LOOKS) && self.interrupted())
        {
            return Verdict::Stopped;
        }
        let Some(choices) = self.choices(open) else {
            return Verdict::Impossible;
        };
        for (tried, &at) in choices.iter().enumerate() {
            let at = at as usize;
            let Open {
                item: chosen,
                head: offset,
                ..
            } = open[at];
            let mut rest = Vec::with_capacity(open.len() - 1);
            rest.extend_from_slice(&open[..at]);
            rest.extend_from_slice(&open[at + 1..]);
            for &before in &choices[..tried] {
                let before = before as usize;
                rest[before - usize::from(before > at)].asleep = true;
            }
            // Deeper nodes have moved what is open; here it is as in this list.
            if tried > 0 {
                self.number(open);
            }
            let top = offset + self.size[chosen as usize];
            let mut fine = true;
            for &near in &self.near[chosen as usize] {
                if near == chosen || self.placed[near as usize] {
                    continue;
                }
                let was = self.at[near as usize] as usize;
                let next = &mut rest[was - usize::from(was > at)];
                let head = top.round_up(self.alignment[near as usize]);
                if head > next.head {
                    next.head = head;
                    next.asleep = false;
                    fine &= !self.fixed[near as usize];
                }
            }
            self.offsets[chosen as usize] = offset;
            self.reserve(chosen, false);
            let verdict = if fine {
                self.split(rest)
            } else {
                Verdict::Impossible
            };
            if verdict != Verdict::Impossible {
                return verdict;
            }
            self.reserve(chosen, true);
        }
        Verdict::Impossible
    }

    fn interrupted(&self) -> bool {
        self.stop.flags.iter().any(|f| f.load(Ordering::Relaxed))
            || self.stop.deadline.is_some_and(|d| Instant::now() >= d)
    }

    fn number(&mut self, open: &[Open<N>]) {
        for (at, o) in open.iter().enumerate() {
            self.at[o.item as usize] = at as u32;
        }
    }

    /// Who may be next, in order; `None` if there is no plan.
    fn choices(&mut self, open: &[Open<N>]) -> Option<Vec<u32>> {
        self.number(open);
        // Lower bounds of the offsets: what sleeps will lie on something that is still open.
        let mut heads: Vec<N> = open.iter().map(|o| o.head).collect();
        for (at, o) in open.iter().enumerate().filter(|(_, o)| o.asleep) {
            let near = self.near[o.item as usize].iter();
            let under = near.filter(|&&n| !self.placed[n as usize] && n != o.item);
            let tops =
                under.map(|&n| open[self.at[n as usize] as usize].head + self.size[n as usize]);
            heads[at] = tops.min()?.round_up(self.alignment[o.item as usize]);
        }
        if !self.raise(open, &mut heads) || !self.fits(open, &heads) {
            return None;
        }
        // The lowest top of what shares a section, and of what shares one with that.
        let tops = open
            .iter()
            .zip(&heads)
            .map(|(o, &head)| head + self.size[o.item as usize]);
        let tops: Vec<N> = tops.collect();
        let near = self.lowest_near(open, &tops);
        let near = self.lowest_near(open, &near);
        let mut best: Option<(Preference<N>, usize)> = None;
        for (at, o) in open.iter().enumerate() {
            let top = o.head + self.size[o.item as usize];
            if top > near[at] {
                continue;
            }
            let (mut count, mut lead) = (0, (N::MAX, u32::MAX));
            for rival in self.rivals(open, &heads, o, top) {
                count += 1;
                lead = lead.min((open[rival as usize].head, rival));
            }
            if count == 0 {
                return None;
            }
            let choice = count > 1;
            let key = match self.strategy.place {
                Place::Lowest => (choice, lead.0, lead.1, top),
                Place::Foremost => (choice, N::of(u64::from(lead.1)), 0, lead.0),
            };
            if best.is_none_or(|best| (key, at) < best) {
                best = Some((key, at));
            }
        }
        let (_, at) = best?;
        let top = open[at].head + self.size[open[at].item as usize];
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
        open: &'s [Open<N>],
        heads: &'s [N],
        o: &Open<N>,
        top: N,
    ) -> impl Iterator<Item = u32> + 's {
        let only = self.fixed[o.item as usize].then_some(o.item);
        let near = self.near[o.item as usize]
            .iter()
            .filter(|&&item| !self.placed[item as usize]);
        near.filter_map(move |&item| {
            let at = self.at[item as usize];
            let rival = &open[at as usize];
            let free = rival.head < top && !rival.asleep && heads[at as usize] == rival.head;
            let twin = self.twin[item as usize];
            let first = twin == NOBODY || self.placed[twin as usize];
            (free && first && only.is_none_or(|only| only == item)).then_some(at)
        })
    }

    /// For each open item the lowest of `numbers` of those that it shares a section with.
    fn lowest_near(&mut self, open: &[Open<N>], numbers: &[N]) -> Vec<N> {
        let (from, to) = self.sections(open);
        self.load[from..to].fill(N::MAX);
        for (o, &number) in open.iter().zip(numbers) {
            for part in &self.parts[self.ranges[o.item as usize].clone()] {
                for least in &mut self.load[part.clone()] {
                    *least = number.min(*least);
                }
            }
        }
        let lowest = open.iter().map(|o| {
            let parts = &self.parts[self.ranges[o.item as usize].clone()];
            parts.iter().fold(N::MAX, |low, part| {
                self.load[part.clone()]
                    .iter()
                    .fold(low, |low, &n| low.min(n))
            })
        });
        lowest.collect()
    }

    /// The first section of what is open, and the first after it.
    fn sections(&self, open: &[Open<N>]) -> (usize, usize) {
        open.iter().fold((usize::MAX, 0), |(from, to), o| {
            let span = self.span(o.item);
            (from.min(span.start), to.max(span.end))
        })
    }

    /// Raises lower bounds of offsets by what each section says about who can be its lowest;
    /// `false` if there is no plan.
    fn raise(&mut self, open: &[Open<N>], heads: &mut [N]) -> bool {
        let (from, to) = self.sections(open);
        for _ in 0..ROUNDS {
            self.firsts[from..to].fill(N::MAX);
            for (o, &head) in open.iter().zip(&*heads) {
                let top = head + self.size[o.item as usize];
                for part in &self.parts[self.ranges[o.item as usize].clone()] {
                    let sections = self.firsts[part.clone()].iter_mut();
                    for (first, &latest) in sections.zip(&self.latest[part.clone()]) {
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
                let was = *head;
                let mut high = was;
                for part in &self.parts[self.ranges[o.item as usize].clone()] {
                    let sections = self.firsts[part.clone()].iter();
                    for (&first, &latest) in sections.zip(&self.latest[part.clone()]) {
                        let least = if was > latest { first } else { was };
                        high = high.max(least);
                    }
                }
                if high > was {
                    let item = o.item as usize;
                    if high > self.capacity - self.size[item] || self.fixed[item] {
                        return false;
                    }
                    *head = high.round_up(self.alignment[item]);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        true
    }

    /// Whether in each section, above every height, there is room for what cannot lie below it.
    fn fits(&mut self, open: &[Open<N>], heads: &[N]) -> bool {
        let (from, to) = self.sections(open);
        let mut by_head: Vec<(N, u32)> =
            heads.iter().zip(open).map(|(&h, o)| (h, o.item)).collect();
        by_head.sort_unstable();
        self.load[from..to].fill(N::ZERO);
        for &(head, item) in by_head.iter().rev() {
            let size = self.size[item as usize];
            let mut most = N::ZERO;
            for part in &self.parts[self.ranges[item as usize].clone()] {
                for load in &mut self.load[part.clone()] {
                    *load = *load + size;
                    most = most.max(*load);
                }
            }
            if head + most > self.capacity {
                return false;
            }
        }
        true
    }
}

/// For each item the one before it in `order` among those that are alike: they are placed in
/// this order.
fn twins(instance: &Instance, order: &[u32]) -> Vec<u32> {
    let mut twins = vec![NOBODY; order.len()];
    let mut seen = HashMap::new();
    for &index in order {
        let item = &instance.items[index as usize];
        if item.fixed.is_none() {
            let alike = (&item.parts, item.alignment);
            twins[index as usize] = seen.insert(alike, index).unwrap_or(NOBODY);
        }
    }
    twins
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
