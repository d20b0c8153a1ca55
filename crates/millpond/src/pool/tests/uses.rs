//! Uses that end before their block is freed.

use super::*;
use crate::device::EventId;
use crate::{BlockError, pool::ReusePolicies};

const LONG: u64 = 1_000_000_000;

/// A pool of 8 MiB, all of it one block of `a`; and three streams.
fn whole() -> (Bench, [StreamId; 3], Block) {
    let bench = Bench::new(8 * MIB);
    let streams = [(); 3].map(|()| bench.stream());
    let block = bench.allocate(8 * MIB, streams[0]);
    (bench, streams, block)
}

fn recorded(bench: &Bench, stream: StreamId) -> EventId {
    let event = bench.sim.create_event().unwrap();
    bench.pool.record_event(event, stream).unwrap();
    event
}

/// When work that the stream is given now can begin.
fn ready(bench: &Bench, stream: StreamId) -> u64 {
    bench.sim.stream_ready_at(stream).unwrap()
}

#[test]
fn a_use_that_ended_at_an_event_is_not_waited_for_beyond_it() {
    for told_end in [false, true] {
        let (bench, [a, b, c], block) = whole();
        block.use_on(b).unwrap();
        bench.sim.enqueue_work(b, 1000).unwrap();
        let event = recorded(&bench, b);
        if told_end {
            block.use_ends_at(b, event).unwrap();
        }
        bench.sim.enqueue_work(b, LONG).unwrap();
        drop(block);
        bench.pool.wait_event(c, event).unwrap();
        bench.pool.wait_event(c, recorded(&bench, a)).unwrap();
        drop(bench.allocate(8 * MIB, c));
        let waits = bench.pool.statistics().waits_inserted;
        assert_eq!((waits == 0, ready(&bench, c) < LONG), (told_end, told_end));
        bench.check();
    }
}

#[test]
fn a_use_that_ended_now_is_marked_there_and_not_later() {
    for told_end in [false, true] {
        let (bench, [_, b, c], block) = whole();
        block.use_on(b).unwrap();
        bench.sim.enqueue_work(b, 1000).unwrap();
        if told_end {
            block.use_ended(b).unwrap();
        }
        bench.sim.enqueue_work(b, LONG).unwrap();
        drop(block);
        drop(bench.allocate(8 * MIB, c));
        assert_eq!(ready(&bench, c) < LONG, told_end);
        bench.check();
    }
}

#[test]
fn an_event_of_a_stream_that_came_after_the_use_ends_it() {
    let (bench, [a, b, c], block) = whole();
    bench.sim.enqueue_work(a, LONG).unwrap();
    // The pool is not told of this order: c comes after a's use.
    let event = bench.sim.create_event().unwrap();
    bench.device.record_event(event, a).unwrap();
    bench.device.wait_event(c, event).unwrap();
    let after = recorded(&bench, c);
    block.use_ends_at(a, after).unwrap();
    drop(block);
    // What c has done is the end; it is not done.
    drop(bench.allocate(8 * MIB, b));
    assert!(ready(&bench, b) >= LONG);
    bench.check();
}

#[test]
fn a_block_whose_uses_are_over_stays_live_until_it_is_freed() {
    let (bench, [a, b, _], block) = whole();
    block.use_ended(a).unwrap();
    bench.pool.synchronize().unwrap();
    assert!(bench.pool.allocate(MIB, b).is_err());
    assert_eq!(bench.pool.trim(0).unwrap(), 0);
    drop(block);
    drop(bench.allocate(8 * MIB, b));
    assert_eq!(bench.pool.statistics().waits_inserted, 0);
    bench.check();
}

#[test]
fn a_use_that_begins_again_counts_to_the_free() {
    let (bench, [a, _, c], block) = whole();
    block.use_ended(a).unwrap();
    block.use_on(a).unwrap();
    bench.sim.enqueue_work(a, LONG).unwrap();
    drop(block);
    drop(bench.allocate(8 * MIB, c));
    assert!(ready(&bench, c) >= LONG);
    bench.check();
}

