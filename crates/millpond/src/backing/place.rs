//! Where a request fits without a device call.
//!
//! A block of less than [`LARGE`] goes to the lowest address that fits: what lives long sinks to
//! the bottom, and the top empties. A larger one goes where it breaks the fewest handles that are
//! wholly free, since these can serve anywhere.

use std::collections::VecDeque;

use smallvec::{SmallVec, smallvec};

use super::Backing;
use crate::mapping::{MappedPart, MappedParts};
use crate::order::{Ends, Order, Reasons, StreamIndex};
use crate::pages::HandleSlot;
use crate::space::{Free, align_up};

/// Bytes; see the [module](self).
const LARGE: u64 = 64 << 20;

/// Runs that are looked at for a large block.
const CANDIDATES: usize = 64;

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
        &self,
        order: &Order,
        wanted: Wanted,
        asker: StreamIndex,
        reasons: Reasons,
        own_first: bool,
    ) -> Option<u64> {
        let usable = |free: &Free<'_>| order.usable(free.ends, asker, reasons);
        let own = |free: &Free<'_>| free.ends.only_stream() == Some(asker);
        let shared = order.is_shared();
        let found = if shared && own_first {
            self.find_in_runs(wanted, own)
        } else {
            self.find_in_runs(wanted, usable)
        };
        if !shared {
            return found;
        }
        // The search is bounded; where much is pending it may have seen nothing else.
        found.or_else(|| self.find_anywhere(wanted, usable))
    }

    /// A place in free memory that `usable` accepts, as far as a bounded search goes.
    fn find_in_runs(&self, wanted: Wanted, usable: impl Fn(&Free<'_>) -> bool) -> Option<u64> {
        if wanted.size < LARGE {
            return self.free.first_fit(wanted.size, |start, _| {
                self.first_in_run(start, wanted, &usable)
            });
        }
        let runs = self.free.at_least(wanted.size).take(CANDIDATES);
        let stretches = runs.flat_map(|(start, _)| self.free.stretches_of(start, &usable));
        let found = stretches.filter_map(|(start, end)| self.find_in(start, end, wanted));
        least(found).map(|(_, place)| place)
    }

    /// The lowest usable place in the run that begins at `start`.
    fn first_in_run(
        &self,
        start: u64,
        wanted: Wanted,
        usable: impl Fn(&Free<'_>) -> bool,
    ) -> Option<u64> {
        let stretches = self.free.stretches_of(start, usable);
        stretches
            .into_iter()
            .find_map(|(start, end)| self.lowest_disjoint(start, end, wanted))
    }

    /// A place in free memory that `usable` accepts, the lowest in the shortest stretch
    /// that fits. Looks at all that is free.
    pub(crate) fn find_anywhere(
        &self,
        wanted: Wanted,
        usable: impl Fn(&Free<'_>) -> bool,
    ) -> Option<u64> {
        let fits = |&(start, end): &(u64, u64)| {
            let place = self.lowest_disjoint(start, end, wanted)?;
            Some((end - start, place))
        };
        let stretches = self.free.stretches(usable);
        let best = stretches.iter().filter_map(fits).min()?;
        Some(best.1)
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
        for free in self.free.iter() {
            let freed = if usable(free.ends) {
                Some(0)
            } else {
                waitable(free.ends).then_some(free.freed)
            };
            if free.start != reached || self.free.is_wall(free.start) || freed.is_none() {
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
        let pending = self.free.iter();
        let pending = pending.filter(|free| !usable(free.ends) && waitable(free.ends));
        let mut frees: Vec<u64> = pending.map(|free| free.freed).collect();
        frees.sort_unstable();
        frees.dedup();
        frees
    }

    /// The place in a free range that leaves the fewest bytes over in handles that are wholly free
    /// before, and these bytes.
    fn find_in(&self, start: u64, end: u64, wanted: Wanted) -> Option<(u64, u64)> {
        let parts: MappedParts = self.mappings.parts(start, end).collect();
        let disjoint = are_disjoint(&parts);
        let borders = parts.iter().flat_map(|part| {
            let from = part.mapping + part.offset;
            let to = from + part.length;
            [Some(from), to.checked_sub(wanted.size)]
        });
        let places = borders.flatten().filter_map(|border| {
            let place = align_up(border.max(start), wanted.alignment)?;
            let fits = place.checked_add(wanted.size)? <= end;
            (fits && (disjoint || self.is_disjoint(place, wanted.size))).then_some(place)
        });
        let broken = places.map(|place| {
            let last = place + wanted.size;
            // What lies between the first part and the last is used whole.
            let first_part = parts.partition_point(|part| part.end() <= place);
            let last_part = parts.partition_point(|part| part.end() < last);
            let mut left_over = self.left_over(&parts[first_part], place, last);
            if last_part != first_part {
                left_over += self.left_over(&parts[last_part], place, last);
            }
            (left_over, place)
        });
        least(broken)
    }

    /// Bytes of a part's handle outside a range, if the handle is wholly free.
    fn left_over(&self, part: &MappedPart, start: u64, end: u64) -> u64 {
        let record = &self.handles[part.slot.0];
        if record.live > 0 {
            return 0;
        }
        let used = part.end().min(end) - (part.mapping + part.offset).max(start);
        record.handle.size - used
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
