//! When memory is used again: what is a matter of taste, of price, or of repeatability.
//!
//! None of this decides whether a use is safe; that is `order`'s alone.

use super::state::State;
use crate::pages::Ladder;

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
    /// Whether they are depends on the run; without it the same calls give the same addresses, but
    /// for the last resort of a request that would fail: then the pool waits on the host, and what
    /// is completed by that serves in any case.
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

/// How dear memory is against the driver's time: how large handles are, and how much the pool may
/// have beyond what was ever live before it puts together what is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Setting {
    /// Memory is plentiful: few large handles, and 3 % or 64 MiB more than was ever live.
    Plentiful,
    /// Half as many handles as [`Setting::Balanced`].
    Fast,
    /// A handle for a quarter of a request, of 8 to 256 MiB, and 1 % or 8 MiB more than was ever
    /// live.
    #[default]
    Balanced,
    /// Twice as many handles as [`Setting::Balanced`].
    Tight,
}

const MIB: u64 = 1 << 20;

/// Handles that a pool can have at least.
const HANDLES_AT_LEAST: u64 = 8;

impl Setting {
    /// The sizes of new handles in a pool that can have so many bytes. Where that is little, a
    /// handle is not a large part of it.
    pub(super) fn ladder(self, most: u64) -> Ladder {
        let (parts, smallest, largest) = match self {
            Setting::Plentiful => (1, 64, 512),
            Setting::Fast => (2, 16, 256),
            Setting::Balanced => (4, 8, 256),
            Setting::Tight => (8, 4, 256),
        };
        let share = (most / HANDLES_AT_LEAST).max(1);
        let share = 1 << share.ilog2();
        Ladder {
            parts,
            smallest: share.min(smallest * MIB),
            largest: share.clamp(smallest * MIB, largest * MIB),
        }
    }

    /// Bytes that the pool may have when `live` were live at most, before it looks for free ones.
    fn budget(self, live: u64) -> u64 {
        let slack = match self {
            Setting::Plentiful => (live / 100 * 3).max(64 * MIB),
            Setting::Fast | Setting::Balanced | Setting::Tight => (live / 100).max(8 * MIB),
        };
        live.saturating_add(slack)
    }
}

/// How often the pool has had to put memory together lately, and what it makes of it.
///
/// Putting memory together costs driver calls each time; new memory costs them once. A job whose
/// sizes come again pays for a range once. One whose sizes never come again would pay for ever, so
/// the more it pays, the more memory it is given.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Strain(u64);

/// Allocations that make up for one range that was put together.
const ALLOCATIONS_A_RANGE: u64 = 256;

/// Strain that changes nothing: a job has its bursts.
const USUAL_STRAIN: u64 = 256 * ALLOCATIONS_A_RANGE;

/// Strain for one percent more of what was ever live.
const STRAIN_A_PERCENT: u64 = 8 * ALLOCATIONS_A_RANGE;

/// Percent more at most.
const MOST_FOR_STRAIN: u64 = 18;

impl Strain {
    /// So many requests were served from what was there.
    pub(super) fn eased(&mut self, requests: u64) {
        self.0 = self.0.saturating_sub(requests);
    }

    /// A range was put together.
    pub(super) fn built(&mut self) {
        let most = USUAL_STRAIN + MOST_FOR_STRAIN * STRAIN_A_PERCENT;
        self.0 = (self.0 + ALLOCATIONS_A_RANGE).min(most);
    }

    /// Whether it is more than a job's bursts.
    pub(super) fn is_unusual(self) -> bool {
        self.percent() > 0
    }

    fn percent(self) -> u64 {
        self.0.saturating_sub(USUAL_STRAIN) / STRAIN_A_PERCENT
    }
}

/// Bytes above what was ever live below which [`Waits::Balanced`] never waits.
const BALANCED_FLOOR: u64 = 16 << 20;

impl State {
    // What graphs have is not the pool's to use: the budgets come on top of it.

    /// Bytes up to which the pool creates handles where that is the cheapest, for a request of so
    /// many.
    pub(super) fn creation_budget(&self, setting: Setting, waits: Waits, size: u64) -> u64 {
        let live = self.fronts.live_bytes().saturating_add(size);
        let live = live.max(self.peaks.most_live);
        let memory_is_dear = setting == Setting::Tight || waits == Waits::MemoryFirst;
        let strained = if memory_is_dear {
            0
        } else {
            live / 100 * self.strain.percent()
        };
        let within = setting.budget(live).saturating_add(strained);
        within.saturating_add(self.graphs.reserved)
    }

    /// Bytes up to which the pool grows before it lets a stream wait.
    pub(super) fn waits_budget(&self, waits: Waits) -> u64 {
        let most_live = self.peaks.most_live;
        let slack = match waits {
            Waits::MemoryFirst => (most_live / 50).max(self.peaks.largest_request),
            Waits::Balanced => (most_live / 2)
                .max(self.peaks.largest_request)
                .max(BALANCED_FLOOR),
            Waits::TimeFirst => return u64::MAX,
        };
        let within = most_live.saturating_add(slack);
        within.saturating_add(self.graphs.reserved)
    }
}
