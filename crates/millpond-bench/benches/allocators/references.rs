//! The reference allocators, each with a few gigabytes.

use std::alloc::{GlobalAlloc, Layout};
use std::error::Error;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use millpond_bench::Allocator;
use mimalloc::MiMalloc;

/// Bytes that each has, more than twice of what is ever live.
const MEMORY: usize = 4 << 30;

/// The alignment of every block, and the unit of the pool's sizes, in bytes.
const GRAIN: u64 = 256;

fn layout(size: u64) -> Result<Layout, Box<dyn Error>> {
    Ok(Layout::from_size_align(
        usize::try_from(size)?,
        GRAIN as usize,
    )?)
}

/// Sebastian Aaltonen's `OffsetAllocator`: bins of free ranges, no memory of its own.
pub(crate) struct Offsets(offset_allocator::Allocator);

impl Allocator for Offsets {
    type Block = offset_allocator::Allocation;

    fn new() -> Result<Offsets, Box<dyn Error>> {
        let grains = u32::try_from(MEMORY as u64 / GRAIN)?;
        Ok(Offsets(offset_allocator::Allocator::new(grains)))
    }

    #[inline]
    fn allocate(&mut self, size: u64) -> Result<Self::Block, Box<dyn Error>> {
        let grains = u32::try_from(size.div_ceil(GRAIN))?;
        self.0.allocate(grains).ok_or_else(|| "no room".into())
    }

    #[inline]
    fn free(&mut self, block: Self::Block) -> Result<(), Box<dyn Error>> {
        self.0.free(block);
        Ok(())
    }
}

/// Two-level segregated fit (`rlsf`), in plain memory of which it touches its headers alone.
pub(crate) struct Tlsf(rlsf::Tlsf<'static, u32, u32, 27, 32>);

impl Allocator for Tlsf {
    type Block = NonNull<u8>;

    fn new() -> Result<Tlsf, Box<dyn Error>> {
        let mut tlsf = rlsf::Tlsf::new();
        // Address space that is never given back: a handful in a run.
        let memory: &'static mut [MaybeUninit<u8>] = Box::leak(Box::new_uninit_slice(MEMORY));
        tlsf.insert_free_block(memory);
        Ok(Tlsf(tlsf))
    }

    #[inline]
    fn allocate(&mut self, size: u64) -> Result<NonNull<u8>, Box<dyn Error>> {
        self.0
            .allocate(layout(size)?)
            .ok_or_else(|| "no room".into())
    }

    #[inline]
    fn free(&mut self, block: NonNull<u8>) -> Result<(), Box<dyn Error>> {
        // SAFETY: the block is of this allocator and of this alignment, and is given up here; that
        // it is freed once is the caller's promise, who moved it.
        unsafe { self.0.deallocate(block, GRAIN as usize) };
        Ok(())
    }
}

/// mimalloc, whose heap is the process's.
pub(crate) struct MimallocHeap;

impl Allocator for MimallocHeap {
    /// With its layout.
    type Block = (NonNull<u8>, Layout);

    fn new() -> Result<MimallocHeap, Box<dyn Error>> {
        Ok(MimallocHeap)
    }

    #[inline]
    fn allocate(&mut self, size: u64) -> Result<Self::Block, Box<dyn Error>> {
        let layout = layout(size.max(1))?;
        // SAFETY: the layout is not of zero bytes.
        let block = unsafe { MiMalloc.alloc(layout) };
        Ok((NonNull::new(block).ok_or("no room")?, layout))
    }

    #[inline]
    fn free(&mut self, (block, layout): Self::Block) -> Result<(), Box<dyn Error>> {
        // SAFETY: the block is mimalloc's and of this layout, and is given up here; that it is
        // freed once is the caller's promise, who moved it.
        unsafe { MiMalloc.dealloc(block.as_ptr(), layout) };
        Ok(())
    }
}
