//! The real pool behind [`TestedPool`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond::device::{DeviceError, EventId, StreamId};
use millpond::{AllocError, Block, BlockError, Pool, Request};
use rustc_hash::FxHashMap;

use crate::tested::{Held, Refusal, TestedPool};

/// The real pool. Of its blocks one third each is freed by a raw address, by [`Block::free`], and
/// by dropping the [`Block`].
#[derive(Debug)]
pub struct RealPool {
    pool: Pool,
    handed_out: AtomicU64,
    kept: Mutex<FxHashMap<u64, (Block, bool)>>,
}

impl RealPool {
    /// Puts a pool under test.
    pub fn new(pool: Pool) -> RealPool {
        RealPool {
            pool,
            handed_out: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, (Block, bool)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<AllocError> for Refusal {
    fn from(error: AllocError) -> Refusal {
        match error {
            AllocError::Device { error, .. } => Refusal::Device(error),
            AllocError::BadAlignment { .. } => Refusal::Argument(error.to_string()),
            _ => Refusal::Memory(error.to_string()),
        }
    }
}

impl From<BlockError> for Refusal {
    fn from(error: BlockError) -> Refusal {
        match error {
            BlockError::Device(error) => Refusal::Device(error),
            _ => Refusal::Argument(error.to_string()),
        }
    }
}

impl TestedPool for RealPool {
    fn allocate(&self, size: u64, alignment: u64, stream: StreamId) -> Result<u64, Refusal> {
        let request = Request::new(size, stream).alignment(alignment);
        let block = self.pool.allocate_with(request)?;
        let number = self.handed_out.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(3) {
            return Ok(block.into_raw());
        }
        let address = block.address();
        self.lock().insert(address, (block, number % 3 == 1));
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<(), Refusal> {
        // Taken out first: the lock must not be held while the pool frees.
        let kept = self.lock().remove(&address);
        match kept {
            None => self.pool.free(address)?,
            Some((block, true)) => block.free()?,
            Some((block, false)) => drop(block),
        }
        Ok(())
    }

    fn use_on(&self, address: u64, stream: StreamId) -> Result<(), Refusal> {
        Ok(self.pool.use_on(address, stream)?)
    }

    fn use_ended(&self, address: u64, stream: StreamId) -> Result<(), Refusal> {
        Ok(self.pool.use_ended(address, stream)?)
    }

    fn use_ends_at(&self, address: u64, stream: StreamId, at: EventId) -> Result<(), Refusal> {
        Ok(self.pool.use_ends_at(address, stream, at)?)
    }

    fn hand_over(&self, address: u64, stream: StreamId) -> Result<(), Refusal> {
        Ok(self.pool.hand_over(address, stream)?)
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.pool.record_event(event, stream)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.pool.wait_event(stream, event)
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.pool.synchronize_stream(stream)
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.pool.synchronize()
    }

    fn stream_destroyed(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.pool.stream_destroyed(stream)
    }

    fn trim(&self, keep: u64) -> Result<u64, DeviceError> {
        self.pool.trim(keep)
    }

    fn limit(&self) -> u64 {
        self.pool.limit()
    }

    fn held(&self) -> Held {
        let statistics = self.pool.statistics();
        Held {
            live_blocks: statistics.live_blocks,
            live_bytes: statistics.live_bytes,
            reserved_bytes: statistics.reserved_bytes,
        }
    }

    fn validate(&self) -> Result<(), String> {
        self.pool.validate()
    }
}
