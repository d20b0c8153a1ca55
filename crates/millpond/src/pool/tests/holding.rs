//! Memory held longer than its uses: what other allocators do, and users reported.

use super::*;

const LONG: u64 = 1_000_000_000;
const SHORT: u64 = 1000;

#[test]
fn pytorch_71616_one_long_use_does_not_hold_what_was_freed_after_it() {
    // Another allocator asks its events in the order of the frees, and stops at the first that is
    // not completed.
    let bench = Bench::new(1024 * MIB);
    let [owner, long] = [(); 2].map(|()| bench.stream());
    let short: Vec<StreamId> = (0..4).map(|_| bench.stream()).collect();
    let [first, _between] = [(); 2].map(|()| bench.allocate(4 * MIB, owner));
    let held = first.address();
    first.use_on(long).unwrap();
    bench.sim.enqueue_work(long, LONG).unwrap();
    drop(first);
    let mut most = 0;
    for round in 0..50 {
        let user = short[round % short.len()];
        let block = bench.allocate(4 * MIB, owner);
        assert_ne!(block.address(), held, "the long use is not over");
        block.use_on(user).unwrap();
        bench.sim.enqueue_work(user, SHORT).unwrap();
        drop(block);
        bench.sim.advance_host_by(10 * SHORT);
        most = most.max(bench.pool.statistics().reserved_bytes);
    }
    assert!(bench.sim.now() < LONG);
    assert!(
        most <= 20 * MIB,
        "{most} bytes for one block that is held and one at a time"
    );
    assert_eq!(bench.pool.statistics().waits_inserted, 0);
    bench.check();
}

#[test]
fn pytorch_71616_nor_does_it_hold_the_memory_of_its_own_stream() {
    // The long use is behind the short ones on the same stream.
    let bench = Bench::new(64 * MIB);
    let [owner, user, other] = [(); 3].map(|()| bench.stream());
    let [early, _between, late] = [(); 3].map(|()| bench.allocate(4 * MIB, owner));
    let address = early.address();
    early.use_on(user).unwrap();
    bench.sim.enqueue_work(user, SHORT).unwrap();
    drop(early);
    late.use_on(user).unwrap();
    bench.sim.enqueue_work(user, LONG).unwrap();
    drop(late);
    bench.sim.advance_host_by(10 * SHORT);
    assert_eq!(bench.allocate(4 * MIB, other).address(), address);
    assert!(bench.sim.now() < LONG);
    bench.check();
}

#[test]
fn megatron_6885_a_stream_used_once_does_not_keep_its_memory() {
    // Another allocator gives memory back to the stream that it was allocated for, and to no
    // other: what each of these frees would never serve again.
    let bench = Bench::new(1024 * MIB);
    let streams: Vec<StreamId> = (0..20).map(|_| bench.stream()).collect();
    for &stream in &streams {
        let block = bench.allocate(40 * MIB, stream);
        bench.sim.enqueue_work(stream, SHORT).unwrap();
        drop(block);
        bench.sim.advance_host_by(10 * SHORT);
    }
    let statistics = bench.pool.statistics();
    assert_eq!(statistics.peak_reserved_bytes, 40 * MIB, "{statistics:?}");
    assert_eq!(statistics.waits_inserted, 0);
    bench.check();
}

#[test]
fn megatron_6885_nor_in_pieces_that_fit_nobody_alone() {
    // What streams left behind is put together for one that needs more than any of them did.
    let bench = Bench::new(64 * MIB);
    let last = bench.stream();
    for _ in 0..4 {
        let stream = bench.stream();
        let blocks = [(); 2].map(|()| bench.allocate(8 * MIB, stream));
        bench.sim.enqueue_work(stream, SHORT).unwrap();
        drop(blocks);
    }
    bench.sim.advance_host_by(10 * SHORT);
    let whole = bench.allocate(64 * MIB, last);
    assert_eq!(bench.pool.statistics().reserved_bytes, 64 * MIB);
    drop(whole);
    bench.check();
}
