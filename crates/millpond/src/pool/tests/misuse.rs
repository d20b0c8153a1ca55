//! Calls that are wrong: each is an error that says so, and changes nothing.

use super::*;
use crate::{AllocError, BlockError, Request};

#[test]
fn a_double_free_is_an_error() {
    let bench = Bench::new(64 * MIB);
    let address = bench.allocate(MIB, bench.stream()).into_raw();
    bench.pool.free(address).unwrap();
    assert_eq!(
        bench.pool.free(address),
        Err(BlockError::NotLive { address })
    );
    bench.check();
}

#[test]
fn a_foreign_address_is_an_error() {
    let bench = Bench::new(64 * MIB);
    let other = Bench::new(64 * MIB);
    let block = other.allocate(MIB, other.stream());
    let _keep = bench.allocate(MIB, bench.stream());
    for address in [0, 1, 4096, u64::MAX] {
        assert_eq!(
            bench.pool.free(address),
            Err(BlockError::Foreign { address })
        );
    }
    let stream = bench.stream();
    assert!(bench.pool.use_on(1, stream).is_err());
    drop(block);
}

#[test]
fn an_interior_address_is_an_error_that_names_the_block() {
    let bench = Bench::new(64 * MIB);
    let block = bench.allocate(MIB, bench.stream());
    let address = block.address() + 512;
    let expected = BlockError::Interior {
        address,
        start: block.address(),
        size: MIB,
    };
    assert_eq!(bench.pool.free(address), Err(expected.clone()));
    assert_eq!(bench.pool.use_on(address, StreamId(9)), Err(expected));
    assert_eq!(bench.pool.statistics().live_blocks, 1);
}

#[test]
fn a_freed_block_is_not_freed_again_through_its_successor() {
    // A raw free behind the back of a `Block`, whose memory is then given to somebody else: the
    // old `Block` must not free the new one when it is dropped.
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let old = bench.allocate(MIB, stream);
    bench.pool.free(old.address()).unwrap();
    let new = bench.allocate(MIB, stream);
    assert_eq!(new.address(), old.address());
    assert!(old.free().is_err());
    assert_eq!(bench.pool.statistics().live_blocks, 1);
    new.free().unwrap();
}

#[test]
fn alignments_that_are_no_powers_of_two_are_refused() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    for alignment in [0, 3, 384, u64::MAX] {
        let request = Request::new(16, stream).alignment(alignment);
        let error = bench.pool.allocate_with(request).unwrap_err();
        assert_eq!(error, AllocError::BadAlignment { alignment });
    }
}

#[test]
fn sizes_up_to_the_largest_number_are_answered() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    for size in [
        u64::MAX,
        u64::MAX - 1,
        u64::MAX - 255,
        1 << 63,
        (1 << 63) + 1,
        1 << 50,
    ] {
        for alignment in [1, 256, 2 * MIB, 1 << 40, 1 << 63] {
            let request = Request::new(size, stream).alignment(alignment);
            let error = bench.pool.allocate_with(request).unwrap_err();
            assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
        }
    }
    let huge_alignment = Request::new(1, stream).alignment(1 << 63);
    assert!(bench.pool.allocate_with(huge_alignment).is_err());
    assert_eq!(bench.pool.statistics().live_blocks, 0);
    bench.check();
}

#[test]
fn zero_bytes_give_a_block_of_its_own_address() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let (a, b) = (bench.allocate(0, stream), bench.allocate(0, stream));
    assert_ne!(a.address(), b.address());
    assert_eq!((a.size(), bench.pool.statistics().live_bytes), (0, 0));
}

#[test]
fn large_alignments_are_kept_and_leave_nothing_behind() {
    let bench = Bench::new(512 * MIB);
    let stream = bench.stream();
    let mut blocks = Vec::new();
    for power in [8, 12, 16, 20, 21, 22, 24, 26] {
        for size in [1, 5000, 3 * MIB] {
            let request = Request::new(size, stream).alignment(1 << power);
            let block = bench.pool.allocate_with(request).unwrap();
            assert_eq!(block.address() % (1 << power), 0);
            blocks.push(block);
        }
    }
    bench.check();
    drop(blocks);
    bench.pool.synchronize().unwrap();
    bench.pool.trim(0).unwrap();
    assert_eq!(bench.pool.statistics().reserved_bytes, 0);
    bench.check();
}
