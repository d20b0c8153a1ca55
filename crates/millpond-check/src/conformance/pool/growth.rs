//! How much the pool takes, and that it gives it back.

use millpond::pool::reap_waiting;
use millpond::{AllocError, Pool, Request};

use super::MIB;
use super::bench::{Bench, Filled};
use crate::conformance::{Fixture, Kind, Outcome};

/// What others may take or give on a GPU while a case looks.
fn slack(fixture: &Fixture) -> u64 {
    match fixture.kind() {
        Kind::Cuda => 32 * MIB,
        _ => 0,
    }
}

fn free_memory(fixture: &Fixture) -> u64 {
    fixture.device().memory_info().unwrap().free
}

#[track_caller]
fn out_of_memory<T: std::fmt::Debug>(result: Result<T, AllocError>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    error.to_string()
}

/// RMM pool suite, forced growth: what fits the limit succeeds, what does not fails and leaves the
/// pool as it was. Ours can change its limit.
pub(super) fn a_limit_is_kept_and_can_be_changed(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 32 * MIB);
    let stream = bench.stream();
    let ask = |size| bench.try_allocate(Request::new(size, stream), size, 256, stream);
    let kept = [4, 16].map(|size| ask(size * MIB).unwrap());
    let said = out_of_memory(ask(20 * MIB));
    assert!(said.contains("limit"), "{said}");
    assert!(bench.pool().statistics().reserved_bytes <= 32 * MIB);
    let small = ask(2 * MIB).unwrap();
    bench.pool().set_limit(64 * MIB);
    assert_eq!(bench.pool().limit(), 64 * MIB);
    let large = ask(20 * MIB).unwrap();
    bench.check();
    drop((kept, small, large));
    bench.pool().set_limit(2 * MIB);
    bench.pool().synchronize().unwrap();
    bench.pool().trim(0).unwrap();
    assert_eq!(bench.pool().statistics().reserved_bytes, 0);
    drop(ask(2 * MIB).unwrap());
    bench.end();
    Ok(())
}

/// rmm#1957, #1664, #496: a pool whose free memory came in pieces serves one large request from
/// them. Needs mapping: pieces of plain allocations are never one range.
pub(super) fn free_pieces_make_one_block(fixture: &Fixture) -> Outcome {
    fixture.needs_mapping()?;
    let bench = Bench::new(fixture, 64 * MIB);
    let stream = bench.stream();
    let pieces: Vec<Filled<'_>> = (0..16).map(|_| bench.allocate(4 * MIB, stream)).collect();
    assert_eq!(bench.pool().statistics().reserved_bytes, 64 * MIB);
    // Every second one first, so that nothing adjacent is free.
    let (odd, even): (Vec<_>, Vec<_>) = pieces.into_iter().zip(0..).partition(|(_, n)| n % 2 == 1);
    drop(odd);
    bench.pool().synchronize().unwrap();
    let half = bench.allocate(32 * MIB, stream);
    bench.check();
    drop((even, half));
    bench.pool().synchronize().unwrap();
    drop(bench.allocate(64 * MIB, stream));
    assert!(bench.pool().statistics().peak_reserved_bytes <= 64 * MIB);
    bench.end();
    Ok(())
}

/// Rule 5 of the design: a request that fails changes nothing, and succeeds when there is room.
pub(super) fn out_of_memory_is_recovered_from(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 32 * MIB);
    let stream = bench.stream();
    for round in 0..3 {
        let ask = |size| bench.try_allocate(Request::new(size, stream), size, 256, stream);
        let blocks: Vec<Filled<'_>> = std::iter::from_fn(|| ask(3 * MIB).ok()).collect();
        assert!((8..=10).contains(&blocks.len()), "{}", blocks.len());
        let before = bench.pool().statistics();
        out_of_memory(ask(4 * MIB));
        let after = bench.pool().statistics();
        assert_eq!(after.live_bytes, before.live_bytes);
        bench.check();
        drop(blocks);
        if round == 1 {
            bench.pool().synchronize().unwrap();
        }
        drop(ask(24 * MIB));
    }
    bench.end();
    Ok(())
}

/// RMM pool suite: two blocks of half the pool each.
pub(super) fn a_pool_as_large_as_asked_holds_it_all(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 256 * MIB);
    let stream = bench.stream();
    for _ in 0..2 {
        let halves = [(); 2].map(|()| bench.allocate(128 * MIB, stream));
        assert_eq!(bench.pool().statistics().reserved_bytes, 256 * MIB);
        drop(halves);
    }
    bench.end();
    Ok(())
}

