//! Plans one by one.

use super::super::*;
use crate::device::HandleId;
use crate::order::clockwork::{Clockwork, REASONS};
use crate::order::{End, StreamIndex};
use crate::pages::{Ladder, Pages};

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;

/// One stream, and handles where a case wants them.
struct Bench {
    backing: Backing,
    clockwork: Clockwork,
    stream: StreamIndex,
    pages: Pages,
    handles: u64,
}

impl Bench {
    fn new(reservations: &[(u64, u64)]) -> Bench {
        let mut backing = Backing::new();
        for &(start, size) in reservations {
            backing.add_reservation(BASE + start * MIB, size * MIB);
        }
        let mut clockwork = Clockwork::new();
        let stream = clockwork.stream();
        Bench {
            backing,
            clockwork,
            stream,
            pages: Pages::new(2 * MIB, u64::MAX),
            handles: 0,
        }
    }

    fn fresh(&self) -> Ends {
        Ends::from(End {
            stream: self.stream,
            position: 0,
        })
    }

    /// A handle of so many MiB at these places.
    fn handle(&mut self, size: u64, places: &[u64]) -> HandleSlot {
        self.handles += 1;
        let handle = Handle {
            size: size * MIB,
            id: HandleId(self.handles),
        };
        let slot = self.backing.add_handle(handle);
        for &place in places {
            self.map(slot, place);
        }
        slot
    }

    fn map(&mut self, slot: HandleSlot, place: u64) {
        let address = BASE + place * MIB;
        let size = self.backing.handle(slot).size;
        self.backing.reservations.claim(address, address + size);
        let fresh = self.fresh();
        self.backing.attach(slot, address, &fresh);
        self.check();
    }

    fn occupy(&mut self, place: u64, size: u64) {
        self.backing.occupy(BASE + place * MIB, size * MIB);
        self.check();
    }

    /// Plans a block of so many MiB, of which so many may be created.
    fn begin(&mut self, size: u64, alignment: u64, created: u64) -> Result<Build, Lack> {
        let (order, stream) = (&self.clockwork.order, self.stream);
        let begun = self.backing.begin(&Terms {
            wanted: Wanted {
                size: size * MIB,
                alignment,
            },
            usable: &|free| order.usable(free.ends, stream, REASONS),
            pages: &self.pages,
            ladder: Ladder {
                parts: 4,
                smallest: 8 * MIB,
                largest: 256 * MIB,
            },
            budget: created * MIB,
            strained: false,
            forced: created * MIB,
        });
        self.check();
        begun
    }

    /// Settles a build that creates nothing; gives where the block is, in MiB.
    fn settle(&mut self, build: Build) -> u64 {
        assert_eq!(build.created(), 0);
        let (block, size, fresh) = (build.block, build.size, self.fresh());
        self.backing
            .settle(&self.clockwork.order, build, &[], &fresh);
        self.check();
        self.backing.validate_block(block, size).unwrap();
        (block - BASE) / MIB
    }

    fn find(&mut self, size: u64) -> Option<u64> {
        let wanted = Wanted {
            size: size * MIB,
            alignment: 256,
        };
        let order = &self.clockwork.order;
        let found = self
            .backing
            .find_usable(order, wanted, self.stream, REASONS, true);
        found.map(|place| (place - BASE) / MIB)
    }

    fn aliases(&self, slot: HandleSlot) -> usize {
        self.backing.handles[slot.0].mappings()
    }

    fn check(&self) {
        self.backing.validate().unwrap();
    }
}

#[test]
fn a_range_goes_on_downwards_with_the_free_end_of_a_handle() {
    // There is no room above either handle.
    let mut bench = Bench::new(&[(0, 16), (32, 32)]);
    let top = bench.handle(16, &[48]);
    bench.occupy(56, 8);
    let other = bench.handle(16, &[0]);
    bench.occupy(0, 10);
    let build = bench.begin(14, 256, 0).unwrap();
    assert_eq!(
        bench.settle(build),
        42,
        "6 MiB of one handle and 8 of another"
    );
    assert_eq!((bench.aliases(top), bench.aliases(other)), (1, 2));
    assert_eq!(bench.backing.free_bytes(), 0);
}

#[test]
fn a_range_begins_with_the_free_end_of_a_handle_and_ends_with_the_free_beginning_of_another() {
    // Both handles fill their reservations.
    let mut bench = Bench::new(&[(0, 8), (16, 8), (32, 64)]);
    let first = bench.handle(8, &[0]);
    bench.occupy(0, 3);
    let second = bench.handle(8, &[16]);
    bench.occupy(19, 5);
    let build = bench.begin(8, 256, 0).unwrap();
    let place = bench.settle(build);
    assert!((32..96).contains(&place));
    assert_eq!((bench.aliases(first), bench.aliases(second)), (2, 2));
    assert_eq!(bench.backing.free_bytes(), 0);
}

