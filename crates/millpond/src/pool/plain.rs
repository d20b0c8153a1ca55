//! Memory where nothing can be mapped: plain allocations of the device, cut as the pool needs.
//!
//! This is the classical arena pool: what was allocated together can be cut and merged, but
//! pieces of different allocations never make one range, and one goes back to the device only
//! when it is wholly free.

use std::sync::Once;

use super::Inner;
use super::error::Wall;
use super::growth::Refused;
use super::state::{Granted, Need, State};
use crate::device::Status;
use crate::space::{ExtentId, GRAIN, align_up};

const MIB: u64 = 1 << 20;

/// Whether the process was told that it has plain memory.
static TOLD: Once = Once::new();

impl Inner {
    /// Grows the pool by one plain allocation that holds the request.
    pub(super) fn grow_plain(&self, need: &Need, within: u64) -> Result<Granted, Refused> {
        TOLD.call_once(|| {
            let reason = if self.device.capabilities().mapping {
                "address space is short"
            } else {
                "the device cannot map memory"
            };
            tracing::warn!(
                reason,
                "pools take plain allocations, which cannot be put together"
            );
        });
        let limit = Refused {
            wall: Wall::LimitReached,
            error: None,
        };
        let padding = if need.alignment > GRAIN {
            need.alignment
        } else {
            0
        };
        let Some(least) = need.size.checked_add(padding) else {
            return Err(limit);
        };
        let wanted = if least <= MIB {
            2 * MIB
        } else if least <= 16 * MIB {
            32 * MIB
        } else {
            least.checked_next_multiple_of(2 * MIB).unwrap_or(least)
        };
        let mut refused = limit;
        // The second is for a limit or a device that has room for no more.
        let smaller = (least < wanted).then_some(least);
        for size in std::iter::once(wanted).chain(smaller) {
            {
                let mut state = self.lock();
                if size > state.pages.headroom(within) {
                    continue;
                }
                state.pages.promise(size);
            }
            let allocated = self.device.allocate(size);
            let mut state = self.lock();
            match allocated {
                Ok(address) => {
                    state.pages.kept_promise(size);
                    let whole = state.add_plain(address, size);
                    // It is aligned to the grain at least (contract: `allocate`).
                    let block = align_up(address, need.alignment).unwrap_or(address);
                    return Ok(state.cut_out(need, whole, block));
                }
                Err(error) => {
                    state.pages.broken_promise(size);
                    let full = error.status == Status::OUT_OF_MEMORY;
                    let wall = if full {
                        Wall::DeviceFull
                    } else {
                        Wall::InPieces
                    };
                    refused = Refused {
                        wall,
                        error: Some(error),
                    };
                    if !full {
                        break;
                    }
                }
            }
        }
        Err(refused)
    }
}

impl State {
    /// Takes a plain allocation up, taken.
    pub(super) fn add_plain(&mut self, address: u64, size: u64) -> ExtentId {
        self.reservations.add(address, size);
        self.reservations.claim(address, address + size);
        self.plain.insert(address, size);
        self.extents.insert_taken(address, size, false, false)
    }

    /// Forgets a plain allocation, which is one taken extent.
    pub(super) fn remove_plain(&mut self, address: u64, extent: ExtentId) {
        self.extents.remove_taken(extent);
        self.reservations.remove(address);
        self.plain.remove(&address);
    }
}
