//! Making a range for a request that fits nowhere: planning what to map, and where.
//!
//! A range is built from a *base*, free memory that ends where a strip of mappings ends, by adding
//! handles beyond that end: free ones, the free beginning of one that is partly in use, new ones.
//! On the left side of a strip it is the free end that counts. Or a range begins at a place of its
//! own, with nothing or with the free end of a handle. Every base is tried, and the cheapest plan
//! is taken; if none comes out with the memory there is, that which creates least.
//!
//! # Invariants
//!
//! 1. Planning changes nothing. What a plan needs is held from [`Backing::begin`] on, until it is
//!    settled or undone.
//! 2. No plan holds a byte twice: a handle that is in the base, or was added, is not added again.

use smallvec::SmallVec;

use super::bases::{Base, Site};
use super::place::Wanted;
use super::{Backing, Held, Kind};
use crate::mapping::{MappedPart, MappedParts};
use crate::order::{Ends, Order};
use crate::pages::{Handle, HandleSlot, Ladder, Pages};
use crate::space::Free;

/// What the calls cost, in nanoseconds, as far as choosing between plans goes: measured on an H200.
mod price {
    /// To map a handle that can be touched already at a further address.
    pub(super) const FURTHER: u64 = 25_000;
    /// To map one that is mapped nowhere.
    pub(super) const FIRST: u64 = 48_000;
    /// To create and map one. It costs 63 us, and is cheaper than that here: it will be of use for
    /// longer than a further mapping.
    pub(super) const CREATE: u64 = 38_000;
    /// The same in a pool that puts memory together again and again: less than a further mapping.
    pub(super) const CREATE_STRAINED: u64 = 5_000;
    /// A mebibyte of a free handle that the plan does not use.
    pub(super) const STRANDED: u64 = 1_000;
}

const MIB: u64 = 1 << 20;

/// Bytes; less of a handle's end is not worth a mapping.
const LEAST_PART: u64 = 64 << 10;

/// What a plan may use.
pub(crate) struct Terms<'a> {
    pub(crate) wanted: Wanted,
    /// Which free memory.
    pub(crate) usable: &'a dyn Fn(&Free<'_>) -> bool,
    pub(crate) pages: &'a Pages,
    pub(crate) ladder: Ladder,
    /// Bytes that may be created where that is the cheapest.
    pub(crate) budget: u64,
    /// Whether creating counts little: memory was put together too often lately.
    pub(crate) strained: bool,
    /// Bytes that may be created where nothing else serves.
    pub(crate) forced: u64,
}

/// What stands under a part of a built range, lowest first.
#[derive(Debug)]
pub(crate) enum Part {
    /// A new handle of so many bytes.
    Create(u64),
    /// A handle that there is.
    Map(Handle, HandleSlot),
}

/// A range that is being built, with all that it holds.
#[derive(Debug)]
pub(crate) struct Build {
    /// Where the block will be.
    pub(crate) block: u64,
    pub(crate) size: u64,
    /// Where the parts are mapped, one after the other.
    pub(crate) map_from: u64,
    pub(crate) map_to: u64,
    pub(crate) parts: Vec<Part>,
    /// Where the last uses of the memory ended.
    pub(crate) ends: Ends,
    held: Vec<Held>,
    /// The mappings that the base is reached through: they count as used, so that they stay.
    base: MappedParts,
}

impl Build {
    /// Bytes that have to be created.
    pub(crate) fn created(&self) -> u64 {
        let sizes = self.parts.iter().map(|part| match part {
            Part::Create(size) => *size,
            Part::Map(..) => 0,
        });
        sizes.sum()
    }
}

/// A handle that is added to a base: all of it, or as much of its end as is needed.
#[derive(Clone, Copy, Debug)]
enum Added {
    Existing { slot: HandleSlot, used: u64 },
    New(u64),
}

#[derive(Clone, Debug)]
struct Candidate {
    cost: u64,
    created: u64,
    base: usize,
    added: Vec<Added>,
}

