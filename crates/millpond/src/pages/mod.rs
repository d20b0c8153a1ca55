//! Physical handles: which exist, how large, which of them back nothing at the moment, and how
//! many more there may be.
//!
//! # Invariants
//!
//! 1. `reserved` is the sum of the sizes of all handles, plus what was promised to calls that are
//!    creating handles at this moment; it never passes the limit.
//! 2. A handle is spare exactly if no mapping names it.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::device::HandleId;

/// A physical handle and its size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Handle {
    pub(crate) size: u64,
    pub(crate) id: HandleId,
}

/// Bytes; the smallest and the largest handle that the ladder gives, where a request does not need
/// less. Mapping costs per handle, waste is per handle too.
const SMALLEST: u64 = 8 << 20;
const LARGEST: u64 = 256 << 20;

/// The pool's handles.
#[derive(Debug)]
pub(crate) struct Pages {
    granularity: u64,
    limit: u64,
    reserved: u64,
    /// Of `reserved`: promised, and not yet created.
    promised: u64,
    /// The highest `reserved - promised`.
    peak_reserved: u64,
    handles: u64,
    spare: BTreeSet<Handle>,
}

impl Pages {
    pub(crate) fn new(granularity: u64, limit: u64) -> Pages {
        Pages {
            granularity,
            limit,
            reserved: 0,
            promised: 0,
            peak_reserved: 0,
            handles: 0,
            spare: BTreeSet::new(),
        }
    }

    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(crate) fn peak_reserved(&self) -> u64 {
        self.peak_reserved
    }

    pub(crate) fn handles(&self) -> u64 {
        self.handles
    }

    /// Bytes in spare handles.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spare.iter().map(|handle| handle.size).sum()
    }

    /// Bytes that may still be created within the limit, and within so many reserved bytes.
    pub(crate) fn headroom(&self, within: u64) -> u64 {
        self.limit.min(within).saturating_sub(self.reserved)
    }

    /// The sizes of new handles that together are at least `bytes`, for a request of `request`
    /// bytes: a power of two near a quarter of the request, and the last one just as large as
    /// needed.
    pub(crate) fn ladder(&self, bytes: u64, request: u64) -> Vec<u64> {
        let quarter = (request / 4).checked_next_power_of_two().unwrap_or(LARGEST);
        let step = quarter.clamp(SMALLEST, LARGEST).max(self.granularity);
        let mut sizes = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let size = left.min(step).next_multiple_of(self.granularity);
            sizes.push(size);
            left = left.saturating_sub(size);
        }
        sizes
    }

    /// Promises bytes to somebody who is about to create handles.
    pub(crate) fn promise(&mut self, bytes: u64) {
        self.reserved += bytes;
        self.promised += bytes;
    }

    /// Handles were created, out of what was promised.
    pub(crate) fn created(&mut self, handles: &[Handle]) {
        self.handles += handles.len() as u64;
        self.kept_promise(handles.iter().map(|handle| handle.size).sum());
    }

    /// Promised bytes exist now.
    pub(crate) fn kept_promise(&mut self, bytes: u64) {
        self.promised -= bytes;
        self.peak_reserved = self.peak_reserved.max(self.reserved - self.promised);
    }

    /// Promised bytes that were not created.
    pub(crate) fn broken_promise(&mut self, bytes: u64) {
        self.reserved -= bytes;
        self.promised -= bytes;
    }

    /// Bytes that were no handle's went back to the device.
    pub(crate) fn returned(&mut self, bytes: u64) {
        self.reserved -= bytes;
    }

    /// Handles went back to the device.
    pub(crate) fn released(&mut self, handle: Handle) {
        self.reserved -= handle.size;
        self.handles -= 1;
    }

    /// A handle backs nothing any more.
    pub(crate) fn put_spare(&mut self, handle: Handle) {
        self.spare.insert(handle);
    }

    /// Takes spare handles for `bytes` bytes, as far as they go: the largest that are not larger
    /// than what is missing, and one that is larger for the rest. They may come to more.
    pub(crate) fn take_spare(&mut self, bytes: u64) -> Vec<Handle> {
        let mut taken = Vec::new();
        let mut missing = bytes;
        while missing > 0 {
            let after = Handle {
                size: missing + 1,
                id: HandleId(0),
            };
            let next = self
                .spare
                .range(..after)
                .next_back()
                .or_else(|| self.spare.first());
            let Some(&handle) = next else { break };
            self.spare.remove(&handle);
            missing = missing.saturating_sub(handle.size);
            taken.push(handle);
        }
        taken
    }

    /// Takes all spare handles.
    pub(crate) fn take_all_spare(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.spare).into_iter().collect()
    }

    /// Sets the limit; what exists beyond it stays until it is trimmed.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The high watermark begins again at what is reserved now.
    pub(crate) fn reset_peak(&mut self) {
        self.peak_reserved = self.reserved - self.promised;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_ladder_follows_the_request_and_ends_exactly() {
        let pages = Pages::new(2 * MIB, u64::MAX);
        assert_eq!(pages.ladder(1, 1), [2 * MIB]);
        assert_eq!(pages.ladder(7 * MIB, 7 * MIB), [8 * MIB]);
        assert_eq!(
            pages.ladder(21 * MIB, 21 * MIB),
            [8 * MIB, 8 * MIB, 6 * MIB]
        );
        assert_eq!(
            pages.ladder(600 * MIB, 4096 * MIB),
            [256 * MIB, 256 * MIB, 88 * MIB]
        );
    }

    #[test]
    fn spare_handles_are_taken_largest_first_without_needless_excess() {
        let mut pages = Pages::new(2 * MIB, u64::MAX);
        for (id, size) in [2, 8, 32].into_iter().enumerate() {
            pages.put_spare(Handle {
                size: size * MIB,
                id: HandleId(id as u64),
            });
        }
        let sizes = |handles: Vec<Handle>| handles.iter().map(|h| h.size / MIB).collect::<Vec<_>>();
        assert_eq!(sizes(pages.take_spare(9 * MIB)), [8, 2]);
        assert_eq!(sizes(pages.take_spare(9 * MIB)), [32]);
        assert_eq!(sizes(pages.take_spare(9 * MIB)), [0_u64; 0]);
    }
}
