//! Trims: what goes, what stays, and the account of why.

use super::*;
use crate::pool::TrimReport;

const KIB: u64 = 1 << 10;
const LONG: u64 = 1_000_000_000;

/// The report of a trim, whose parts must be all of what is left.
#[track_caller]
fn trim(bench: &Bench, keep: u64) -> TrimReport {
    let before = bench.pool.usage().reserved_current;
    let report = bench.pool.trim_to(keep).unwrap();
    let parts = report.in_live_blocks
        + report.beside_live_blocks
        + report.pending
        + report.kept_as_asked
        + report.in_graphs
        + report.withheld;
    assert_eq!(report.reserved_bytes, parts, "{report:?}");
    assert_eq!(before - report.released_bytes, report.reserved_bytes);
    assert_eq!(bench.pool.usage().reserved_current, report.reserved_bytes);
    bench.check();
    report
}

/// CCCL's trim suite: two blocks of 8 KiB, one freed.
#[test]
fn live_blocks_hold_their_handles() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let (first, second) = (
        bench.allocate(8 * KIB, stream),
        bench.allocate(8 * KIB, stream),
    );
    drop(first);
    bench.pool.synchronize_stream(stream).unwrap();
    for keep in [KIB, 24 * KIB, 10 * KIB] {
        let report = trim(&bench, keep);
        assert_eq!((report.released_bytes, report.in_live_blocks), (0, 8 * KIB));
        assert_eq!(report.beside_live_blocks, 2 * MIB - 8 * KIB);
    }
    drop(second);
    bench.pool.synchronize_stream(stream).unwrap();
    // Nothing goes without a trim.
    assert_eq!(bench.pool.usage().reserved_current, 2 * MIB);
    let report = trim(&bench, 0);
    assert_eq!((report.released_bytes, report.reserved_bytes), (2 * MIB, 0));
}

#[test]
fn what_must_be_kept_is_kept_and_said() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let blocks: Vec<Block> = (0..4).map(|_| bench.allocate(8 * MIB, stream)).collect();
    drop(blocks);
    bench.pool.synchronize().unwrap();
    let report = trim(&bench, 12 * MIB);
    assert_eq!(
        (report.released_bytes, report.kept_as_asked),
        (16 * MIB, 16 * MIB)
    );
    // Less is reserved than is to be kept: nothing happens.
    let report = trim(&bench, 64 * MIB);
    assert_eq!((report.released_bytes, report.kept_as_asked), (0, 16 * MIB));
    assert_eq!(trim(&bench, 0).released_bytes, 16 * MIB);
}

#[test]
fn uses_that_are_not_over_hold_memory_until_they_are() {
    let bench = Bench::new(64 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    let (done, block) = (bench.allocate(4 * MIB, a), bench.allocate(8 * MIB, b));
    drop(done);
    bench.sim.enqueue_work(b, LONG).unwrap();
    drop(block);
    bench.pool.synchronize_stream(a).unwrap();
    let report = trim(&bench, 0);
    assert_eq!((report.released_bytes, report.pending), (4 * MIB, 8 * MIB));
    // A trim looks for itself what is completed.
    bench.sim.advance_host_by(LONG);
    assert_eq!(trim(&bench, 0).released_bytes, 8 * MIB);
}

#[test]
fn memory_of_graphs_is_told_apart() {
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let memory = bench.pool.graph_memory();
    let capture = memory.begin_capture(stream).unwrap();
    let block = bench.pool.allocate(4 * MIB, stream).unwrap();
    capture.end();
    let report = trim(&bench, 0);
    let graphs = bench.pool.statistics().graph_reserved_bytes;
    assert_eq!((report.in_graphs, report.reserved_bytes), (graphs, graphs));
    assert!(graphs >= 4 * MIB);
    drop((block, memory));
    bench.pool.synchronize().unwrap();
    assert_eq!(trim(&bench, 0), TrimReport::default());
}

#[test]
fn a_refused_release_is_told_and_the_rest_goes() {
    let faults = Faults::number(0).only(&[Call::Release]);
    let (bench, _) = Bench::with_faults(64 * MIB, faults);
    let stream = bench.stream();
    let blocks = [
        bench.allocate(4 * MIB, stream),
        bench.allocate(8 * MIB, stream),
    ];
    drop(blocks);
    bench.pool.synchronize().unwrap();
    let report = trim(&bench, 0);
    assert!(report.released_bytes > 0 && report.reserved_bytes > 0);
    assert!(report.refusal.is_some());
    trim(&bench, 0);
    assert_eq!(bench.pool.usage().reserved_current, 0);
}

#[test]
fn a_trim_of_which_everything_fails_is_an_error_and_changes_nothing() {
    let faults = Faults::random(1, 1.0).only(&[Call::Unmap]);
    let (bench, faults) = Bench::with_faults(64 * MIB, faults);
    let stream = bench.stream();
    drop(bench.allocate(4 * MIB, stream));
    bench.pool.synchronize().unwrap();
    let before = bench.pool.statistics();
    assert_eq!(bench.pool.trim_to(0).unwrap_err().call, Call::Unmap);
    assert_eq!(bench.pool.statistics().free_bytes, before.free_bytes);
    bench.check();
    faults.stop();
    assert_eq!(trim(&bench, 0).released_bytes, 4 * MIB);
}
