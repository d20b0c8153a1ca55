//! What RMM asks of every one of its resources, with every byte looked at.

use std::sync::mpsc::channel;
use std::thread;

use millpond::device::StreamId;
use millpond::{AllocError, BlockError, Pool, Request};

use super::bench::{Bench, Random};
use super::{GIB, KIB, MIB};
use crate::conformance::{Fixture, Kind, Outcome};

const LARGEST: u64 = 5 * MIB;
const PIB: u64 = 1 << 50;

/// RMM generic 1: two live blocks of 8 bytes differ, on every kind of stream; blocks of no bytes
/// have addresses of their own.
pub(super) fn live_blocks_differ(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    for stream in [StreamId::DEFAULT, StreamId::PER_THREAD, bench.stream()] {
        for size in [8, 0] {
            let (one, two) = (bench.allocate(size, stream), bench.allocate(size, stream));
            assert_ne!(one.address(), two.address());
            assert_eq!(bench.pool().statistics().live_blocks, 2);
        }
    }
    bench.end();
    Ok(())
}

/// RMM generic 2: from 0 bytes to 1 GiB, aligned to 256, on every kind of stream.
pub(super) fn sizes_from_nothing_to_a_gibibyte(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 3 * GIB);
    for stream in [StreamId::DEFAULT, bench.stream()] {
        for size in [0, 4, KIB, MIB, 100 * MIB] {
            drop(bench.allocate(size, stream));
        }
    }
    // Not filled, so that a machine that stands in for a GPU does not need it all.
    match bench.pool().allocate(GIB, StreamId::DEFAULT) {
        Ok(block) => assert!(block.address().is_multiple_of(256)),
        Err(AllocError::OutOfMemory(_)) if fixture.kind() == Kind::Host => {
            println!("this machine has less than a gibibyte to spare");
        }
        Err(error) => panic!("{error}"),
    }
    bench.pool().synchronize().unwrap();
    bench.end();
    Ok(())
}

/// RMM generic 2: 1 PiB, and all that rounding could wrap, is an out-of-memory error with a text
/// that says so; it changes nothing.
pub(super) fn too_much_is_an_error_that_explains_itself(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let unlimited = Pool::builder(fixture.device().clone()).build().unwrap();
    for size in [PIB, 1 << 60, u64::MAX - 255, u64::MAX] {
        for pool in [bench.pool(), &unlimited] {
            let error = pool.allocate(size, StreamId::DEFAULT).unwrap_err();
            assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
            assert!(error.to_string().starts_with("out of memory: "), "{error}");
            assert_eq!(pool.statistics().reserved_bytes, 0);
        }
    }
    drop(bench.allocate(MIB, StreamId::DEFAULT));
    bench.end();
    Ok(())
}

/// RMM generic 3: 100 blocks of up to 5 MiB, freed in order.
pub(super) fn random_allocations(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, GIB);
    for stream in [StreamId::DEFAULT, bench.stream(), StreamId::PER_THREAD] {
        let mut random = Random(stream.0);
        let size = |_| 1 + random.below(LARGEST);
        let sizes: Vec<u64> = (0..100).map(size).collect();
        let blocks: Vec<_> = sizes
            .iter()
            .map(|&size| bench.allocate(size, stream))
            .collect();
        assert_eq!(bench.pool().statistics().live_bytes, sizes.iter().sum());
        blocks.into_iter().for_each(drop);
        assert_eq!(bench.pool().statistics().live_blocks, 0);
    }
    bench.end();
    Ok(())
}

/// RMM generic 4: 200 operations, 53 of 100 allocations, freed anywhere.
pub(super) fn mixed_random_allocations(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, GIB);
    for stream in [StreamId::DEFAULT, bench.stream(), StreamId::PER_THREAD] {
        mixed(&bench, stream, stream.0);
    }
    assert_eq!(bench.pool().statistics().live_blocks, 0);
    bench.end();
    Ok(())
}

fn mixed(bench: &Bench, stream: StreamId, seed: u64) {
    let mut random = Random(seed);
    let mut blocks = Vec::new();
    for _ in 0..200 {
        let allocates = blocks.is_empty() || random.below(100) < 53;
        if allocates && blocks.len() < 100 {
            // The product of two draws: most blocks are small, as in programs.
            let largest = 1 + random.below(LARGEST);
            let size = 1 + random.below(largest);
            blocks.push(bench.allocate(size, stream));
        } else {
            let chosen = random.below(blocks.len() as u64);
            drop(blocks.swap_remove(chosen as usize));
        }
    }
}

/// RMM generic 5: the same from four threads at once.
fn threads(fixture: &Fixture, stream_of: impl Fn(&Bench, u64) -> StreamId + Sync) -> Outcome {
    let bench = Bench::new(fixture, GIB);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (bench, stream_of) = (&bench, &stream_of);
            scope.spawn(move || {
                let stream = stream_of(bench, thread);
                mixed(bench, stream, thread);
                // What a thread's own stream does must be over before the thread is.
                bench.device.synchronize_stream(stream).unwrap();
            });
        }
    });
    assert_eq!(bench.pool().statistics().live_blocks, 0);
    bench.end();
    Ok(())
}

/// RMM generic 5, null stream.
pub(super) fn threads_on_the_legacy_stream(fixture: &Fixture) -> Outcome {
    threads(fixture, |_, _| StreamId::DEFAULT)
}

