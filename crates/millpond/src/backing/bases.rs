//! Where a range can begin to be built: free memory at an end of a strip of mappings, the free end of
//! a handle at a place of its own, or nothing.
//!
//! # Invariants
//!
//! 1. A base holds no byte of a handle twice, and less than is wanted.
//! 2. Of each kind the longest are given, and few are looked at closely: how much is free at an end,
//!    whoever may use it, is known at once, and no base is longer.

use std::cmp::Reverse;

use smallvec::{SmallVec, smallvec};

use super::Backing;
use super::build::Terms;
use crate::mapping::MappedParts;
use crate::pages::HandleSlot;
use crate::space::align_up;

/// Bases of each kind that are tried.
const BASES: usize = 24;
const SUFFIXES: usize = 8;

/// Ends of strips that are put in order at first: most often these are enough.
const SORTED: usize = 4 * BASES;

/// Where a range begins to be built.
#[derive(Clone, Copy, Debug)]
pub(super) enum Site {
    /// On upwards from what is free below `end`.
    Above { end: u64 },
    /// Downwards from what is free above `start`.
    Below { start: u64 },
    /// At a place of its own, perhaps with the end of a handle.
    Apart { suffix: Option<HandleSlot> },
}

#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) site: Site,
    /// Bytes that are there already.
    pub(super) bytes: u64,
    /// Bytes of addresses that can be mapped.
    pub(super) room: u64,
    /// Handles that hold some of the bytes.
    pub(super) slots: SmallVec<[HandleSlot; 4]>,
}

impl Backing {
    /// The longest bases on either side of strips of mappings. Few are looked at closely: how
    /// much is free there, whoever may use it, is known at once.
    pub(super) fn bases_at_strips(&self, terms: &Terms<'_>) -> Vec<Base> {
        let strips = &self.mappings.strips;
        let mut upwards: Vec<(u64, usize)> = Vec::new();
        let mut downwards: Vec<(u64, usize)> = Vec::new();
        for place in 0..strips.len() {
            if !strips.touches_below(place) {
                let free = strips.free_above(place);
                downwards.extend((free > 0).then_some((free, place)));
            }
            if !strips.touches_below(place + 1) {
                upwards.push((strips.free_below(place), place));
            }
        }
        let mut bases = longest(terms, upwards, |place| self.base_below(terms, place));
        bases.append(&mut longest(terms, downwards, |place| {
            self.base_above(terms, place)
        }));
        bases
    }

    /// The lowest address from which on all may be used up to the end of a mapping.
    fn usable_below(&self, terms: &Terms<'_>, place: usize) -> u64 {
        let strips = &self.mappings.strips;
        let mut reached = 0;
        for (place, mapped) in strips.within(0..place + 1).iter().enumerate().rev() {
            let size = mapped.end - mapped.start;
            let free = self
                .pieces_of(mapped.key)
                .reach_from_end(size, terms.usable);
            reached = mapped.start + free;
            if free > 0 || !strips.is_joined(place) {
                break;
            }
        }
        reached
    }

    /// The highest address up to which all may be used from the start of a mapping.
    fn usable_above(&self, terms: &Terms<'_>, place: usize) -> u64 {
        let strips = &self.mappings.strips;
        let mut reached = 0;
        for (number, mapped) in strips.within(place..strips.len()).iter().enumerate() {
            if number > 0 && !strips.is_joined(place + number) {
                break;
            }
            let free = self.pieces_of(mapped.key).reach_from_start(terms.usable);
            reached = mapped.start + free;
            if reached < mapped.end {
                break;
            }
        }
        reached
    }

