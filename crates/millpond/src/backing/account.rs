//! Looking at what there is: why memory stays, and what an address belongs to.

use super::{Backing, Kind};
use crate::order::Order;
use crate::pages::{Handle, HandleSlot};

/// Why handles and plain allocations stay, in bytes of whole ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Account {
    /// Something stands in them.
    pub(crate) partly_used: u64,
    /// Nothing does, but a use may not be over.
    pub(crate) pending: u64,
    /// Nothing keeps them.
    pub(crate) idle: u64,
}

/// What lies under an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Located {
    pub(crate) handle: Handle,
    /// Whether it is a plain allocation, which has no handle of the device's.
    pub(crate) plain: bool,
    /// Bytes from its start.
    pub(crate) offset: u64,
}

impl Backing {
    /// Why what there is stays. Handles that calls under way have taken are left out.
    pub(crate) fn account(&self, order: &Order) -> Account {
        let mut account = Account::default();
        for (_, record) in &self.handles {
            let size = record.handle.size;
            if record.pins > 0 {
                continue;
            }
            let why = if record.live > 0 {
                &mut account.partly_used
            } else if self.is_idle(order, record) {
                &mut account.idle
            } else {
                &mut account.pending
            };
            *why += size;
        }
        account
    }

    /// All mappings of handles through which blocks are placed, by address: start, end, whose, and
    /// where their reservation begins.
    pub(crate) fn mapped(&self) -> Vec<(u64, u64, HandleSlot, u64)> {
        let physical = self
            .handles
            .iter()
            .filter(|(_, r)| r.kind == Kind::Physical);
        let mapped = physical.flat_map(|(slot, record)| {
            let size = record.handle.size;
            record.aliases.iter().filter_map(move |&address| {
                let (base, _) = self.reservations.around(address)?;
                Some((address, address + size, HandleSlot(slot), base))
            })
        });
        let mut mapped: Vec<_> = mapped.collect();
        mapped.sort_unstable_by_key(|&(start, ..)| start);
        mapped
    }

    /// What lies under an address, if anything does.
    pub(crate) fn locate(&self, address: u64) -> Option<Located> {
        let part = self
            .mappings
            .parts(address, address.checked_add(1)?)
            .next()?;
        let record = &self.handles[part.slot.0];
        Some(Located {
            handle: record.handle,
            plain: record.kind == Kind::Plain,
            offset: part.offset,
        })
    }
}
