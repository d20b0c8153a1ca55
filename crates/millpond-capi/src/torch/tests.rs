//! Captures on the host device: what reaches the device while one is under way, and whose memory
//! is whose.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use engine::device::{
    CallRecord, Device, DeviceError, HostDevice, Observed, Observer, Outcome, StreamId, StreamOrder,
};

use super::filter::tests::accepting;
use super::millpond_torch_pool_id as PoolId;
use super::pools::DevicePools;
use super::underway::Underway;
use crate::status::millpond_status;

const MIB: u64 = 1 << 20;
const GRAPH: PoolId = PoolId {
    first: 1,
    second: 0,
};

/// Calls as they reach the device.
#[derive(Default)]
struct Seen(Mutex<Vec<CallRecord>>);

impl Observer for Seen {
    fn before(&self, call: &CallRecord) -> Result<(), DeviceError> {
        self.0.lock().unwrap().push(call.clone());
        Ok(())
    }

    fn after(&self, _: &CallRecord, _: Outcome<'_>, _: u64, _: u64) {}
}

impl Seen {
    fn take(&self) -> Vec<CallRecord> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Bench {
    pools: DevicePools,
    seen: Arc<Seen>,
    eager: StreamId,
    captured: StreamId,
}

impl Bench {
    fn new(limit: u64) -> Bench {
        let host: Arc<dyn Device> = Arc::new(HostDevice::new(256 * MIB).unwrap());
        let seen = Arc::new(Seen::default());
        let observer = Arc::clone(&seen) as Arc<dyn Observer>;
        let device = Arc::new(Observed::new(host, vec![observer]));
        let eager = device.create_stream(StreamOrder::Independent).unwrap();
        let captured = device.create_stream(StreamOrder::Independent).unwrap();
        let pools = DevicePools::new(0, device, Some(limit), Arc::<Underway>::default()).unwrap();
        Bench {
            pools,
            seen,
            eager,
            captured,
        }
    }

    fn begin(&self, id: PoolId) {
        self.pools
            .begin_capture(id, accepting(self.captured))
            .unwrap();
    }

