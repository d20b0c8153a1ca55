//! Giving memory back to the device: which handles nothing uses any more, and releasing them.

use super::state::State;
use super::streams::Marking;
use super::{Inner, Pool, reaper};
use crate::backing::{Leaving, LeavingPlain};
use crate::device::DeviceError;
use crate::order::Ends;

/// What a trim gave back, and where the rest is: all sizes in bytes.
///
/// After a trim while nothing else works on the pool, `reserved_bytes` is the sum of
/// `in_live_blocks`, `beside_live_blocks`, `pending`, `kept_as_asked`, `in_graphs` and `withheld`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TrimReport {
    /// Given back to the device.
    pub released_bytes: u64,
    /// What the pool still has.
    pub reserved_bytes: u64,
    /// Stays because live blocks stand in it.
    pub in_live_blocks: u64,
    /// Stays because it is in one handle with live blocks: a handle goes back whole.
    pub beside_live_blocks: u64,
    /// Stays because its last use is not known to be completed. A synchronisation before the next
    /// trim frees it.
    pub pending: u64,
    /// Could have gone, and stays so that no less is reserved than was to be kept.
    pub kept_as_asked: u64,
    /// Stays because it is the memory of graphs.
    pub in_graphs: u64,
    /// On its way in another call, or withheld because the device refused to take it back.
    pub withheld: u64,
    /// What the device said when it refused to take something back, if it did.
    pub refusal: Option<DeviceError>,
}

/// What was given back, and the first refusal.
#[derive(Debug, Default)]
pub(super) struct Trimmed {
    pub(super) released: u64,
    pub(super) refusal: Option<DeviceError>,
}

impl State {
    /// Takes out what can be given back without going below `keep` reserved bytes: plain
    /// allocations first, then handles that are mapped nowhere, then the others from the top of
    /// the address space down.
    fn plan_trim(&mut self, keep: u64) -> (Vec<LeavingPlain>, Vec<Leaving>) {
        let mut left = self.pages.reserved();
        let mut fits = |size: u64| {
            let fits = left.saturating_sub(size) >= keep && left >= size;
            if fits {
                left -= size;
            }
            fits
        };
        let mut plain = self.backing.idle_plain(&self.order);
        plain.retain(|(_, handle)| fits(handle.size));
        let plain = plain
            .into_iter()
            .filter_map(|(slot, _)| self.backing.take_out_plain(slot))
            .collect();
        let mut handles = self.backing.idle_handles(&self.order);
        handles.retain(|(_, handle)| fits(handle.size));
        let handles = handles
            .into_iter()
            .map(|(slot, _)| self.backing.take_out(slot))
            .collect();
        (plain, handles)
    }

    /// Where what a trim has left is.
    pub(super) fn trim_report(&self, trimmed: Trimmed) -> TrimReport {
        let account = self.backing.account(&self.order);
        let reserved = self.pages.reserved();
        let live = self.blocks.live_rounded() + self.in_fronts().live.rounded;
        let beside = account.partly_used.saturating_sub(live);
        let told = live + beside + account.pending + account.idle + self.graphs.reserved;
        TrimReport {
            released_bytes: trimmed.released,
            reserved_bytes: reserved,
            in_live_blocks: live,
            beside_live_blocks: beside,
            pending: account.pending,
            kept_as_asked: account.idle,
            in_graphs: self.graphs.reserved,
            withheld: reserved.saturating_sub(told),
            refusal: trimmed.refusal,
        }
    }
}

