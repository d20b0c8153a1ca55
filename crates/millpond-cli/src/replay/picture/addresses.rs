//! Addresses that had memory, one after the other: what lies between them is left out.
//!
//! # Invariant
//!
//! - Strips are disjoint, do not touch, and are in the order of their addresses.

/// Neighbouring addresses that had memory at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Strip {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Addresses {
    strips: Vec<Strip>,
    /// Bytes below each strip, in all strips before it.
    below: Vec<u64>,
}

impl Addresses {
    /// Of these ranges, which may overlap.
    pub(super) fn of(ranges: impl Iterator<Item = (u64, u64)>) -> Addresses {
        let mut ranges: Vec<(u64, u64)> = ranges.filter(|(start, end)| start < end).collect();
        ranges.sort_unstable();
        let mut strips: Vec<Strip> = Vec::new();
        for (start, end) in ranges {
            match strips.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => strips.push(Strip { start, end }),
            }
        }
        let mut bytes = 0;
        let below = strips.iter().map(|strip| {
            let before = bytes;
            bytes += strip.end - strip.start;
            before
        });
        let below = below.collect();
        Addresses { strips, below }
    }

    pub(super) fn strips(&self) -> &[Strip] {
        &self.strips
    }

    /// Bytes of all strips.
    pub(super) fn bytes(&self) -> u64 {
        let sizes = self.strips.iter().map(|strip| strip.end - strip.start);
        sizes.sum()
    }

    /// The number of the strip that an address is in, and how many bytes of strips are below it;
    /// an address that is in none counts with the strip below.
    pub(super) fn place(&self, address: u64) -> (usize, u64) {
        let above = self.strips.partition_point(|strip| strip.start <= address);
        let Some(number) = above.checked_sub(1) else {
            return (0, 0);
        };
        let strip = self.strips[number];
        (
            number,
            self.below[number] + (address - strip.start).min(strip.end - strip.start),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_is_one_strip_and_gaps_are_left_out() {
        let addresses = Addresses::of([(40, 50), (10, 20), (20, 25), (12, 18), (7, 7)].into_iter());
        let strip = |start, end| Strip { start, end };
        assert_eq!(addresses.strips(), [strip(10, 25), strip(40, 50)]);
        assert_eq!(addresses.bytes(), 25);
        let places = [
            (10, (0, 0)),
            (24, (0, 14)),
            (40, (1, 15)),
            (49, (1, 24)),
            (99, (1, 25)),
        ];
        for (address, place) in places {
            assert_eq!(addresses.place(address), place, "{address}");
        }
    }

    #[test]
    fn without_memory_there_is_nothing() {
        let addresses = Addresses::of(std::iter::empty());
        assert_eq!((addresses.bytes(), addresses.place(5)), (0, (0, 0)));
    }
}
