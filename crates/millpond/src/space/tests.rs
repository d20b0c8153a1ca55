//! Runs, extents and reservations, rule by rule and against plain models.

mod extents;
mod reservations;
mod strips;

use super::*;
use crate::order::{End, Ends, StreamIndex};

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
    let id = extents.insert_taken(BASE, grains * GRAIN, 0);
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
fn the_best_fit_is_the_smallest_that_holds_the_aligned_request() {
    let mut extents = Extents::new();
    // At grain 1 with 5 grains, at grain 17 with 6, at grain 32 with 9.
    for (start, grains) in [(1, 5), (17, 6), (32, 9)] {
        let id = extents.insert_taken(at(start), grains * GRAIN, start as u32);
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
