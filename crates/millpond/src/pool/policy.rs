//! When memory is used again: what is a matter of taste, of price, or of repeatability.
//!
//! None of this decides whether a use is safe; that is `order`'s alone.

use super::state::State;

/// What the pool does when nothing free is ordered before a request, but something free could be
/// after a wait: wait, or take more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Waits {
    /// Takes more memory while what is reserved stays within 2 %, or one request of the largest
    /// size so far, above the most bytes that were ever live; then inserts waits.
    MemoryFirst,
    /// The same, but within half as much again as was ever live, and at least 16 MiB above it: to
    /// hold up a stream for less is a bad bargain.
    #[default]
    Balanced,
    /// Takes more memory as long as there is any, and inserts a wait only when there is none. This
    /// is the order of CUDA's own pools.
    TimeFirst,
}

/// Which freed memory of other streams the pool uses again: CUDA's three reuse policies, with its
/// names and meaning (GUIDE, 4.3, "memory reuse policies"). Memory freed on the asking stream is
/// always used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReusePolicies {
    /// `ReuseFollowEventDependencies`: memory whose uses are ordered before the asking stream's
    /// next work by events that the pool was told of.
    pub follow_event_dependencies: bool,
    /// `ReuseAllowOpportunistic`: memory whose uses are completed, as the pool sees when it looks.
    /// Whether they are depends on the run; without it the same calls give the same addresses.
    pub allow_opportunistic: bool,
    /// `ReuseAllowInternalDependencies`: memory of another stream after a wait that the pool
    /// inserts into the asking one.
    pub allow_internal_dependencies: bool,
}

impl Default for ReusePolicies {
    /// All three, as CUDA's pools have it.
    fn default() -> ReusePolicies {
        ReusePolicies {
            follow_event_dependencies: true,
            allow_opportunistic: true,
            allow_internal_dependencies: true,
        }
    }
}

/// Bytes above what was ever live below which [`Waits::Balanced`] never waits.
const BALANCED_FLOOR: u64 = 16 << 20;

impl State {
    /// Bytes up to which the pool grows before it lets a stream wait.
    pub(super) fn budget(&self, waits: Waits) -> u64 {
        let most_live = self.blocks.most_live();
        let slack = match waits {
            Waits::MemoryFirst => (most_live / 50).max(self.blocks.largest_request()),
            Waits::Balanced => (most_live / 2)
                .max(self.blocks.largest_request())
                .max(BALANCED_FLOOR),
            Waits::TimeFirst => return u64::MAX,
        };
        // What graphs have is not the pool's to use.
        let within = most_live.saturating_add(slack);
        within.saturating_add(self.graphs.reserved)
    }
}
