//! Memory of captured graphs. Nothing is captured here: the pool is told that a stream is, and must
//! then do without all that a capture forbids, and keep the memory.

use super::MIB;
use super::bench::Bench;
use crate::conformance::{Fixture, Outcome};

/// What a capture allocated stays where it is, through everything that moves or gives back memory;
/// what it freed serves the next capture into the same memory, and nobody else.
pub(super) fn memory_of_a_graph_stays_where_it_is(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let pool = bench.pool();
    let (stream, other) = (bench.stream(), bench.stream());
    let before: Vec<_> = (0..4).map(|_| bench.allocate(4 * MIB, stream)).collect();
    let memory = pool.graph_memory();
    let capture = memory.begin_capture(stream).unwrap();
    let temporary = bench.allocate(6 * MIB, stream);
    let address = temporary.address();
    drop(temporary);
    let output = bench.allocate(3 * MIB, stream);
    assert_eq!(output.address(), address, "in stream order it serves again");
    let reserved = memory.reserved_bytes();
    assert!((6 * MIB..=8 * MIB).contains(&reserved), "{reserved}");
    drop(before);
    capture.end();
    // All of it is the graph's, the free part too.
    for round in 0..8 {
        let stream = if round % 2 == 0 { stream } else { other };
        let block = bench.allocate((1 + round) * 3 * MIB, stream);
        let apart =
            block.address() + block.size() <= address || block.address() >= address + reserved;
        assert!(apart, "{:#x}", block.address());
    }
    pool.synchronize().unwrap();
    pool.trim(0).unwrap();
    assert_eq!(pool.statistics().reserved_bytes, reserved);
    bench.check();
    output.verify_on(stream);
    drop(output);
    // The next capture comes after the output's last use, on whichever stream.
    let capture = memory.begin_capture(other).unwrap();
    let next = bench.allocate(6 * MIB, other);
    assert_eq!(next.address(), address);
    assert_eq!(memory.reserved_bytes(), reserved);
    drop(next);
    capture.end();
    drop(memory);
    assert_eq!(pool.statistics().graph_reserved_bytes, 0);
    bench.end();
    Ok(())
}

/// A hundred captures and drops leave nothing behind.
pub(super) fn captures_leave_nothing_behind(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 64 * MIB);
    let pool = bench.pool();
    let stream = bench.stream();
    drop(bench.allocate(MIB, stream));
    let before = pool.statistics();
    for round in 0..100 {
        let memory = pool.graph_memory();
        let capture = memory.begin_capture(stream).unwrap();
        let blocks = [1000, 3 * MIB].map(|size| bench.allocate(size + round, stream));
        capture.end();
        drop(blocks);
        drop(memory);
    }
    let after = pool.statistics();
    assert_eq!(after.reserved_bytes, before.reserved_bytes);
    assert_eq!(after.address_space_bytes, before.address_space_bytes);
    bench.end();
    Ok(())
}
