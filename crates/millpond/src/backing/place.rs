//! Where a request fits without a device call.
//!
//! A block of less than [`LARGE`] goes to the lowest address that fits: what lives long sinks to
//! the bottom, and the top empties. A larger one goes where it breaks the fewest handles that are
//! wholly free, since these can serve anywhere.

use smallvec::{SmallVec, smallvec};

use super::Backing;
use crate::mapping::{MappedPart, MappedParts};
use crate::order::{Ends, Order, Reasons, StreamIndex};
use crate::pages::HandleSlot;
use crate::space::{Free, Silo, align_up};

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
    /// A place that the stream may use at once.
    pub(crate) fn find_usable(
        &self,
        order: &Order,
        wanted: Wanted,
        asker: StreamIndex,
        reasons: Reasons,
    ) -> Option<u64> {
        let own = Silo::of_stream(asker);
        // What ended on the stream itself needs no further look.
        if let Some(place) = self.find_in(own, wanted) {
            return Some(place);
        }
        let usable = |free: &Free<'_>| order.usable(free.ends, asker, reasons);
        let others = self.free.silos().filter(|&silo| silo != own);
        let mut others = others.filter(|&silo| !self.free.is_empty(silo)).peekable();
        others.peek()?;
        self.find_anywhere(wanted, usable)
    }

    /// A place in free memory that `usable` accepts, whatever its silos: the lowest in the
    /// shortest stretch that fits. Looks at all that is free.
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
    /// free.
    pub(crate) fn find_oldest(
        &self,
        wanted: Wanted,
        usable: impl Fn(&Ends) -> bool,
        waitable: impl Fn(&Ends) -> bool,
    ) -> Option<(u64, u64)> {
        let frees = self.pending_frees(&usable, &waitable);
        let found = |until: u64| {
            self.find_anywhere(wanted, |free| {
                usable(free.ends) || (free.freed <= until && waitable(free.ends))
            })
        };
        let place = frees.partition_point(|&until| found(until).is_none());
        let &until = frees.get(place)?;
        Some((found(until)?, until))
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

    /// The best place in one silo.
    fn find_in(&self, silo: Silo, wanted: Wanted) -> Option<u64> {
        if wanted.size < LARGE {
            let lowest = self
                .free
                .first_fit(silo, wanted.size, wanted.alignment, |place| {
                    self.is_disjoint(place, wanted.size)
                });
            // Where a run begins with a handle that stands twice in it, it may go on without.
            return lowest.or_else(|| {
                let mut runs = self.free.at_least(silo, wanted.size);
                runs.find_map(|(start, end)| self.lowest_disjoint(start, end, wanted))
            });
        }
        let runs = self.free.at_least(silo, wanted.size).take(CANDIDATES);
        let found = runs.filter_map(|(start, end)| self.find_in_run(start, end, wanted));
        least(found).map(|(_, place)| place)
    }

    /// The place in a run that leaves the fewest bytes over in handles that are wholly free
    /// before, and these bytes.
    fn find_in_run(&self, start: u64, end: u64, wanted: Wanted) -> Option<(u64, u64)> {
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