#[test]
fn what_was_handed_over_in_order_is_the_new_owners_own() {
    // Even where nothing of another stream is ever reused.
    let none = ReusePolicies {
        follow_event_dependencies: false,
        allow_opportunistic: false,
        allow_internal_dependencies: false,
    };
    for order_told in [true, false] {
        let sim = Arc::new(SimDevice::builder().total_memory(64 * MIB).build());
        let create = || sim.create_stream(crate::device::StreamOrder::Independent);
        let [a, b] = [(); 2].map(|()| create().unwrap());
        let builder = Pool::builder(Arc::clone(&sim) as _).waits(Waits::TimeFirst);
        let pool = builder.reuse_policies(none).build().unwrap();
        let block = pool.allocate(8 * MIB, a).unwrap();
        let address = block.address();
        sim.enqueue_work(a, LONG).unwrap();
        let event = sim.create_event().unwrap();
        pool.record_event(event, a).unwrap();
        block.use_ends_at(a, event).unwrap();
        if order_told {
            pool.wait_event(b, event).unwrap();
        } else {
            sim.wait_event(b, event).unwrap();
        }
        block.hand_over(b).unwrap();
        drop(block);
        let next = pool.allocate(8 * MIB, b).unwrap();
        assert_eq!(next.address() == address, order_told);
        pool.validate().unwrap();
    }
}

#[test]
fn what_was_handed_over_without_order_waits_for_both() {
    let (bench, [a, b, c], block) = whole();
    bench.sim.enqueue_work(a, LONG).unwrap();
    block.hand_over(b).unwrap();
    // Work of the old owner's that has nothing to do with the block any more.
    bench.sim.enqueue_work(a, 9 * LONG).unwrap();
    bench.sim.enqueue_work(b, 2 * LONG).unwrap();
    drop(block);
    drop(bench.allocate(8 * MIB, c));
    let ready = ready(&bench, c);
    assert!((2 * LONG..9 * LONG).contains(&ready), "{ready}");
    bench.check();
}

#[test]
fn a_wait_that_came_after_the_end_implies_nothing() {
    // b's use ends; then b waits for a: b's end says nothing of a.
    let (bench, [a, b, c], block) = whole();
    block.use_on(b).unwrap();
    bench.sim.enqueue_work(a, LONG).unwrap();
    let event = recorded(&bench, a);
    block.use_ends_at(a, event).unwrap();
    let end = recorded(&bench, b);
    block.use_ends_at(b, end).unwrap();
    bench.pool.wait_event(b, event).unwrap();
    drop(block);
    bench.pool.wait_event(c, end).unwrap();
    drop(bench.allocate(8 * MIB, c));
    assert!(ready(&bench, c) >= LONG, "c comes after a's use");
    bench.check();
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let (bench, [a, b, c], block) = whole();
    let event = bench.sim.create_event().unwrap();
    bench.device.record_event(event, a).unwrap();
    let unknown = BlockError::UnknownEvent { event };
    assert_eq!(block.use_ends_at(a, event), Err(unknown.clone()));
    bench.pool.record_event(event, a).unwrap();
    bench.pool.forget_event(event);
    assert_eq!(block.use_ends_at(a, event), Err(unknown));
    let address = block.address();
    let not_used = |stream| Err(BlockError::NotUsed { address, stream });
    assert_eq!(block.use_ended(b), not_used(b));
    block.use_ended(a).unwrap();
    assert_eq!(block.use_ended(a), not_used(a));
    assert!(matches!(
        bench.pool.use_ended(address + 8, a),
        Err(BlockError::Interior { .. })
    ));
    assert!(matches!(
        bench.pool.hand_over(0x10, a),
        Err(BlockError::Foreign { .. })
    ));
    block.hand_over(c).unwrap();
    drop(block);
    bench.check();
    assert_eq!(bench.pool.statistics().live_blocks, 0);
}

#[test]
fn the_owner_may_be_gone_when_its_block_is_handed_over() {
    let (bench, [a, b, c], block) = whole();
    bench.sim.enqueue_work(a, LONG).unwrap();
    bench.pool.stream_destroyed(a).unwrap();
    bench.sim.destroy_stream(a).unwrap();
    block.hand_over(b).unwrap();
    drop(block);
    drop(bench.allocate(8 * MIB, c));
    assert!(ready(&bench, c).max(bench.sim.now()) >= LONG);
    bench.check();
}

#[test]
fn an_event_that_outlives_its_stream_stands_for_what_that_did() {
    let (bench, [a, _, c], block) = whole();
    let gone = bench.stream();
    block.use_on(gone).unwrap();
    bench.sim.enqueue_work(gone, LONG).unwrap();
    let event = recorded(&bench, gone);
    bench.pool.stream_destroyed(gone).unwrap();
    bench.sim.destroy_stream(gone).unwrap();
    // The use of a is over where the stream that is gone came after it.
    block.use_ends_at(a, event).unwrap();
    drop(block);
    drop(bench.allocate(8 * MIB, c));
    assert!(ready(&bench, c).max(bench.sim.now()) >= LONG);
    bench.check();
}