    /// What may be used below the end of a strip, at which a range can go on.
    fn base_below(&self, terms: &Terms<'_>, place: usize) -> Option<Base> {
        let end = self.mappings.strips.get(place)?.end;
        let room = self.reservations.room_above(end);
        if room == 0 {
            return None;
        }
        let start = self.usable_below(terms, place);
        let mut from = align_up(start, terms.wanted.alignment)?.min(end);
        // No handle twice: the part nearest to the end stays.
        let parts: MappedParts = self.mappings.parts(from, end).collect();
        let mut slots: SmallVec<[HandleSlot; 4]> = SmallVec::new();
        for part in parts.iter().rev() {
            if slots.contains(&part.slot) {
                from = align_up(part.end(), terms.wanted.alignment)?.min(end);
                break;
            }
            slots.push(part.slot);
        }
        if from == end && !end.is_multiple_of(terms.wanted.alignment) {
            return None;
        }
        let bytes = end - from;
        // As much as is wanted would have been found in place.
        (bytes < terms.wanted.size).then_some(Base {
            site: Site::Above { end },
            bytes,
            room,
            slots,
        })
    }

    /// What may be used above the start of a strip, before which a range can begin.
    fn base_above(&self, terms: &Terms<'_>, place: usize) -> Option<Base> {
        let start = self.mappings.strips.get(place)?.start;
        let room = self.reservations.room_below(start);
        if room == 0 {
            return None;
        }
        let mut to = self.usable_above(terms, place);
        let mut slots: SmallVec<[HandleSlot; 4]> = SmallVec::new();
        for part in self.mappings.parts(start, to) {
            if slots.contains(&part.slot) {
                to = part.start();
                break;
            }
            slots.push(part.slot);
        }
        let bytes = to - start;
        let block = to.checked_sub(terms.wanted.size)?;
        let fits = bytes > 0 && bytes < terms.wanted.size;
        (fits && block.is_multiple_of(terms.wanted.alignment)).then_some(Base {
            site: Site::Below { start },
            bytes,
            room,
            slots,
        })
    }

    /// Ranges of their own: with nothing, or with the longest of these free ends of handles.
    pub(super) fn bases_apart(
        &self,
        terms: &Terms<'_>,
        suffixes: &[(u64, HandleSlot)],
    ) -> Vec<Base> {
        // An alignment beyond the granularity may move the range up by as much.
        let padding = if terms.wanted.alignment > terms.pages.granularity() {
            terms.wanted.alignment
        } else {
            0
        };
        let room = self.reservations.widest().saturating_sub(padding);
        let mut bases = vec![Base {
            site: Site::Apart { suffix: None },
            bytes: 0,
            room,
            slots: SmallVec::new(),
        }];
        for &(length, slot) in suffixes.iter().rev().take(SUFFIXES) {
            // The block begins inside the handle, and has the alignment that it has there.
            let size = self.handle(slot).size;
            let Some(offset) = align_up(size - length, terms.wanted.alignment) else {
                continue;
            };
            let bytes = size.saturating_sub(offset);
            if bytes == 0 || bytes >= terms.wanted.size || size > room {
                continue;
            }
            bases.push(Base {
                site: Site::Apart { suffix: Some(slot) },
                bytes,
                room,
                slots: smallvec![slot],
            });
        }
        bases
    }
}

/// The longest bases, given how long they can be at most, by place.
fn longest(
    terms: &Terms<'_>,
    mut known: Vec<(u64, usize)>,
    base: impl Fn(usize) -> Option<Base>,
) -> Vec<Base> {
    let longest_first = |&(most, place): &(u64, usize)| (Reverse(most), place);
    let mut sorted = known.len().min(SORTED);
    if sorted < known.len() {
        known.select_nth_unstable_by_key(sorted, longest_first);
    }
    known[..sorted].sort_unstable_by_key(longest_first);
    let mut bases: Vec<(Reverse<u64>, usize, Base)> = Vec::new();
    for number in 0..known.len() {
        if number == sorted {
            known[sorted..].sort_unstable_by_key(longest_first);
            sorted = known.len();
        }
        let (most, place) = known[number];
        if bases.len() >= BASES && bases[BASES - 1].0.0 >= most {
            break;
        }
        let found = base(place).filter(|base| base.room >= terms.pages.granularity());
        let Some(found) = found else { continue };
        // Of equal ones the lowest comes first.
        let rank = (Reverse(found.bytes), place);
        let at = bases.partition_point(|known| (known.0, known.1) < rank);
        bases.insert(at, (rank.0, rank.1, found));
    }
    bases.truncate(BASES);
    bases.into_iter().map(|(_, _, base)| base).collect()
}
