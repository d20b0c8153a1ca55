//! What the benchmarks of the code base have in common: an allocator as they see it, and churn.
//!
//! `benches/allocators` times the pool beside reference allocators that need no GPU;
//! `src/bin/instructions.rs` is what `scripts/instructions.sh` counts the instructions of.

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;

use millpond::device::sim::SimDevice;
use millpond::device::{Device, StreamId, StreamOrder};
use millpond::{Block, Pool};
use millpond_trace::churn::{Churn, Replacement};

/// What can be benchmarked.
pub trait Allocator: Sized {
    /// A live block.
    type Block;

    /// An allocator with some gigabytes.
    fn new() -> Result<Self, Box<dyn Error>>;

    /// A block of so many bytes.
    fn allocate(&mut self, size: u64) -> Result<Self::Block, Box<dyn Error>>;

    /// Gives a block back.
    fn free(&mut self, block: Self::Block) -> Result<(), Box<dyn Error>>;
}

/// The pool, on one stream of a sim: in churn as in pairs the driver has nothing to do once the
/// pool has grown.
#[derive(Debug)]
pub struct PoolOnSim {
    pool: Pool,
    stream: StreamId,
}

impl Allocator for PoolOnSim {
    type Block = Block;

    fn new() -> Result<PoolOnSim, Box<dyn Error>> {
        let device = Arc::new(SimDevice::new());
        let stream = device.create_stream(StreamOrder::Independent)?;
        let pool = Pool::builder(device).build()?;
        Ok(PoolOnSim { pool, stream })
    }

    #[inline]
    fn allocate(&mut self, size: u64) -> Result<Block, Box<dyn Error>> {
        Ok(self.pool.allocate(size, self.stream)?)
    }

    #[inline]
    fn free(&mut self, block: Block) -> Result<(), Box<dyn Error>> {
        Ok(block.free()?)
    }
}

/// Replacements drawn beforehand; after the last comes the first again.
const DRAWN: usize = 1 << 16;

/// An allocator with live blocks, of which random ones are replaced.
pub struct Churning<A: Allocator> {
    allocator: A,
    /// A slot is empty only while it is filled anew.
    blocks: Vec<Option<A::Block>>,
    coming: Vec<Replacement>,
    next: usize,
}

impl<A: Allocator> Churning<A> {
    /// So many live blocks of `2^smallest` up to `2^largest` bytes; each was replaced a few times.
    pub fn new(live: u32, smallest: u8, largest: u8) -> Result<Churning<A>, Box<dyn Error>> {
        let mut churn = Churn::new(live, smallest, largest, 0);
        let mut allocator = A::new()?;
        let mut blocks = Vec::with_capacity(live as usize);
        for _ in 0..live {
            blocks.push(Some(allocator.allocate(churn.size())?));
        }
        let mut churning = Churning {
            allocator,
            blocks,
            coming: churn.take(DRAWN).collect(),
            next: 0,
        };
        for _ in 0..DRAWN {
            churning.replace()?;
        }
        Ok(churning)
    }

    /// Frees a block, and allocates another one.
    #[inline]
    pub fn replace(&mut self) -> Result<(), Box<dyn Error>> {
        let Replacement { slot, size } = self.coming[self.next];
        self.next = (self.next + 1) % DRAWN;
        let place = &mut self.blocks[slot as usize];
        if let Some(block) = place.take() {
            self.allocator.free(block)?;
        }
        *place = Some(self.allocator.allocate(size)?);
        Ok(())
    }
}

impl<A: Allocator> Drop for Churning<A> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..).flatten() {
            // The benchmark is over: an allocator that refuses now changes nothing of it.
            let _ = self.allocator.free(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counting {
        allocated: u64,
        freed: u64,
        live: u64,
    }

    impl Allocator for Counting {
        type Block = u64;

        fn new() -> Result<Counting, Box<dyn Error>> {
            Ok(Counting::default())
        }

        fn allocate(&mut self, size: u64) -> Result<u64, Box<dyn Error>> {
            self.allocated += 1;
            self.live += size;
            Ok(size)
        }

        fn free(&mut self, size: u64) -> Result<(), Box<dyn Error>> {
            self.freed += 1;
            self.live -= size;
            Ok(())
        }
    }

    #[test]
    fn as_many_blocks_stay_live_as_there_were() {
        let mut churning = Churning::<Counting>::new(30, 9, 13).unwrap();
        for _ in 0..DRAWN + 5 {
            churning.replace().unwrap();
            let Counting {
                allocated,
                freed,
                live,
            } = churning.allocator;
            assert_eq!(allocated - freed, 30);
            assert!((30 << 9..30 << 13).contains(&live));
        }
    }

    #[test]
    fn the_pool_makes_no_driver_call_once_it_has_grown() {
        let mut churning = Churning::<PoolOnSim>::new(100, 9, 13).unwrap();
        let time = |churning: &Churning<PoolOnSim>| churning.allocator.pool.device().now();
        let before = time(&churning);
        for _ in 0..1000 {
            churning.replace().unwrap();
        }
        // The sim's clock stands still between calls.
        assert_eq!(time(&churning), before);
    }
}
