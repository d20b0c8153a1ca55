//! The blocks of all segments, in order within each, and the free ones by size.
//!
//! # Invariants
//!
//! - The blocks of a segment tile it; `before` and `after` are the neighbours in it.
//! - Two neighbours are never both free, nor both unmapped.
//! - `free` has exactly the free blocks, `unmapped` the unmapped ones, `live` the live ones.

use std::collections::BTreeSet;

use millpond::device::StreamId;
use rustc_hash::FxHashMap;

use super::Kind;

/// A block's place in [`Blocks`]; good while the block is.
pub(super) type BlockId = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Live,
    Free,
    /// Addresses without memory.
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) state: State,
    pub(super) stream: StreamId,
    pub(super) kind: Kind,
    /// The segment's number; older segments have smaller ones.
    pub(super) segment: u64,
    pub(super) before: Option<BlockId>,
    pub(super) after: Option<BlockId>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// Places to be used again.
    vacant: Vec<BlockId>,
    /// Kind, stream, size, segment, address.
    free: BTreeSet<(Kind, StreamId, u64, u64, u64, BlockId)>,
    /// Kind, stream, address.
    unmapped: BTreeSet<(Kind, StreamId, u64, BlockId)>,
    live: FxHashMap<u64, BlockId>,
    segments: u64,
}

impl Blocks {
    pub(super) fn get(&self, id: BlockId) -> Block {
        self.blocks[id]
    }

    /// A segment of one block, in this state.
    pub(super) fn add_segment(
        &mut self,
        (address, size): (u64, u64),
        state: State,
        stream: StreamId,
        kind: Kind,
    ) -> BlockId {
        let block = Block {
            address,
            size,
            state,
            stream,
            kind,
            segment: self.segments,
            before: None,
            after: None,
        };
        self.segments += 1;
        let id = self.place(block);
        self.enter(id);
        id
    }

    /// Forgets a segment of one block.
    pub(super) fn remove_segment(&mut self, id: BlockId) {
        self.withdraw(id);
        self.vacant.push(id);
    }

    /// The free blocks of at least this size, the best fit first.
    pub(super) fn fitting(
        &self,
        kind: Kind,
        stream: StreamId,
        size: u64,
    ) -> impl Iterator<Item = BlockId> {
        self.free
            .range((kind, stream, size, 0, 0, 0)..)
            .take_while(move |entry| (entry.0, entry.1) == (kind, stream))
            .map(|entry| entry.5)
    }

    /// The unmapped blocks, the lowest first.
    pub(super) fn unmapped(&self, kind: Kind, stream: StreamId) -> impl Iterator<Item = BlockId> {
        self.unmapped
            .range((kind, stream, 0, 0)..)
            .take_while(move |entry| (entry.0, entry.1) == (kind, stream))
            .map(|entry| entry.3)
    }

    /// All free blocks.
    pub(super) fn all_free(&self) -> Vec<BlockId> {
        self.free.iter().map(|entry| entry.5).collect()
    }

    /// All unmapped blocks.
    pub(super) fn all_unmapped(&self) -> Vec<BlockId> {
        self.unmapped.iter().map(|entry| entry.3).collect()
    }

    /// The live block that begins there.
    pub(super) fn live_at(&self, address: u64) -> Option<BlockId> {
        self.live.get(&address).copied()
    }

    /// Changes a block's state, and joins it with neighbours in the same one. Gives the block that
    /// it is now in.
    pub(super) fn set(&mut self, id: BlockId, state: State) -> BlockId {
        self.withdraw(id);
        self.blocks[id].state = state;
        let mut id = id;
        if state != State::Live {
            if let Some(after) = self.blocks[id].after
                && self.blocks[after].state == state
            {
                self.withdraw(after);
                self.absorb_next(id, after);
            }
            if let Some(before) = self.blocks[id].before
                && self.blocks[before].state == state
            {
                self.withdraw(before);
                self.absorb_next(before, id);
                id = before;
            }
        }
        self.enter(id);
        id
    }

    /// Cuts a block after `size` bytes, fewer than it has. Gives the rest, in the same state: one
    /// of the two is to be [`set`](Blocks::set) to another at once.
    pub(super) fn split(&mut self, id: BlockId, size: u64) -> BlockId {
        self.withdraw(id);
        let whole = self.blocks[id];
        let rest = self.place(Block {
            address: whole.address + size,
            size: whole.size - size,
            before: Some(id),
            ..whole
        });
        if let Some(after) = whole.after {
            self.blocks[after].before = Some(rest);
        }
        self.blocks[id].size = size;
        self.blocks[id].after = Some(rest);
        self.enter(id);
        self.enter(rest);
        rest
    }

    /// Joins a block with the one after it. Neither is in an index.
    fn absorb_next(&mut self, id: BlockId, next: BlockId) {
        let Block { size, after, .. } = self.blocks[next];
        self.blocks[id].size += size;
        self.blocks[id].after = after;
        if let Some(after) = after {
            self.blocks[after].before = Some(id);
        }
        self.vacant.push(next);
    }

    fn place(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.blocks[id] = block;
            return id;
        }
        self.blocks.push(block);
        self.blocks.len() - 1
    }

    fn enter(&mut self, id: BlockId) {
        let block = self.blocks[id];
        match block.state {
            State::Live => {
                self.live.insert(block.address, id);
            }
            State::Free => {
                self.free.insert(free_entry(&block, id));
            }
            State::Unmapped => {
                self.unmapped
                    .insert((block.kind, block.stream, block.address, id));
            }
        }
    }

    fn withdraw(&mut self, id: BlockId) {
        let block = self.blocks[id];
        match block.state {
            State::Live => {
                self.live.remove(&block.address);
            }
            State::Free => {
                self.free.remove(&free_entry(&block, id));
            }
            State::Unmapped => {
                self.unmapped
                    .remove(&(block.kind, block.stream, block.address, id));
            }
        }
    }
}

fn free_entry(block: &Block, id: BlockId) -> (Kind, StreamId, u64, u64, u64, BlockId) {
    let Block {
        address,
        size,
        stream,
        kind,
        segment,
        ..
    } = *block;
    (kind, stream, size, segment, address, id)
}
