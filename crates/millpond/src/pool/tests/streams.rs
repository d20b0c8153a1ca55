//! Stream order: who may have which memory when.

use super::*;
use crate::pool::ReusePolicies;

const LONG: u64 = 1_000_000_000;

#[test]
fn steady_state_on_one_stream_calls_nothing() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    let round = || {
        let blocks: Vec<Block> = (1..40)
            .map(|n| bench.allocate(n * 100_000, stream))
            .collect();
        drop(blocks);
    };
    round();
    let before = bench.log.total();
    for _ in 0..100 {
        round();
    }
    assert_eq!(bench.log.total(), before);
}

#[test]
fn what_a_stream_takes_back_at_once_needs_no_marker() {
    let bench = Bench::new(256 * MIB);
    let (stream, other) = (bench.stream(), bench.stream());
    let keep = bench.allocate(1, other);
    for _ in 0..100 {
        drop(bench.allocate(MIB - 256, stream));
    }
    assert_eq!(bench.pool.statistics().events_recorded, 0);
    drop(keep);
}

#[test]
fn memory_freed_on_a_stream_is_reused_there_before_it_is_completed() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let block = bench.allocate(MIB, stream);
    let address = block.address();
    bench.sim.enqueue_work(stream, LONG).unwrap();
    drop(block);
    assert_eq!(bench.allocate(MIB, stream).address(), address);
}

#[test]
fn an_event_of_the_callers_orders_streams() {
    let bench = Bench::new(64 * MIB);
    let (a, b, c) = (bench.stream(), bench.stream(), bench.stream());
    let keep = bench.allocate(1, b);
    let block = bench.allocate(4 * MIB, a);
    let address = block.address();
    bench.sim.enqueue_work(a, LONG).unwrap();
    drop(block);
    let unordered = bench.allocate(4 * MIB, b);
    assert_ne!(unordered.address(), address);
    let (first, second) = (
        bench.sim.create_event().unwrap(),
        bench.sim.create_event().unwrap(),
    );
    bench.pool.record_event(first, a).unwrap();
    bench.pool.wait_event(c, first).unwrap();
    bench.pool.record_event(second, c).unwrap();
    bench.pool.wait_event(b, second).unwrap();
    let ordered = bench.allocate(4 * MIB, b);
    assert_eq!(ordered.address(), address, "b comes after a through c");
    assert_eq!(bench.pool.statistics().waits_inserted, 0);
    drop((keep, unordered, ordered));
    bench.check();
}

