//! Where a request fits without a device call.
//!
//! A block of less than [`LARGE`] goes to the lowest address that fits: what lives long sinks to
//! the bottom, and the top empties. A larger one goes where it breaks the fewest handles that are
//! wholly free, since these can serve anywhere.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use smallvec::{SmallVec, smallvec};

use super::Backing;
use crate::mapping::{MappedPart, MappedParts};
use crate::order::{Ends, Order, Reasons, StreamIndex};
use crate::pages::HandleSlot;
use crate::space::{Free, GRAIN, Pieces, align_up};

/// Bytes; see the [module](self).
const LARGE: u64 = 64 << 20;

/// Runs that are looked at for a large block.
const CANDIDATES: usize = 64;

/// Runs that are looked at for others; most often the first will do.
const LOOKS: u32 = 256;

/// A request, as far as placing it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Bytes; a multiple of the grain.
    pub(crate) size: u64,
    pub(crate) alignment: u64,
}

impl Backing {
    /// A place that the stream may use at once. With `own_first`, memory that others may use too is
    /// left to them where the stream has some of its own.
    pub(crate) fn find_usable(
        &mut self,
        order: &Order,
        wanted: Wanted,
        asker: StreamIndex,
        reasons: Reasons,
        own_first: bool,
    ) -> Option<u64> {
        self.tell_aliases();
        if !order.is_shared() {
            // All that was ever freed was freed by the one stream there is.
            return self.find_in_runs(wanted, |start, end| smallvec![(start, end)]);
        }
        let usable = |free: &Free<'_>| order.usable(free.ends, asker, reasons);
        let own = |free: &Free<'_>| free.ends.only_stream() == Some(asker);
        let found = if own_first {
            self.find_in_runs(wanted, |start, end| self.stretches_of(start, end, own))
        } else {
            self.find_in_runs(wanted, |start, end| self.stretches_of(start, end, usable))
        };
        // The search is bounded; where much is pending it may have seen nothing else.
        found.or_else(|| self.find_anywhere(wanted, usable))
    }

    /// A place in what `usable` gives of free runs, as far as a bounded search goes.
    fn find_in_runs(&self, wanted: Wanted, usable: impl Fn(u64, u64) -> Stretches) -> Option<u64> {
        if wanted.size < LARGE {
            return self.find_lowest(wanted, usable);
        }
        let mut runs: SmallVec<[(usize, u64, u64); CANDIDATES]> = SmallVec::new();
        self.runs(wanted.size, |start, end| {
            runs.push((class_of(end - start), start, end));
            ControlFlow::Continue(())
        });
        runs.sort_unstable();
        runs.truncate(CANDIDATES);
        let stretches = runs.iter().flat_map(|&(_, start, end)| usable(start, end));
        let found = stretches.filter_map(|(start, end)| self.find_in(start, end, wanted));
        least(found).map(|(_, place)| place)
    }

