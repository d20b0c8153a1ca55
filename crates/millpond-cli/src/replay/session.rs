//! A job and its pool: makes the calls that a recording says, one after the other.
//!
//! What else belongs to a replay (how far the device is, what lies in the blocks, who watches) is
//! a [`Companion`]'s.
//!
//! # Invariants
//!
//! - A block that could not be allocated is counted once; nothing that the job did with it is
//!   passed on.
//! - All streams and events of the session are the session's own, and go with it.

use std::sync::Arc;
use std::time::Instant;

use millpond::Pool;
use millpond::device::{Device, EventId, StreamId, StreamOrder};
use millpond::pool::Waits;
use millpond_trace::{Op, Step};

use super::error::ReplayError;
use super::findings::Findings;
use super::progress::Progress;
use super::workload::Workload;

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
    fn before(&mut self, pool: &Pool, index: usize, step: &Step) -> Result<(), ReplayError>;
    /// The pool handed out a block.
    fn allocated(&mut self, block: LiveBlock) -> Result<(), ReplayError>;
    /// The pool was told that the block is used on a further stream.
    fn used(&mut self, block: LiveBlock, stream: u32) -> Result<(), ReplayError>;
    /// The job does nothing more with the block on that stream.
    fn use_ended(&mut self, block: LiveBlock, stream: u32) -> Result<(), ReplayError>;
    /// The pool is about to be given the block back.
    fn freeing(&mut self, block: LiveBlock) -> Result<(), ReplayError>;
}

/// How the job's pool is built.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PoolSettings {
    /// Bytes that the pool may take; without it, everything.
    pub(crate) limit: Option<u64>,
    pub(crate) waits: Waits,
}

/// See the [module](self).
pub(super) struct Session<'a> {
    workload: &'a Workload,
    pool: Pool,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    /// Where each block is, or [`NOWHERE`].
    addresses: Vec<u64>,
    /// Time in pool calls, in nanoseconds, where the companion has them timed.
    pub(super) pool_ns: u64,
    pub(super) failed_allocations: u64,
    /// The first failures in full.
    pub(super) failures: Findings,
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
        let mut builder = Pool::builder(device).waits(settings.waits);
        if let Some(limit) = settings.limit {
            builder = builder.limit(limit);
        }
        Ok(Session {
            workload,
            pool: builder.build()?,
            streams,
            events,
            addresses: vec![NOWHERE; workload.blocks.len()],
            pool_ns: 0,
            failed_allocations: 0,
            failures: Findings::default(),
        })
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The device's stream for each of the workload's.
    pub(super) fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// The device's event for each of the workload's.
    pub(super) fn events(&self) -> &[EventId] {
        &self.events
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
        let device = Arc::clone(self.pool.device());
        for &event in &self.events {
            self.pool.forget_event(event);
            device.destroy_event(event)?;
        }
        for &stream in &self.streams {
            self.pool.stream_destroyed(stream)?;
            device.destroy_stream(stream)?;
        }
        Ok(())
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
                self.timed::<C, _>(|pool| pool.use_on(block.address, user))
                    .map_err(|error| ReplayError::Refused { step: index, error })?;
                companion.used(block, stream)
            }
            Op::UseEnd { block, stream, .. } => match self.live(block) {
                Some(block) => companion.use_ended(block, stream),
                None => Ok(()),
            },
            Op::Record { event, stream, .. } => {
                let (event, stream) = (self.events[event as usize], self.streams[stream as usize]);
                Ok(self.timed::<C, _>(|pool| pool.record_event(event, stream))?)
            }
            Op::Wait { event, stream } => {
                let (event, stream) = (self.events[event as usize], self.streams[stream as usize]);
                Ok(self.timed::<C, _>(|pool| pool.wait_event(stream, event))?)
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
        let stream = self.streams[stream as usize];
        match self.timed::<C, _>(|pool| pool.allocate(size, stream)) {
            Ok(block) => {
                let address = block.into_raw();
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
        self.addresses[number as usize] = NOWHERE;
        self.timed::<C, _>(|pool| pool.free(block.address))
            .map_err(|error| ReplayError::Refused { step, error })
    }

    #[inline]
    fn live(&self, number: u32) -> Option<LiveBlock> {
        let address = self.addresses[number as usize];
        (address != NOWHERE).then_some(LiveBlock { number, address })
    }

    #[inline]
    fn timed<C: Companion, T>(&mut self, call: impl FnOnce(&Pool) -> T) -> T {
        if !C::TIMES_CALLS {
            return call(&self.pool);
        }
        let started = Instant::now();
        let result = call(&self.pool);
        self.pool_ns += started.elapsed().as_nanos() as u64;
        result
    }
}