#[test]
fn an_event_recorded_before_the_free_orders_nothing() {
    let bench = Bench::new(64 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    let block = bench.allocate(MIB, a);
    let address = block.address();
    let event = bench.sim.create_event().unwrap();
    bench.pool.record_event(event, a).unwrap();
    bench.sim.enqueue_work(a, LONG).unwrap();
    drop(block);
    bench.pool.wait_event(b, event).unwrap();
    assert_ne!(bench.allocate(MIB, b).address(), address);
}

#[test]
fn at_the_limit_a_wait_is_inserted_rather_than_failing() {
    let bench = Bench::new(8 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    let block = bench.allocate(8 * MIB, a);
    bench.sim.enqueue_work(a, LONG).unwrap();
    drop(block);
    let other = bench.allocate(8 * MIB, b);
    assert_eq!(bench.pool.statistics().waits_inserted, 1);
    assert!(
        bench.sim.stream_ready_at(b).unwrap() >= LONG,
        "b waits for a"
    );
    assert!(bench.sim.now() < LONG, "the host does not");
    drop(other);
    bench.check();
}

#[test]
fn rmm_2489_a_third_stream_waits_for_the_first() {
    // Memory of A goes to B with a wait; B frees it without having run anything; C must then wait
    // for A's work too.
    let bench = Bench::new(8 * MIB);
    let (a, b, c) = (bench.stream(), bench.stream(), bench.stream());
    let block = bench.allocate(8 * MIB, a);
    bench.sim.enqueue_work(a, LONG).unwrap();
    drop(block);
    drop(bench.allocate(8 * MIB, b));
    let last = bench.allocate(8 * MIB, c);
    assert!(
        bench.sim.stream_ready_at(c).unwrap() >= LONG,
        "c comes after a"
    );
    drop(last);
    bench.check();
}

#[test]
fn pytorch_189504_memory_that_completes_while_running_out_is_found() {
    // Everything is pending on a stream that is gone; the request must find what completes.
    let bench = Bench::new(8 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    let halves = [bench.allocate(4 * MIB, a), bench.allocate(4 * MIB, a)];
    bench.sim.enqueue_work(a, 1000).unwrap();
    for half in &halves {
        half.use_on(b).unwrap();
    }
    drop(halves);
    bench.pool.stream_destroyed(a).unwrap();
    bench.sim.destroy_stream(a).unwrap();
    let block = bench.pool.allocate(8 * MIB, b).unwrap();
    assert_eq!(block.size(), 8 * MIB);
}

#[test]
fn a_destroyed_streams_memory_is_not_lost_and_its_slot_is_used_again() {
    let bench = Bench::new(64 * MIB);
    let owner = bench.stream();
    for _ in 0..200 {
        let stream = bench.stream();
        let block = bench.allocate(MIB, stream);
        block.use_on(owner).unwrap();
        bench.sim.enqueue_work(stream, 1000).unwrap();
        drop(block);
        bench.pool.stream_destroyed(stream).unwrap();
        bench.sim.destroy_stream(stream).unwrap();
        bench.sim.advance_host_by(10_000);
    }
    assert!(
        bench.pool.statistics().reserved_bytes <= 4 * MIB,
        "{:?}",
        bench.pool
    );
    assert!(bench.pool.inner.lock().order.slots() <= 4);
    bench.check();
}

#[test]
fn a_handle_value_that_recurs_is_another_stream() {
    let sim = Arc::new(
        SimDevice::builder()
            .total_memory(64 * MIB)
            .stream_values_recur(true)
            .build(),
    );
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let order = crate::device::StreamOrder::Independent;
    let old = sim.create_stream(order).unwrap();
    let block = pool.allocate(MIB, old).unwrap();
    let address = block.address();
    sim.enqueue_work(old, LONG).unwrap();
    drop(block);
    // Destroyed behind the pool's back, with work in flight.
    sim.destroy_stream(old).unwrap();
    let new = sim.create_stream(order).unwrap();
    assert_eq!(new, old, "the sim gives the value out again");
    let block = pool.allocate(MIB, new).unwrap();
    assert_ne!(
        block.address(),
        address,
        "the old stream's work still uses it"
    );
    // It is found again when nothing else is left.
    let rest: Vec<Block> = std::iter::from_fn(|| pool.allocate(MIB, new).ok()).collect();
    assert_eq!(rest.len(), 63);
    pool.validate().unwrap();
}

#[test]
fn per_thread_streams_are_as_many_as_threads() {
    let sim = Arc::new(SimDevice::builder().total_memory(64 * MIB).build());
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let block = pool.allocate(MIB, StreamId::PER_THREAD).unwrap();
    let address = block.address();
    sim.enqueue_work(StreamId::PER_THREAD, LONG).unwrap();
    drop(block);
    let elsewhere = std::thread::scope(|scope| {
        scope
            .spawn(|| pool.allocate(MIB, StreamId::PER_THREAD).unwrap())
            .join()
            .unwrap()
    });
    assert_ne!(elsewhere.address(), address);
    assert_eq!(
        pool.allocate(MIB, StreamId::PER_THREAD).unwrap().address(),
        address
    );
}

#[test]
fn the_two_names_of_the_legacy_stream_are_one_stream() {
    let bench = Bench::new(64 * MIB);
    let block = bench.allocate(MIB, StreamId::DEFAULT);
    let address = block.address();
    bench.sim.enqueue_work(StreamId::DEFAULT, LONG).unwrap();
    drop(block);
    assert_eq!(bench.allocate(MIB, StreamId::LEGACY).address(), address);
}

#[test]
fn trim_leaves_what_is_in_use_and_gives_back_the_rest() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    let live = bench.allocate(32 * MIB, stream);
    let free = bench.allocate(64 * MIB, stream);
    bench.sim.enqueue_work(stream, LONG).unwrap();
    drop(free);
    assert_eq!(
        bench.pool.trim(0).unwrap(),
        0,
        "nothing is seen to be completed"
    );
    bench.pool.synchronize_stream(stream).unwrap();
    assert_eq!(
        bench.pool.trim(64 * MIB).unwrap(),
        32 * MIB,
        "at least `keep` stays"
    );
    assert_eq!(bench.pool.trim(0).unwrap(), 32 * MIB);
    assert_eq!(bench.pool.statistics().reserved_bytes, 32 * MIB);
    bench
        .sim
        .fill(
            stream,
            live.address(),
            live.size(),
            crate::device::Pattern(1),
        )
        .unwrap();
    bench.pool.synchronize().unwrap();
    bench.check();
}

/// Two streams hand 4 MiB blocks to and fro; how much is reserved, and how often one waits.
fn ping_pong(waits: Waits, reuse: ReusePolicies) -> (u64, u64) {
    let sim = Arc::new(SimDevice::builder().total_memory(256 * MIB).build());
    let order = crate::device::StreamOrder::Independent;
    let streams = [
        sim.create_stream(order).unwrap(),
        sim.create_stream(order).unwrap(),
    ];
    let builder = Pool::builder(Arc::clone(&sim) as _)
        .waits(waits)
        .reuse_policies(reuse);
    let pool = builder.build().unwrap();
    let allocate = || pool.allocate(4 * MIB, streams[0]).unwrap();
    let base: Vec<Block> = std::iter::repeat_with(allocate).take(8).collect();
    for round in 0..40 {
        let (from, to) = (streams[round % 2], streams[(round + 1) % 2]);
        let block = pool.allocate(4 * MIB, from).unwrap();
        block.use_on(to).unwrap();
        sim.enqueue_work(from, LONG).unwrap();
        sim.enqueue_work(to, LONG).unwrap();
        drop(block);
    }
    pool.validate().unwrap();
    drop(base);
    let statistics = pool.statistics();
    (
        statistics.peak_reserved_bytes / MIB,
        statistics.waits_inserted,
    )
}

#[test]
fn waits_and_memory_are_traded_as_asked() {
    let all = ReusePolicies::default();
    let (least, many) = ping_pong(Waits::MemoryFirst, all);
    let (middle, some) = ping_pong(Waits::Balanced, all);
    let (most, none) = ping_pong(Waits::TimeFirst, all);
    assert!(
        least < middle && middle < most,
        "{least} {middle} {most} MiB"
    );
    assert!(
        many > 0 && some > 0 && none == 0,
        "{many} {some} {none} waits"
    );
}

#[test]
fn without_internal_dependencies_no_wait_is_ever_inserted() {
    let reuse = ReusePolicies {
        allow_internal_dependencies: false,
        ..Default::default()
    };
    assert_eq!(ping_pong(Waits::MemoryFirst, reuse).1, 0);
}

/// A block of `a` that is freed; what `b` gets after `between` was done.
fn handed_over(
    reuse: ReusePolicies,
    between: impl FnOnce(&SimDevice, &Pool, [StreamId; 2]),
) -> bool {
    let sim = Arc::new(SimDevice::builder().total_memory(256 * MIB).build());
    let order = crate::device::StreamOrder::Independent;
    let [a, b] = [
        sim.create_stream(order).unwrap(),
        sim.create_stream(order).unwrap(),
    ];
    let builder = Pool::builder(Arc::clone(&sim) as _).waits(Waits::TimeFirst);
    let pool = builder.reuse_policies(reuse).build().unwrap();
    let block = pool.allocate(32 * MIB, a).unwrap();
    let second = pool.allocate(2 * MIB, b).unwrap();
    let address = block.address();
    sim.enqueue_work(a, 1000).unwrap();
    drop(block);
    between(&sim, &pool, [a, b]);
    let next = pool.allocate(32 * MIB, b).unwrap();
    drop(second);
    next.address() == address
}

#[test]
fn each_reuse_policy_can_be_switched_off() {
    let all = ReusePolicies::default();
    let events = |sim: &SimDevice, pool: &Pool, [a, b]: [StreamId; 2]| {
        let event = sim.create_event().unwrap();
        pool.record_event(event, a).unwrap();
        pool.wait_event(b, event).unwrap();
    };
    let follow = ReusePolicies {
        allow_opportunistic: false,
        ..all
    };
    assert!(handed_over(follow, events));
    let neither = ReusePolicies {
        follow_event_dependencies: false,
        ..follow
    };
    assert!(!handed_over(neither, events));

    let completion = |sim: &SimDevice, _: &Pool, _: [StreamId; 2]| sim.advance_host_by(1_000_000);
    assert!(handed_over(all, completion));
    assert!(!handed_over(follow, completion));

    // What the caller synchronised is free for all, whatever the policies.
    let synchronised = |_: &SimDevice, pool: &Pool, [a, _]: [StreamId; 2]| {
        pool.synchronize_stream(a).unwrap();
    };
    assert!(handed_over(neither, synchronised));
}
