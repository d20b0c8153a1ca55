//! A job and what serves it: makes the calls that a recording says, one after the other.
//!
//! What else belongs to a replay (how far the device is, what lies in the blocks, who watches) is
//! a [`Companion`]'s.
//!
//! # Invariants
//!
//! - A block that could not be allocated is counted once; nothing that the job did with it is
//!   passed on.
//! - All streams and events of the session are the session's own, and go with it.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use millpond::device::{Device, EventId, StreamId, StreamOrder};
use millpond_trace::{Op, Step};

use super::allocator::{Counts, JobAllocator, PoolSettings};
use super::error::ReplayError;
use super::findings::Findings;
use super::picture::Recorder;
use super::progress::Progress;
use super::workload::{Workload, is_operation};

/// Steps between two looks at the progress bar.
const CHUNK: usize = 1 << 13;

/// Stands for the address of a block that is not live. None begins there.
const NOWHERE: u64 = u64::MAX;

/// A live block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LiveBlock {
    /// As the workload numbers it.
    pub(super) number: u32,
    pub(super) address: u64,
}

/// Goes along with the job. Streams are as the workload numbers them.
pub(super) trait Companion {
    /// Whether each pool call is timed by itself, which costs some 50 ns a call.
    const TIMES_CALLS: bool;

    /// Before each step.
    fn before(&mut self, pool: &JobAllocator, index: usize, step: &Step)
    -> Result<(), ReplayError>;
    /// The pool handed out a block.
    fn allocated(&mut self, block: LiveBlock) -> Result<(), ReplayError>;
    /// The pool was told that the block is used on a further stream.
    fn used(&mut self, block: LiveBlock, stream: u32) -> Result<(), ReplayError>;
    /// The job does nothing more with the block on that stream.
    fn use_ended(&mut self, block: LiveBlock, stream: u32) -> Result<(), ReplayError>;
    /// The pool is about to be given the block back.
    fn freeing(&mut self, block: LiveBlock) -> Result<(), ReplayError>;
}

/// What the pool did in one repetition of the job. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tally {
    pub(super) settings: PoolSettings,
    pub(super) failed_allocations: u64,
    pub(super) peak_live: u64,
    pub(super) peak_reserved: u64,
    pub(super) waits_inserted: u64,
    pub(super) events_recorded: u64,
    pub(super) event_queries: u64,
}

/// See the [module](self).
pub(super) struct Session<'a> {
    workload: &'a Workload,
    settings: PoolSettings,
    pool: JobAllocator,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    /// Where each block is, or [`NOWHERE`].
    addresses: Vec<u64>,
    /// Is told of the job's blocks, where a picture is drawn of it.
    recorder: Option<Arc<Recorder>>,
    /// Whether a repetition ends at the first allocation that fails.
    stops_at_failure: bool,
    /// Before this repetition.
    before: Counts,
    /// Time in pool calls of this repetition, in nanoseconds, where the companion has them timed.
    pool_ns: u64,
    /// Of this repetition, like the failures.
    failed_allocations: u64,
    /// The first ones in full.
    failures: Findings,
}