/// What there is to build with.
struct Stock {
    bases: Vec<Base>,
    /// Wholly free handles by size.
    whole: Vec<(u64, HandleSlot)>,
    /// Free beginnings, and ends, of others by length.
    prefixes: Vec<(u64, HandleSlot)>,
    suffixes: Vec<(u64, HandleSlot)>,
}

/// What came of planning.
enum Choice {
    Plan(Candidate, Base),
    /// No gap between mappings is wide enough.
    NoAddresses,
    NoMemory,
}

/// Why nothing was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    Addresses,
    Memory,
}

impl Backing {
    /// Plans a range and holds all that it needs.
    pub(crate) fn begin(&mut self, terms: &Terms<'_>) -> Result<Build, Lack> {
        self.tell_aliases();
        match self.choose(terms) {
            Choice::Plan(candidate, base) => Ok(self.hold_plan(terms, &candidate, &base)),
            Choice::NoAddresses => Err(Lack::Addresses),
            Choice::NoMemory => Err(Lack::Memory),
        }
    }

    /// Whether there is a plan.
    pub(crate) fn can_build(&mut self, terms: &Terms<'_>) -> bool {
        self.tell_aliases();
        matches!(self.choose(terms), Choice::Plan(..))
    }

    /// The built range stands: its parts are mapped. Occupies the block. `handles` are the created
    /// ones, in the order of the parts.
    pub(crate) fn settle(&mut self, order: &Order, build: Build, created: &[Handle], fresh: &Ends) {
        self.let_go(order, build.held, &build.base);
        let mut created = created.iter();
        let mut at = build.map_from;
        for part in &build.parts {
            let (slot, size) = match part {
                Part::Map(handle, slot) => (*slot, handle.size),
                Part::Create(size) => match created.next() {
                    Some(&handle) => (self.add_handle(handle), *size),
                    None => break,
                },
            };
            self.attach(slot, at, fresh);
            at += size;
        }
        self.occupy(build.block, build.size);
    }

    /// The range came to nothing: what it held is as it was.
    pub(crate) fn undo(&mut self, order: &Order, build: Build) {
        self.reservations.unclaim(build.map_from, build.map_to);
        self.let_go(order, build.held, &build.base);
    }

    fn let_go(&mut self, order: &Order, held: Vec<Held>, base: &[MappedPart]) {
        for part in base {
            self.mappings.vacated(part, &Ends::default());
        }
        for held in held {
            self.unhold(order, held);
        }
    }

    fn choose(&self, terms: &Terms<'_>) -> Choice {
        let stock = self.stock(terms);
        let mut best: Option<Candidate> = None;
        let mut least: Option<Candidate> = None;
        for base in 0..stock.bases.len() {
            self.try_base(terms, &stock, base, &mut best, &mut least);
        }
        let least_created = least.as_ref().map(|least| least.created);
        let least = least.filter(|least| least.created <= terms.forced);
        match best.or(least) {
            Some(candidate) => {
                let base = stock.bases[candidate.base].clone();
                Choice::Plan(candidate, base)
            }
            None if least_created.is_none() => Choice::NoAddresses,
            None => Choice::NoMemory,
        }
    }