#[test]
fn an_alignment_beyond_the_granularity_holds_wherever_the_range_begins() {
    for alignment in [4 * MIB, 16 * MIB, 64 * MIB] {
        let mut bench = Bench::new(&[(2, 510)]);
        bench.handle(16, &[2]);
        bench.occupy(2, 5);
        bench.handle(32, &[200]);
        bench.occupy(210, 1);
        for size in [12, 20, 40] {
            let build = bench.begin(size, alignment, 64).unwrap();
            assert!(build.block.is_multiple_of(alignment), "{build:?}");
            bench.backing.undo(&bench.clockwork.order, build);
            bench.check();
        }
    }
}

#[test]
fn a_handle_that_stands_twice_in_a_strip_is_used_once() {
    let mut bench = Bench::new(&[(0, 128)]);
    bench.handle(8, &[0, 8]);
    bench.handle(8, &[16]);
    assert_eq!(
        bench.find(16),
        Some(8),
        "not at 0: that is one handle twice"
    );
    assert_eq!(bench.find(17), None);
    // 16 MiB are all there is.
    assert_eq!(bench.begin(17, 256, 0).unwrap_err(), Lack::Memory);
    let build = bench.begin(18, 256, 2).unwrap();
    assert_eq!(build.created(), 2 * MIB);
    bench.backing.undo(&bench.clockwork.order, build);
    bench.occupy(8, 16);
    assert_eq!(bench.backing.free_bytes(), 0);
}

#[test]
fn a_range_stays_in_the_reservation_that_it_began_in() {
    // What is free ends where the reservation does, and the next one begins there.
    let mut bench = Bench::new(&[(0, 16), (16, 64)]);
    bench.handle(16, &[0]);
    bench.occupy(0, 8);
    let build = bench.begin(16, 256, 16).unwrap();
    assert!(build.block >= BASE + 16 * MIB, "{build:?}");
    bench.backing.undo(&bench.clockwork.order, build);
    bench.check();
    // And the same downwards.
    let mut bench = Bench::new(&[(0, 64), (64, 16)]);
    bench.handle(16, &[64]);
    bench.occupy(72, 8);
    let build = bench.begin(16, 256, 16).unwrap();
    assert!(build.block + build.size <= BASE + 64 * MIB, "{build:?}");
}

#[test]
fn a_mapping_that_a_build_goes_on_from_is_no_surplus() {
    // The oldest of five mappings is the only one that a range can go on from.
    let mut bench = Bench::new(&[(0, 24), (32, 8), (48, 8), (64, 8), (80, 8), (96, 8)]);
    let shared = bench.handle(8, &[0, 32, 48, 64]);
    bench.occupy(32, 4);
    let added = bench.handle(4, &[96]);
    let going_on = bench.begin(8, 256, 0).unwrap();
    let (block, map_from) = (going_on.block, going_on.map_from);
    assert_eq!((block, map_from), (BASE + 4 * MIB, BASE + 8 * MIB));
    // Meanwhile another call maps the handle a fifth time.
    bench.map(shared, 80);
    let order = &bench.clockwork.order;
    let surplus = bench
        .backing
        .vacate_surplus(order, [shared].into_iter(), 0, 0, false);
    assert_eq!(surplus.len(), 0, "{surplus:?}");
    bench.settle(going_on);
    // From now on the others are.
    let order = &bench.clockwork.order;
    let surplus = bench
        .backing
        .vacate_surplus(order, [shared, added].into_iter(), 0, 0, false);
    let taken: Vec<u64> = surplus.iter().map(|m| (m.address - BASE) / MIB).collect();
    assert_eq!(taken, [48]);
    for vacated in surplus {
        assert_eq!(bench.backing.unmapped(vacated), shared);
    }
    bench.check();
}

#[test]
fn a_mapping_is_surplus_only_when_every_use_through_it_is_completed() {
    let mut bench = Bench::new(&[(0, 128)]);
    let shared = bench.handle(8, &[0, 16, 32, 48, 64]);
    let wanted = [0, 16, 32, 48].map(|place| BASE + place * MIB);
    for &place in &wanted {
        bench.backing.occupy(place, MIB);
        let end = Ends::from(bench.clockwork.order.advance(bench.stream));
        let order = &bench.clockwork.order;
        let freed = bench.backing.number_free();
        bench.backing.release(order, place, MIB, &end, freed);
    }
    // Only through the last one nothing was used; it is where the build is.
    let (start, end) = (BASE + 64 * MIB, BASE + 72 * MIB);
    let order = &mut bench.clockwork.order;
    let surplus = |backing: &mut Backing, order: &Order| {
        backing.vacate_surplus(order, [shared].into_iter(), start, end, false)
    };
    assert!(surplus(&mut bench.backing, order).is_empty());
    // Nothing is placed any more through the oldest ones.
    assert_eq!(
        bench.backing.handles[shared.0].aliases[..],
        [wanted[3], start]
    );
    let everything = order.everything();
    order.synchronized_knowledge(&everything);
    let surplus = surplus(&mut bench.backing, order);
    assert_eq!(surplus.len(), 1);
    assert_eq!(surplus[0].address, wanted[0], "the oldest");
    for vacated in surplus {
        bench.backing.still_mapped(vacated);
    }
    bench.check();
    assert_eq!(bench.aliases(shared), 5);
}
