//! What a stream freed lately, kept as it was for its next request of the same size.
//!
//! Jobs ask for the same sizes again and again, often right after they freed them. A block that is
//! *parked* here has not been merged with what is free beside it; it serves its stream again
//! without a search, and goes back to the others as soon as anybody finds nothing, or something
//! else has to be known of all free memory.
//!
//! Only the last few blocks are parked: what waits here is missing where it would fit better, and
//! with many parked blocks recorded jobs took up to a tenth more memory.
//!
//! # Invariants
//!
//! 1. A parked block was used on one stream only, the one whose front it is in.
//! 2. What is parked counts as free, and is the pool's again before the pool grows, lets a stream
//!    wait or gives memory back.

use smallvec::SmallVec;

use crate::blocks::Place;
use crate::order::{End, Ends, Order, StreamIndex};

/// A freed block as it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) address: u64,
    /// Bytes taken.
    pub(super) size: u64,
    pub(super) place: Place,
    pub(super) end: End,
    /// The number of its free.
    pub(super) freed: u64,
}

/// Blocks that are parked for one stream at most.
const BLOCKS: usize = 8;

/// The share of the live bytes that is parked for one stream at most, beside the last block.
const SHARE: u64 = 256;

/// Parked blocks of one stream, the last freed last.
type Front = SmallVec<[Parked; BLOCKS]>;

/// The fronts of all streams, by slot.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    by_stream: Vec<Front>,
    bytes: u64,
}

impl Fronts {
    /// Bytes parked.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of the bytes parked: those whose uses are not seen to be completed.
    pub(super) fn pending_bytes(&self, order: &Order) -> u64 {
        let parked = self.by_stream.iter().flatten();
        let pending = parked.filter(|parked| !order.is_completed(parked.end));
        pending.map(|parked| parked.size).sum()
    }

    /// Parks a block that was used on one stream only. [`Fronts::take_surplus`] is to follow.
    pub(super) fn park(&mut self, parked: Parked) {
        let slot = parked.end.stream.slot();
        if self.by_stream.len() <= slot {
            self.by_stream.resize_with(slot + 1, Front::default);
        }
        self.bytes += parked.size;
        self.by_stream[slot].push(parked);
    }

    /// Takes out a block for which there is no room any more, the first freed first.
    pub(super) fn take_surplus(&mut self, stream: StreamIndex, live: u64) -> Option<Parked> {
        let front = self.by_stream.get_mut(stream.slot())?;
        let (_, others) = front.split_last()?;
        let bytes: u64 = others.iter().map(|parked| parked.size).sum();
        if others.is_empty() || (others.len() < BLOCKS && bytes <= live / SHARE) {
            return None;
        }
        let first = front.remove(0);
        self.bytes -= first.size;
        Some(first)
    }

    /// Takes the block of a size that the stream freed last.
    pub(super) fn take(
        &mut self,
        stream: StreamIndex,
        size: u64,
        alignment: u64,
    ) -> Option<Parked> {
        let front = self.by_stream.get_mut(stream.slot())?;
        let place = front
            .iter()
            .rposition(|p| p.size == size && p.address.is_multiple_of(alignment))?;
        self.bytes -= size;
        Some(front.remove(place))
    }

    /// Takes everything out, in the order in which it was freed.
    pub(super) fn take_all(&mut self) -> Vec<Parked> {
        if self.bytes == 0 {
            return Vec::new();
        }
        self.bytes = 0;
        let fronts = self.by_stream.iter_mut();
        let mut all: Vec<Parked> = fronts.flat_map(|front| front.drain(..)).collect();
        all.sort_unstable_by_key(|parked| parked.freed);
        all
    }
}

impl Parked {
    /// Where its uses ended.
    pub(super) fn ends(&self) -> Ends {
        Ends::from(self.end)
    }
}