    /// Finds the cheapest way to complete a range from a base, and the one that creates least.
    fn try_base(
        &self,
        terms: &Terms<'_>,
        stock: &Stock,
        number: usize,
        best: &mut Option<Candidate>,
        least: &mut Option<Candidate>,
    ) {
        let base = &stock.bases[number];
        let downwards = matches!(base.site, Site::Below { .. });
        let partial = if downwards {
            &stock.suffixes
        } else {
            &stock.prefixes
        };
        let mut added: Vec<Added> = Vec::new();
        let mut taken = Taken::default();
        for &slot in &base.slots {
            taken.take(slot);
        }
        let mut rest = terms.wanted.size - base.bytes;
        let mut room = base.room;
        let mut cost = match base.site {
            Site::Apart { suffix: Some(slot) } => {
                room = room.saturating_sub(self.handle(slot).size);
                price::FURTHER
            }
            _ => 0,
        };
        loop {
            if best.as_ref().is_some_and(|best| best.cost <= cost) {
                return;
            }
            let free_slot = |slot: &HandleSlot| !taken.holds(*slot);
            let mut close = |more: u64, created: u64, last: &[Added]| {
                let cost = cost + more;
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    let mut added = added.clone();
                    added.extend_from_slice(last);
                    *best = Some(Candidate {
                        cost,
                        created,
                        base: number,
                        added,
                    });
                }
            };
            // The rest may be nothing but a part of a handle that is free at its end.
            if let Some(&(_, slot)) = at_least(partial, rest, free_slot)
                && self.handle(slot).size <= room
            {
                close(price::FURTHER, 0, &[Added::Existing { slot, used: rest }]);
            }
            if let Some(&(size, slot)) = at_least(&stock.whole, rest, free_slot)
                && size <= room
            {
                let stranded = (size - rest) / MIB * price::STRANDED;
                let mapping = self.price_of_mapping(slot);
                close(
                    mapping + stranded,
                    0,
                    &[Added::Existing { slot, used: rest }],
                );
            }
            // As many bytes as are missing are created at least.
            let least_created = least.as_ref().map_or(u64::MAX, |least| least.created);
            if rest <= terms.budget.max(least_created).min(room) {
                let sizes = terms.pages.ladder(&terms.ladder, rest, terms.wanted.size);
                let created: u64 = sizes.iter().sum();
                let new: Vec<Added> = sizes.iter().map(|&size| Added::New(size)).collect();
                if created <= room && created <= terms.budget {
                    let price = if terms.strained {
                        price::CREATE_STRAINED
                    } else {
                        price::CREATE
                    };
                    close(price * sizes.len() as u64, created, &new);
                }
                if created <= room
                    && least
                        .as_ref()
                        .is_none_or(|least| (created, cost) < (least.created, least.cost))
                {
                    let mut added = added.clone();
                    added.extend_from_slice(&new);
                    *least = Some(Candidate {
                        cost,
                        created,
                        base: number,
                        added,
                    });
                }
            }
            let Some(&(size, slot)) = at_most(&stock.whole, rest, free_slot) else {
                return;
            };
            if size > room {
                return;
            }
            added.push(Added::Existing { slot, used: size });
            taken.take(slot);
            cost += self.price_of_mapping(slot);
            rest -= size;
            room -= size;
            if rest == 0 {
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    *best = Some(Candidate {
                        cost,
                        created: 0,
                        base: number,
                        added,
                    });
                }
                return;
            }
        }
    }

    fn price_of_mapping(&self, slot: HandleSlot) -> u64 {
        if self.handles[slot.0].mappings() == 0 {
            price::FIRST
        } else {
            price::FURTHER
        }
    }

    fn stock(&self, terms: &Terms<'_>) -> Stock {
        let mut stock = Stock {
            bases: self.bases_at_strips(terms),
            whole: Vec::new(),
            prefixes: Vec::new(),
            suffixes: Vec::new(),
        };
        for (slot, record) in &self.handles {
            if record.kind == Kind::Plain || record.live == record.handle.size {
                continue;
            }
            let slot = HandleSlot(slot);
            let size = record.handle.size;
            if record.mappings() == 0 {
                if record.live == 0 {
                    stock.whole.push((size, slot));
                }
                continue;
            }
            let prefix = record.pieces.reach_from_start(terms.usable);
            if prefix == size {
                stock.whole.push((size, slot));
                continue;
            }
            if prefix >= LEAST_PART {
                stock.prefixes.push((prefix, slot));
            }
            let suffix = size - record.pieces.reach_from_end(size, terms.usable);
            if suffix >= LEAST_PART {
                stock.suffixes.push((suffix, slot));
            }
        }
        for list in [&mut stock.whole, &mut stock.prefixes, &mut stock.suffixes] {
            list.sort_unstable();
        }
        let apart = self.bases_apart(terms, &stock.suffixes);
        stock.bases.extend(apart);
        stock
    }

    /// Holds what a plan needs, and settles where its parts go.
    fn hold_plan(&mut self, terms: &Terms<'_>, candidate: &Candidate, base: &Base) -> Build {
        let size = terms.wanted.size;
        let downwards = matches!(base.site, Site::Below { .. });
        let mut held: Vec<Held> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let in_place = match base.site {
            Site::Above { end } => Some((end - base.bytes, end)),
            Site::Below { start } => Some((start, start + base.bytes)),
            Site::Apart { .. } => None,
        };
        let mut in_base = MappedParts::new();
        if let Some((from, to)) = in_place {
            in_base = self.mappings.parts(from, to).collect();
            for part in &in_base {
                self.mappings.occupied(part);
                held.push(self.hold(part.slot, part.offset, part.length));
            }
        }
        if let Site::Apart { suffix: Some(slot) } = base.site {
            let handle = self.handle(slot);
            held.push(self.hold(slot, handle.size - base.bytes, base.bytes));
            parts.push(Part::Map(handle, slot));
        }
        for added in &candidate.added {
            parts.push(match *added {
                Added::New(size) => Part::Create(size),
                Added::Existing { slot, used } => {
                    let handle = self.handle(slot);
                    let offset = if downwards { handle.size - used } else { 0 };
                    held.push(self.hold(slot, offset, used));
                    Part::Map(handle, slot)
                }
            });
        }
        let mapped: u64 = parts.iter().map(Part::size).sum();
        let (map_from, block) = match base.site {
            Site::Above { end } => (end, end - base.bytes),
            Site::Below { start } => (start - mapped, start + base.bytes - size),
            Site::Apart { suffix } => {
                let alignment = terms.wanted.alignment.max(terms.pages.granularity());
                // The base's room was that of the widest gap, which is where this is.
                let site = self.reservations.site(mapped, alignment).unwrap_or(0);
                let before = suffix.map_or(0, |slot| self.handle(slot).size - base.bytes);
                (site, site + before)
            }
        };
        if downwards {
            parts.reverse();
        }
        self.reservations.claim(map_from, map_from + mapped);
        let mut ends = Ends::default();
        for part in held.iter().flat_map(|held| &held.parts) {
            ends.merge(&part.ends);
        }
        Build {
            block,
            size,
            map_from,
            map_to: map_from + mapped,
            parts,
            ends,
            held,
            base: in_base,
        }
    }
}

