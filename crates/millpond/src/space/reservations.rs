//! Reservations of address space, and which parts of them are taken for backing.
//!
//! A range is *claimed* from the moment somebody sets out to back it until it is unbacked again.
//! What lies between claimed ranges are gaps.

use std::collections::BTreeMap;

/// A part of a reservation that nothing is mapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gap {
    start: u64,
    end: u64,
    /// Whether it begins, and ends, where its reservation does.
    whole: bool,
}

#[derive(Debug)]
struct Reservation {
    size: u64,
    /// Claimed ranges, start and end, in order; they do not overlap, and touching ones are one.
    claimed: Vec<(u64, u64)>,
}

impl Reservation {
    /// The place of the first claimed range that ends above an address.
    fn first_above(&self, address: u64) -> usize {
        self.claimed.partition_point(|&(_, end)| end <= address)
    }
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
                claimed: Vec::new(),
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

    /// Bytes that can be claimed from an address on, upwards, in the reservation of what lies below
    /// it: no range goes from one reservation into another.
    pub(crate) fn room_above(&self, address: u64) -> u64 {
        let Some((base, size)) = self.around(address.saturating_sub(1)) else {
            return 0;
        };
        let reservation = &self.by_base[&base];
        let place = reservation.first_above(address);
        match reservation.claimed.get(place) {
            Some(&(start, _)) => start.saturating_sub(address),
            None => base + size - address,
        }
    }

    /// Bytes that can be claimed from an address on, downwards, in the reservation of what lies
    /// above it.
    pub(crate) fn room_below(&self, address: u64) -> u64 {
        let Some((base, _)) = self.around(address) else {
            return 0;
        };
        let claimed = &self.by_base[&base].claimed;
        let place = claimed.partition_point(|&(start, _)| start < address);
        let below = place.checked_sub(1).map(|below| claimed[below].1);
        address - below.map_or(base, |end| end.min(address))
    }

    /// An address in the widest gap, if that is `size` bytes or more: away from what is mapped
    /// already, so that both can grow. `alignment` is that of the reservations or less.
    pub(crate) fn site(&self, size: u64, alignment: u64) -> Option<u64> {
        let widest = self
            .gaps()
            .max_by_key(|gap| (gap.end - gap.start, u64::MAX - gap.start))?;
        let width = widest.end - widest.start;
        let spare = width.checked_sub(size)?;
        // What grows mostly grows upwards.
        let offset = if widest.whole { spare / 4 } else { spare / 2 };
        let site = (widest.start + offset) & !(alignment - 1);
        if site >= widest.start {
            return Some(site);
        }
        let lowest = super::align_up(widest.start, alignment)?;
        (lowest.checked_add(size)? <= widest.end).then_some(lowest)
    }

    /// The bytes of the widest gap.
    pub(crate) fn widest(&self) -> u64 {
        let widths = self.gaps().map(|gap| gap.end - gap.start);
        widths.max().unwrap_or(0)
    }

    /// All gaps, lowest first within each reservation.
    fn gaps(&self) -> impl Iterator<Item = Gap> + '_ {
        self.by_base.iter().flat_map(|(&base, reservation)| {
            let claimed = reservation.claimed.iter();
            let starts = std::iter::once(base).chain(claimed.clone().map(|&(_, end)| end));
            let ends = claimed.map(|&(start, _)| start);
            let ends = ends.chain(std::iter::once(base + reservation.size));
            let whole = reservation.claimed.is_empty();
            starts
                .zip(ends)
                .filter(|(start, end)| start < end)
                .map(move |(start, end)| Gap { start, end, whole })
        })
    }

    /// Claims a range, which must lie in one gap.
    pub(crate) fn claim(&mut self, start: u64, end: u64) {
        let Some(reservation) = self.holding(start) else {
            return;
        };
        let place = reservation.first_above(start);
        let claimed = &mut reservation.claimed;
        let joins_below = place > 0 && claimed[place - 1].1 == start;
        let joins_above = claimed.get(place).is_some_and(|above| above.0 == end);
        match (joins_below, joins_above) {
            (true, true) => {
                claimed[place - 1].1 = claimed[place].1;
                claimed.remove(place);
            }
            (true, false) => claimed[place - 1].1 = end,
            (false, true) => claimed[place].0 = start,
            (false, false) => claimed.insert(place, (start, end)),
        }
    }

    /// Gives a claimed range back, or a part of one.
    pub(crate) fn unclaim(&mut self, start: u64, end: u64) {
        let Some(reservation) = self.holding(start) else {
            return;
        };
        let place = reservation.first_above(start);
        let Some(&(whole_start, whole_end)) = reservation.claimed.get(place) else {
            return;
        };
        let below = (whole_start < start).then_some((whole_start, start));
        let above = (end < whole_end).then_some((end, whole_end));
        let rest = below.into_iter().chain(above);
        reservation.claimed.splice(place..=place, rest);
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
    #[cfg(test)]
    pub(crate) fn claimed_bytes(&self) -> u64 {
        let all = self.by_base.values().flat_map(|r| &r.claimed);
        all.map(|(start, end)| end - start).sum()
    }

    fn holding(&mut self, address: u64) -> Option<&mut Reservation> {
        let (&base, reservation) = self.by_base.range_mut(..=address).next_back()?;
        (address - base < reservation.size).then_some(reservation)
    }
}
