//! Growth and shrinking where the first choice of place or size does not do.

use super::gone::watched;
use super::*;
use crate::device::{Status, StreamOrder};

/// A pool where nothing can be mapped.
fn plain_device(total: u64) -> Arc<SimDevice> {
    let builder = SimDevice::builder().total_memory(total);
    Arc::new(builder.mapping(false).build())
}

#[test]
fn a_handle_too_large_for_the_nearest_gap_serves_elsewhere() {
    // A gap of 2 MiB lies between 8 MiB free and a live block; 8 MiB more are free in one handle.
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    let [low, gap, keep, high] = [8, 2, 2, 8].map(|size| bench.allocate(size * MIB, stream));
    drop(gap);
    bench.pool.synchronize().unwrap();
    assert_eq!(bench.pool.trim(0).unwrap(), 2 * MIB);
    bench.pool.set_limit(18 * MIB);
    drop((low, high));
    bench.pool.synchronize().unwrap();
    let block = bench.allocate(10 * MIB, stream);
    assert_eq!(bench.pool.statistics().reserved_bytes, 18 * MIB);
    bench.check();
    drop((keep, block));
}

#[test]
fn where_no_gap_has_room_for_the_handles_that_are_there_new_addresses_are_taken() {
    // As above, but the rest of the address space is in use.
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let sizes = [8, 2, 2, 8, 2, 42];
    let [low, gap, keep, high, keep_too, rest] =
        sizes.map(|size| bench.allocate(size * MIB, stream));
    drop(gap);
    bench.pool.synchronize().unwrap();
    assert_eq!(bench.pool.trim(0).unwrap(), 2 * MIB);
    bench.pool.set_limit(62 * MIB);
    drop((low, high));
    bench.pool.synchronize().unwrap();
    let block = bench.allocate(10 * MIB, stream);
    assert_eq!(bench.pool.statistics().reserved_bytes, 62 * MIB);
    bench.check();
    drop((keep, keep_too, rest, block));
}

#[test]
fn trimming_keeps_what_it_is_told_to_of_both_kinds_of_memory_together() {
    let faults = Faults::number(0)
        .only(&[Call::Reserve])
        .with_status(Status::OPERATING_SYSTEM);
    let (bench, _) = Bench::with_faults(256 * MIB, faults);
    let stream = bench.stream();
    // The first is a plain allocation, since no addresses could be reserved.
    drop([20, 24].map(|size| bench.allocate(size * MIB, stream)));
    bench.pool.synchronize().unwrap();
    assert_eq!(bench.pool.statistics().reserved_bytes, 44 * MIB);
    bench.pool.trim(20 * MIB).unwrap();
    assert_eq!(bench.pool.statistics().reserved_bytes, 24 * MIB);
    bench.check();
}

#[test]
fn a_device_without_room_for_a_usual_allocation_gives_the_least_that_does() {
    let sim = plain_device(40 * MIB);
    let stream = sim.create_stream(StreamOrder::Independent).unwrap();
    let builder = Pool::builder(Arc::clone(&sim) as _).waits(Waits::TimeFirst);
    let pool = builder.build().unwrap();
    let blocks = [9, 23, 4].map(|size| pool.allocate(size * MIB, stream).unwrap());
    assert_eq!(pool.statistics().reserved_bytes, 36 * MIB);
    drop(blocks);
    pool.validate().unwrap();
}

#[test]
fn an_address_that_the_device_gives_out_again_at_once_is_the_new_owners() {
    let sim = plain_device(64 * MIB);
    let (pool, meanwhile) = watched(&sim, Call::Free);
    let stream = sim.create_stream(StreamOrder::Independent).unwrap();
    let block = pool.allocate(20 * MIB, stream).unwrap();
    let address = block.address();
    drop(block);
    pool.synchronize().unwrap();
    let (give, got) = std::sync::mpsc::channel();
    let inner = Arc::downgrade(&pool.inner);
    meanwhile.act(move || {
        let pool = Pool {
            inner: inner.upgrade().unwrap(),
        };
        give.send(pool.allocate(20 * MIB, stream).unwrap()).unwrap();
    });
    assert_eq!(pool.trim(0).unwrap(), 20 * MIB);
    let again = got.recv().unwrap();
    assert_eq!(again.address(), address, "the sim gives the address again");
    pool.validate().unwrap();
    again.free().unwrap();
    pool.synchronize().unwrap();
    assert_eq!(pool.trim(0).unwrap(), 20 * MIB);
}

#[test]
fn a_plain_allocation_that_cannot_be_freed_stays() {
    let sim = plain_device(64 * MIB);
    let faults = Arc::new(Faults::number(0).only(&[Call::Free]));
    let observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&faults) as _];
    let device = Arc::new(Observed::new(Arc::clone(&sim) as _, observers));
    let pool = Pool::builder(device as _).build().unwrap();
    let stream = sim.create_stream(StreamOrder::Independent).unwrap();
    let block = pool.allocate(20 * MIB, stream).unwrap();
    let address = block.address();
    drop(block);
    pool.synchronize().unwrap();
    assert!(pool.trim(0).is_err());
    pool.validate().unwrap();
    assert_eq!(pool.statistics().free_bytes, 20 * MIB);
    assert_eq!(pool.allocate(MIB, stream).unwrap().address(), address);
    pool.synchronize().unwrap();
    assert_eq!(pool.trim(0).unwrap(), 20 * MIB);
}

#[test]
fn plain_allocations_that_are_free_make_room_for_a_larger_one() {
    let sim = plain_device(96 * MIB);
    let stream = sim.create_stream(StreamOrder::Independent).unwrap();
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let [keep, first, second] = [20, 30, 40].map(|size| pool.allocate(size * MIB, stream).unwrap());
    sim.enqueue_work(stream, 1000).unwrap();
    drop((first, second));
    let large = pool.allocate(60 * MIB, stream).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, 80 * MIB);
    drop((keep, large));
    pool.validate().unwrap();
}
