//! Replaying on a device with bytes, so that a byte that two blocks share is seen: the host device
//! or a GPU ([`open`]).
//!
//! Every block is filled by its own stream with a [`pattern`] of its own, and verified by every
//! stream that used it, up to its free ([`bytes`]). The streams run as fast as they can, behind
//! the host; those of the host device are held back at random, with a seed.

mod bytes;
mod open;
mod pattern;

use std::sync::Arc;

use millpond::Pool;
use millpond::device::Observed;
use millpond_trace::Step;

use super::calls::CallCounter;
use super::error::ReplayError;
use super::outcome::{Outcome, per_op, ratio};
use super::progress::Progress;
use super::session::{Companion, LiveBlock, PoolSettings, Session};
use super::workload::Workload;
pub(super) use bytes::Bytes;
pub(super) use open::RealDevice;

/// Replays on this device.
pub(super) fn run(
    workload: &Workload,
    target: &RealDevice,
    settings: PoolSettings,
    progress: &Progress,
) -> Result<Outcome, ReplayError> {
    let device = Arc::clone(&target.device);
    let counter = Arc::new(CallCounter::default());
    let observers = vec![Arc::clone(&counter) as _];
    let observed = Arc::new(Observed::new(Arc::clone(&device), observers));
    let mut session = Session::new(workload, observed, settings)?;
    let before = counter.totals();
    let streams = session.streams().to_vec();
    let mut companion = ByteCompanion {
        workload,
        bytes: Bytes::new(device, workload, streams, target.window_bytes)?,
    };
    session.play(&mut companion, progress)?;
    let statistics = session.pool().statistics();
    let totals = counter.totals();
    let in_calls = totals.driver_ns + totals.other_ns - before.other_ns;
    let pool_ns = session.pool_ns.saturating_sub(in_calls);
    session.free_the_rest(&mut companion)?;
    let (corrupt_blocks, corruptions) = companion.bytes.finish()?;
    let failures = std::mem::take(&mut session.failures);
    let failed_allocations = session.failed_allocations;
    session.end()?;

    let ops = workload.ops();
    let (peak_live, peak_reserved) = (statistics.peak_live_bytes, statistics.peak_reserved_bytes);
    Ok(Outcome {
        trace: workload.name.clone(),
        device: target.name.to_string(),
        policy: "millpond",
        scale: workload.scale_if_scaled(),
        ops,
        failed_allocations,
        corrupt_blocks,
        peak_live_bytes: peak_live,
        peak_reserved_bytes: peak_reserved,
        reserved_over_live: ratio(peak_reserved, peak_live),
        host_ns_per_op: per_op(pool_ns, ops),
        driver_ns_per_op: per_op(totals.driver_ns, ops),
        driver_calls: totals.calls,
        waits_inserted: statistics.waits_inserted,
        events_recorded: statistics.events_recorded,
        event_queries: statistics.event_queries,
        final_delay_share: None,
        failures,
        corruptions,
    })
}

/// Does to the blocks' bytes what the job's kernels would.
struct ByteCompanion<'a> {
    workload: &'a Workload,
    bytes: Bytes<'a>,
}

impl Companion for ByteCompanion<'_> {
    const TIMES_CALLS: bool = true;

    fn before(&mut self, _pool: &Pool, _index: usize, _step: &Step) -> Result<(), ReplayError> {
        Ok(())
    }

    fn allocated(&mut self, block: LiveBlock) -> Result<(), ReplayError> {
        Ok(self.bytes.fill(block)?)
    }

    fn used(&mut self, block: LiveBlock, stream: u32) -> Result<(), ReplayError> {
        Ok(self.bytes.order(block, stream)?)
    }

    fn use_ended(&mut self, block: LiveBlock, stream: u32) -> Result<(), ReplayError> {
        Ok(self.bytes.verify(block, stream)?)
    }

    fn freeing(&mut self, block: LiveBlock) -> Result<(), ReplayError> {
        let stream = self.workload.blocks[block.number as usize].stream;
        Ok(self.bytes.verify(block, stream)?)
    }
}
