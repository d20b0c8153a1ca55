//! What is tried when nothing free serves a request, cheapest first, and the account of it when
//! nothing helps.
//!
//! 1. What other streams have finished meanwhile.
//! 2. Free memory put together by mapping it where the request fits, and new handles within the
//!    budget that [`Setting`](super::Setting) sets; if that is not enough, new handles within the
//!    budget that [`Waits`](super::Waits) sets.
//! 3. A wait in the asking stream, for memory that another one is not done with; not where the
//!    caller forbids it ([`Pool::never_wait`](super::Pool::never_wait)).
//! 4. New handles, within the limit.
//! 5. Waiting on the host for pending memory, one event at a time, trying again after each.

use std::sync::atomic::Ordering;

use super::error::{AllocError, OutOfMemory, Wall};
use super::growth::{Means, Refused};
use super::state::{Claim, Granted, Need, Stand, State};
use super::streams::Marking;
use super::{Inner, Request, Statistics, reaper};
use crate::device::{DeviceError, Status};
use crate::order::{End, Reasons};

impl Inner {
    pub(super) fn allocate_slowly(&self, need: Need) -> Result<Granted, AllocError> {
        if need.size > self.most_there_can_be() {
            let refused = Refused {
                wall: Wall::NeverFits,
                error: None,
            };
            return Err(self.out_of_memory(&need, refused));
        }
        reaper::reap(&self.device);
        self.ask_others_before(&need);
        let mut need = need;
        let mut found = match self.find_lease(&mut need) {
            Some(claim) => Ok(claim),
            None => self.find_memory(&need),
        };
        if found.is_err() && self.ask_others(&need) {
            found = self.find_memory(&need);
        }
        if found.is_err() && need.stand != Stand::Alone {
            // There is no room for a region, but there may be for this one.
            let alone = Need {
                stand: Stand::Alone,
                ..need
            };
            found = self.find_memory(&alone);
        }
        match found {
            Ok(claim) => {
                let mut state = self.lock();
                // It may have been destroyed, and seen to have nothing left, in the meantime.
                if self.destroyed.load(Ordering::Acquire) {
                    state.unclaim(claim);
                    let requested = need.requested;
                    return Err(AllocError::Destroyed { requested });
                }
                Ok(state.hand_out(&need, &claim))
            }
            Err(refused) => Err(self.out_of_memory(&need, refused)),
        }
    }

    /// For a request that is to stand in a lease: a new one, if it can be had within the budget.
    /// If not, the request stands alone from now on, and may find a place at once.
    fn find_lease(&self, need: &mut Need) -> Option<Claim> {
        if need.stand != Stand::Leased {
            return None;
        }
        let size = need.wanted().size;
        let budget = {
            let state = self.lock();
            state.creation_budget(self.setting, self.waits, size)
        };
        let means = Means {
            awaited: None,
            budget,
            within: budget,
        };
        self.grow(need, means).ok().or_else(|| {
            need.stand = Stand::Alone;
            self.lock().claim_usable(need)
        })
    }

    fn find_memory(&self, need: &Need) -> Result<Claim, Refused> {
        let (budget, waits_budget, shared, may_wait) = {
            let state = self.lock();
            (
                state.creation_budget(self.setting, self.waits, need.wanted().size),
                state.waits_budget(self.waits),
                state.order.is_shared(),
                state.order.may_wait(need.stream),
            )
        };
        if shared {
            if self.reuse().allow_opportunistic {
                // What was freed last may have no marker yet, and be completed all the same.
                self.observe(Marking::Harmless);
            }
            if let Some(claim) = self.lock().claim_usable(need) {
                return Ok(claim);
            }
        }
        let may_wait = may_wait && shared && self.reuse().allow_internal_dependencies;
        let mut means = Means {
            awaited: None,
            budget,
            within: if may_wait { waits_budget } else { u64::MAX },
        };
        let mut refused = match self.grow(need, means) {
            Ok(claim) => return Ok(claim),
            Err(refused) => refused,
        };
        if may_wait && let Some(claim) = self.claim_after_waits(need, budget) {
            return Ok(claim);
        }
        if means.within < u64::MAX {
            means.within = u64::MAX;
            refused = match self.grow(need, means) {
                Ok(claim) => return Ok(claim),
                Err(again) => again.after(refused),
            };
        }
        self.observe(Marking::All);
        // From here on the host waits, and what it has waited for is free for all, whatever the
        // policies, as after any synchronisation.
        let need = &Need {
            reasons: Reasons {
                completed: true,
                ..need.reasons
            },
            ..*need
        };
        let mut looked_again = false;
        loop {
            let claim = {
                let mut state = self.lock();
                state.give_up_kept_region();
                state.gather_completed(need);
                let claim = state.claim_usable(need);
                claim.or_else(|| state.claim_usable_of_others(need))
            };
            if let Some(claim) = claim {
                return Ok(claim);
            }
            match self.grow(need, means) {
                Ok(claim) => return Ok(claim),
                Err(again) => refused = again.after(refused),
            }
            if self.give_back_plain() {
                continue;
            }
            match self.await_something() {
                Ok(true) => looked_again = false,
                // Nothing is left to wait for, but the last may have been seen to be completed
                // just now.
                Ok(false) if !looked_again => looked_again = true,
                Ok(false) => return Err(refused),
                Err(error) => {
                    refused.error = Some(error);
                    return Err(refused);
                }
            }
        }
    }

