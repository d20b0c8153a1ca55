//! Physical handles: how large new ones are, and how many more bytes there may be.
//!
//! # Invariant
//!
//! `reserved` is the sum of the sizes of all handles and plain allocations, plus what was promised
//! to calls that are creating some at this moment; it never passes the limit that held when the
//! promise was made.

#![forbid(unsafe_code)]

mod budget;

pub(crate) use budget::Member;
pub use budget::{Budget, BudgetUsage};

use crate::device::HandleId;

/// A physical handle and its size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Handle {
    pub(crate) size: u64,
    pub(crate) id: HandleId,
}

/// Where the pool keeps what it knows of a handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct HandleSlot(pub(crate) usize);

/// The sizes that new handles have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ladder {
    /// How many handles a request of middling size is made of.
    pub(crate) parts: u64,
    /// Bytes; a power of two.
    pub(crate) smallest: u64,
    /// Bytes; a power of two.
    pub(crate) largest: u64,
}

/// How much memory there is, and how much there may be.
#[derive(Debug)]
pub(crate) struct Pages {
    granularity: u64,
    limit: u64,
    reserved: u64,
    /// Of `reserved`: promised, and not yet created.
    promised: u64,
    /// The highest `reserved - promised`.
    peak_reserved: u64,
    /// What the pool shares with others.
    budget: Option<Budget>,
}

impl Pages {
    pub(crate) fn new(granularity: u64, limit: u64) -> Pages {
        Pages {
            granularity,
            limit,
            reserved: 0,
            promised: 0,
            peak_reserved: 0,
            budget: None,
        }
    }

    /// The same under a budget that is shared.
    pub(crate) fn under(mut self, budget: Option<Budget>) -> Pages {
        self.budget = budget;
        self
    }

    pub(crate) fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// The most bytes that there could ever be.
    pub(crate) fn most(&self) -> u64 {
        let shared = self.budget.as_ref().map_or(u64::MAX, Budget::most);
        self.limit.min(shared)
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

    /// Bytes that exist: what is only promised left out.
    pub(crate) fn existing(&self) -> u64 {
        self.reserved - self.promised
    }

    pub(crate) fn peak_reserved(&self) -> u64 {
        self.peak_reserved
    }

    /// Bytes that may still be created within the limit, and within so many reserved bytes.
    pub(crate) fn headroom(&self, within: u64) -> u64 {
        let own = self.limit.min(within).saturating_sub(self.reserved);
        own.min(self.budget.as_ref().map_or(u64::MAX, Budget::left))
    }

    /// The sizes of new handles that together are at least `bytes`, for a request of `request`
    /// bytes, which are as many as they must be: powers of two, and the last one just as large as
    /// needed.
    pub(crate) fn ladder(&self, ladder: &Ladder, bytes: u64, request: u64) -> Vec<u64> {
        let part = (request / ladder.parts).checked_next_power_of_two();
        let part = part.unwrap_or(ladder.largest);
        let step = part
            .clamp(ladder.smallest, ladder.largest)
            .max(self.granularity);
        let mut sizes = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let size = left.min(step).next_multiple_of(self.granularity);
            sizes.push(size);
            left = left.saturating_sub(size);
        }
        sizes
    }

    /// Promises bytes to somebody who is about to create them. Not if others under the same budget
    /// have taken them since the headroom was asked for.
    #[must_use]
    pub(crate) fn promise(&mut self, bytes: u64) -> bool {
        let taken = self.budget.as_ref().is_none_or(|budget| budget.take(bytes));
        if taken {
            self.reserved += bytes;
            self.promised += bytes;
        }
        taken
    }

    /// Promised bytes exist now.
    pub(crate) fn kept_promise(&mut self, bytes: u64) {
        self.promised -= bytes;
        if let Some(budget) = &self.budget {
            budget.created(bytes);
        }
        self.peak_reserved = self.peak_reserved.max(self.reserved - self.promised);
    }

    /// Promised bytes that were not created.
    pub(crate) fn broken_promise(&mut self, bytes: u64) {
        if let Some(budget) = &self.budget {
            budget.give(bytes);
        }
        self.reserved -= bytes;
        self.promised -= bytes;
    }

    /// Bytes went back to the device.
    pub(crate) fn returned(&mut self, bytes: u64) {
        if let Some(budget) = &self.budget {
            budget.returned(bytes);
        }
        self.reserved -= bytes;
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
        let quarters = Ladder {
            parts: 4,
            smallest: 8 * MIB,
            largest: 256 * MIB,
        };
        let sizes = |bytes, request| pages.ladder(&quarters, bytes, request);
        assert_eq!(sizes(1, 1), [2 * MIB]);
        assert_eq!(sizes(7 * MIB, 7 * MIB), [8 * MIB]);
        assert_eq!(sizes(21 * MIB, 21 * MIB), [8 * MIB, 8 * MIB, 6 * MIB]);
        assert_eq!(
            sizes(600 * MIB, 4096 * MIB),
            [256 * MIB, 256 * MIB, 88 * MIB]
        );
    }
}
