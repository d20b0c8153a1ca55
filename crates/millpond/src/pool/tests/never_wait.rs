//! Streams that must never get an inserted wait, because it could close a circle.

use super::*;

const LONG: u64 = 1_000_000_000;

/// A pool of 16 MiB, of which 8 are free after long work on `a`.
fn half_pending() -> (Bench, StreamId, StreamId) {
    let bench = Bench::new(16 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    let block = bench.allocate(8 * MIB, a);
    bench.sim.enqueue_work(a, LONG).unwrap();
    drop(block);
    (bench, a, b)
}

#[test]
fn a_stream_that_must_not_wait_gets_new_memory_then_waits_on_the_host() {
    let (bench, _, b) = half_pending();
    bench.pool.never_wait(b).unwrap();
    let new = bench.allocate(8 * MIB, b);
    assert!(bench.sim.now() < LONG, "there was new memory");
    let last = bench.allocate(8 * MIB, b);
    assert_eq!(bench.log.count(Call::WaitEvent), 0);
    assert_eq!(bench.pool.statistics().waits_inserted, 0);
    assert!(bench.sim.now() >= LONG, "the host waited for a");
    drop((new, last));
    bench.check();
}

#[test]
fn others_wait_as_ever() {
    let (bench, a, b) = half_pending();
    bench.pool.never_wait(a).unwrap();
    drop([bench.allocate(8 * MIB, b), bench.allocate(8 * MIB, b)]);
    assert_eq!(bench.pool.statistics().waits_inserted, 1);
    assert!(bench.sim.now() < LONG);
}

#[test]
fn it_can_be_taken_back() {
    let (bench, _, b) = half_pending();
    bench.pool.never_wait(b).unwrap();
    bench.pool.may_wait(b).unwrap();
    drop([bench.allocate(8 * MIB, b), bench.allocate(8 * MIB, b)]);
    assert_eq!(bench.pool.statistics().waits_inserted, 1);
    assert!(bench.sim.now() < LONG);
}

#[test]
fn it_holds_with_every_policy() {
    for waits in [Waits::MemoryFirst, Waits::Balanced, Waits::TimeFirst] {
        let sim = Arc::new(SimDevice::builder().total_memory(64 * MIB).build());
        let order = crate::device::StreamOrder::Independent;
        let streams = [(); 2].map(|()| sim.create_stream(order).unwrap());
        let pool = Pool::builder(Arc::clone(&sim) as _).waits(waits);
        let pool = pool.build().unwrap();
        for stream in streams {
            pool.never_wait(stream).unwrap();
        }
        for round in 0..40 {
            let blocks = [(); 4].map(|()| pool.allocate(8 * MIB, streams[round % 2]).unwrap());
            blocks[0].use_on(streams[(round + 1) % 2]).unwrap();
            sim.enqueue_work(streams[round % 2], LONG).unwrap();
            drop(blocks);
        }
        assert_eq!(pool.statistics().waits_inserted, 0, "{waits:?}");
        pool.validate().unwrap();
    }
}

#[test]
fn a_stream_that_takes_the_slot_of_one_may_wait() {
    let (bench, _, b) = half_pending();
    let gone = bench.stream();
    bench.pool.never_wait(gone).unwrap();
    bench.pool.stream_destroyed(gone).unwrap();
    bench.sim.destroy_stream(gone).unwrap();
    let next = bench.stream();
    drop(bench.allocate(8 * MIB, b));
    drop([bench.allocate(8 * MIB, next), bench.allocate(8 * MIB, next)]);
    assert!(bench.pool.statistics().waits_inserted > 0);
}