    /// The lowest place that is usable, in the first runs that are long enough.
    fn find_lowest(&self, wanted: Wanted, usable: impl Fn(u64, u64) -> Stretches) -> Option<u64> {
        let mut found = None;
        let mut looks = 0;
        self.runs(wanted.size, |start, end| {
            found = usable(start, end)
                .into_iter()
                .find_map(|(start, end)| self.lowest_disjoint(start, end, wanted));
            looks += 1;
            if found.is_some() || looks == LOOKS {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        found
    }

    /// Tells the bounds of all free runs of at least `size` bytes, lowest first, until that breaks.
    fn runs(&self, size: u64, tell: impl FnMut(u64, u64) -> ControlFlow<()>) {
        let pieces = |key| self.pieces_of(key);
        self.mappings.strips.runs(size, pieces, tell);
    }

    /// Ranges of a free run, as long as they can be, of bytes that `wanted` wants, lowest first.
    fn stretches_of(&self, start: u64, end: u64, wanted: impl Fn(&Free<'_>) -> bool) -> Stretches {
        let mut stretches = Stretches::new();
        for free in self.inside(start, end).filter(wanted) {
            match stretches.last_mut() {
                Some((_, end)) if *end == free.start => *end = free.end,
                _ => stretches.push((free.start, free.end)),
            }
        }
        stretches
    }

    /// A place in free memory that `usable` accepts, the lowest in the shortest stretch
    /// that fits. Looks at all runs that are long enough.
    pub(crate) fn find_anywhere(
        &self,
        wanted: Wanted,
        usable: impl Fn(&Free<'_>) -> bool,
    ) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        self.runs(wanted.size, |start, end| {
            for (start, end) in self.stretches_of(start, end, &usable) {
                let shorter = best.is_none_or(|(length, _)| end - start < length);
                if shorter && let Some(place) = self.lowest_disjoint(start, end, wanted) {
                    best = Some((end - start, place));
                }
            }
            ControlFlow::Continue(())
        });
        Some(best?.1)
    }

    /// A place in free memory that `usable` accepts, or `waitable` where it does not: of such
    /// places one whose memory was freed before that of all others, and the number of its latest
    /// free. Looks at all that is free, once.
    pub(crate) fn find_oldest(
        &self,
        wanted: Wanted,
        usable: impl Fn(&Ends) -> bool,
        waitable: impl Fn(&Ends) -> bool,
    ) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        // A window slides over a stretch: places where it may begin, and those of its pieces that
        // were freed later than all that follow.
        let mut places: VecDeque<u64> = VecDeque::new();
        let mut latest: VecDeque<(u64, u64)> = VecDeque::new();
        let mut reached = 0;
        for (free, walled) in self.all_free() {
            let freed = if usable(free.ends) {
                Some(0)
            } else {
                waitable(free.ends).then_some(free.freed)
            };
            if free.start != reached || walled || freed.is_none() {
                places.clear();
                latest.clear();
            }
            reached = free.end;
            let Some(freed) = freed else { continue };
            while latest.back().is_some_and(|&(_, earlier)| earlier <= freed) {
                latest.pop_back();
            }
            latest.push_back((free.end, freed));
            places.extend(align_up(free.start, wanted.alignment));
            while let Some(&place) = places.front()
                && place
                    .checked_add(wanted.size)
                    .is_some_and(|end| end <= free.end)
            {
                places.pop_front();
                while latest.front().is_some_and(|&(end, _)| end <= place) {
                    latest.pop_front();
                }
                let until = latest.front().map_or(0, |&(_, freed)| freed);
                let better = best.is_none_or(|(_, best)| until < best);
                if better && self.is_disjoint(place, wanted.size) {
                    best = Some((place, until));
                }
            }
        }
        best
    }

    /// The numbers of the frees of all memory that `waitable` accepts and `usable` does not, in
    /// their order.
    pub(crate) fn pending_frees(
        &self,
        usable: impl Fn(&Ends) -> bool,
        waitable: impl Fn(&Ends) -> bool,
    ) -> Vec<u64> {
        let pieces = self.handles.iter().map(|(_, record)| &record.pieces);
        let pending = pieces.flat_map(Pieces::iter);
        let pending = pending.filter(|free| !usable(free.ends) && waitable(free.ends));
        let mut frees: Vec<u64> = pending.map(|free| free.freed).collect();
        frees.sort_unstable();
        frees.dedup();
        frees
    }

    /// All that is free, by address, lowest first; and whether a wall stands at its start.
    pub(super) fn all_free(&self) -> impl Iterator<Item = (Free<'_>, bool)> {
        let strips = &self.mappings.strips;
        strips.iter().enumerate().flat_map(move |(place, mapped)| {
            let walled = !strips.is_joined(place);
            let free = self.pieces_of(mapped.key).iter();
            free.map(move |free| (free.through(mapped.start), walled && free.start == 0))
        })
    }

    /// The place in a free range that leaves the fewest bytes over in handles that are wholly free
    /// before, and these bytes.
    fn find_in(&self, start: u64, end: u64, wanted: Wanted) -> Option<(u64, u64)> {
        let mut parts: SmallVec<[CandidatePart; 16]> = SmallVec::new();
        // Slots modulo 64, to see at once that most are new.
        let mut seen = 0_u64;
        let mut disjoint_from = 0;
        for part in self.mappings.parts(start, end) {
            let slot = part.slot;
            let bit = 1 << (slot.0 % 64);
            if seen & bit != 0
                && let Some(below) = parts.iter().rposition(|below| below.slot == slot)
            {
                disjoint_from = disjoint_from.max(below + 1);
            }
            seen |= bit;
            let record = &self.handles[slot.0];
            parts.push(CandidatePart {
                start: part.start(),
                end: part.end(),
                slot,
                whole: if record.live == 0 {
                    record.handle.size
                } else {
                    0
                },
                disjoint_from,
            });
        }
        let mut up = Window::default();
        let mut down = Window::default();
        let mut best: Option<(u64, u64)> = None;
        for number in 0..parts.len() {
            let part = &parts[number];
            let borders = [
                (Some(part.start), &mut up),
                (part.end.checked_sub(wanted.size), &mut down),
            ];
            for (border, window) in borders {
                let Some(border) = border else { continue };
                let place = align_up(border.max(start), wanted.alignment)?;
                let last = place.checked_add(wanted.size)?;
                if last > end {
                    continue;
                }
                let left_over = window.move_to(&parts, place, last);
                if best.is_some_and(|best| best < (left_over, place)) {
                    continue;
                }
                let alone = parts[window.last].disjoint_from <= window.first;
                if alone || self.is_disjoint(place, wanted.size) {
                    best = Some((left_over, place));
                    if left_over == 0 {
                        return best;
                    }
                }
            }
        }
        best
    }

    /// The lowest place in a free range that holds no byte of a handle twice.
    fn lowest_disjoint(&self, start: u64, end: u64, wanted: Wanted) -> Option<u64> {
        let mut place = align_up(start, wanted.alignment)?;
        while place.checked_add(wanted.size)? <= end {
            if self.is_disjoint(place, wanted.size) {
                return Some(place);
            }
            // Two mappings of one handle that are nearer to each other than the range is long have
            // bytes in common in it wherever both are in it: up to the end of the lower one.
            let parts: MappedParts = self.mappings.parts(place, place + wanted.size).collect();
            let twice = |&lower: &usize| {
                let mut above = parts[lower + 1..].iter();
                above.any(|part| !are_disjoint(&[parts[lower], *part]))
            };
            let lower = (0..parts.len()).find(twice)?;
            place = align_up(parts[lower].end(), wanted.alignment)?;
        }
        None
    }

    /// Whether a range holds no byte of a handle twice.
    pub(super) fn is_disjoint(&self, start: u64, size: u64) -> bool {
        let mut parts = self.mappings.parts(start, start + size);
        let (Some(first), Some(second)) = (parts.next(), parts.next()) else {
            return true;
        };
        let mut all: MappedParts = smallvec![first, second];
        all.extend(parts);
        are_disjoint(&all)
    }
}

/// Parts of a run, each as long as can be.
type Stretches = SmallVec<[(u64, u64); 4]>;

/// A mapping in a range in which a place is looked for, as far as it lies in it.
#[derive(Debug)]
struct CandidatePart {
    start: u64,
    end: u64,
    slot: HandleSlot,
    /// The bytes of its handle, if that is wholly free.
    whole: u64,
    /// The first part from which on, up to this one, all are of different handles.
    disjoint_from: usize,
}

/// The parts under a place that moves upwards.
#[derive(Default, Debug)]
struct Window {
    first: usize,
    last: usize,
}

impl Window {
    /// Gives the bytes that a block there leaves over in handles that are wholly free before.
    fn move_to(&mut self, parts: &[CandidatePart], start: u64, end: u64) -> u64 {
        while parts[self.first].end <= start {
            self.first += 1;
        }
        self.last = self.last.max(self.first);
        while parts[self.last].end < end {
            self.last += 1;
        }
        let left_over = |part: &CandidatePart| {
            let used = part.end.min(end) - part.start.max(start);
            part.whole.saturating_sub(used)
        };
        // What lies between the first part and the last is used whole.
        let first = left_over(&parts[self.first]);
        if self.first == self.last {
            first
        } else {
            first + left_over(&parts[self.last])
        }
    }
}

/// The place that breaks least: the first that breaks nothing.
fn least(places: impl Iterator<Item = (u64, u64)>) -> Option<(u64, u64)> {
    let mut best: Option<(u64, u64)> = None;
    for place in places {
        if best.is_none_or(|best| place < best) {
            best = Some(place);
        }
        if place.0 == 0 {
            break;
        }
    }
    best
}

/// The classes of runs by length, eight to a power of two: the exponent, then the bits below the
/// leading one.
fn class_of(length: u64) -> usize {
    const FINE: u32 = 3;
    let units = (length / GRAIN).max(1);
    let exponent = units.ilog2();
    let below = if exponent >= FINE {
        units >> (exponent - FINE)
    } else {
        units << (FINE - exponent)
    };
    ((exponent as usize) << FINE) + (below & ((1 << FINE) - 1)) as usize
}

/// Whether no byte of a handle is in two parts.
fn are_disjoint(parts: &[MappedPart]) -> bool {
    let mut parts: SmallVec<[(HandleSlot, u64, u64); 8]> = parts
        .iter()
        .map(|part| (part.slot, part.offset, part.length))
        .collect();
    parts.sort_unstable();
    parts
        .windows(2)
        .all(|pair| pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1)
}