impl Inner {
    /// Gives memory back to the device until at most `keep` bytes are reserved, as far as nothing
    /// uses it. An error if something was refused and nothing released.
    pub(super) fn trim_to(&self, keep: u64) -> Result<Trimmed, DeviceError> {
        self.retry_stranded();
        let (plain, handles) = {
            let mut state = self.lock();
            state.give_up_kept_region();
            state.settle_finished_streams();
            state.plan_trim(keep)
        };
        let mut failure = None;
        let mut released = 0;
        for leaving in plain {
            match self.give_back_one_plain(leaving) {
                Ok(bytes) => released += bytes,
                Err(error) => failure = Some(error),
            }
        }
        for leaving in handles {
            match self.give_back_handle(leaving) {
                Ok(bytes) => released += bytes,
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if released == 0 => Err(error),
            refusal => Ok(Trimmed { released, refusal }),
        }
    }

    /// The host has waited for something: the moment to give back what is above the release
    /// threshold (GUIDE 4.3). A refusal is no failure of the wait.
    pub(super) fn apply_release_threshold(&self) {
        reaper::reap(&self.device);
        let threshold = self.settings.release_threshold();
        if self.lock().pages.reserved() <= threshold {
            return;
        }
        // What the wait has shown about streams other than the one waited for is worth knowing.
        self.observe(Marking::Harmless);
        if let Err(error) = self.trim_to(threshold) {
            tracing::debug!(%error, "memory above the release threshold stays");
        }
    }

    /// Unmaps a handle everywhere and releases it. What fails leaves it as it is by then.
    fn give_back_handle(&self, mut leaving: Leaving) -> Result<u64, DeviceError> {
        let size = leaving.handle.size;
        let mut outcome = Ok(());
        while let Some(vacated) = leaving.mappings.pop() {
            outcome = self.device.unmap(vacated.address, size);
            if outcome.is_err() {
                leaving.mappings.push(vacated);
                break;
            }
            self.lock().backing.unmapped(vacated);
        }
        let outcome = outcome.and_then(|()| self.device.release(leaving.handle.id));
        let mut state = self.lock();
        let State {
            order,
            backing,
            pages,
            ..
        } = &mut *state;
        match outcome {
            Ok(()) => {
                backing.gone(order, leaving);
                pages.returned(size);
                Ok(size)
            }
            Err(error) => {
                let kept: Vec<u64> = leaving.mappings.iter().map(|m| m.address).collect();
                backing.stays(order, leaving);
                drop(state);
                for address in kept {
                    self.renew_access_of_kept(address, size);
                }
                Err(error)
            }
        }
    }

    /// Gives all plain allocations back that nothing uses. What is free in one cannot be put
    /// together with another, but the device can make something larger of both.
    pub(super) fn give_back_plain(&self) -> bool {
        let leaving: Vec<LeavingPlain> = {
            let mut state = self.lock();
            let idle = state.backing.idle_plain(&state.order);
            idle.into_iter()
                .filter_map(|(slot, _)| state.backing.take_out_plain(slot))
                .collect()
        };
        let given = leaving
            .into_iter()
            .map(|leaving| self.give_back_one_plain(leaving).is_ok());
        given.fold(false, |any, given| any | given)
    }

    fn give_back_one_plain(&self, leaving: LeavingPlain) -> Result<u64, DeviceError> {
        // Once it is free the device may give the address to anybody, and nothing stands for it
        // here any more.
        let freed = self.device.free(leaving.address);
        let mut state = self.lock();
        match freed {
            Ok(()) => {
                state.pages.returned(leaving.handle.size);
                Ok(leaving.handle.size)
            }
            Err(error) => {
                let LeavingPlain { handle, address } = leaving;
                state.backing.add_plain(handle, address, &Ends::default());
                Err(error)
            }
        }
    }

    /// Tries again to take away what could not be taken away when a growth failed.
    pub(super) fn retry_stranded(&self) {
        let stranded = std::mem::take(&mut self.lock().stranded);
        for (mapping, slot) in stranded {
            let unmapped = self.device.unmap(mapping.address, mapping.handle.size);
            let mut state = self.lock();
            match unmapped {
                Ok(()) => {
                    let end = mapping.address + mapping.handle.size;
                    state.backing.reservations.unclaim(mapping.address, end);
                    state.backing.unpin(slot);
                }
                Err(error) => {
                    tracing::debug!(%error, "a mapping is still stranded");
                    state.stranded.push((mapping, slot));
                }
            }
        }
    }
}

/// Giving memory back when the caller says so.
impl Pool {
    /// Gives memory back to the device that nothing uses, until at most `keep` bytes are
    /// reserved. Gives the bytes released: see [`Pool::trim_to`], which also tells what was not.
    pub fn trim(&self, keep: u64) -> Result<u64, DeviceError> {
        Ok(self.trim_to(keep)?.released_bytes)
    }

    /// Gives memory back to the device that nothing uses, until no more than `min_bytes_to_keep`
    /// bytes are reserved, or nothing can be given back without going below that
    /// (`cuMemPoolTrimTo`). Gives an account of it: what could not be released, and why.
    ///
    /// From then on the pool plans for what is live now, not for the most that ever was.
    ///
    /// Waits for nothing: memory whose last use is not seen to be completed stays. Synchronise
    /// first ([`Pool::synchronize`]) to give back all that is free.
    ///
    /// # Errors
    ///
    /// What the device said, if it refused and nothing at all was released.
    pub fn trim_to(&self, min_bytes_to_keep: u64) -> Result<TrimReport, DeviceError> {
        self.inner.observe(Marking::All);
        let trimmed = self.inner.trim_to(min_bytes_to_keep);
        reaper::reap(&self.inner.device);
        let mut state = self.inner.lock();
        state.begin_again();
        Ok(state.trim_report(trimmed?))
    }
}