impl<'a> Session<'a> {
    /// A session with a pool on this device.
    pub(super) fn new(
        workload: &'a Workload,
        device: Arc<dyn Device>,
        settings: PoolSettings,
    ) -> Result<Session<'a>, ReplayError> {
        let streams = (0..workload.streams)
            .map(|_| device.create_stream(StreamOrder::Independent))
            .collect::<Result<_, _>>()?;
        let events = (0..workload.events)
            .map(|_| device.create_event())
            .collect::<Result<_, _>>()?;
        Ok(Session {
            workload,
            settings,
            pool: JobAllocator::new(device, settings)?,
            streams,
            events,
            addresses: vec![NOWHERE; workload.blocks.len()],
            recorder: None,
            stops_at_failure: false,
            before: Counts::default(),
            pool_ns: 0,
            failed_allocations: 0,
            failures: Findings::default(),
        })
    }

    /// Tells this one of the job's blocks.
    pub(super) fn tell(&mut self, recorder: Option<Arc<Recorder>>) {
        self.recorder = recorder;
    }

    /// Lets repetitions end at the first allocation that fails.
    pub(super) fn stop_at_failure(&mut self) {
        self.stops_at_failure = true;
    }

    /// The device's stream for each of the workload's.
    pub(super) fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// The device's event for each of the workload's.
    pub(super) fn events(&self) -> &[EventId] {
        &self.events
    }

    /// Begins to count for a repetition of the job.
    pub(super) fn begin(&mut self) {
        self.pool.reset_peaks();
        self.before = self.pool.counts();
        self.pool_ns = 0;
        self.failed_allocations = 0;
        self.failures = Findings::default();
    }

    /// What the pool did since the repetition began.
    pub(super) fn tally(&self) -> Tally {
        let (now, before) = (self.pool.counts(), &self.before);
        Tally {
            settings: self.settings,
            failed_allocations: self.failed_allocations,
            peak_live: now.peak_live,
            peak_reserved: now.peak_reserved,
            waits_inserted: now.waits_inserted - before.waits_inserted,
            events_recorded: now.events_recorded - before.events_recorded,
            event_queries: now.event_queries - before.event_queries,
        }
    }

    /// Time in pool calls since the repetition began, in nanoseconds.
    pub(super) fn pool_ns(&self) -> u64 {
        self.pool_ns
    }

    /// Takes what failed since the repetition began.
    pub(super) fn take_failures(&mut self) -> Findings {
        mem::take(&mut self.failures)
    }

    /// Makes all calls.
    pub(super) fn play<C: Companion>(
        &mut self,
        companion: &mut C,
        progress: &Progress,
    ) -> Result<(), ReplayError> {
        let mut index = 0;
        for chunk in self.workload.steps.chunks(CHUNK) {
            for step in chunk {
                companion.before(&self.pool, index, step)?;
                self.step(companion, index, step)?;
                if let Some(recorder) = &self.recorder
                    && is_operation(step.op)
                {
                    recorder.operation_done();
                }
                if self.stops_at_failure && self.failed_allocations > 0 {
                    return Ok(());
                }
                index += 1;
            }
            progress.advance(chunk.len());
        }
        Ok(())
    }

    /// Frees what the job left.
    pub(super) fn free_the_rest<C: Companion>(
        &mut self,
        companion: &mut C,
    ) -> Result<(), ReplayError> {
        for number in 0..self.addresses.len() as u32 {
            self.free(companion, self.workload.steps.len(), number)?;
        }
        Ok(())
    }

    /// Takes down the pool and everything of the session.
    pub(super) fn end(self) -> Result<(), ReplayError> {
        self.pool.end(&self.events, &self.streams)
    }

    #[inline]
    fn step<C: Companion>(
        &mut self,
        companion: &mut C,
        index: usize,
        step: &Step,
    ) -> Result<(), ReplayError> {
        match step.op {
            Op::Alloc {
                block,
                size,
                stream,
            } => self.allocate(companion, block, size, stream),
            Op::Free { block, .. } => self.free(companion, index, block),
            Op::Use { block, stream } => {
                let Some(block) = self.live(block) else {
                    return Ok(());
                };
                let user = self.streams[stream as usize];
                self.timed::<C, _>(|pool| pool.use_on(block.address, user, index))?;
                companion.used(block, stream)
            }
            Op::UseEnd { block, stream, .. } => match self.live(block) {
                Some(block) => companion.use_ended(block, stream),
                None => Ok(()),
            },
            Op::Record { event, stream, .. } => {
                let (event, stream) = (self.events[event as usize], self.streams[stream as usize]);
                self.timed::<C, _>(|pool| pool.record_event(event, stream))
            }
            Op::Wait { event, stream } => {
                let (event, stream) = (self.events[event as usize], self.streams[stream as usize]);
                self.timed::<C, _>(|pool| pool.wait_event(stream, event))
            }
        }
    }

    #[inline]
    fn allocate<C: Companion>(
        &mut self,
        companion: &mut C,
        number: u32,
        size: u64,
        stream: u32,
    ) -> Result<(), ReplayError> {
        let asker = self.streams[stream as usize];
        match self.timed::<C, _>(|pool| pool.allocate(size, asker)) {
            Ok(address) => {
                if let Some(recorder) = &self.recorder {
                    recorder.allocated(address, size, stream);
                }
                self.addresses[number as usize] = address;
                companion.allocated(LiveBlock { number, address })
            }
            Err(error) => {
                self.failed_allocations += 1;
                self.failures.add(|| format!("block {number}: {error}"));
                Ok(())
            }
        }
    }

    #[inline]
    fn free<C: Companion>(
        &mut self,
        companion: &mut C,
        step: usize,
        number: u32,
    ) -> Result<(), ReplayError> {
        let Some(block) = self.live(number) else {
            return Ok(());
        };
        companion.freeing(block)?;
        if let Some(recorder) = &self.recorder {
            recorder.freeing(block.address);
        }
        self.addresses[number as usize] = NOWHERE;
        self.timed::<C, _>(|pool| pool.free(block.address, step))
    }

    #[inline]
    fn live(&self, number: u32) -> Option<LiveBlock> {
        let address = self.addresses[number as usize];
        (address != NOWHERE).then_some(LiveBlock { number, address })
    }

    #[inline]
    fn timed<C: Companion, T>(&mut self, call: impl FnOnce(&mut JobAllocator) -> T) -> T {
        if !C::TIMES_CALLS {
            return call(&mut self.pool);
        }
        let started = Instant::now();
        let result = call(&mut self.pool);
        self.pool_ns += started.elapsed().as_nanos() as u64;
        result
    }
}
