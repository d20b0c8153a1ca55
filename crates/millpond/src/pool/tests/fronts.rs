//! What a stream has in its front: that it is served from there, and that nobody misses it.

use super::*;
use crate::BlockError;
use crate::device::StreamOrder;

const KIB: u64 = 1 << 10;

/// As if other threads were with the pool all the time, so that fronts get leases.
fn crowd(bench: &Bench) {
    std::mem::forget(bench.pool.inner.fronts.visit());
}

/// Lets a stream's front see often enough that others are there.
fn get_leases(bench: &Bench, stream: StreamId) {
    let blocks: Vec<Block> = (0..8).map(|_| bench.allocate(8 * MIB, stream)).collect();
    drop(blocks);
}

#[test]
fn a_freed_block_serves_its_stream_again_without_the_pools_lock() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    for size in [1, 300, 63 * KIB, 64 * KIB, 5 * MIB] {
        let first = bench.allocate(size, stream);
        let address = first.address();
        drop(first);
        let state = bench.pool.inner.lock();
        let again = bench.allocate(size, stream);
        assert_eq!(again.address(), address, "{size} bytes");
        drop(again);
        drop(state);
        bench.check();
    }
}

#[test]
fn a_thread_frees_what_another_one_allocated() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    let blocks: Vec<Block> = (0..100)
        .map(|n| bench.allocate(n * 10 * KIB, stream))
        .collect();
    let live: u64 = blocks.iter().map(Block::size).sum();
    assert_eq!(bench.pool.statistics().live_bytes, live);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(blocks));
    });
    let after = bench.pool.statistics();
    assert_eq!((after.live_bytes, after.live_blocks), (0, 0));
    assert_eq!(after.peak_live_bytes, live);
    bench.check();
}

#[test]
fn what_is_parked_is_freed_no_second_time() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    for size in [512, MIB] {
        let address = bench.allocate(size, stream).into_raw();
        bench.pool.free(address).unwrap();
        let error = bench.pool.free(address).unwrap_err();
        assert!(matches!(error, BlockError::NotLive { .. }), "{error}");
        let error = bench.pool.use_on(address, bench.stream()).unwrap_err();
        assert!(matches!(error, BlockError::NotLive { .. }), "{error}");
    }
    bench.check();
}

#[test]
fn a_stale_block_does_not_free_the_one_that_has_its_address_now() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    let first = bench.allocate(MIB, stream);
    bench.pool.free(first.address()).unwrap();
    let second = bench.allocate(MIB, stream);
    assert_eq!(first.address(), second.address());
    assert!(first.free().is_err());
    assert_eq!(bench.pool.statistics().live_blocks, 1);
    drop(second);
    bench.check();
}

