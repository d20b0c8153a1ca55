//! The end of a pool: everything goes back to the device, and nothing is taken from under work
//! that still runs.
//!
//! Where the device can no longer be asked (the driver is gone with the process, the process is a
//! fork, or the device is lost), nothing is called any more: the process's end takes the memory.

use super::Inner;
use crate::device::{DeviceError, Status};

impl Drop for Inner {
    fn drop(&mut self) {
        let (blocks, live, idle) = {
            let state = self.lock();
            let idle = state.backing.handles() == 0 && state.backing.reservations.count() == 0;
            let live = state.in_fronts().live;
            (
                state.blocks.count() + live.blocks,
                state.blocks.live_bytes() + live.bytes,
                idle,
            )
        };
        let graphs = self.graphs.take_all();
        if idle && graphs.is_empty() {
            return;
        }
        if blocks > 0 {
            tracing::warn!(
                blocks,
                bytes = live,
                "a pool is dropped with raw blocks not freed"
            );
        }
        // Every use of the pool's memory is over when the device has nothing left to do.
        if let Err(error) = self.device.synchronize() {
            if error.status != Status::DEINITIALIZED {
                tracing::warn!(%error, "a pool's memory stays until the process ends");
            }
            return;
        }
        self.close_graphs(graphs);
        if let Err(error) = self.give_everything_back() {
            tracing::warn!(%error, "some of a pool's memory stays until the process ends");
        }
    }
}

impl Inner {
    /// Unmaps and releases everything. Goes on after a failure, and gives the first one.
    fn give_everything_back(&mut self) -> Result<(), DeviceError> {
        let device = &self.device;
        let state = self
            .state
            .get_mut()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut first = Ok(());
        let mut note = |result: Result<(), DeviceError>| {
            let succeeded = result.is_ok();
            if first.is_ok() {
                first = result;
            }
            succeeded
        };
        for (mapping, _) in std::mem::take(&mut state.stranded) {
            note(device.unmap(mapping.address, mapping.handle.size));
        }
        for (handle, plain, mappings) in state.backing.everything() {
            for address in mappings {
                if plain {
                    note(device.free(address));
                } else {
                    note(device.unmap(address, handle.size));
                }
            }
            // A handle that is still mapped is released all the same: its memory goes with its
            // last mapping (contract, rule 7).
            if !plain {
                note(device.release(handle.id));
            }
        }
        for (base, size) in state.backing.mappable() {
            note(device.free_reservation(base, size));
        }
        first
    }
}
