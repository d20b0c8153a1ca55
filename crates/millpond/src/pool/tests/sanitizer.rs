//! The stream sanitizer: each report, and the right programs beside it.

use std::panic::Location;

use super::*;
use crate::device::{EventId, StreamOrder};
use crate::pool::{Access, Action, Hazard, OrderReport};
use crate::{BlockError, Request};

/// A pool with a sanitizer, and two streams.
struct Watched {
    sim: Arc<SimDevice>,
    pool: Pool,
    a: StreamId,
    b: StreamId,
}

fn watched() -> Watched {
    watched_with(StreamOrder::Independent)
}

fn watched_with(order: StreamOrder) -> Watched {
    let sim = Arc::new(SimDevice::builder().total_memory(64 * MIB).build());
    let builder = Pool::builder(Arc::clone(&sim) as _).stream_sanitizer();
    let pool = builder.build().unwrap();
    let [a, b] = [(); 2].map(|()| sim.create_stream(order).unwrap());
    Watched { sim, pool, a, b }
}

impl Watched {
    fn block(&self) -> Block {
        self.pool.allocate(MIB, self.a).unwrap()
    }

    /// Lets a stream wait for all that another was given.
    fn order(&self, before: StreamId, after: StreamId) -> EventId {
        let event = self.sim.create_event().unwrap();
        self.pool.record_event(event, before).unwrap();
        self.pool.wait_event(after, event).unwrap();
        event
    }

    fn hazards(&self) -> Vec<Hazard> {
        let reports = self.pool.order_reports();
        reports.iter().map(|report| report.hazard).collect()
    }

    fn only_report(&self) -> OrderReport {
        let reports = self.pool.order_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.into_iter().next().unwrap()
    }
}

fn line(location: Option<&'static Location<'static>>) -> Option<u32> {
    assert!(location.is_none_or(|l| l.file().ends_with("tests/sanitizer.rs")));
    location.map(Location::line)
}

