//! Every device call of captures made to fail: nothing is lost, and the same calls later succeed.

use super::*;
use crate::device::Status;

/// A capture that grows several times, and a second one that shares its memory.
fn scenario(bench: &Bench, [a, b]: [StreamId; 2]) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let live = bench.pool.allocate(4 * MIB, b).map_err(|e| text(&e))?;
    let memory = bench.pool.graph_memory();
    for _ in 0..2 {
        let capture = memory.begin_capture(a).map_err(|e| text(&e))?;
        let mut blocks = Vec::new();
        for n in 1..6 {
            let block = bench.pool.allocate(n * 3 * MIB, a);
            blocks.push(block.map_err(|e| text(&e))?);
        }
        // The last is the graph's output, and is used outside.
        let output = blocks.pop();
        drop(blocks);
        capture.end();
        if let Some(output) = output {
            output.use_on(b).map_err(|e| text(&e))?;
            bench.sim.enqueue_work(b, 50_000).map_err(|e| text(&e))?;
        }
    }
    drop((memory, live));
    Ok(())
}

fn fail_in_turn(status: Status) {
    for number in 0.. {
        let faults = Faults::number(number).with_status(status);
        let (bench, faults) = Bench::with_faults(96 * MIB, faults);
        let streams = [bench.stream(), bench.stream()];
        let outcome = scenario(&bench, streams);
        let say = |e| panic!("call {number}: {e} ({outcome:?})");
        bench.pool.validate().unwrap_or_else(say);
        let statistics = bench.pool.statistics();
        assert_eq!(
            (statistics.graph_live_blocks, statistics.live_blocks),
            (0, 0),
            "call {number}"
        );
        let reached = faults.failed() == 1;
        faults.stop();
        scenario(&bench, streams).unwrap_or_else(|e| panic!("after call {number} failed: {e}"));
        bench.check();
        bench.pool.synchronize().unwrap();
        assert_eq!(
            bench.pool.statistics().graph_reserved_bytes,
            0,
            "after call {number} failed"
        );
        let Bench { sim, pool, .. } = bench;
        drop(pool);
        let info = sim.memory_info().unwrap();
        assert_eq!(info.free, info.total, "after call {number} failed");
        if !reached {
            assert!(number > 25, "only {number} calls were made to fail");
            break;
        }
        assert!(number < 1000, "the scenario does not end");
    }
}

#[test]
fn each_call_out_of_memory_in_turn() {
    fail_in_turn(Status::OUT_OF_MEMORY);
}

#[test]
fn each_call_failing_otherwise_in_turn() {
    fail_in_turn(Status::OPERATING_SYSTEM);
}

#[test]
fn a_storm_of_faults_loses_nothing() {
    for seed in 1..40 {
        let (bench, faults) = Bench::with_faults(96 * MIB, Faults::random(seed, 0.1));
        let streams = [bench.stream(), bench.stream()];
        for _ in 0..20 {
            let _ = scenario(&bench, streams);
            bench.check();
        }
        assert!(faults.failed() > 0);
        faults.stop();
        bench.pool.synchronize().unwrap();
        bench.pool.trim(0).unwrap();
        assert_eq!(bench.pool.statistics().reserved_bytes, 0, "seed {seed}");
        let info = bench.sim.memory_info().unwrap();
        assert_eq!(info.free, info.total, "seed {seed}");
    }
}