    /// The most bytes that one block could ever have.
    pub(super) fn most_there_can_be(&self) -> u64 {
        let capabilities = self.device.capabilities();
        let limit = self.lock().pages.most();
        let whole = limit.min(capabilities.total_memory);
        whole - whole % capabilities.granularity
    }

    /// Takes memory that other streams are not done with, and lets the asking stream wait for
    /// them: that which was freed first, be it in one place or put together.
    fn claim_after_waits(&self, need: &Need, budget: u64) -> Option<Claim> {
        let ladder = self.ladder();
        let (claim, built) = {
            let mut state = self.lock();
            if let Some(claim) = state.claim_any_cut(need) {
                (Some(claim), None)
            } else {
                let place = state.oldest_place(need);
                let before = place.map_or(u64::MAX, |(_, until)| until);
                match state.oldest_growth(need, ladder, budget, before) {
                    None => (place.map(|(place, _)| state.take(need, place)), None),
                    built => (None, built),
                }
            }
        };
        if let Some(until) = built {
            let means = Means {
                awaited: Some(until),
                budget,
                within: 0,
            };
            return self.grow(need, means).ok();
        }
        let claim = claim?;
        let missing: Vec<End> = claim.ends.iter().collect();
        match self.insert_waits(need.key, &missing) {
            Ok(()) => Some(claim),
            Err(error) => {
                tracing::debug!(%error, "a wait could not be inserted");
                self.lock().unclaim(claim);
                None
            }
        }
    }

    /// Waits on the host for the oldest pending work, if there is any. Gives whether something
    /// completed.
    fn await_something(&self) -> Result<bool, DeviceError> {
        self.observe(Marking::All);
        let (oldest, lost) = {
            let state = self.lock();
            (state.order.oldest_markers(), state.order.has_lost_work())
        };
        if let Some(marker) = oldest.first() {
            self.await_marker(marker)?;
            return Ok(true);
        }
        let needs_all = lost || self.graphs.any_closable();
        if needs_all {
            self.synchronize()?;
        }
        Ok(needs_all)
    }

    fn out_of_memory(&self, need: &Need, refused: Refused) -> AllocError {
        let request = Request::new(need.requested, need.key.stream).alignment(need.alignment);
        self.refusal(request, refused, |state, statistics, wall| {
            let wall = match wall {
                Wall::LimitReached if statistics.free_bytes >= need.size => Wall::InPieces,
                Wall::LimitReached | Wall::NeverFits if state.is_budget_short(need) => {
                    Wall::BudgetReached
                }
                wall => wall,
            };
            (wall, state.backing.longest_free())
        })
    }

    /// What a caller is told when nothing helped: what the device said, or where the memory is.
    /// `describe` gives the wall, and the bytes of the largest free range.
    pub(super) fn refusal(
        &self,
        request: Request,
        refused: Refused,
        describe: impl FnOnce(&State, &Statistics, Wall) -> (Wall, u64),
    ) -> AllocError {
        let requested = request.size;
        let refusal = match refused.error {
            Some(error) if error.status != Status::OUT_OF_MEMORY => {
                return AllocError::Device { requested, error };
            }
            refusal => refusal,
        };
        let device_free = self.device.memory_info().ok().map(|info| info.free);
        let mut state = self.lock();
        let statistics = state.statistics();
        let (wall, largest_free) = describe(&state, &statistics, refused.wall);
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested,
            alignment: request.alignment,
            stream: request.stream,
            wall,
            limit: state.pages.limit(),
            reserved: statistics.reserved_bytes,
            graphs: statistics.graph_reserved_bytes,
            live: statistics.live_bytes,
            blocks: statistics.live_blocks,
            free: statistics.free_bytes,
            largest_free,
            pending: statistics.pending_bytes,
            device_free,
            device_total: self.device.capabilities().total_memory,
            refusal,
        }))
    }
}

impl Refused {
    /// The later refusal, with the earlier one's error if it has none of its own.
    fn after(self, earlier: Refused) -> Refused {
        Refused {
            wall: self.wall,
            error: self.error.or(earlier.error),
        }
    }
}
