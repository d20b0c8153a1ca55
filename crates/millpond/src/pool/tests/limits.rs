//! Limits, full devices, and the error that explains them.

use super::*;
use crate::AllocError;
use crate::pool::Wall;

fn wall(error: AllocError) -> Wall {
    match error {
        AllocError::OutOfMemory(report) => report.wall,
        other => panic!("not out of memory: {other}"),
    }
}

#[test]
fn the_limit_holds_and_can_be_changed() {
    let sim = Arc::new(SimDevice::builder().total_memory(256 * MIB).build());
    let stream = sim
        .create_stream(crate::device::StreamOrder::Independent)
        .unwrap();
    let pool = Pool::builder(Arc::clone(&sim) as _)
        .limit(32 * MIB)
        .build()
        .unwrap();
    let first = pool.allocate(24 * MIB, stream).unwrap();
    assert_eq!(
        wall(pool.allocate(16 * MIB, stream).unwrap_err()),
        Wall::LimitReached
    );
    assert_eq!(
        wall(pool.allocate(33 * MIB, stream).unwrap_err()),
        Wall::NeverFits
    );
    let second = pool.allocate(8 * MIB, stream).unwrap();
    pool.set_limit(64 * MIB);
    let third = pool.allocate(16 * MIB, stream).unwrap();
    drop((first, second, third));
    assert!(pool.statistics().peak_reserved_bytes <= 48 * MIB);
}

#[test]
fn a_limit_under_one_handle_is_refused() {
    let sim = Arc::new(SimDevice::builder().total_memory(256 * MIB).build());
    assert!(Pool::builder(sim as _).limit(MIB).build().is_err());
}

#[test]
fn what_is_free_in_pieces_is_put_together() {
    // Every second of eight blocks is freed: 32 MiB free, nowhere more than 8 together.
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let mut blocks: Vec<Option<Block>> = (0..8)
        .map(|_| Some(bench.allocate(8 * MIB, stream)))
        .collect();
    for block in blocks.iter_mut().step_by(2) {
        drop(block.take());
    }
    let large = bench.allocate(32 * MIB, stream);
    assert_eq!(bench.pool.statistics().reserved_bytes, 64 * MIB);
    drop(large);
    bench.check();
}

#[test]
fn pieces_smaller_than_a_handle_cannot_be_put_together_and_the_error_says_so() {
    let bench = Bench::new(16 * MIB);
    let stream = bench.stream();
    let mut blocks: Vec<Option<Block>> =
        (0..16).map(|_| Some(bench.allocate(MIB, stream))).collect();
    for block in blocks.iter_mut().step_by(2) {
        drop(block.take());
    }
    let error = bench.pool.allocate(2 * MIB, stream).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("2.0 MiB asked for"), "{text}");
    assert!(
        text.contains("8.0 MiB live in 8 blocks and 8.0 MiB free (largest 1.0 MiB"),
        "{text}"
    );
    // The pool is as it was: a smaller request succeeds.
    let small = bench.allocate(MIB, stream);
    drop(small);
    bench.check();
}

#[test]
fn a_device_that_others_filled_is_told_apart_from_a_limit() {
    let sim = Arc::new(SimDevice::builder().total_memory(64 * MIB).build());
    let stream = sim
        .create_stream(crate::device::StreamOrder::Independent)
        .unwrap();
    let others = sim
        .create(48 * MIB, crate::device::HandleProperties::default())
        .unwrap();
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let error = pool.allocate(32 * MIB, stream).unwrap_err();
    assert!(
        error.to_string().contains("16.0 MiB free of 64.0 MiB"),
        "{error}"
    );
    assert_eq!(wall(error), Wall::DeviceFull);
    // What the device refused never existed.
    assert_eq!(pool.statistics().peak_reserved_bytes, 16 * MIB);
    let fits = pool.allocate(16 * MIB, stream).unwrap();
    drop(fits);
    sim.release(others).unwrap();
    let all = pool.allocate(64 * MIB, stream).unwrap();
    drop(all);
    pool.validate().unwrap();
}

#[test]
fn cupy_7678_a_limit_with_nothing_used_is_not_out_of_memory() {
    let sim = Arc::new(SimDevice::builder().total_memory(256 * MIB).build());
    let stream = sim
        .create_stream(crate::device::StreamOrder::Independent)
        .unwrap();
    let pool = Pool::builder(Arc::clone(&sim) as _)
        .limit(64 * MIB)
        .build()
        .unwrap();
    for megabytes in [1, 3, 7, 20, 33, 50, 64] {
        let block = pool.allocate(megabytes * MIB, stream).unwrap();
        drop(block);
    }
}

#[test]
fn all_that_is_free_and_completed_serves_one_request() {
    // Free neighbours that different streams left, none of them as large as a handle.
    let bench = Bench::new(32 * MIB);
    let streams = [bench.stream(), bench.stream(), bench.stream()];
    let mut blocks = Vec::new();
    for round in 0..60 {
        if let Ok(block) = bench
            .pool
            .allocate(400_000 + round * 1000, streams[round as usize % 3])
        {
            blocks.push(block);
        }
    }
    drop(blocks);
    bench.pool.synchronize().unwrap();
    let whole = bench.allocate(32 * MIB, streams[1]);
    drop(whole);
    bench.check();
}
