//! Extents and reservations, rule by rule and against plain models.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::order::{End, Ends, StreamIndex};

mod model;

fn ends(all: &[(u32, u64)]) -> Ends {
    let end = |&(stream, position)| End {
        stream: StreamIndex(stream),
        position,
    };
    all.iter().map(end).collect()
}

/// Where the tests' extents begin.
const BASE: u64 = 1 << 40;

fn at(grains: u64) -> u64 {
    BASE + grains * GRAIN
}

/// One extent of this many grains, taken.
fn one(grains: u64) -> (Extents, ExtentId) {
    let mut extents = Extents::new();
    let id = extents.insert_taken(BASE, grains * GRAIN, false, false);
    (extents, id)
}

#[test]
fn aligning_up_says_when_there_is_no_such_address() {
    assert_eq!(align_up(0, 256), Some(0));
    assert_eq!(align_up(1, 256), Some(256));
    assert_eq!(align_up(256, 256), Some(256));
    assert_eq!(align_up(1, 1 << 63), Some(1 << 63));
    assert_eq!(align_up(u64::MAX, 256), None);
}

#[test]
fn what_is_not_taken_of_an_extent_keeps_its_ends() {
    let (mut extents, id) = one(10);
    let free = extents.free_extent(id, ends(&[(3, 7)]));
    let (taken, before) = extents.take(free, at(4), 2 * GRAIN);
    extents.validate().unwrap();
    assert_eq!(before, ends(&[(3, 7)]));
    let (lower, upper) = (
        extents.previous(taken).unwrap(),
        extents.next(taken).unwrap(),
    );
    for (id, address, grains) in [(lower, at(0), 4), (upper, at(6), 4)] {
        let extent = extents.get(id);
        assert_eq!((extent.address, extent.size), (address, grains * GRAIN));
        assert_eq!(extent.ends, ends(&[(3, 7)]));
        assert!(extents.is_free(id));
    }
    assert!(!extents.is_free(taken));
    assert_eq!(extents.free_bytes(), 8 * GRAIN);
}

#[test]
fn freed_neighbours_of_one_silo_become_one_with_the_later_end() {
    let (mut extents, low) = one(6);
    let middle = extents.split_taken(low, at(2));
    let high = extents.split_taken(middle, at(4));
    extents.free_extent(low, ends(&[(1, 9)]));
    extents.free_extent(high, ends(&[(1, 4)]));
    extents.validate().unwrap();
    let whole = extents.free_extent(middle, ends(&[(1, 6)]));
    extents.validate().unwrap();
    let extent = extents.get(whole);
    assert_eq!((extent.address, extent.size), (at(0), 6 * GRAIN));
    assert_eq!(extent.ends, ends(&[(1, 9)]));
}

#[test]
fn neighbours_of_different_silos_stay_apart() {
    let (mut extents, low) = one(4);
    let high = extents.split_taken(low, at(2));
    extents.free_extent(low, ends(&[(1, 1)]));
    extents.free_extent(high, ends(&[(2, 1)]));
    extents.validate().unwrap();
    assert_eq!(extents.free().count(), 2);
    assert_eq!(extents.free_in(Silo::of_stream(StreamIndex(1))), [low]);
    assert_eq!(extents.free_in(Silo::of_stream(StreamIndex(2))), [high]);
}

#[test]
fn ranges_used_on_several_streams_merge_and_forget_no_stream() {
    let (mut extents, low) = one(4);
    let high = extents.split_taken(low, at(2));
    extents.free_extent(low, ends(&[(1, 5), (2, 3)]));
    let whole = extents.free_extent(high, ends(&[(2, 8), (3, 1)]));
    extents.validate().unwrap();
    let merged: BTreeSet<(u32, u64)> = extents
        .get(whole)
        .ends
        .iter()
        .map(|end| (end.stream.0, end.position))
        .collect();
    assert_eq!(merged, BTreeSet::from([(1, 5), (2, 8), (3, 1)]));
    assert_eq!(extents.free_in(Silo::COMMON), [whole]);
}

#[test]
fn an_extent_whose_ends_change_moves_to_its_new_silo_and_merges_there() {
    let (mut extents, low) = one(4);
    let high = extents.split_taken(low, at(2));
    extents.free_extent(low, ends(&[(1, 1)]));
    extents.free_extent(high, ends(&[]));
    assert_eq!(extents.free().count(), 2);
    extents.change_ends(low, |ends| ends.retain(|_| false));
    extents.validate().unwrap();
    assert_eq!(extents.free().count(), 1);
    assert_eq!(extents.free_in(Silo::COMMON).len(), 1);
}

#[test]
fn ranges_that_touch_across_reservations_never_merge() {
    let mut extents = Extents::new();
    let low = extents.insert_taken(at(0), 4 * GRAIN, false, false);
    let high = extents.insert_taken(at(4), 4 * GRAIN, false, false);
    extents.free_extent(low, ends(&[]));
    extents.free_extent(high, ends(&[]));
    extents.validate().unwrap();
    assert_eq!(extents.free().count(), 2);
    assert_eq!((extents.next(low), extents.previous(high)), (None, None));
    // What lies at the border has nothing backed beyond it in its own reservation.
    assert_eq!(extents.free_below_gap(at(4)), Some(low));
    assert_eq!(extents.free_above_gap(at(4)), Some(high));
}

