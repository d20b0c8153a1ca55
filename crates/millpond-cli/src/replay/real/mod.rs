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

use millpond::device::{Observed, Observer};
use millpond_trace::Step;

use super::allocator::{JobAllocator, PoolSettings};
use super::calls::{CallCounter, DriverCalls};
use super::error::ReplayError;
use super::outcome::Outcome;
use super::picture::Recorder;
use super::progress::Progress;
use super::session::{Companion, LiveBlock, Session};
use super::workload::Workload;
use bytes::Bytes;
pub(super) use open::RealDevice;

/// Replays on this device; gives one outcome for each repetition, with one pool.
pub(super) fn run(
    workload: &Workload,
    target: &RealDevice,
    settings: PoolSettings,
    repetitions: u32,
    recorder: Option<&Arc<Recorder>>,
    progress: &Progress,
) -> Result<Vec<Outcome>, ReplayError> {
    let counter = Arc::new(CallCounter::default());
    let mut session = open_session(workload, target, settings, &counter, recorder)?;
    let mut outcomes = Vec::new();
    for number in 1..=repetitions {
        let mut before = counter.totals();
        if number == 1 {
            // What the pool took from the device when it was made is the job's.
            before.calls = DriverCalls::default();
            before.driver_ns = 0;
        }
        session.begin();
        let mut companion = ByteCompanion::new(workload, target, &session)?;
        session.play(&mut companion, progress)?;
        let tally = session.tally();
        let totals = counter.totals().since(before);
        let in_calls = totals.driver_ns + totals.other_ns;
        let pool_ns = session.pool_ns().saturating_sub(in_calls);
        session.free_the_rest(&mut companion)?;
        let mut outcome = Outcome::new(workload, target.name, &tally, totals, pool_ns);
        (outcome.corrupt_blocks, outcome.corruptions) = companion.bytes.finish()?;
        outcome.failures = session.take_failures();
        outcomes.push(outcome);
    }
    session.end()?;
    Ok(outcomes)
}

/// Whether no allocation fails.
pub(super) fn completes(
    workload: &Workload,
    target: &RealDevice,
    settings: PoolSettings,
    progress: &Progress,
) -> Result<bool, ReplayError> {
    let mut session = open_session(workload, target, settings, &Arc::default(), None)?;
    session.stop_at_failure();
    let mut companion = ByteCompanion::new(workload, target, &session)?;
    session.play(&mut companion, progress)?;
    let completed = session.tally().failed_allocations == 0;
    session.free_the_rest(&mut companion)?;
    companion.bytes.finish()?;
    session.end()?;
    Ok(completed)
}

fn open_session<'w>(
    workload: &'w Workload,
    target: &RealDevice,
    settings: PoolSettings,
    counter: &Arc<CallCounter>,
    recorder: Option<&Arc<Recorder>>,
) -> Result<Session<'w>, ReplayError> {
    let mut observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(counter) as _];
    observers.extend(recorder.map(|recorder| Arc::clone(recorder) as _));
    let observed = Arc::new(Observed::new(Arc::clone(&target.device), observers));
    let mut session = Session::new(workload, observed, settings)?;
    session.tell(recorder.map(Arc::clone));
    Ok(session)
}

/// Does to the blocks' bytes what the job's kernels would.
struct ByteCompanion<'a> {
    workload: &'a Workload,
    bytes: Bytes<'a>,
}

impl<'a> ByteCompanion<'a> {
    fn new(
        workload: &'a Workload,
        target: &RealDevice,
        session: &Session<'_>,
    ) -> Result<ByteCompanion<'a>, ReplayError> {
        let device = Arc::clone(&target.device);
        let streams = session.streams().to_vec();
        Ok(ByteCompanion {
            workload,
            bytes: Bytes::new(device, workload, streams, target.window_bytes)?,
        })
    }
}

impl Companion for ByteCompanion<'_> {
    const TIMES_CALLS: bool = true;

    fn before(
        &mut self,
        _pool: &JobAllocator,
        _index: usize,
        _step: &Step,
    ) -> Result<(), ReplayError> {
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