#[test]
fn an_access_that_is_not_ordered_after_the_allocation_is_reported_with_both_places() {
    let w = watched();
    let request = Request::new(MIB, w.a).name("weights");
    let (block, allocated) = (w.pool.allocate_with(request).unwrap(), line!());
    block.use_on(w.b).unwrap();
    let accessed = line!() + 1;
    block.access(w.b, Access::Read);
    w.order(w.a, w.b);
    block.access(w.b, Access::Read);
    let address = block.address();
    drop(block);
    let report = w.only_report();
    assert_eq!(report.hazard, Hazard::UseNotOrderedAfterAllocation);
    assert_eq!(report.block.name.as_deref(), Some("weights"));
    assert_eq!((report.block.address, report.block.size), (address, MIB));
    assert_eq!(
        (report.earlier.action, report.earlier.stream),
        (Action::Allocate, Some(w.a))
    );
    assert_eq!(
        (report.later.action, report.later.stream),
        (Action::Access(Access::Read), Some(w.b))
    );
    assert_eq!(line(report.earlier.location), Some(allocated));
    assert_eq!(line(report.later.location), Some(accessed));
    let text = report.to_string();
    for part in [
        "\"weights\"",
        &w.a.to_string(),
        &w.b.to_string(),
        "tests/sanitizer.rs:",
        "Pool::record_event",
        "Pool::wait_event",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_declared_use_is_judged_when_it_ends() {
    for ordered in [true, false] {
        for end in 0..4 {
            let w = watched();
            let block = w.block();
            block.use_on(w.b).unwrap();
            if ordered {
                // The wait may come after the declaration.
                w.order(w.a, w.b);
            }
            let event = w.sim.create_event().unwrap();
            w.pool.record_event(event, w.b).unwrap();
            match end {
                0 => drop(block),
                1 => {
                    block.use_ended(w.b).unwrap();
                    assert_eq!(w.hazards().is_empty(), ordered);
                }
                2 => {
                    // What comes after the event comes too late.
                    w.order(w.a, w.b);
                    block.use_ends_at(w.b, event).unwrap();
                    assert_eq!(w.hazards().is_empty(), ordered);
                }
                _ => {
                    block.hand_over(w.b).unwrap();
                    drop(block);
                }
            }
            let expected = match ordered {
                true => vec![],
                false => vec![Hazard::UseNotOrderedAfterAllocation],
            };
            assert_eq!(w.hazards(), expected, "end {end}");
        }
    }
}

#[test]
fn a_free_that_is_not_ordered_after_an_access_is_reported() {
    let w = watched();
    let block = w.block();
    block.set_name(format!("activation {}", 7));
    w.order(w.a, w.b);
    block.access(w.b, Access::Write);
    let freed = line!() + 1;
    block.free().unwrap();
    let report = w.only_report();
    assert_eq!(report.hazard, Hazard::FreeNotOrderedAfterUse);
    assert_eq!(report.block.name.as_deref(), Some("activation 7"));
    assert_eq!(report.earlier.stream, Some(w.b));
    assert_eq!(
        (report.later.action, report.later.stream),
        (Action::Free, Some(w.a))
    );
    assert_eq!(line(report.later.location), Some(freed));
    assert!(report.to_string().contains("Block::use_on"), "{report}");
}

#[test]
fn a_free_comes_after_what_its_streams_come_after() {
    type Protect = fn(&Watched, &Block);
    let ways: [(Protect, bool); 8] = [
        (|_, _| {}, false),
        (|w, block| block.use_on(w.b).unwrap(), true),
        (|w, _| _ = w.order(w.b, w.a), true),
        (|w, _| w.pool.synchronize_stream(w.b).unwrap(), true),
        (|w, _| w.pool.synchronize().unwrap(), true),
        (|w, _| w.pool.synchronize_stream(w.a).unwrap(), false),
        (|w, block| block.hand_over(w.b).unwrap(), true),
        // An event that nobody waits for orders nothing.
        (
            |w, _| {
                let event = w.sim.create_event().unwrap();
                w.pool.record_event(event, w.b).unwrap();
            },
            false,
        ),
    ];
    for (way, (protect, is_safe)) in ways.into_iter().enumerate() {
        let w = watched();
        let block = w.block();
        w.order(w.a, w.b);
        block.access(w.b, Access::Write);
        protect(&w, &block);
        drop(block);
        let expected = match is_safe {
            true => vec![],
            false => vec![Hazard::FreeNotOrderedAfterUse],
        };
        assert_eq!(w.hazards(), expected, "way {way}");
    }
}

#[test]
fn an_access_after_the_declared_end_of_its_use_is_reported() {
    for at_event in [false, true] {
        for late in [false, true] {
            let w = watched();
            let block = w.block();
            w.order(w.a, w.b);
            block.use_on(w.b).unwrap();
            block.access(w.b, Access::Read);
            let event = w.sim.create_event().unwrap();
            w.pool.record_event(event, w.b).unwrap();
            if at_event && late {
                block.access(w.b, Access::Read);
            }
            match at_event {
                true => block.use_ends_at(w.b, event).unwrap(),
                false => block.use_ended(w.b).unwrap(),
            }
            if !at_event && late {
                block.access(w.b, Access::Read);
            }
            drop(block);
            let expected = match late {
                true => vec![Hazard::FreeNotOrderedAfterUse],
                false => vec![],
            };
            assert_eq!(w.hazards(), expected, "at an event: {at_event}");
        }
    }
}

#[test]
fn an_owner_that_handed_the_block_over_is_done_with_it() {
    let w = watched();
    let block = w.block();
    block.access(w.a, Access::Write);
    w.order(w.a, w.b);
    block.hand_over(w.b).unwrap();
    block.access(w.b, Access::Write);
    block.access(w.a, Access::Read);
    drop(block);
    let expected = [Hazard::ConflictingAccesses, Hazard::FreeNotOrderedAfterUse];
    assert_eq!(w.hazards(), expected);
}

#[test]
fn what_is_done_with_a_freed_block_is_reported() {
    let w = watched();
    let block = w.block();
    block.set_name("gone");
    let address = block.into_raw();
    w.pool.free(address).unwrap();
    w.pool.access(address, w.a, Access::Read);
    let not_live = Err(BlockError::NotLive { address });
    assert_eq!(w.pool.use_on(address, w.b), not_live);
    assert_eq!(w.pool.use_ended(address, w.a), not_live);
    assert_eq!(w.pool.hand_over(address, w.b), not_live);
    assert_eq!(w.pool.free(address), not_live);
    let after = Hazard::UseAfterFree;
    assert_eq!(
        w.hazards(),
        [after, after, after, after, Hazard::DoubleFree]
    );
    for report in w.pool.order_reports() {
        assert_eq!(report.block.name.as_deref(), Some("gone"));
        assert_eq!(report.earlier.action, Action::Free);
    }
}

#[test]
fn a_handle_of_a_freed_block_does_not_mean_the_block_that_has_its_address_now() {
    let w = watched();
    let stale = w.block();
    w.pool.free(stale.address()).unwrap();
    let block = w.block();
    assert_eq!(block.address(), stale.address());
    block.access(w.a, Access::Write);
    w.pool.access(block.address(), w.a, Access::Write);
    assert_eq!(w.hazards(), []);
    stale.access(w.a, Access::Write);
    assert_eq!(w.hazards(), [Hazard::UseAfterFree]);
    assert!(stale.free().is_err());
    assert_eq!(w.hazards(), [Hazard::UseAfterFree, Hazard::DoubleFree]);
    drop(block);
    assert_eq!(w.hazards().len(), 2);
}

#[test]
fn addresses_that_were_never_blocks_are_not_the_sanitizers_to_judge() {
    let w = watched();
    w.pool.access(0x10, w.a, Access::Write);
    w.pool.access(0x10, StreamId(0x7777), Access::Write);
    assert!(w.pool.free(0x10).is_err());
    assert!(w.pool.use_on(0x10, w.b).is_err());
    assert_eq!(w.hazards(), []);
}

#[test]
fn accesses_conflict_if_one_writes_and_they_have_no_order() {
    use Access::{Read, Write};
    for (first, second) in [(Write, Write), (Read, Write), (Write, Read), (Read, Read)] {
        for ordered in [false, true] {
            let w = watched();
            let c = w.sim.create_stream(StreamOrder::Independent).unwrap();
            let block = w.block();
            for stream in [w.b, c] {
                w.order(w.a, stream);
                block.use_on(stream).unwrap();
            }
            block.access(w.b, first);
            if ordered {
                w.order(w.b, c);
            }
            block.access(c, second);
            drop(block);
            let conflict = !ordered && (first, second) != (Read, Read);
            let expected = match conflict {
                true => vec![Hazard::ConflictingAccesses],
                false => vec![],
            };
            assert_eq!(w.hazards(), expected, "{first:?} {second:?} {ordered}");
        }
    }
}

#[test]
fn order_reaches_through_other_streams() {
    let w = watched();
    let c = w.sim.create_stream(StreamOrder::Independent).unwrap();
    let block = w.block();
    block.access(w.a, Access::Write);
    w.order(w.a, w.b);
    w.order(w.b, c);
    block.access(c, Access::Write);
    w.order(c, w.b);
    w.order(w.b, w.a);
    drop(block);
    assert_eq!(w.hazards(), []);
}

#[test]
fn an_event_stands_for_its_last_record_until_it_is_forgotten() {
    let w = watched();
    let event = w.sim.create_event().unwrap();
    w.pool.record_event(event, w.a).unwrap();
    let block = w.block();
    block.use_on(w.b).unwrap();
    w.pool.wait_event(w.b, event).unwrap();
    block.access(w.b, Access::Read);
    assert_eq!(w.hazards(), [Hazard::UseNotOrderedAfterAllocation]);
    w.pool.record_event(event, w.a).unwrap();
    w.pool.forget_event(event);
    w.pool.wait_event(w.b, event).unwrap();
    block.access(w.b, Access::Write);
    assert_eq!(w.hazards().len(), 2);
    w.pool.record_event(event, w.a).unwrap();
    w.pool.wait_event(w.b, event).unwrap();
    block.access(w.b, Access::Write);
    assert_eq!(w.hazards().len(), 2);
}

#[test]
fn the_legacy_stream_orders_those_that_are_ordered_with_it() {
    for order in [StreamOrder::WithLegacy, StreamOrder::Independent] {
        for through in [StreamId::DEFAULT, StreamId::LEGACY] {
            let w = watched_with(order);
            let block = w.block();
            block.use_on(through).unwrap();
            block.use_on(w.b).unwrap();
            block.access(w.a, Access::Write);
            block.access(through, Access::Write);
            block.access(w.b, Access::Write);
            drop(block);
            let is_ordered = order == StreamOrder::WithLegacy;
            assert_eq!(w.hazards().is_empty(), is_ordered, "{order:?}");
        }
    }
}

#[test]
fn a_wait_that_the_pool_inserted_is_not_the_callers_order() {
    let w = watched();
    // The pool lets b wait for a, to give it a's memory.
    let whole = w.pool.allocate(64 * MIB, w.a).unwrap();
    w.sim.enqueue_work(w.a, 1_000_000).unwrap();
    drop(whole);
    let other = w.pool.allocate(32 * MIB, w.a).unwrap();
    let half = w.pool.allocate(32 * MIB, w.b).unwrap();
    assert!(w.pool.statistics().waits_inserted > 0);
    other.use_on(w.b).unwrap();
    other.access(w.b, Access::Read);
    drop((half, other));
    assert_eq!(w.hazards(), [Hazard::UseNotOrderedAfterAllocation]);
}

#[test]
fn streams_come_and_go_and_their_handles_recur() {
    let sim = SimDevice::builder().total_memory(64 * MIB);
    let sim = Arc::new(sim.stream_values_recur(true).build());
    let builder = Pool::builder(Arc::clone(&sim) as _).stream_sanitizer();
    let pool = builder.build().unwrap();
    let keeper = sim.create_stream(StreamOrder::Independent).unwrap();
    for round in 0..20 {
        let stream = sim.create_stream(StreamOrder::Independent).unwrap();
        let block = pool.allocate(MIB, keeper).unwrap();
        let event = sim.create_event().unwrap();
        pool.record_event(event, keeper).unwrap();
        pool.wait_event(stream, event).unwrap();
        block.use_on(stream).unwrap();
        block.access(stream, Access::Write);
        pool.stream_destroyed(stream).unwrap();
        sim.destroy_stream(stream).unwrap();
        // A new stream under the same handle knows nothing of what the old one knew.
        let heir = sim.create_stream(StreamOrder::Independent).unwrap();
        assert_eq!(heir, stream);
        if round == 19 {
            block.access(heir, Access::Read);
        }
        drop(block);
        if round % 3 == 0 {
            pool.synchronize().unwrap();
        }
        pool.stream_destroyed(heir).unwrap();
        sim.destroy_stream(heir).unwrap();
        let found = pool.order_reports().len();
        assert_eq!(found, if round == 19 { 2 } else { 0 });
    }
}

#[test]
fn what_happens_again_is_counted_and_not_kept_again() {
    let w = watched();
    for _ in 0..100 {
        let block = w.block();
        w.order(w.a, w.b);
        block.access(w.b, Access::Read);
    }
    let report = w.only_report();
    assert_eq!(report.occurrences, 100);
    assert_eq!(report.later.location, None);
    let text = report.to_string();
    assert!(text.contains("went out of scope"), "{text}");
    assert!(text.contains("100 times"), "{text}");
}

#[test]
fn the_memory_of_graphs_is_not_judged() {
    let w = watched();
    let memory = w.pool.graph_memory();
    let capture = memory.begin_capture(w.a).unwrap();
    let event = w.sim.create_event().unwrap();
    let block = w.block();
    block.access(w.a, Access::Write);
    w.pool.record_event(event, w.a).unwrap();
    block.use_on(w.b).unwrap();
    block.access(w.b, Access::Write);
    drop(block);
    capture.end();
    assert_eq!(w.hazards(), []);
}

#[test]
fn without_a_sanitizer_nothing_is_reported() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let block = bench.allocate(MIB, a);
    block.set_name("nobody sees it");
    block.access(b, Access::Write);
    drop(block);
    assert_eq!(bench.pool.order_reports(), []);
}