#[test]
fn a_range_backed_between_two_others_joins_them_and_taken_out_parts_them() {
    let mut extents = Extents::new();
    let low = extents.insert_taken(at(0), 2 * GRAIN, false, true);
    let high = extents.insert_taken(at(4), 2 * GRAIN, true, false);
    extents.free_extent(low, ends(&[]));
    extents.free_extent(high, ends(&[]));
    assert_eq!(extents.free_below_gap(at(2)), Some(low));
    assert_eq!(extents.free_above_gap(at(4)), Some(high));
    let middle = extents.insert_taken(at(2), 2 * GRAIN, true, true);
    extents.validate().unwrap();
    assert_eq!(extents.previous(middle), Some(low));
    assert_eq!(extents.next(middle), Some(high));
    assert_eq!(extents.free_below_gap(at(2)), None, "there is no gap now");
    extents.remove_taken(middle);
    extents.validate().unwrap();
    assert_eq!((extents.next(low), extents.previous(high)), (None, None));
    assert_eq!(extents.free_below_gap(at(2)), Some(low));
    assert_eq!(extents.free_above_gap(at(4)), Some(high));
}

#[test]
fn only_free_extents_are_found_beside_a_gap() {
    let (extents, _) = one(4);
    assert_eq!(extents.free_below_gap(at(4)), None);
    assert_eq!(extents.free_above_gap(at(0)), None);
}

#[test]
fn the_best_fit_is_the_smallest_that_holds_the_aligned_request() {
    let mut extents = Extents::new();
    // At grain 1 with 5 grains, at grain 17 with 6, at grain 32 with 9.
    for (start, grains) in [(1, 5), (17, 6), (32, 9)] {
        let id = extents.insert_taken(at(start), grains * GRAIN, false, false);
        extents.free_extent(id, ends(&[]));
    }
    let find = |grains: u64, alignment: u64| {
        extents
            .find(Silo::COMMON, grains * GRAIN, alignment * GRAIN, |_| true)
            .map(|fit| fit.address)
    };
    assert_eq!(find(5, 1), Some(at(1)));
    assert_eq!(find(4, 4), Some(at(32)), "not at 4 nor at 20: too short");
    assert_eq!(find(3, 4), Some(at(20)));
    assert_eq!(find(10, 1), None);
    assert_eq!(find(1, 1 << 52), None, "no such address");
    let none = extents.find(Silo::COMMON, GRAIN, GRAIN, |_| false);
    assert_eq!(none, None);
    let unknown = Silo::of_stream(StreamIndex(900));
    assert_eq!(extents.find(unknown, GRAIN, GRAIN, |_| true), None);
}

#[test]
fn gaps_end_at_their_reservation_even_where_the_next_one_touches() {
    let mut reservations = Reservations::default();
    reservations.add(at(0), 4 * GRAIN);
    reservations.add(at(4), 4 * GRAIN);
    let gaps: Vec<Gap> = reservations.gaps().collect();
    let (low, high) = (
        Gap {
            start: at(0),
            end: at(4),
        },
        Gap {
            start: at(4),
            end: at(8),
        },
    );
    assert_eq!(gaps, [low, high]);
    assert!(!reservations.joins(at(4)), "a border joins nothing");
    assert!(reservations.joins(at(3)) && reservations.joins(at(5)));
    assert!(!reservations.joins(at(0)) && !reservations.joins(at(8)));
    assert_eq!(reservations.around(at(4)), Some((at(4), 4 * GRAIN)));
    assert_eq!(reservations.around(at(8)), None);
    assert_eq!(reservations.around(0), None);
}

#[test]
fn a_forgotten_reservation_takes_its_bytes_and_claims_along() {
    let mut reservations = Reservations::default();
    reservations.add(at(0), 4 * GRAIN);
    reservations.add(at(8), 2 * GRAIN);
    reservations.claim(at(1), at(3));
    assert_eq!((reservations.bytes(), reservations.count()), (6 * GRAIN, 2));
    reservations.remove(at(0));
    reservations.remove(at(1));
    assert_eq!((reservations.bytes(), reservations.count()), (2 * GRAIN, 1));
    assert_eq!(reservations.claimed_bytes(), 0);
    assert_eq!(
        reservations.iter().collect::<Vec<_>>(),
        [(at(8), 2 * GRAIN)]
    );
}

/// Reservations of the model, in grains: the second and third touch.
const RESERVED: [(u64, u64); 3] = [(0, 20), (30, 50), (50, 70)];

proptest! {
    #[test]
    fn claims_and_gaps_are_those_of_a_set_of_grains(
        steps in proptest::collection::vec((any::<bool>(), 0..70_u64, 1..12_u64), 1..80),
    ) {
        let mut reservations = Reservations::default();
        for (start, end) in RESERVED {
            reservations.add(at(start), (end - start) * GRAIN);
        }
        let mut claimed = BTreeSet::new();
        for (claim, start, length) in steps {
            let Some(&(_, border)) = RESERVED.iter().find(|(s, e)| (*s..*e).contains(&start)) else {
                continue;
            };
            let end = (start + length).min(border);
            // A claim lies in one gap, and what is given back was claimed.
            if (start..end).any(|grain| claimed.contains(&grain) == claim) {
                continue;
            }
            if claim {
                reservations.claim(at(start), at(end));
                claimed.extend(start..end);
            } else {
                reservations.unclaim(at(start), at(end));
                claimed.retain(|grain| !(start..end).contains(grain));
            }
            prop_assert_eq!(reservations.claimed_bytes(), claimed.len() as u64 * GRAIN);
            let mut expected = Vec::new();
            for (first, border) in RESERVED {
                let mut grain = first;
                while grain < border {
                    let start = grain;
                    while grain < border && !claimed.contains(&grain) {
                        grain += 1;
                    }
                    if start < grain {
                        expected.push(Gap { start: at(start), end: at(grain) });
                    }
                    grain += 1;
                }
            }
            prop_assert_eq!(reservations.gaps().collect::<Vec<_>>(), expected);
        }
    }
}
