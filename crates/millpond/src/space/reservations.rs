//! Reservations of address space, and which parts of them are taken for backing.
//!
//! A range is *claimed* from the moment somebody sets out to back it until it is unbacked again.
//! What lies between claimed ranges are gaps.

use std::collections::BTreeMap;

/// A part of a reservation that nothing backs, with whatever lies on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gap {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

#[derive(Debug)]
struct Reservation {
    size: u64,
    /// Claimed ranges, start to end; they do not overlap, and touching ones are one.
    claimed: BTreeMap<u64, u64>,
}

/// The pool's reservations, by base.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    by_base: BTreeMap<u64, Reservation>,
    bytes: u64,
}

impl Reservations {
    pub(crate) fn add(&mut self, base: u64, size: u64) {
        self.bytes += size;
        self.by_base.insert(
            base,
            Reservation {
                size,
                claimed: BTreeMap::new(),
            },
        );
    }

    /// Bytes of address space reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn count(&self) -> usize {
        self.by_base.len()
    }

    /// The base and size of the reservation that holds an address.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (&base, reservation) = self.by_base.range(..=address).next_back()?;
        (address - base < reservation.size).then_some((base, reservation.size))
    }

    /// Whether two addresses that touch, `end` of one range and start of the next, lie in one
    /// reservation.
    pub(crate) fn joins(&self, boundary: u64) -> bool {
        self.around(boundary)
            .is_some_and(|(base, _)| base < boundary)
    }

    /// All gaps, lowest first within each reservation.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = Gap> + '_ {
        self.by_base.iter().flat_map(|(&base, reservation)| {
            let starts = std::iter::once(base).chain(reservation.claimed.values().copied());
            let ends = reservation.claimed.keys().copied();
            let ends = ends.chain(std::iter::once(base + reservation.size));
            starts
                .zip(ends)
                .filter(|(start, end)| start < end)
                .map(|(start, end)| Gap { start, end })
        })
    }

    /// Claims a range, which must lie in one gap.
    pub(crate) fn claim(&mut self, start: u64, end: u64) {
        let Some(reservation) = self.holding(start) else {
            return;
        };
        let claimed = &mut reservation.claimed;
        let below = claimed.range(..=start).next_back().map(|(&s, &e)| (s, e));
        let start = match below {
            Some((below_start, below_end)) if below_end == start => below_start,
            _ => start,
        };
        let end = claimed.remove(&end).unwrap_or(end);
        claimed.insert(start, end);
    }

    /// Gives a claimed range back, or a part of one.
    pub(crate) fn unclaim(&mut self, start: u64, end: u64) {
        let Some(reservation) = self.holding(start) else {
            return;
        };
        let claimed = &mut reservation.claimed;
        let Some((&whole_start, &whole_end)) = claimed.range(..=start).next_back() else {
            return;
        };
        claimed.remove(&whole_start);
        if whole_start < start {
            claimed.insert(whole_start, start);
        }
        if end < whole_end {
            claimed.insert(end, whole_end);
        }
    }

    /// Forgets the reservation that begins at `base`.
    pub(crate) fn remove(&mut self, base: u64) {
        if let Some(reservation) = self.by_base.remove(&base) {
            self.bytes -= reservation.size;
        }
    }

    /// Base and size of every reservation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_base
            .iter()
            .map(|(&base, reservation)| (base, reservation.size))
    }

    /// Bytes claimed.
    pub(crate) fn claimed_bytes(&self) -> u64 {
        let all = self.by_base.values().flat_map(|r| r.claimed.iter());
        all.map(|(start, end)| end - start).sum()
    }

    fn holding(&mut self, address: u64) -> Option<&mut Reservation> {
        let (&base, reservation) = self.by_base.range_mut(..=address).next_back()?;
        (address - base < reservation.size).then_some(reservation)
    }
}