#[test]
fn what_a_stream_parked_serves_others_before_the_pool_grows() {
    let bench = Bench::new(256 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    drop(bench.allocate(16 * MIB, a));
    bench.pool.synchronize().unwrap();
    let reserved = bench.pool.statistics().reserved_bytes;
    let block = bench.allocate(16 * MIB, b);
    assert_eq!(bench.pool.statistics().reserved_bytes, reserved);
    drop(block);
    bench.check();
}

#[test]
fn a_block_that_is_used_elsewhere_leaves_its_front_and_keeps_its_serial_number() {
    let bench = Bench::new(256 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    for size in [512, MIB] {
        let block = bench.allocate(size, a);
        block.use_on(b).unwrap();
        bench.check();
        assert_eq!(bench.pool.statistics().live_blocks, 1);
        block.free().unwrap();
        bench.check();
        assert_eq!(bench.pool.statistics().live_blocks, 0);
    }
}

#[test]
fn blocks_outlive_their_stream_and_its_front_serves_the_next() {
    let bench = Bench::new(1 << 30);
    crowd(&bench);
    let mut kept = Vec::new();
    for _ in 0..super::super::fronts::FRONTS + 10 {
        let stream = bench.stream();
        kept.push(bench.allocate(512, stream));
        kept.push(bench.allocate(MIB, stream));
        drop(bench.allocate(2 * MIB, stream));
        bench.pool.stream_destroyed(stream).unwrap();
        bench.sim.destroy_stream(stream).unwrap();
    }
    bench.check();
    let fronts = bench.pool.inner.fronts.count();
    assert_eq!(fronts, 1, "a front that is nobody's is given to the next");
    drop(kept);
    bench.check();
    bench.pool.synchronize().unwrap();
    bench.pool.trim(0).unwrap();
    assert_eq!(bench.pool.statistics().reserved_bytes, 0);
}

#[test]
fn more_streams_than_there_are_fronts_are_served_all_the_same() {
    let bench = Bench::new(1 << 30);
    let streams: Vec<StreamId> = (0..super::super::fronts::FRONTS + 20)
        .map(|_| bench.stream())
        .collect();
    for round in 0..3 {
        let blocks: Vec<Block> = streams
            .iter()
            .flat_map(|&s| {
                [
                    bench.allocate(700, s),
                    bench.allocate((64 * KIB) << round, s),
                ]
            })
            .collect();
        bench.check();
        drop(blocks);
    }
    bench.check();
    let after = bench.pool.statistics();
    assert_eq!(after.live_rounded_bytes, 0);
    assert_eq!(after.free_bytes, after.reserved_bytes);
}

#[test]
fn where_threads_meet_blocks_share_leases_and_all_of_it_comes_back() {
    let bench = Bench::new(512 * MIB);
    let stream = bench.stream();
    crowd(&bench);
    get_leases(&bench, stream);
    let blocks: Vec<Block> = (0..64)
        .map(|n| bench.allocate(64 * KIB + n * 4096, stream))
        .collect();
    bench.check();
    let lease = crate::small::LEASE;
    let lowest = blocks.iter().map(Block::address).min().unwrap();
    let within = |block: &&Block| block.address() - lowest < lease;
    assert_eq!(blocks.iter().filter(within).count(), 64, "in one lease");
    // What was parked before gets too old to be.
    for _ in 0..10 {
        drop(bench.allocate(100 * KIB, stream));
    }
    // Nothing of that needs the pool.
    let state = bench.pool.inner.lock();
    let further = bench.allocate(100 * KIB, stream);
    drop(further);
    drop(state);
    drop(blocks);
    bench.check();
    let free = bench.pool.statistics();
    assert_eq!(free.free_bytes, free.reserved_bytes);
    bench.pool.synchronize().unwrap();
    bench.pool.trim(0).unwrap();
    assert_eq!(bench.pool.statistics().reserved_bytes, 0);
}

#[test]
fn an_empty_lease_does_not_stand_in_the_way_of_another_stream() {
    let bench = Bench::new(256 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    crowd(&bench);
    get_leases(&bench, a);
    drop(bench.allocate(MIB, a));
    bench.pool.synchronize().unwrap();
    let all = bench.allocate(256 * MIB, b);
    drop(all);
    bench.check();
}

#[test]
fn a_full_lease_of_one_stream_serves_another_when_nothing_else_is_left() {
    let bench = Bench::new(64 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    crowd(&bench);
    get_leases(&bench, a);
    let kept = bench.allocate(MIB, a);
    let rest: Vec<Block> = (0..)
        .map_while(|_| bench.pool.allocate(MIB, a).ok())
        .collect();
    assert_eq!(rest.len(), 63, "every byte is somebody's");
    drop(rest);
    bench.pool.synchronize().unwrap();
    get_leases_of_small_device(&bench, b);
    let taken: Vec<Block> = (0..)
        .map_while(|_| bench.pool.allocate(MIB, b).ok())
        .collect();
    assert_eq!(taken.len(), 63);
    bench.check();
    drop(kept);
}

#[test]
fn room_in_a_lease_serves_a_stream_without_leases_when_nothing_else_is_left() {
    let bench = Bench::new(64 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    crowd(&bench);
    get_leases_of_small_device(&bench, a);
    let kept = bench.allocate(MIB, a);
    let rest: Vec<Block> = (0..)
        .map_while(|_| bench.pool.allocate(MIB, a).ok())
        .collect();
    let count = rest.len();
    drop(rest);
    bench.pool.synchronize().unwrap();
    // Too few requests for leases of its own.
    let taken: Vec<Block> = (0..)
        .map_while(|_| bench.pool.allocate(MIB, b).ok())
        .collect();
    assert_eq!(taken.len(), count);
    bench.check();
    drop(kept);
}

#[test]
fn a_stream_that_goes_while_it_gets_a_lease_keeps_the_block_and_loses_the_rest() {
    let bench = Bench::new(512 * MIB);
    let stream = bench.stream();
    crowd(&bench);
    get_leases(&bench, stream);
    let gone = Arc::clone(&bench.pool.inner);
    let key = gone.stream_key(stream).unwrap();
    // As another thread does that is told of the stream's end.
    let once = std::sync::atomic::AtomicBool::new(false);
    let hook = move || {
        if !once.swap(true, std::sync::atomic::Ordering::Relaxed) {
            let mut state = gone.lock();
            let index = state.stream(key);
            state.take_front_away(index);
        }
    };
    *bench.log.hook.lock().unwrap() = Some((Call::Create, Box::new(hook)));
    let reserved = bench.pool.statistics().reserved_bytes;
    let large = bench.allocate(reserved, stream);
    let block = bench.allocate(3 * MIB, stream);
    bench.check();
    let after = bench.pool.statistics();
    assert_eq!(after.live_bytes, large.size() + block.size());
    drop((large, block));
    *bench.log.hook.lock().unwrap() = None;
    bench.check();
    let free = bench.pool.statistics();
    assert_eq!(free.free_bytes, free.reserved_bytes);
}

/// As [`get_leases`], where there is little memory.
fn get_leases_of_small_device(bench: &Bench, stream: StreamId) {
    for size in [5 * MIB, 6 * MIB, 7 * MIB, 5 * MIB, 6 * MIB] {
        drop(bench.allocate(size, stream));
    }
}

#[test]
fn streams_with_the_same_handle_value_have_each_a_front() {
    let sim = Arc::new(
        SimDevice::builder()
            .total_memory(256 * MIB)
            .stream_values_recur(true)
            .build(),
    );
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let mut kept = Vec::new();
    for _ in 0..20 {
        let stream = sim.create_stream(StreamOrder::Independent).unwrap();
        kept.push(pool.allocate(3 * MIB, stream).unwrap());
        drop(pool.allocate(512, stream).unwrap());
        pool.validate().unwrap();
        // Behind the pool's back.
        sim.destroy_stream(stream).unwrap();
    }
    drop(kept);
    pool.validate().unwrap();
    assert_eq!(pool.statistics().live_blocks, 0);
}
