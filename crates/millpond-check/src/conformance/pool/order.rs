//! Who may have which memory when: the field's corruption cases. What must not be over yet is held;
//! a pool that hands memory out too early is seen by its contents, by the checker, and by events.

use millpond::device::StreamId;

use super::MIB;
use super::bench::Bench;
use crate::conformance::{Fixture, Outcome};

/// rmm#2489: memory of A goes to B, which does nothing with it, and from there to C. What C writes
/// must come after A's work: the wait must not be lost on the way.
pub(super) fn three_streams_merging(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 8 * MIB);
    let [a, b, c] = [(); 3].map(|()| bench.stream());
    // Once round before anything is held, so that all memory is there.
    drop(bench.allocate(8 * MIB, a));
    let hold = fixture.hold(a);
    let first = bench.allocate(8 * MIB, a);
    drop(first);
    drop(bench.allocate(8 * MIB, b));
    let last = bench.allocate(8 * MIB, c);
    let written = bench.recorded(c);
    assert!(!bench.is_done(written), "c comes after a");
    drop(hold);
    last.verify_on(c);
    drop(last);
    bench.end();
    Ok(())
}

/// rmm#2489 with the merge itself: two halves of A's make one block of B's, and two of C's.
pub(super) fn three_streams_merging_halves(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 8 * MIB);
    let [a, b, c] = [(); 3].map(|()| bench.stream());
    drop(bench.allocate(8 * MIB, a));
    let hold = fixture.hold(a);
    let halves = [(); 2].map(|()| bench.allocate(4 * MIB, a));
    drop(halves);
    let whole = bench.allocate(8 * MIB, b);
    drop(whole);
    let quarters = [(); 4].map(|()| bench.allocate(2 * MIB, c));
    let written = bench.recorded(c);
    assert!(!bench.is_done(written), "c comes after a");
    drop(hold);
    drop(quarters);
    bench.end();
    Ok(())
}

/// Two streams that take each other's memory, round after round, while their work runs.
pub(super) fn two_streams_reuse_while_work_runs(fixture: &Fixture) -> Outcome {
    // Pieces of plain allocations are never one range: there it takes one that holds two rounds.
    let limit = match fixture.needs_mapping() {
        Ok(_) => 16 * MIB,
        Err(_) => 32 * MIB,
    };
    let bench = Bench::new(fixture, limit);
    let streams = [bench.stream(), bench.stream()];
    for round in 0..200_u64 {
        let stream = streams[round as usize % 2];
        let sizes = match round % 3 {
            0 => [9 * MIB, MIB],
            1 => [6 * MIB, 4 * MIB],
            _ => [2 * MIB, 8 * MIB],
        };
        let blocks = sizes.map(|size| bench.allocate(size, stream));
        blocks[0].verify_on(stream);
        drop(blocks);
    }
    assert!(bench.pool().statistics().peak_reserved_bytes <= limit);
    bench.end();
    Ok(())
}

/// Memory freed under work that has not begun serves its own stream at once, and each of the two
/// blocks finds its own content.
pub(super) fn freed_and_reused_under_running_work(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let stream = bench.stream();
    drop(bench.allocate(8 * MIB, stream));
    let hold = fixture.hold(stream);
    let mut address = None;
    for _ in 0..10 {
        let block = bench.allocate(8 * MIB, stream);
        assert_eq!(*address.get_or_insert(block.address()), block.address());
    }
    assert_eq!(bench.pool().statistics().waits_inserted, 0);
    drop(hold);
    bench.end();
    Ok(())
}

/// Memory that one stream still works on is not given to another, as long as there is other
/// memory; the other is not made to wait either.
pub(super) fn another_stream_does_not_get_memory_in_use(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    let [over, used] = [(); 2].map(|()| bench.allocate(8 * MIB, a));
    // One is known to be over; the other's use is still to come.
    drop(over);
    bench.pool().synchronize().unwrap();
    let hold = fixture.hold(a);
    let address = used.address();
    drop(used);
    let other = bench.allocate(8 * MIB, b);
    assert!(other.address() >= address + 8 * MIB || other.address() + 8 * MIB <= address);
    other.verify_on(b);
    // Would hang if b had been made to wait.
    bench.device.synchronize_stream(b).unwrap();
    drop(hold);
    drop(other);
    bench.end();
    Ok(())
}