impl Part {
    fn size(&self) -> u64 {
        match self {
            Part::Create(size) => *size,
            Part::Map(handle, _) => handle.size,
        }
    }
}

/// Handles that a plan has already, as bits.
#[derive(Default)]
struct Taken(SmallVec<[u64; 16]>);

impl Taken {
    fn take(&mut self, slot: HandleSlot) {
        let word = slot.0 / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (slot.0 % 64);
    }

    fn holds(&self, slot: HandleSlot) -> bool {
        let word = self.0.get(slot.0 / 64);
        word.is_some_and(|word| word & (1 << (slot.0 % 64)) != 0)
    }
}

/// The smallest entry of at least `size`.
fn at_least(
    sorted: &[(u64, HandleSlot)],
    size: u64,
    free: impl Fn(&HandleSlot) -> bool,
) -> Option<&(u64, HandleSlot)> {
    let from = sorted.partition_point(|entry| entry.0 < size);
    sorted[from..].iter().find(|entry| free(&entry.1))
}

/// The largest entry of at most `size`.
fn at_most(
    sorted: &[(u64, HandleSlot)],
    size: u64,
    free: impl Fn(&HandleSlot) -> bool,
) -> Option<&(u64, HandleSlot)> {
    let to = sorted.partition_point(|entry| entry.0 <= size);
    sorted[..to].iter().rev().find(|entry| free(&entry.1))
}
