//! Which parts of the mappings have their page tables set up for writing.
//!
//! Setting them up costs a fault a page (measured: as much as writing the page four times), or a
//! fifth of that for many pages at once; asking for what is there already is not free either. So
//! it is asked for once for each part of each mapping.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

/// Bytes of a part; divides the size of every mapping.
const PART: u64 = 1 << 20;

/// A bit for each part of each mapping.
#[derive(Debug, Default)]
pub(super) struct Touched {
    mappings: FxHashMap<u64, Box<[AtomicU64]>>,
}

impl Touched {
    /// A mapping was made: nothing of it is set up.
    pub(super) fn add(&mut self, base: u64, size: u64) {
        let words = size.div_ceil(PART * 64);
        self.mappings
            .insert(base, (0..words).map(|_| AtomicU64::new(0)).collect());
    }

    /// A mapping is gone.
    pub(super) fn remove(&mut self, base: u64) {
        self.mappings.remove(&base);
    }

    /// The parts that hold `size` bytes from `offset` on in a mapping and are not set up yet, as
    /// address and size; the caller does it.
    pub(super) fn newly(
        &self,
        base: u64,
        offset: u64,
        size: u64,
    ) -> impl Iterator<Item = (u64, u64)> {
        let words = self.mappings.get(&base).map_or(&[][..], |words| words);
        (offset / PART..(offset + size).div_ceil(PART)).filter_map(move |part| {
            let word = words.get((part / 64) as usize)?;
            let bit = 1 << (part % 64);
            if word.load(Ordering::Relaxed) & bit != 0 {
                return None;
            }
            word.fetch_or(bit, Ordering::Relaxed);
            Some((base + part * PART, PART))
        })
    }
}