    fn reserved(&self) -> u64 {
        self.pools.statistics().reserved_bytes
    }
}

/// Whether a call is forbidden while this stream is captured.
fn forbidden(call: &CallRecord, captured: StreamId) -> bool {
    match *call {
        CallRecord::RecordEvent { stream, .. }
        | CallRecord::WaitEvent { stream, .. }
        | CallRecord::SynchronizeStream { stream } => stream == captured,
        CallRecord::Synchronize => true,
        _ => false,
    }
}

#[test]
fn nothing_forbidden_reaches_the_device_during_a_capture() {
    let bench = Bench::new(64 * MIB);
    let Bench {
        pools,
        seen,
        eager,
        captured,
    } = &bench;
    // The captured stream has work and frees of its own from before, so that it has something to
    // be asked about.
    let mut before: Vec<u64> = (0..8)
        .map(|_| pools.allocate(4 * MIB, *captured).unwrap())
        .collect();
    let queried: HashSet<_> = seen
        .take()
        .into_iter()
        .filter_map(|call| match call {
            CallRecord::RecordEvent { event, .. } => Some(event),
            _ => None,
        })
        .collect();
    bench.begin(GRAPH);
    for block in before.drain(..) {
        pools.free(block).unwrap();
    }
    let mut inside = Vec::new();
    for round in 0..40 {
        // Both pools are driven into the limit, up to the end of the ladder.
        if let Ok(block) = pools.allocate(3 * MIB, *captured) {
            inside.push(block);
        }
        let outside = pools.allocate(5 * MIB, *eager).ok();
        if round % 3 == 0
            && let Some(block) = inside.pop()
        {
            pools.use_on(block, *eager).unwrap();
            pools.free(block).unwrap();
        }
        if let Some(block) = outside
            && round % 2 == 0
        {
            pools.free(block).unwrap();
        }
    }
    assert!(pools.allocate(200 * MIB, *eager).is_err());
    let _ = pools.empty_cache();
    let calls = seen.take();
    for call in &calls {
        assert!(!forbidden(call, *captured), "{call:?}");
    }
    // Events that are asked after were recorded outside of the captured stream.
    let mut recorded = queried;
    for call in &calls {
        match call {
            CallRecord::RecordEvent { event, .. } => {
                recorded.insert(*event);
            }
            CallRecord::QueryEvent { event } | CallRecord::SynchronizeEvent { event } => {
                assert!(recorded.contains(event), "{call:?}");
            }
            _ => {}
        }
    }
    pools.end_capture(GRAPH).unwrap();
    for block in inside {
        pools.free(block).unwrap();
    }
    pools.release_capture(GRAPH).unwrap();
    assert!(pools.allocate(40 * MIB, *captured).is_ok());
}

#[test]
fn a_graphs_memory_is_its_own_until_it_is_released() {
    let bench = Bench::new(64 * MIB);
    let Bench {
        pools,
        seen,
        eager,
        captured,
    } = &bench;
    bench.begin(GRAPH);
    let temporary = pools.allocate(4 * MIB, *captured).unwrap();
    pools.free(temporary).unwrap();
    let kept = pools.allocate(4 * MIB, *captured).unwrap();
    assert_eq!(kept, temporary, "in stream order memory is used again");
    let other = pools.allocate(MIB, *captured).unwrap();
    pools.free(other).unwrap();
    pools.end_capture(GRAPH).unwrap();

    seen.take();
    // A graph that was captured uses all its memory at every replay, so none of it may move.
    pools.empty_cache().unwrap();
    let eager_block = pools.allocate(4 * MIB, *captured).unwrap();
    assert!(![kept, other].contains(&eager_block));
    let unmapped = seen.take().into_iter().find(|call| {
        matches!(call, CallRecord::Unmap { address, size }
            if (*address..address + size).contains(&kept)
                || (*address..address + size).contains(&other))
    });
    assert_eq!(unmapped, None);
    pools.free(eager_block).unwrap();

    // A second graph in the same pool goes on with its free memory.
    bench.begin(GRAPH);
    let shared = pools.allocate(MIB, *captured).unwrap();
    assert_eq!(shared, other);
    pools.end_capture(GRAPH).unwrap();
    pools.free(shared).unwrap();
    pools.release_capture(GRAPH).unwrap();
    pools.empty_cache().unwrap();
    assert!(bench.reserved() > 0, "one graph and one block are left");
    pools.release_capture(GRAPH).unwrap();
    assert!(bench.reserved() > 0, "one block is left");
    pools.free(kept).unwrap();
    assert_eq!(bench.reserved(), 0);
    let error = pools.release_capture(GRAPH).unwrap_err();
    assert!(error.message.contains("graph pool (1, 0)"), "{error:?}");
    let _ = eager;
}

#[test]
fn a_pool_released_during_another_capture_closes_after_it() {
    let bench = Bench::new(64 * MIB);
    let pools = &bench.pools;
    let second = PoolId {
        first: 2,
        second: 0,
    };
    bench.begin(GRAPH);
    let block = pools.allocate(4 * MIB, bench.captured).unwrap();
    pools.free(block).unwrap();
    pools.end_capture(GRAPH).unwrap();
    bench.begin(second);
    pools.release_capture(GRAPH).unwrap();
    assert!(bench.reserved() > 0);
    pools.end_capture(second).unwrap();
    assert_eq!(bench.reserved(), 0);
    pools.release_capture(second).unwrap();
}

#[test]
fn all_pools_of_a_device_keep_one_limit() {
    let bench = Bench::new(16 * MIB);
    let pools = &bench.pools;
    let first = pools.allocate(8 * MIB, bench.eager).unwrap();
    bench.begin(GRAPH);
    let inside = pools.allocate(6 * MIB, bench.captured).unwrap();
    let error = pools.allocate(6 * MIB, bench.captured).unwrap_err();
    assert_eq!(error.status, millpond_status::MILLPOND_OUT_OF_MEMORY);
    let error = pools.allocate(6 * MIB, bench.eager).unwrap_err();
    assert_eq!(error.status, millpond_status::MILLPOND_OUT_OF_MEMORY);
    assert!(bench.reserved() <= 16 * MIB);
    pools.end_capture(GRAPH).unwrap();
    pools.free(inside).unwrap();
    // What the graph's pool gives back serves the main pool.
    pools.release_capture(GRAPH).unwrap();
    let second = pools.allocate(6 * MIB, bench.eager).unwrap();
    pools.free(first).unwrap();
    pools.free(second).unwrap();

    pools.set_fraction(0.125).unwrap();
    assert_eq!(
        pools.statistics().limit_bytes,
        16 * MIB,
        "not beyond the configured limit"
    );
    pools.set_fraction(8.0 / 256.0).unwrap();
    assert_eq!(pools.statistics().limit_bytes, 8 * MIB);
    assert!(pools.set_fraction(1.5).is_err());
    assert!(pools.set_fraction(f64::NAN).is_err());
}

#[test]
fn pending_memory_in_a_capture_is_a_lack_of_memory() {
    let bench = Bench::new(16 * MIB);
    let pools = &bench.pools;
    bench.begin(GRAPH);
    let block = pools.allocate(12 * MIB, bench.captured).unwrap();
    pools.use_on(block, bench.eager).unwrap();
    pools.free(block).unwrap();
    for stream in [bench.captured, bench.eager] {
        let error = pools.allocate(12 * MIB, stream).unwrap_err();
        assert_eq!(
            error.status,
            millpond_status::MILLPOND_OUT_OF_MEMORY,
            "{error:?}"
        );
    }
    pools.end_capture(GRAPH).unwrap();
    pools.release_capture(GRAPH).unwrap();
    assert!(pools.allocate(12 * MIB, bench.eager).is_ok());
}

#[test]
fn a_capture_may_take_what_the_main_pool_does_not_use() {
    let bench = Bench::new(16 * MIB);
    let pools = &bench.pools;
    let block = pools.allocate(14 * MIB, bench.eager).unwrap();
    pools.free(block).unwrap();
    bench.begin(GRAPH);
    let inside = pools.allocate(12 * MIB, bench.captured).unwrap();
    pools.end_capture(GRAPH).unwrap();
    pools.free(inside).unwrap();
    pools.release_capture(GRAPH).unwrap();
}

#[test]
fn a_block_of_nobodys_is_no_use() {
    let bench = Bench::new(16 * MIB);
    assert!(!bench.pools.use_on(0x10, bench.eager).unwrap());
    let error = bench.pools.free(0x10).unwrap_err();
    assert_eq!(error.status, millpond_status::MILLPOND_NOT_A_BLOCK);
}
