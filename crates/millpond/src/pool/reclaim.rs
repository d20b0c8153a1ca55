//! Giving memory back to the device: which handles nothing uses any more, and releasing them.

use super::Inner;
use super::state::State;
use crate::backing::{Leaving, LeavingPlain};
use crate::device::DeviceError;
use crate::order::Ends;

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
}

impl Inner {
    /// Gives memory back to the device until at most `keep` bytes are reserved, as far as nothing
    /// uses it. Gives the bytes released.
    pub(super) fn trim_to(&self, keep: u64) -> Result<u64, DeviceError> {
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
            _ => Ok(released),
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
                backing.stays(order, leaving);
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
