//! Growth and shrinking where the first choice of place or size does not do.

use super::*;

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
