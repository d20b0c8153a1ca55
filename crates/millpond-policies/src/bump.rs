//! `bump`: an arena whose pointer only moves on.
//!
//! Source: the classic arena or region allocator (D. Hanson, "Fast allocation and deallocation of
//! memory based on object lifetimes", 1990), with a count of live blocks in each chunk in place of
//! one free for everything, since recorded jobs free block by block.
//!
//! # Rules
//!
//! - Every stream has an arena, made of chunks of 64 MiB; a larger request gets a chunk of its own
//!   size, rounded up to 2 MiB.
//! - A request goes to the end of what is used in the current chunk, on a multiple of 256 bytes. If
//!   it does not fit, the smallest chunk in which nothing is live and which it fits becomes the
//!   current one; if there is none, a new chunk does.
//! - A free only counts down. When nothing in a chunk is live, it is empty again, from its front.
//! - Chunks are kept, and given back when the device has no room.

use std::sync::Arc;

use millpond::device::{Device, StreamId};
use rustc_hash::FxHashMap;

use crate::policy::Policy;
use crate::{MIB, PolicyError};

const CHUNK: u64 = 64 * MIB;
const CHUNK_ROUNDING: u64 = 2 * MIB;
const ALIGNMENT: u64 = 256;

/// A chunk, numbered by its place in [`Bump::chunks`].
#[derive(Debug)]
struct Chunk {
    base: u64,
    size: u64,
    /// Bytes used, from the front; 0 if nothing is live.
    used: u64,
    live: u64,
    stream: StreamId,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Bump {
    device: Arc<dyn Device>,
    /// `None` where a chunk was given back.
    chunks: Vec<Option<Chunk>>,
    /// Each arena's current chunk.
    current: FxHashMap<StreamId, usize>,
    /// The chunk of each live block.
    blocks: FxHashMap<u64, usize>,
}

impl Bump {
    pub(crate) fn new(device: Arc<dyn Device>) -> Bump {
        Bump {
            device,
            chunks: Vec::new(),
            current: FxHashMap::default(),
            blocks: FxHashMap::default(),
        }
    }

    /// The smallest chunk of the stream in which nothing is live and which this fits.
    fn empty_chunk(&self, size: u64, stream: StreamId) -> Option<usize> {
        let chunks = self.chunks.iter().enumerate();
        chunks
            .filter_map(|(index, chunk)| Some((index, chunk.as_ref()?)))
            .filter(|(_, chunk)| chunk.stream == stream && chunk.live == 0 && chunk.size >= size)
            .min_by_key(|(index, chunk)| (chunk.size, *index))
            .map(|(index, _)| index)
    }

    fn new_chunk(
        &mut self,
        requested: u64,
        size: u64,
        stream: StreamId,
    ) -> Result<usize, PolicyError> {
        let size = size
            .max(CHUNK)
            .checked_next_multiple_of(CHUNK_ROUNDING)
            .ok_or(PolicyError::TooLarge(requested))?;
        let base = self
            .device
            .allocate(size)
            .map_err(|cause| PolicyError::growing(requested, size, cause))?;
        let chunk = Chunk {
            base,
            size,
            used: 0,
            live: 0,
            stream,
        };
        let place = self.chunks.iter().position(Option::is_none);
        let index = place.unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() - 1
        });
        self.chunks[index] = Some(chunk);
        Ok(index)
    }

    /// Takes bytes from the front of what is unused in a chunk.
    fn take(&mut self, index: usize, size: u64) -> Option<u64> {
        let chunk = self.chunks.get_mut(index)?.as_mut()?;
        if size > chunk.size - chunk.used {
            return None;
        }
        let address = chunk.base + chunk.used;
        chunk.used += size;
        chunk.live += 1;
        self.blocks.insert(address, index);
        Some(address)
    }
}

impl Policy for Bump {
    fn allocate(&mut self, requested: u64, stream: StreamId) -> Result<u64, PolicyError> {
        let size = requested
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(PolicyError::TooLarge(requested))?;
        if let Some(&current) = self.current.get(&stream)
            && let Some(address) = self.take(current, size)
        {
            return Ok(address);
        }
        let index = match self.empty_chunk(size, stream) {
            Some(index) => index,
            None => self.new_chunk(requested, size, stream)?,
        };
        self.current.insert(stream, index);
        self.take(index, size)
            .ok_or(PolicyError::TooLarge(requested))
    }

    fn free(&mut self, address: u64) -> Result<(), PolicyError> {
        let index = self.blocks.remove(&address);
        let chunk = index.and_then(|index| self.chunks.get_mut(index)?.as_mut());
        let chunk = chunk.ok_or(PolicyError::NotLive(address))?;
        chunk.live -= 1;
        if chunk.live == 0 {
            chunk.used = 0;
        }
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), PolicyError> {
        self.device.synchronize()?;
        for place in &mut self.chunks {
            if let Some(chunk) = place
                && chunk.live == 0
            {
                self.device.free(chunk.base)?;
                *place = None;
            }
        }
        let chunks = &self.chunks;
        self.current.retain(|_, index| chunks[*index].is_some());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::SimDevice;

    use super::*;

    const STREAM: StreamId = StreamId::DEFAULT;

    #[test]
    fn a_chunk_begins_again_only_when_all_in_it_is_free() {
        let mut bump = Bump::new(Arc::new(SimDevice::new()));
        let first = bump.allocate(100, STREAM).unwrap();
        let second = bump.allocate(100, STREAM).unwrap();
        assert_eq!(second, first + 256);
        bump.free(first).unwrap();
        assert_eq!(bump.allocate(1, STREAM).unwrap(), first + 512);
        bump.free(second).unwrap();
        bump.free(first + 512).unwrap();
        assert_eq!(bump.allocate(CHUNK, STREAM).unwrap(), first);
    }

    #[test]
    fn one_live_block_keeps_the_rest_of_its_chunk_from_serving_again() {
        let device = Arc::new(SimDevice::new());
        let mut bump = Bump::new(Arc::clone(&device) as _);
        let full = device.memory_info().unwrap().free;
        let kept = bump.allocate(1, STREAM).unwrap();
        let mut taken = Vec::new();
        for _ in 0..3 {
            let block = bump.allocate(CHUNK - 256, STREAM).unwrap();
            bump.free(block).unwrap();
            taken.push(full - device.memory_info().unwrap().free);
        }
        assert_eq!(taken, [CHUNK, 2 * CHUNK, 2 * CHUNK]);
        bump.free(kept).unwrap();
        bump.release_cached().unwrap();
        assert_eq!(device.memory_info().unwrap().free, full);
    }
}
