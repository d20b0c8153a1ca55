//! Which mappings and handles nothing uses any more, and taking them out.

use super::{Backing, Held, Kind};
use crate::mapping::{MappingRecord, MappingSlot};
use crate::order::{Ends, Order};
use crate::pages::{Handle, HandleSlot};
use crate::space::Pieces;

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

/// Mappings of one handle beyond which the oldest become dormant, if nothing is in use through
/// them.
const ALIASES: usize = 2;

/// The same in a pool that puts memory together again and again: each may save the next one.
const ALIASES_STRAINED: usize = 4;

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
        let aliases = record.aliases.iter().map(|&alias| self.mappings.get(alias));
        let dormant = record.dormant.iter();
        let dormant = dormant.map(|&mapping| Some(self.mappings.record(mapping)));
        record.live == 0
            && record.pins == 0
            && record.pieces.iter().all(|free| order.completed(free.ends))
            && aliases
                .chain(dormant)
                .all(|mapping| mapping.is_some_and(|known| order.completed(&known.ends)))
    }

    /// Takes an idle handle out of all that there is, on its way back to the device.
    pub(crate) fn take_out(&mut self, slot: HandleSlot) -> Leaving {
        let aliases = self.handles[slot.0].aliases.clone();
        let mut mappings: Vec<Vacated> = aliases
            .into_iter()
            .filter_map(|address| self.vacate(address))
            .collect();
        let dormant = std::mem::take(&mut self.handles[slot.0].dormant);
        mappings.extend(
            dormant
                .into_iter()
                .map(|mapping| self.vacate_dormant(mapping)),
        );
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
        let slot = leaving.held.slot;
        self.unhold(order, leaving.held);
        for vacated in leaving.mappings {
            self.still_mapped(vacated);
        }
        let record = &mut self.handles[slot.0];
        if record.mappings() == 0 {
            // All uses were completed.
            record.pieces = Pieces::whole(record.handle.size, Ends::default());
        }
    }

    /// Takes out a mapping.
    fn vacate(&mut self, address: u64) -> Option<Vacated> {
        let record = self.detach(address)?;
        Some(self.vacated(record))
    }

    /// Takes out a mapping that is no longer among its handle's dormant ones.
    fn vacate_dormant(&mut self, mapping: MappingSlot) -> Vacated {
        let record = self.mappings.remove_retired(mapping);
        self.vacated(record)
    }

    fn vacated(&mut self, record: MappingRecord) -> Vacated {
        self.pin(record.slot);
        Vacated {
            address: record.address,
            handle: self.handle(record.slot),
            record,
        }
    }

    /// Of handles that have more mappings than they should, lets the oldest become dormant through
    /// which nothing is placed, but none inside `start..end`; and takes out dormant ones all of
    /// whose uses are completed.
    pub(crate) fn vacate_surplus(
        &mut self,
        order: &Order,
        slots: impl Iterator<Item = HandleSlot>,
        start: u64,
        end: u64,
        strained: bool,
    ) -> Vec<Vacated> {
        let aliases = if strained { ALIASES_STRAINED } else { ALIASES };
        let mut surplus = Vec::new();
        for slot in slots {
            // Another call may build on from a place in one of its mappings.
            if self.handles[slot.0].pins > 0 {
                continue;
            }
            while self.handles[slot.0].aliases.len() > aliases
                && self.retire_oldest(slot, start, end)
            {}
            let record = &mut self.handles[slot.0];
            if record.mappings() <= aliases + 1 {
                continue;
            }
            let idle = record
                .dormant
                .iter()
                .position(|&mapping| order.completed(&self.mappings.record(mapping).ends));
            if let Some(place) = idle {
                let mapping = record.dormant.remove(place);
                surplus.push(self.vacate_dormant(mapping));
            }
        }
        surplus
    }

    /// Lets a mapping become dormant, if there is one that may.
    fn retire_oldest(&mut self, slot: HandleSlot, start: u64, end: u64) -> bool {
        let unused = self.handles[slot.0].aliases.iter().filter_map(|&address| {
            let mapping = self.mappings.get(address)?;
            let inside = start <= address && address < end;
            (mapping.used == 0 && !inside).then_some((mapping.stamp, address))
        });
        let Some((_, address)) = unused.min() else {
            return false;
        };
        let record = &mut self.handles[slot.0];
        record.aliases.retain(|alias| *alias != address);
        record.dormant.extend(self.mappings.retire(address));
        true
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
        self.reattach(vacated.record);
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
