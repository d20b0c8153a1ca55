//! The blocks of a run: who has them, and how many they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond::device::Findings;

use crate::streams::Incarnation;

/// A live block, in one thread's hands or on the table.
#[derive(Debug)]
pub(super) struct Block {
    /// Counts the blocks of the run.
    pub(super) number: u64,
    pub(super) address: u64,
    pub(super) size: u64,
    /// The stream it was asked for on, where its content comes from.
    pub(super) origin: Incarnation,
    /// The stream that it was last handed over to.
    pub(super) owner: Incarnation,
    /// The streams whose uses are not over.
    pub(super) users: Vec<Incarnation>,
    /// Whether its content was queued.
    pub(super) filled: bool,
    pub(super) findings: Arc<Findings>,
}

/// Live blocks that are in nobody's hands; and a plain count of all.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    table: Mutex<Vec<Block>>,
    numbers: AtomicU64,
    live_blocks: AtomicU64,
    live_bytes: AtomicU64,
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool handed out a block.
    pub(super) fn made(&self, address: u64, size: u64, owner: Incarnation) -> Block {
        self.live_blocks.fetch_add(1, Ordering::Relaxed);
        self.live_bytes.fetch_add(size, Ordering::Relaxed);
        Block {
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            address,
            size,
            origin: owner,
            owner,
            users: vec![owner],
            filled: false,
            findings: Findings::new(),
        }
    }

    /// The pool took a block back.
    pub(super) fn ended(&self, block: &Block) {
        self.live_blocks.fetch_sub(1, Ordering::Relaxed);
        self.live_bytes.fetch_sub(block.size, Ordering::Relaxed);
    }

    pub(super) fn put(&self, block: Block) {
        self.lock().push(block);
    }

    /// Puts a block that was taken by this choice back where it was, if nothing else happened on
    /// the table meanwhile.
    pub(super) fn put_back(&self, choice: u32, block: Block) {
        let mut table = self.lock();
        table.push(block);
        let (index, last) = (choice as usize % table.len(), table.len() - 1);
        table.swap(index, last);
    }

    /// Takes the block of this choice off the table, if there is any.
    pub(super) fn take(&self, choice: u32) -> Option<Block> {
        let mut table = self.lock();
        let index = (choice as usize).checked_rem(table.len())?;
        Some(table.swap_remove(index))
    }

    pub(super) fn take_all(&self) -> Vec<Block> {
        std::mem::take(&mut *self.lock())
    }

    /// Live blocks, and their bytes.
    pub(super) fn count(&self) -> (u64, u64) {
        let blocks = self.live_blocks.load(Ordering::Relaxed);
        (blocks, self.live_bytes.load(Ordering::Relaxed))
    }

    pub(super) fn handed_out(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }
}
