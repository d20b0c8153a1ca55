//! What one thread does again and again.

use millpond::device::StreamId;
use millpond::{Block, Pool};
use millpond_trace::churn::{Churn, Replacement};

use super::cases::Case;
use super::error::BenchError;

/// One thread's part of a pattern.
pub(super) trait Work {
    /// Does what comes before steps that are measured, so that it is not.
    fn prepare(&mut self, steps: usize);

    /// Makes a pair. Steps are numbered from 0 since the last preparation.
    fn step(&mut self, number: usize) -> Result<(), BenchError>;
}

/// Allocates and frees one size.
pub(super) struct Pairs<'a> {
    pool: &'a Pool,
    stream: StreamId,
    size: u64,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        stream: StreamId,
        case: &Case,
    ) -> Result<Pairs<'a>, BenchError> {
        let size = 1 << case.smallest;
        let mut pairs = Pairs { pool, stream, size };
        for number in 0..case.warm_up {
            pairs.step(number)?;
        }
        Ok(pairs)
    }
}

impl Work for Pairs<'_> {
    fn prepare(&mut self, _steps: usize) {}

    #[inline]
    fn step(&mut self, _number: usize) -> Result<(), BenchError> {
        self.pool.allocate(self.size, self.stream)?.free()?;
        Ok(())
    }
}

/// Replaces a random one of the live blocks.
pub(super) struct Churning<'a> {
    pool: &'a Pool,
    stream: StreamId,
    churn: Churn,
    /// A slot is empty only while it is filled anew.
    blocks: Vec<Option<Block>>,
    /// Drawn beforehand: that is not the pool's time.
    coming: Vec<Replacement>,
}

impl<'a> Churning<'a> {
    pub(super) fn new(
        pool: &'a Pool,
        stream: StreamId,
        case: &Case,
        thread: usize,
    ) -> Result<Churning<'a>, BenchError> {
        let mut churn = Churn::new(case.live, case.smallest, case.largest, thread as u64);
        let mut blocks = Vec::with_capacity(case.live as usize);
        for _ in 0..case.live {
            blocks.push(Some(pool.allocate(churn.size(), stream)?));
        }
        let mut churning = Churning {
            pool,
            stream,
            churn,
            blocks,
            coming: Vec::new(),
        };
        churning.prepare(case.warm_up);
        for number in 0..case.warm_up {
            churning.step(number)?;
        }
        Ok(churning)
    }
}

impl Work for Churning<'_> {
    fn prepare(&mut self, steps: usize) {
        self.coming.clear();
        self.coming.extend(self.churn.by_ref().take(steps));
    }

    #[inline]
    fn step(&mut self, number: usize) -> Result<(), BenchError> {
        let Replacement { slot, size } = self.coming[number];
        let place = &mut self.blocks[slot as usize];
        if let Some(block) = place.take() {
            block.free()?;
        }
        *place = Some(self.pool.allocate(size, self.stream)?);
        Ok(())
    }
}
