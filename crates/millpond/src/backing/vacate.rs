//! Which mappings and handles nothing uses any more, and taking them out.

use smallvec::SmallVec;

use super::{Backing, Held, Kind};
use crate::mapping::MappingRecord;
use crate::order::Order;
use crate::pages::{Handle, HandleSlot};

/// A mapping that was taken out so that it can be unmapped; its handle is pinned meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Vacated {
    pub(crate) address: u64,
    pub(crate) handle: Handle,
    record: MappingRecord,
}

/// A handle on its way back to the device: held whole, and all its mappings taken out.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) handle: Handle,
    /// Those that are still there.
    pub(crate) mappings: Vec<Vacated>,
    held: Held,
}

/// A plain allocation on its way back to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeavingPlain {
    pub(crate) handle: Handle,
    pub(crate) address: u64,
}

/// Mappings of one handle beyond which idle ones are taken away.
const ALIASES: usize = 4;

impl Backing {
    /// Handles of which every byte is free and every use completed, the highest first.
    pub(crate) fn idle_handles(&self, order: &Order) -> Vec<(HandleSlot, Handle)> {
        let mut idle: Vec<(Option<u64>, HandleSlot, Handle)> = self
            .handles
            .iter()
            .filter(|(_, record)| record.kind == Kind::Physical && self.is_idle(order, record))
            .map(|(slot, record)| {
                let lowest = record.aliases.iter().min().copied();
                (lowest, HandleSlot(slot), record.handle)
            })
            .collect();
        // Those that are mapped nowhere first.
        idle.sort_unstable_by_key(|&(lowest, slot, _)| {
            (lowest.is_some(), u64::MAX - lowest.unwrap_or(0), slot)
        });
        idle.into_iter()
            .map(|(_, slot, handle)| (slot, handle))
            .collect()
    }

    /// Plain allocations that are wholly free and done with, lowest first.
    pub(crate) fn idle_plain(&self, order: &Order) -> Vec<(HandleSlot, Handle)> {
        let plain = self
            .handles
            .iter()
            .filter(|(_, record)| record.kind == Kind::Plain && self.is_idle(order, record));
        let mut idle: Vec<(HandleSlot, Handle)> = plain
            .map(|(slot, record)| (HandleSlot(slot), record.handle))
            .collect();
        idle.sort_unstable_by_key(|&(slot, _)| self.handles[slot.0].aliases.first().copied());
        idle
    }

    pub(super) fn is_idle(&self, order: &Order, record: &super::HandleRecord) -> bool {
        record.live == 0
            && record.pins == 0
            && record.aliases.iter().all(|&alias| {
                self.mappings
                    .get(alias)
                    .is_some_and(|mapping| order.completed(&mapping.ends))
                    && self
                        .free
                        .inside(alias, alias + record.handle.size)
                        .all(|free| order.completed(free.ends))
            })
    }

    /// Takes an idle handle out of all that there is, on its way back to the device.
    pub(crate) fn take_out(&mut self, slot: HandleSlot) -> Leaving {
        let aliases = self.handles[slot.0].aliases.clone();
        let mappings = aliases
            .into_iter()
            .filter_map(|address| self.vacate(address))
            .collect();
        let handle = self.handle(slot);
        Leaving {
            handle,
            mappings,
            held: self.hold(slot, 0, handle.size),
        }
    }

    /// The handle is with the device again.
    pub(crate) fn gone(&mut self, order: &Order, leaving: Leaving) {
        let slot = leaving.held.slot;
        self.unhold(order, leaving.held);
        self.remove_handle(slot);
    }

    /// The handle could not be given back: it stays, with the mappings that are left.
    pub(crate) fn stays(&mut self, order: &Order, leaving: Leaving) {
        self.unhold(order, leaving.held);
        for vacated in leaving.mappings {
            self.still_mapped(vacated);
        }
    }

    /// Takes out a mapping.
    fn vacate(&mut self, address: u64) -> Option<Vacated> {
        let record = self.detach(address)?;
        self.pin(record.slot);
        let handle = self.handle(record.slot);
        Some(Vacated {
            address,
            handle,
            record,
        })
    }

    /// Takes out mappings that handles have beyond the usual number, if nothing is placed through
    /// them and all their uses are completed: the oldest, and none inside `start..end`.
    pub(crate) fn vacate_surplus(
        &mut self,
        order: &Order,
        slots: impl Iterator<Item = HandleSlot>,
        start: u64,
        end: u64,
    ) -> Vec<Vacated> {
        let mut surplus: SmallVec<[u64; 4]> = SmallVec::new();
        for slot in slots {
            let record = &self.handles[slot.0];
            // Another call may build on from a place in one of its mappings.
            if record.aliases.len() <= ALIASES || record.pins > 0 {
                continue;
            }
            let idle = record.aliases.iter().filter_map(|&address| {
                let mapping = self.mappings.get(address)?;
                let inside = start <= address && address < end;
                let idle = mapping.used == 0 && order.completed(&mapping.ends);
                (idle && !inside).then_some((mapping.stamp, address))
            });
            surplus.extend(idle.min().map(|(_, address)| address));
        }
        surplus
            .into_iter()
            .filter_map(|address| self.vacate(address))
            .collect()
    }

    /// A vacated mapping is unmapped: its addresses are free. Gives its handle's slot.
    pub(crate) fn unmapped(&mut self, vacated: Vacated) -> HandleSlot {
        let Vacated {
            address, record, ..
        } = vacated;
        self.unpin(record.slot);
        self.reservations.unclaim(address, address + record.size);
        record.slot
    }

    /// A vacated mapping could not be unmapped: it is as it was.
    pub(crate) fn still_mapped(&mut self, vacated: Vacated) {
        self.unpin(vacated.record.slot);
        self.reattach(vacated.address, vacated.record);
    }

    /// Forgets an idle plain allocation, on its way back to the device.
    pub(crate) fn take_out_plain(&mut self, slot: HandleSlot) -> Option<LeavingPlain> {
        let &address = self.handles[slot.0].aliases.first()?;
        self.detach(address);
        self.reservations.remove(address);
        let handle = self.remove_handle(slot);
        Some(LeavingPlain { handle, address })
    }
}