/// Memory that nothing uses goes back to the device when it is asked for, and not before its use
/// is over.
pub(super) fn trim_gives_memory_back(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 512 * MIB);
    let (stream, slack) = (bench.stream(), slack(fixture));
    let before = free_memory(fixture);
    let kept = bench.allocate(32 * MIB, stream);
    let freed = bench.allocate(256 * MIB, stream);
    assert!(free_memory(fixture) <= before - 288 * MIB + slack);
    let hold = fixture.hold(stream);
    drop(freed);
    assert_eq!(bench.pool().trim(0).unwrap(), 0, "it is in use");
    drop(hold);
    bench.pool().synchronize_stream(stream).unwrap();
    assert!(bench.pool().trim(0).unwrap() >= 256 * MIB);
    assert_eq!(bench.pool().statistics().free_bytes, 0);
    assert!(free_memory(fixture) + 32 * MIB + slack >= before);
    drop(kept);
    bench.pool().synchronize().unwrap();
    bench.pool().trim(0).unwrap();
    assert!(free_memory(fixture) + slack >= before);
    bench.end();
    Ok(())
}

/// cuda-samples streamOrderedAllocation, part b: the same work again takes no more memory.
pub(super) fn rounds_do_not_grow(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 512 * MIB);
    let stream = bench.stream();
    let mut reserved = None;
    for _ in 0..20 {
        let blocks = [4, 4, 4].map(|size| bench.allocate(size * MIB, stream));
        drop(blocks);
        bench.pool().synchronize_stream(stream).unwrap();
        let statistics = bench.pool().statistics();
        assert_eq!(statistics.live_bytes, 0);
        assert_eq!(statistics.pending_bytes, 0);
        assert_eq!(
            *reserved.get_or_insert(statistics.reserved_bytes),
            statistics.reserved_bytes
        );
    }
    bench.end();
    Ok(())
}

/// Statistics are of one moment, and add up.
pub(super) fn the_books_agree(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 256 * MIB);
    let stream = bench.stream();
    let blocks: Vec<_> = [10, 100_000, 7 * MIB, 20 * MIB]
        .map(|size| bench.allocate(size, stream))
        .into();
    let full = bench.pool().statistics();
    assert_eq!((full.live_blocks, full.live_bytes), (4, 27 * MIB + 100_010));
    let hold = fixture.hold(stream);
    drop(blocks);
    let held = bench.pool().statistics();
    assert_eq!((held.live_blocks, held.live_bytes), (0, 0));
    assert!(held.pending_bytes >= full.live_bytes);
    assert_eq!(held.reserved_bytes, held.free_bytes);
    drop(hold);
    bench.pool().synchronize().unwrap();
    let free = bench.pool().statistics();
    assert_eq!(free.pending_bytes, 0);
    assert_eq!(free.peak_live_bytes, full.live_bytes);
    for picture in [full, held, free] {
        let parts = picture.live_rounded_bytes + picture.free_bytes + picture.in_transit_bytes;
        assert_eq!(picture.reserved_bytes, parts);
    }
    bench.end();
    Ok(())
}

/// A pool that goes takes everything with it: mappings, handles, reservations, events; blocks that
/// became bare addresses, too.
pub(super) fn dropping_gives_everything_back(fixture: &Fixture) -> Outcome {
    let before = free_memory(fixture);
    let pool = Pool::builder(fixture.device().clone()).build().unwrap();
    let stream = fixture.stream();
    let raw = pool.allocate(64 * MIB, stream).unwrap().into_raw();
    let pattern = millpond::device::Pattern(3);
    fixture.device().fill(stream, raw, MIB, pattern).unwrap();
    let block = pool.allocate(128 * MIB, stream).unwrap();
    drop(pool);
    // The block keeps the pool.
    let (address, size) = (block.address(), block.size());
    fixture
        .device()
        .fill(stream, address, size, pattern)
        .unwrap();
    drop(block);
    assert_eq!(reap_waiting(fixture.device()), Ok(0));
    assert!(free_memory(fixture) + slack(fixture) >= before);
    fixture.device().destroy_stream(stream).unwrap();
    Ok(())
}