/// RMM generic 5, one shared user stream.
pub(super) fn threads_on_one_shared_stream(fixture: &Fixture) -> Outcome {
    let shared = fixture.stream();
    threads(fixture, |_, _| shared)
}

/// RMM generic 5, per-thread default streams.
pub(super) fn threads_on_their_own_default_streams(fixture: &Fixture) -> Outcome {
    threads(fixture, |_, _| StreamId::PER_THREAD)
}

/// Not in RMM's: each thread with a stream that it created.
pub(super) fn threads_on_streams_of_their_own(fixture: &Fixture) -> Outcome {
    threads(fixture, |bench, _| bench.stream())
}

/// RMM generic 6: 100 blocks of up to 1 MiB are allocated on one thread and stream, and freed on
/// another, which uses them in the order of an event.
fn freed_elsewhere(fixture: &Fixture, streams: impl Fn(&Bench) -> (StreamId, StreamId)) -> Outcome {
    let bench = Bench::new(fixture, GIB);
    let (producing, consuming) = streams(&bench);
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        let bench = &bench;
        scope.spawn(move || {
            let mut random = Random(6);
            for _ in 0..100 {
                let block = bench.allocate(1 + random.below(MIB), producing);
                let written = bench.recorded(producing);
                sender.send((block, written)).unwrap();
            }
            drop(sender);
        });
        scope.spawn(move || {
            for (block, written) in receiver {
                bench.device.wait_event(consuming, written).unwrap();
                block.use_unordered_on(consuming);
                block.free_unverified();
            }
            bench.device.synchronize_stream(consuming).unwrap();
        });
    });
    assert_eq!(bench.pool().statistics().live_blocks, 0);
    bench.end();
    Ok(())
}

/// RMM generic 6, null and null.
pub(super) fn freed_by_another_thread_on_the_legacy_stream(fixture: &Fixture) -> Outcome {
    freed_elsewhere(fixture, |_| (StreamId::DEFAULT, StreamId::DEFAULT))
}

/// RMM generic 6, per-thread default streams.
pub(super) fn freed_by_another_thread_on_default_streams(fixture: &Fixture) -> Outcome {
    freed_elsewhere(fixture, |_| (StreamId::PER_THREAD, StreamId::PER_THREAD))
}

/// RMM generic 6, the same user stream.
pub(super) fn freed_by_another_thread_on_the_same_stream(fixture: &Fixture) -> Outcome {
    freed_elsewhere(fixture, |bench| {
        let shared = bench.stream();
        (shared, shared)
    })
}

/// RMM generic 6, different user streams.
pub(super) fn freed_by_another_thread_on_another_stream(fixture: &Fixture) -> Outcome {
    freed_elsewhere(fixture, |bench| (bench.stream(), bench.stream()))
}

/// RMM generic 7 and its pool suite: a copy of a pool is the same pool and may free for it; two
/// pools of one device do not know each other's blocks.
pub(super) fn clones_are_one_pool_and_pools_are_separate(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let clone = bench.pool().clone();
    let other = Pool::builder(fixture.device().clone()).build().unwrap();
    let stream = bench.stream();
    let block = bench.allocate(MIB, stream);
    let theirs = other.allocate(MIB, stream).unwrap();
    assert_ne!(block.address(), theirs.address());
    let address = block.address();
    assert_eq!(other.free(address), Err(BlockError::Foreign { address }));
    block.free_by_address(&clone);
    assert_eq!(bench.pool().statistics(), clone.statistics());
    assert_eq!(other.statistics().live_blocks, 1);
    drop(clone);
    drop(theirs);
    bench.end();
    Ok(())
}

/// Rule 2 of the design: a returned address has the alignment that was asked for.
pub(super) fn alignments_are_kept(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 512 * MIB);
    let stream = bench.stream();
    let mut blocks = Vec::new();
    for power in [0, 3, 8, 12, 16, 20, 21, 22, 24] {
        for size in [1, 5000, 3 * MIB] {
            let alignment = 1 << power;
            let request = Request::new(size, stream).alignment(alignment);
            let block = bench.try_allocate(request, size, alignment.max(256), stream);
            blocks.push(block.unwrap());
        }
    }
    for alignment in [0, 3, 384, u64::MAX] {
        let request = Request::new(16, stream).alignment(alignment);
        let error = bench.pool().allocate_with(request).unwrap_err();
        assert_eq!(error, AllocError::BadAlignment { alignment });
    }
    bench.check();
    drop(blocks);
    bench.end();
    Ok(())
}

/// RMM's tracking suite asks that an untracked free be noticed; here every wrong free is an error.
pub(super) fn wrong_frees_are_errors_and_change_nothing(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let pool = bench.pool();
    let (stream, other) = (bench.stream(), bench.stream());
    let block = bench.allocate(MIB, stream);
    let start = block.address();
    let address = start + 512;
    let interior = BlockError::Interior {
        address,
        start,
        size: MIB,
    };
    assert_eq!(pool.free(address), Err(interior.clone()));
    assert_eq!(pool.use_on(address, other), Err(interior));
    for address in [0, 1, 4096, u64::MAX] {
        let foreign = Err(BlockError::Foreign { address });
        assert_eq!(pool.free(address), foreign);
        assert_eq!(pool.use_on(address, other), foreign);
    }
    assert_eq!(pool.statistics().live_blocks, 1);
    block.free_by_address(pool);
    let address = start;
    assert_eq!(pool.free(address), Err(BlockError::NotLive { address }));
    bench.end();
    Ok(())
}