/// A block that two streams used is free when both are done: the one that allocated it, and the
/// one that is held.
pub(super) fn a_block_used_on_two_streams_waits_for_both(fixture: &Fixture) -> Outcome {
    for held_user in [true, false] {
        let bench = Bench::new(fixture, 8 * MIB);
        let [owner, user, third] = [(); 3].map(|()| bench.stream());
        let block = bench.allocate(8 * MIB, owner);
        block.use_on(user);
        bench.device.synchronize().unwrap();
        let hold = fixture.hold(if held_user { user } else { owner });
        block.verify_on(user);
        drop(block);
        let next = bench.allocate(8 * MIB, third);
        let written = bench.recorded(third);
        assert!(!bench.is_done(written));
        drop(hold);
        drop(next);
        bench.end();
    }
    Ok(())
}

/// Where the caller's own events order the streams, directly or through a third, memory goes over
/// without a further wait; an event recorded before the free orders nothing.
pub(super) fn the_callers_own_order_is_enough(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let pool = bench.pool();
    let [a, b, c] = [(); 3].map(|()| bench.stream());
    let (early, first, second) = (bench.event(), bench.event(), bench.event());
    let block = bench.allocate(4 * MIB, a);
    // Known to b, so that it has a place of its own.
    drop(bench.allocate(1, b));
    bench.pool().synchronize().unwrap();
    let hold = fixture.hold(a);
    let order = |event, from: StreamId, to: StreamId| {
        pool.record_event(event, from).unwrap();
        pool.wait_event(to, event).unwrap();
    };
    pool.record_event(early, a).unwrap();
    let address = block.address();
    drop(block);
    pool.wait_event(b, early).unwrap();
    let apart = bench.allocate(4 * MIB, b);
    assert_ne!(apart.address(), address);
    order(first, a, c);
    order(second, c, b);
    // What b has of its own may come first, but there is not more than this of that.
    let ordered: Vec<_> = (0..9).map(|_| bench.allocate(4 * MIB, b)).collect();
    let found = ordered.iter().any(|block| block.address() == address);
    assert!(found, "b comes after a through c");
    assert_eq!(pool.statistics().waits_inserted, 0);
    drop(hold);
    drop((apart, ordered));
    bench.end();
    Ok(())
}

/// A use that ended at an event does not hold the memory for what its stream does later; the owner
/// comes after it, and gets the memory back at once.
pub(super) fn a_use_is_not_waited_for_beyond_its_end(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 8 * MIB);
    let pool = bench.pool();
    let (owner, user) = (bench.stream(), bench.stream());
    let event = bench.event();
    let block = bench.allocate(8 * MIB, owner);
    block.use_on(user);
    pool.record_event(event, user).unwrap();
    block.use_ends_at(user, event);
    pool.wait_event(owner, event).unwrap();
    let hold = fixture.hold(user);
    drop(block);
    let next = bench.allocate(8 * MIB, owner);
    assert_eq!(pool.statistics().waits_inserted, 0);
    next.verify_on(owner);
    // Would hang if the owner came after what the user was given later.
    bench.device.synchronize_stream(owner).unwrap();
    drop(hold);
    drop(next);
    bench.end();
    Ok(())
}

/// A stream that is declared so gets other memory where it would have been made to wait; when that
/// is taken back, it waits.
pub(super) fn a_stream_that_must_not_wait_does_not(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let pool = bench.pool();
    let (a, b) = (bench.stream(), bench.stream());
    // So much that another 20 MiB are beyond what a pool takes before it lets a stream wait.
    let blocks = [(); 3].map(|()| bench.allocate(8 * MIB, a));
    pool.synchronize().unwrap();
    let hold = fixture.hold(a);
    drop(blocks);
    pool.never_wait(b).unwrap();
    let apart = bench.allocate(20 * MIB, b);
    apart.verify_on(b);
    // Would hang if b had been made to wait.
    bench.device.synchronize_stream(b).unwrap();
    assert_eq!(pool.statistics().waits_inserted, 0);
    pool.may_wait(b).unwrap();
    let other = bench.allocate(20 * MIB, b);
    if bench.device.capabilities().mapping {
        assert!(pool.statistics().waits_inserted > 0);
    }
    drop(hold);
    drop((apart, other));
    bench.end();
    Ok(())
}
