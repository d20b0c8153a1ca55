//! Memory where nothing can be mapped: plain allocations of the device, cut as the pool needs.
//!
//! This is the classical arena pool: what was allocated together can be cut and merged, but
//! pieces of different allocations never make one range, and one goes back to the device only
//! when it is wholly free.

use std::sync::Once;

use super::Inner;
use super::error::Wall;
use super::growth::Refused;
use super::state::{Claim, Need, Stand};
use crate::device::{HandleId, Status};
use crate::pages::Handle;
use crate::space::{GRAIN, align_up};

const MIB: u64 = 1 << 20;

/// Whether the process was told that it has plain memory.
static TOLD: Once = Once::new();

impl Inner {
    /// Grows the pool by one plain allocation that holds the request.
    pub(super) fn grow_plain(&self, need: &Need, within: u64) -> Result<Claim, Refused> {
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
        let Some(least) = need.wanted().size.checked_add(padding) else {
            return Err(limit);
        };
        let wanted = if least <= MIB || (need.stand == Stand::Small && least <= 2 * MIB) {
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
                if size > state.pages.headroom(within) || !state.pages.promise(size) {
                    continue;
                }
            }
            let allocated = self.device.allocate(size);
            let mut state = self.lock();
            match allocated {
                Ok(address) => {
                    state.pages.kept_promise(size);
                    let handle = Handle {
                        size,
                        id: HandleId(0),
                    };
                    state.backing.add_plain(handle, address, &need.fresh());
                    // It is aligned to the grain at least (contract: `allocate`).
                    let block = align_up(address, need.alignment).unwrap_or(address);
                    return Ok(state.take(need, block));
                }
                Err(error) => {
                    state.pages.broken_promise(size);
                    let full = error.status == Status::OUT_OF_MEMORY;
                    refused = error.into();
                    if !full {
                        break;
                    }
                }
            }
        }
        Err(refused)
    }
}
