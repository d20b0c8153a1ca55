//! Memory where nothing can be mapped: plain allocations of the device, cut as the pool needs.
//!
//! This is the classical arena pool: what was allocated together can be cut and merged, but
//! pieces of different allocations never make one range, and one goes back to the device only
//! when it is wholly free.

use super::Inner;
use super::error::Wall;
use super::growth::Refused;
use super::state::{Granted, Need};
use crate::device::Status;
use crate::space::{GRAIN, align_up};

const MIB: u64 = 1 << 20;

impl Inner {
    /// Grows the pool by one plain allocation that holds the request.
    pub(super) fn grow_plain(&self, need: &Need) -> Result<Granted, Refused> {
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
        let size = {
            let mut state = self.lock();
            let headroom = state.pages.headroom();
            let size = if wanted <= headroom { wanted } else { least };
            if size > headroom {
                return Err(limit);
            }
            state.pages.promise(size);
            size
        };
        let allocated = self.device.allocate(size);
        let mut state = self.lock();
        match allocated {
            Ok(address) => {
                state.pages.kept_promise(size);
                state.reservations.add(address, size);
                state.reservations.claim(address, address + size);
                state.plain.insert(address, size);
                let whole = state.extents.insert_taken(address, size, false, false);
                // A plain allocation is aligned to the grain at least (contract: `allocate`).
                let block = align_up(address, need.alignment).unwrap_or(address);
                Ok(state.cut_out(need, whole, block))
            }
            Err(error) => {
                state.pages.broken_promise(size);
                let full = error.status == Status::OUT_OF_MEMORY;
                let wall = if full {
                    Wall::DeviceFull
                } else {
                    Wall::InPieces
                };
                Err(Refused {
                    wall,
                    error: Some(error),
                })
            }
        }
    }
}
