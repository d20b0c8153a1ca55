//! Every device call made to fail in turn: nothing is lost, and the same call later succeeds.

use std::collections::BTreeMap;

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

/// The free end of one handle is put together with the free beginning of one other after another,
/// until it has more mappings than it keeps; then a trim.
fn aliasing(bench: &Bench, streams: &[StreamId]) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let allocate = |size: u64| {
        let block = bench.pool.allocate(size * MIB, streams[0]);
        block.map_err(|e| text(&e))
    };
    // An earlier run may have come to an end too soon.
    bench.pool.synchronize().map_err(|e| text(&e))?;
    bench.pool.trim(0).map_err(|e| text(&e))?;
    let mut keep = Vec::new();
    let wholes = (0..8).map(|_| allocate(2)).collect::<Result<Vec<_>, _>>()?;
    let mut wholes = wholes.into_iter();
    drop(wholes.next());
    keep.push(allocate(1)?);
    let mut end = allocate(1)?;
    for whole in wholes {
        drop(whole);
        let beginning = allocate(1)?;
        keep.push(allocate(1)?);
        drop((beginning, end));
        let both = allocate(2)?;
        bench
            .sim
            .enqueue_work(streams[0], 20_000)
            .map_err(|e| text(&e))?;
        drop(both);
        bench.pool.synchronize().map_err(|e| text(&e))?;
        // The lower one is the end of the first handle.
        end = allocate(1)?;
        keep.push(allocate(1)?);
    }
    keep.truncate(3);
    drop(end);
    bench.pool.synchronize().map_err(|e| text(&e))?;
    bench.pool.trim(0).map_err(|e| text(&e))?;
    Ok(())
}

type Scenario = fn(&Bench, &[StreamId]) -> Result<(), String>;

fn fail_in_turn(total: u64, scenario: Scenario, status: Status) {
    for number in 0.. {
        let faults = Faults::number(number).with_status(status);
        let (bench, faults) = Bench::with_faults(total, faults);
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
        let statistics = bench.pool.statistics();
        assert_eq!(
            statistics.free_bytes, statistics.reserved_bytes,
            "after call {number} failed"
        );
        let Bench { sim, pool, .. } = bench;
        drop(pool);
        let info = sim.memory_info().unwrap();
        assert_eq!(info.free, info.total, "after call {number} failed");
        if !reached {
            assert!(number > 40, "only {number} calls were made to fail");
            break;
        }
        assert!(number < 2000, "the scenario does not end");
    }
}

#[test]
fn each_call_out_of_memory_in_turn() {
    fail_in_turn(96 * MIB, scenario, Status::OUT_OF_MEMORY);
}

#[test]
fn each_call_failing_otherwise_in_turn() {
    fail_in_turn(96 * MIB, scenario, Status::OPERATING_SYSTEM);
}

#[test]
fn putting_together_has_all_it_can_fail_at() {
    let bench = Bench::new(16 * MIB);
    aliasing(&bench, &[bench.stream(), bench.stream()]).unwrap();
    let log = bench.log.calls.lock().unwrap().clone();
    let (mut open, mut handles) = (BTreeMap::new(), BTreeMap::new());
    let (mut most, mut surplus) = (0, 0);
    for record in &log {
        match *record {
            CallRecord::Map {
                address, handle, ..
            } => {
                open.insert(address, handle);
                let mappings = handles.entry(handle).or_insert(0);
                *mappings += 1;
                most = most.max(*mappings);
            }
            CallRecord::Unmap { address, .. } => {
                let handle = open.remove(&address).unwrap();
                let mappings = handles.get_mut(&handle).unwrap();
                surplus += usize::from(*mappings > 3);
                *mappings -= 1;
            }
            _ => {}
        }
    }
    assert!(most > 3 && surplus > 0, "at most {most} mappings");
    assert!(bench.log.count(Call::Release) > 0);
}

#[test]
fn each_call_of_putting_together_out_of_memory_in_turn() {
    fail_in_turn(16 * MIB, aliasing, Status::OUT_OF_MEMORY);
}

#[test]
fn each_call_of_putting_together_failing_otherwise_in_turn() {
    fail_in_turn(16 * MIB, aliasing, Status::OPERATING_SYSTEM);
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
