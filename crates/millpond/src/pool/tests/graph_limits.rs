//! What graphs may have, and what is refused.

use super::graphs::{begin, touching};
use super::*;
use crate::device::EventId;
use crate::pool::Wall;
use crate::{AllocError, BlockError};

#[test]
fn the_limit_holds_for_graphs_and_the_pool_together() {
    let bench = Bench::new(64 * MIB);
    bench.pool.set_limit(16 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let live = bench.allocate(4 * MIB, b);
    let free = bench.allocate(6 * MIB, b);
    bench.pool.synchronize().unwrap();
    drop(free);
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    let first = bench.allocate(6 * MIB, a);
    let error = bench.pool.allocate(8 * MIB, a).unwrap_err();
    let AllocError::OutOfMemory(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.wall, Wall::LimitReached);
    assert_eq!((error.limit, error.graphs), (16 * MIB, 6 * MIB));
    assert!(error.to_string().contains("graphs have 6.0 MiB"), "{error}");
    let error = bench.pool.allocate(17 * MIB, a).unwrap_err();
    assert!(
        matches!(&error, AllocError::OutOfMemory(o) if o.wall == Wall::NeverFits),
        "{error}"
    );
    assert!(bench.pool.statistics().reserved_bytes <= 16 * MIB);
    drop((first, live, capture));
    bench.check();
}

#[test]
fn a_capture_gets_what_the_pool_has_and_does_not_use() {
    let bench = Bench::new(16 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    drop(bench.allocate(16 * MIB, b));
    bench.pool.synchronize().unwrap();
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    let seen = bench.log.total();
    let block = bench.allocate(12 * MIB, a);
    assert_eq!(touching(&bench, seen), None);
    drop((block, capture));
    bench.check();
}

#[test]
fn mistakes_with_graph_blocks_are_told() {
    let bench = Bench::new(64 * MIB);
    let [a, b] = [(); 2].map(|()| bench.stream());
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, a);
    let address = bench.allocate(4 * MIB, a).into_raw();
    let interior = bench.pool.free(address + 256);
    assert!(matches!(interior, Err(BlockError::Interior { .. })));
    let interior = bench.pool.use_on(address + 256, b);
    assert!(matches!(interior, Err(BlockError::Interior { .. })));
    let unused = bench.pool.use_ended(address, b);
    assert!(matches!(unused, Err(BlockError::NotUsed { .. })));
    let unknown = bench.pool.use_ends_at(address, a, EventId(77));
    assert!(matches!(unknown, Err(BlockError::UnknownEvent { .. })));
    bench.pool.free(address).unwrap();
    let twice = bench.pool.free(address);
    assert!(matches!(twice, Err(BlockError::NotLive { .. })));
    let foreign = bench.pool.free(0x10);
    assert!(matches!(foreign, Err(BlockError::Foreign { .. })));
    drop(capture);
    bench.check();
}

#[test]
fn alignments_are_kept_in_graphs() {
    let bench = Bench::new(256 * MIB);
    let stream = bench.stream();
    let memory = bench.pool.graph_memory();
    let capture = begin(&memory, stream);
    let mut blocks = vec![bench.allocate(100, stream)];
    for alignment in [512, 1 << 16, 4 << 20, 16 << 20] {
        let request = crate::Request::new(1000, stream).alignment(alignment);
        let block = bench.pool.allocate_with(request).unwrap();
        assert!(block.address().is_multiple_of(alignment));
        blocks.push(block);
        bench.check();
    }
    drop((blocks, capture));
    bench.check();
}
