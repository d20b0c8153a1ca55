//! Who has, and who had, each byte of one handle.
//!
//! Invariants:
//! - Segments do not overlap. Where none lies, no use is known that is not complete.
//! - A segment names the last block that had its bytes. While that block is live the segment has
//!   no ends; after its free it has one end for every stream that used it.
//! - Ends of blocks before the last one need no place here: the last block was asked for on a
//!   stream that was ordered after them (or that was reported), so its own end covers them.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::order::{Clock, End};
use crate::violation::BlockSeen;

pub(crate) type Ends = SmallVec<[End; 2]>;

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) length: u64,
    pub(crate) block: BlockSeen,
    pub(crate) live: bool,
    pub(crate) ends: Ends,
}

#[derive(Default, Debug)]
pub(crate) struct Segments(BTreeMap<u64, Segment>);

impl Segments {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives a range to a block, and shows what was there, with its offset.
    pub(crate) fn claim(
        &mut self,
        offset: u64,
        length: u64,
        block: BlockSeen,
        mut formerly: impl FnMut(u64, &Segment),
    ) {
        let now = Segment {
            length,
            block,
            live: true,
            ends: Ends::new(),
        };
        // The steady state: the same bytes again.
        if let Some(same) = self.0.get_mut(&offset)
            && same.length == length
        {
            formerly(offset, same);
            *same = now;
            return;
        }
        let end = offset + length;
        self.split(offset);
        self.split(end);
        while let Some((&start, _)) = self.0.range(offset..end).next() {
            if let Some(former) = self.0.remove(&start) {
                formerly(start, &former);
            }
        }
        self.0.insert(offset, now);
    }

    /// The block gives up a range, which its uses hold until these ends.
    pub(crate) fn vacate(&mut self, offset: u64, length: u64, block: &BlockSeen, ends: &Ends) {
        for (_, segment) in self.0.range_mut(offset..offset + length) {
            if segment.block.number == block.number {
                segment.live = false;
                segment.ends.clone_from(ends);
            }
        }
    }

    /// Any live block here.
    pub(crate) fn live_block(&self) -> Option<BlockSeen> {
        let live = self.0.values().find(|segment| segment.live);
        live.map(|segment| segment.block)
    }

    /// A live block here that stands in this range of addresses.
    pub(crate) fn live_block_within(&self, address: u64, size: u64) -> Option<BlockSeen> {
        let here = |block: &BlockSeen| {
            block.address < address.saturating_add(size)
                && address < block.address.saturating_add(block.size)
        };
        let mut live = self.0.values().filter(|segment| segment.live);
        live.find(|segment| here(&segment.block))
            .map(|segment| segment.block)
    }

    /// Forgets the uses that are complete.
    pub(crate) fn prune(&mut self, completed: &Clock) {
        self.0.retain(|_, segment| {
            segment.live || !segment.ends.iter().all(|&end| completed.covers(end))
        });
    }

    /// Makes `at` a boundary, if a segment lies across it.
    fn split(&mut self, at: u64) {
        let Some((&start, segment)) = self.0.range_mut(..at).next_back() else {
            return;
        };
        let end = start + segment.length;
        if end <= at {
            return;
        }
        let mut upper = segment.clone();
        segment.length = at - start;
        upper.length = end - at;
        self.0.insert(at, upper);
    }
}
