//! Reservations against a set of grains.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::*;
use super::at;

/// Reservations of the model, in grains: the second and third touch.
const RESERVED: [(u64, u64); 3] = [(0, 20), (30, 50), (50, 70)];
const GRAINS: u64 = 70;

fn holding(grain: u64) -> Option<(u64, u64)> {
    let mut all = RESERVED.into_iter();
    all.find(|&(start, end)| (start..end).contains(&grain))
}

struct Pair {
    reservations: Reservations,
    claimed: BTreeSet<u64>,
}

impl Pair {
    fn apply(&mut self, claim: bool, start: u64, length: u64) {
        let Some((_, border)) = holding(start) else {
            return;
        };
        let end = (start + length).min(border);
        // A claim lies in one gap, and what is given back was claimed.
        if (start..end).any(|grain| self.claimed.contains(&grain) == claim) {
            return;
        }
        if claim {
            self.reservations.claim(at(start), at(end));
            self.claimed.extend(start..end);
        } else {
            self.reservations.unclaim(at(start), at(end));
            self.claimed.retain(|grain| !(start..end).contains(grain));
        }
    }

    fn is_free(&self, grain: u64) -> bool {
        holding(grain).is_some() && !self.claimed.contains(&grain)
    }

    fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        for (start, end) in RESERVED {
            let mut from = start;
            for grain in start..=end {
                if grain == end || self.claimed.contains(&grain) {
                    if from < grain {
                        gaps.push((from, grain));
                    }
                    from = grain + 1;
                }
            }
        }
        gaps
    }

    fn check(&self, size: u64, alignment: u64) {
        let Pair {
            reservations,
            claimed,
        } = self;
        assert_eq!(reservations.claimed_bytes(), claimed.len() as u64 * GRAIN);
        for grain in 0..=GRAINS {
            let reservation = holding(grain);
            let around = reservation.map(|(s, e)| (at(s), (e - s) * GRAIN));
            assert_eq!(reservations.around(at(grain)), around);
            // Ranges grow inside the reservation that they are in.
            let under = grain.checked_sub(1).and_then(holding);
            let top = under.map_or(grain, |(_, end)| end);
            let above = (grain..top).take_while(|&g| self.is_free(g)).count() as u64;
            assert_eq!(reservations.room_above(at(grain)), above * GRAIN);
            let bottom = reservation.map_or(grain, |(start, _)| start);
            let below = (bottom..grain).rev().take_while(|&g| self.is_free(g));
            let below = below.count() as u64;
            assert_eq!(reservations.room_below(at(grain)), below * GRAIN);
        }
        let gaps = self.gaps();
        let widest = gaps.iter().map(|(s, e)| e - s).max().unwrap_or(0);
        assert_eq!(reservations.widest(), widest * GRAIN);
        // The lowest of the widest.
        let gap = gaps.iter().find(|(start, end)| end - start == widest);
        let (size, alignment) = (size * GRAIN, alignment * GRAIN);
        let fits = gap
            .is_some_and(|&(start, end)| at(start).next_multiple_of(alignment) + size <= at(end));
        let site = reservations.site(size, alignment);
        assert_eq!(site.is_some(), fits);
        if let (Some(site), Some(&(start, end))) = (site, gap) {
            assert!(site.is_multiple_of(alignment));
            assert!(at(start) <= site && site + size <= at(end));
            // Both sides can grow where there is that much room.
            if (end - start) * GRAIN > size + 4 * alignment {
                assert!(at(start) < site && site + size < at(end));
            }
        }
    }
}

proptest! {
    #[test]
    fn claims_and_gaps_are_those_of_a_set_of_grains(
        steps in proptest::collection::vec(
            (any::<bool>(), 0..GRAINS, 1..12_u64, 1..24_u64, 0..3_u32),
            1..80,
        ),
    ) {
        let mut pair = Pair {
            reservations: Reservations::default(),
            claimed: BTreeSet::new(),
        };
        for (start, end) in RESERVED {
            pair.reservations.add(at(start), (end - start) * GRAIN);
        }
        prop_assert_eq!(pair.reservations.bytes(), 60 * GRAIN);
        for (claim, start, length, size, alignment) in steps {
            pair.apply(claim, start, length);
            pair.check(size, 1 << alignment);
        }
    }
}

#[test]
fn a_reservation_that_is_removed_has_no_room() {
    let mut reservations = Reservations::default();
    reservations.add(at(0), 10 * GRAIN);
    reservations.add(at(10), 4 * GRAIN);
    reservations.remove(at(0));
    assert_eq!((reservations.bytes(), reservations.count()), (4 * GRAIN, 1));
    assert_eq!(reservations.around(at(3)), None);
    assert_eq!(reservations.room_above(at(3)), 0);
    assert_eq!(reservations.room_below(at(10)), 0);
    assert_eq!(reservations.widest(), 4 * GRAIN);
    assert_eq!(
        reservations.iter().collect::<Vec<_>>(),
        [(at(10), 4 * GRAIN)]
    );
}
