//! Every device call made to fail in turn: nothing is lost, and the same call later succeeds.

use super::*;
use crate::device::Status;

/// Growth, reuse across streams, moves, trim.
fn scenario(bench: &Bench, streams: &[StreamId]) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (a, b) = (streams[0], streams[1]);
    let mut blocks = Vec::new();
    for n in 1..7 {
        blocks.push(Some(
            bench.pool.allocate(n * 3 * MIB, a).map_err(|e| text(&e))?,
        ));
    }
    for block in blocks.iter_mut().step_by(2) {
        if let Some(block) = block.take() {
            block.use_on(b).map_err(|e| text(&e))?;
            bench.sim.enqueue_work(b, 50_000).map_err(|e| text(&e))?;
        }
    }
    let moved = bench.pool.allocate(25 * MIB, b).map_err(|e| text(&e))?;
    drop(moved);
    bench.pool.synchronize().map_err(|e| text(&e))?;
    bench.pool.trim(0).map_err(|e| text(&e))?;
    drop(blocks);
    Ok(())
}

fn fail_in_turn(status: Status) {
    for number in 0.. {
        let faults = Faults::number(number).with_status(status);
        let (bench, faults) = Bench::with_faults(96 * MIB, faults);
        let streams = [bench.stream(), bench.stream()];
        let outcome = scenario(&bench, &streams);
        bench
            .pool
            .validate()
            .unwrap_or_else(|e| panic!("call {number}: {e} ({outcome:?})"));
        let statistics = bench.pool.statistics();
        assert_eq!(
            (statistics.live_blocks, statistics.live_bytes),
            (0, 0),
            "call {number}"
        );
        let reached = faults.failed() == 1;
        faults.stop();
        scenario(&bench, &streams).unwrap_or_else(|e| panic!("after call {number} failed: {e}"));
        bench.check();
        let Bench { sim, pool, .. } = bench;
        drop(pool);
        let info = sim.memory_info().unwrap();
        assert_eq!(info.free, info.total, "after call {number} failed");
        if !reached {
            assert!(number > 40, "only {number} calls were made to fail");
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
    for seed in 1..20 {
        let (bench, faults) = Bench::with_faults(96 * MIB, Faults::random(seed, 0.05));
        let streams = [bench.stream(), bench.stream()];
        for _ in 0..20 {
            let _ = scenario(&bench, &streams);
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
