//! Pools that share a budget: what one gives back so that another can grow.

use std::sync::{Arc, Weak};

use super::state::{Need, State};
use super::streams::Marking;
use super::{Inner, PoolBuilder};
use crate::pages::{Budget, Member};

impl Member for Inner {
    /// So much first, then all that is idle, since handles are given back whole.
    fn relieve(&self, bytes: u64) -> u64 {
        self.observe(Marking::Harmless);
        let enough = self.lock().pages.reserved().saturating_sub(bytes);
        let mut released = 0;
        for keep in [enough, 0] {
            if released < bytes {
                match self.trim_to(keep) {
                    Ok(trimmed) => released += trimmed.released,
                    Err(error) => tracing::debug!(%error, "memory could not be left to others"),
                }
            }
        }
        released
    }

    fn used(&self) -> u64 {
        self.fronts.live_bytes()
    }
}

impl State {
    /// Whether the pool's own limit would allow what the shared budget does not.
    pub(super) fn is_budget_short(&self, need: &Need) -> bool {
        let pages = &self.pages;
        let Some(budget) = pages.budget() else {
            return false;
        };
        let own = pages.limit().saturating_sub(pages.reserved());
        own >= need.size && budget.left() < need.size
    }
}

impl Inner {
    /// Lets the other pools under the budget give back what they do not use, so that a request can
    /// be served. Whether any did.
    pub(super) fn ask_others(&self, need: &Need) -> bool {
        let (budget, bytes) = {
            let state = self.lock();
            let whole = need
                .wanted()
                .size
                .checked_next_multiple_of(state.pages.granularity());
            (state.pages.budget().cloned(), whole)
        };
        let (Some(budget), Some(bytes)) = (budget, bytes) else {
            return false;
        };
        budget.relieve(bytes, self)
    }

    /// The same before anything else is tried, where nothing of the pool's own could serve.
    pub(super) fn ask_others_before(&self, need: &Need) {
        let nothing_own = {
            let state = self.lock();
            let regions = state.small.free_bytes() + state.in_fronts().free;
            let free = state.backing.free_bytes() + regions;
            state.pages.budget().is_some() && free < need.size
        };
        if nothing_own {
            self.ask_others(need);
        }
    }

    /// Tells the budget that the pool is under it.
    pub(super) fn join_budget(self: &Arc<Inner>) {
        let budget = self.lock().pages.budget().cloned();
        if let Some(budget) = budget {
            let weak: Weak<Inner> = Arc::downgrade(self);
            budget.join(weak);
        }
    }
}

impl PoolBuilder {
    /// Puts the pool under a budget that it shares with others, besides its own limit.
    #[must_use]
    pub fn budget(mut self, budget: &Budget) -> PoolBuilder {
        self.budget = Some(budget.clone());
        self
    }
}
