//! A job's calls alone: no bytes, no checker, no work on the streams, so that only the pool takes
//! time. Every use is over when the job says so.

use std::sync::Arc;

use millpond::device::Device;
use millpond_trace::Step;

use super::allocator::{JobAllocator, PoolSettings};
use super::error::ReplayError;
use super::progress::Progress;
use super::session::{Companion, LiveBlock, Session};
use super::workload::{Workload, is_operation};

/// Takes the time of a replay.
pub(crate) trait Watch {
    /// A repetition begins now.
    fn begin(&mut self);
    /// The next operation begins now, and the one before it, if there is one, is over.
    fn operation(&mut self);
    /// The last operation is over.
    fn end(&mut self);
}

/// What the pool came to in one repetition. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BareRepetition {
    pub(crate) failed_allocations: u64,
    pub(crate) peak_live: u64,
    pub(crate) peak_reserved: u64,
}

/// Plays a job several times with one pool. Each time what the last left is freed, and the device
/// done with it.
pub(crate) fn play_bare(
    workload: &Workload,
    device: &Arc<dyn Device>,
    repetitions: usize,
    watch: &mut impl Watch,
) -> Result<Vec<BareRepetition>, ReplayError> {
    let settings = PoolSettings::default();
    let mut session = Session::new(workload, Arc::clone(device), settings)?;
    let progress = Progress::hidden();
    let mut played = Vec::new();
    for _ in 0..repetitions {
        session.begin();
        watch.begin();
        session.play(&mut Bare(watch), &progress)?;
        watch.end();
        let tally = session.tally();
        session.free_the_rest(&mut Bare(&mut Unwatched))?;
        device.synchronize()?;
        played.push(BareRepetition {
            failed_allocations: tally.failed_allocations,
            peak_live: tally.peak_live,
            peak_reserved: tally.peak_reserved,
        });
    }
    session.end()?;
    Ok(played)
}

struct Unwatched;

impl Watch for Unwatched {
    fn begin(&mut self) {}
    fn operation(&mut self) {}
    fn end(&mut self) {}
}

struct Bare<'a, W>(&'a mut W);

impl<W: Watch> Companion for Bare<'_, W> {
    const TIMES_CALLS: bool = false;

    #[inline]
    fn before(
        &mut self,
        _pool: &JobAllocator,
        _index: usize,
        step: &Step,
    ) -> Result<(), ReplayError> {
        if is_operation(step.op) {
            self.0.operation();
        }
        Ok(())
    }

    fn allocated(&mut self, _block: LiveBlock) -> Result<(), ReplayError> {
        Ok(())
    }

    fn used(&mut self, _block: LiveBlock, _stream: u32) -> Result<(), ReplayError> {
        Ok(())
    }

    fn use_ended(&mut self, _block: LiveBlock, _stream: u32) -> Result<(), ReplayError> {
        Ok(())
    }

    fn freeing(&mut self, _block: LiveBlock) -> Result<(), ReplayError> {
        Ok(())
    }
}
