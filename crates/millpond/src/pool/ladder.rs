//! What is tried when nothing free serves a request, cheapest first, and the account of it when
//! nothing helps.
//!
//! 1. What other streams have finished meanwhile.
//! 2. New handles, within the budget that [`Waits`](super::Waits) sets.
//! 3. A wait in the asking stream, for memory that another one is not done with; not where the
//!    caller forbids it ([`Pool::never_wait`](super::Pool::never_wait)).
//! 4. New handles, within the limit.
//! 5. The handles of wholly free ranges, moved to where the request fits.
//! 6. Waiting on the host for pending memory, one event at a time, trying again after each.

use std::sync::PoisonError;

use super::Inner;
use super::error::{AllocError, OutOfMemory, Wall};
use super::growth::Refused;
use super::state::{Granted, Need};
use super::streams::Marking;
use crate::device::{DeviceError, Status};
use crate::order::End;

impl Inner {
    pub(super) fn allocate_slowly(&self, need: Need) -> Result<Granted, AllocError> {
        if need.size > self.most_there_can_be() {
            return Err(self.out_of_memory(&need, Wall::NeverFits, None));
        }
        let (budget, shared, may_wait) = {
            let state = self.lock();
            let may_wait = state.order.may_wait(need.stream);
            (
                state.budget(self.waits),
                state.order.is_shared(),
                may_wait && self.reuse.allow_internal_dependencies,
            )
        };
        if shared {
            if self.reuse.allow_opportunistic {
                // What was freed last may have no marker yet, and be completed all the same.
                self.observe(Marking::Harmless);
            }
            if let Some(granted) = self.claim_now(&need) {
                return Ok(granted);
            }
        }
        let mut refused = match self.grow(&need, false, budget) {
            Ok(granted) => return Ok(granted),
            Err(refused) => refused,
        };
        if shared
            && may_wait
            && let Some(granted) = self.claim_after_waits(&need, &mut refused)
        {
            return Ok(granted);
        }
        if budget < u64::MAX {
            refused = match self.grow(&need, false, u64::MAX) {
                Ok(granted) => return Ok(granted),
                Err(refused) => refused,
            };
        }
        self.observe(Marking::All);
        let mut looked_again = false;
        loop {
            self.lock().gather_completed();
            if let Some(granted) = self.claim_now(&need) {
                return Ok(granted);
            }
            match self.grow(&need, true, u64::MAX) {
                Ok(granted) => return Ok(granted),
                Err(again) => refused.replace(again),
            }
            match self.await_something() {
                Ok(true) => looked_again = false,
                // Nothing is left to wait for, but the last may have been seen to be completed
                // just now.
                Ok(false) if !looked_again => looked_again = true,
                Ok(false) => break,
                Err(error) => {
                    refused.error = Some(error);
                    break;
                }
            }
        }
        match refused.error {
            Some(error) if error.status != Status::OUT_OF_MEMORY => Err(AllocError::Device {
                requested: need.requested,
                error,
            }),
            error => Err(self.out_of_memory(&need, refused.wall, error)),
        }
    }

    /// The most bytes that one block could ever have.
    fn most_there_can_be(&self) -> u64 {
        let capabilities = self.device.capabilities();
        let limit = self.lock().pages.limit();
        let whole = limit.min(capabilities.total_memory);
        whole - whole % capabilities.granularity
    }

    fn claim_now(&self, need: &Need) -> Option<Granted> {
        let mut state = self.lock();
        let claim = state.claim_usable(need)?;
        Some(state.hand_out(need, claim.extent))
    }

    /// Takes memory that other streams are not done with, and lets the asking stream wait for
    /// them.
    fn claim_after_waits(&self, need: &Need, refused: &mut Refused) -> Option<Granted> {
        let claim = self.lock().claim_any(need)?;
        let missing: Vec<End> = claim.ends.iter().collect();
        let waited = self.insert_waits(need.key, &missing);
        let mut state = self.lock();
        match waited {
            Ok(()) => Some(state.hand_out(need, claim.extent)),
            Err(error) => {
                state.unclaim(claim);
                refused.error = Some(error);
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

    fn out_of_memory(&self, need: &Need, wall: Wall, refusal: Option<DeviceError>) -> AllocError {
        let device_free = self.device.memory_info().ok().map(|info| info.free);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let statistics = state.statistics();
        let sizes = state.extents.free().map(|id| state.extents.get(id).size);
        let largest_free = sizes.max().unwrap_or(0);
        let wall = match wall {
            Wall::LimitReached if statistics.free_bytes >= need.size => Wall::InPieces,
            wall => wall,
        };
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested: need.requested,
            alignment: need.alignment,
            stream: need.key.stream,
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
    /// Keeps the later wall, and the later error unless there is none.
    fn replace(&mut self, later: Refused) {
        self.wall = later.wall;
        self.error = later.error.or(self.error.take());
    }
}
