//! A place for a request that fits nowhere: free memory mapped where it fits, and new handles.
//!
//! A growth has three steps. *Plan*, under the lock: decide what to map and where, hold the free
//! memory that goes into it, claim the address space, and promise the bytes that are to be created.
//! *Carry out*, without the lock: create, wait, map. *Settle*, under the lock: either the claim
//! stands, or everything is as it was. Whatever a growth holds between these steps belongs to
//! nobody else, so nothing that was read before has to be trusted afterwards.

use super::Inner;
use super::error::Wall;
use super::state::{Claim, Need, State};
use super::streams::Marking;
use crate::backing::{Build, Lack, Part, Terms, Vacated};
use crate::device::{DeviceError, Status};
use crate::mapping;
use crate::order::{End, Ends};
use crate::pages::{Handle, HandleSlot, Ladder};

/// Why a growth came to nothing.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) wall: Wall,
    pub(super) error: Option<DeviceError>,
}

impl From<DeviceError> for Refused {
    fn from(error: DeviceError) -> Refused {
        let full = error.status == Status::OUT_OF_MEMORY;
        let wall = if full {
            Wall::DeviceFull
        } else {
            Wall::InPieces
        };
        let error = Some(error);
        Refused { wall, error }
    }
}

/// What a growth may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// Free memory that the asking stream has to wait for, up to this number of a free.
    pub(super) awaited: Option<u64>,
    /// New handles where they are cheapest, up to so many reserved bytes.
    pub(super) budget: u64,
    /// New handles where nothing else serves, up to so many reserved bytes.
    pub(super) within: u64,
}

impl Inner {
    /// Maps what is missing so that the request is served.
    pub(super) fn grow(&self, need: &Need, means: Means) -> Result<Claim, Refused> {
        if !self.device.capabilities().mapping {
            return self.grow_plain(need, means.within);
        }
        let crowded = self.lock().backing.take_crowded();
        if crowded && self.reuse().allow_opportunistic {
            // Idle mappings can be taken away when their uses are seen to be completed.
            self.observe(Marking::Harmless);
        }
        let mut no_addresses = self.wish_for_addresses(need).err();
        let ladder = self.ladder();
        // What the device is believed to have left; it is asked only after it has refused.
        let mut available = u64::MAX;
        loop {
            let begun = {
                let mut state = self.lock();
                state.begin_growth(need, ladder, means, available)
            };
            match begun {
                Ok(build) => match self.carry_out(need, build, means.awaited.is_some()) {
                    Err(refused) if refused.wall == Wall::DeviceFull && available > 0 => {
                        let asked_before = available < u64::MAX;
                        let info = if asked_before {
                            None
                        } else {
                            self.device.memory_info().ok()
                        };
                        available = info.map_or(0, |info| info.free);
                    }
                    outcome => return outcome,
                },
                Err(Lack::Addresses) => {
                    if no_addresses.is_none() {
                        no_addresses = self.reserve_for(need).err();
                    }
                    if let Some(refused) = no_addresses {
                        return self.grow_plain(need, means.within).map_err(|_| refused);
                    }
                }
                Err(Lack::Memory) => {
                    let wall = if available < u64::MAX {
                        Wall::DeviceFull
                    } else {
                        Wall::LimitReached
                    };
                    return Err(Refused { wall, error: None });
                }
            }
        }
    }

    /// The sizes of new handles.
    pub(super) fn ladder(&self) -> Ladder {
        self.setting.ladder(self.most_there_can_be())
    }

    /// Sees to it that there is a gap in which a range of its own can stand and grow, unless that
    /// was refused before.
    fn wish_for_addresses(&self, need: &Need) -> Result<(), Refused> {
        let wish = need.wanted().size.saturating_mul(2).saturating_add(ROOM);
        {
            let state = self.lock();
            if state.addresses_short || state.backing.reservations.widest() >= wish {
                return Ok(());
            }
        }
        let outcome = self.reserve_for(need);
        self.lock().addresses_short = outcome.is_err();
        outcome
    }

    /// Reserves address space for a request that fits in no gap: twice what it needs, or a usual
    /// size that doubles with each reservation; less where the address space is short.
    fn reserve_for(&self, need: &Need) -> Result<(), Refused> {
        let granularity = self.device.capabilities().granularity;
        let alignment = need.alignment.max(granularity);
        // An alignment beyond the granularity may move the range up by as much: with less than
        // that there is no place for it, however many reservations there are.
        let padding = if alignment > granularity {
            alignment
        } else {
            0
        };
        let least = need.wanted().size.checked_next_multiple_of(granularity);
        let least = least.and_then(|least| least.checked_add(granularity + padding));
        let Some(least) = least else {
            return Err(Refused {
                wall: Wall::AddressSpace,
                error: None,
            });
        };
        let count = self.lock().backing.reservations.count().min(8) as u32;
        let wanted = (FIRST_RESERVATION << count)
            .max((least - padding).saturating_mul(4))
            .saturating_add(padding);
        let wanted = wanted - wanted % granularity;
        let mut size = wanted;
        loop {
            match self.device.reserve(size, alignment) {
                Ok(base) => {
                    self.lock().backing.add_reservation(base, size);
                    return Ok(());
                }
                Err(error) if size > least && error.status == Status::OUT_OF_MEMORY => {
                    size = (size / 2).next_multiple_of(granularity).max(least);
                }
                Err(error) => {
                    return Err(Refused {
                        wall: Wall::AddressSpace,
                        error: Some(error),
                    });
                }
            }
        }
    }

    /// Creates, waits and maps, in this order: what is most likely to be refused comes first, when
    /// nothing has to be undone for it.
    fn carry_out(&self, need: &Need, build: Build, wait: bool) -> Result<Claim, Refused> {
        let access = self.access.current();
        let (from, to) = (build.map_from, build.map_to);
        let mut created = Vec::new();
        let mut stranded = Vec::new();
        let outcome = self
            .create_handles(&build.parts, &mut created)
            .and_then(|()| {
                if wait {
                    let missing: Vec<End> = build.ends.iter().collect();
                    self.insert_waits(need.key, &missing)?;
                }
                let mut new = created.iter();
                let handles = build.parts.iter().filter_map(|part| match part {
                    Part::Map(handle, _) => Some(*handle),
                    Part::Create(_) => new.next().copied(),
                });
                let handles: Vec<Handle> = handles.collect();
                mapping::back(&*self.device, build.map_from, &handles, &access.grants).map_err(
                    |failed| {
                        stranded = failed.stranded;
                        failed.error
                    },
                )
            });
        let error = match outcome {
            Ok(()) => {
                let (claim, surplus) = self.lock().settle_growth(need, build, &created);
                self.unmap_surplus(surplus);
                if let Err(error) = self.renew_access(access.version, from, to) {
                    self.lock().unclaim(claim);
                    return Err(error.into());
                }
                return Ok(claim);
            }
            Err(error) => error,
        };
        // What was created goes back to the device, but for what is stranded or is not taken.
        let is_stranded = |h: &Handle| {
            stranded
                .iter()
                .any(|s: &mapping::Mapping| s.handle.id == h.id)
        };
        let (kept, released): (Vec<Handle>, Vec<Handle>) = created
            .iter()
            .partition(|h| is_stranded(h) || self.device.release(h.id).is_err());
        let mut state = self.lock();
        state.pages.kept_promise(sum(&created));
        state.pages.broken_promise(build.created() - sum(&created));
        state.pages.returned(sum(&released));
        let mut slots: Vec<(Handle, HandleSlot)> = build
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::Map(handle, slot) => Some((*handle, *slot)),
                Part::Create(_) => None,
            })
            .collect();
        for handle in kept {
            slots.push((handle, state.backing.add_handle(handle)));
        }
        let State { backing, order, .. } = &mut *state;
        backing.undo(order, build);
        for mapping in stranded {
            let named = slots.iter().find(|(h, _)| h.id == mapping.handle.id);
            if let Some(&(_, slot)) = named {
                let end = mapping.address + mapping.handle.size;
                state.backing.reservations.claim(mapping.address, end);
                state.backing.pin(slot);
                state.stranded.push((mapping, slot));
            }
        }
        Err(error.into())
    }

    fn create_handles(&self, parts: &[Part], into: &mut Vec<Handle>) -> Result<(), DeviceError> {
        for part in parts {
            if let Part::Create(size) = *part {
                let id = self.device.create(size, self.properties.of_handles())?;
                into.push(Handle { size, id });
            }
        }
        Ok(())
    }

    /// Takes mappings away that handles have beyond the usual number.
    fn unmap_surplus(&self, surplus: Vec<Vacated>) {
        for vacated in surplus {
            let unmapped = self.device.unmap(vacated.address, vacated.handle.size);
            let mut state = self.lock();
            match unmapped {
                Ok(()) => drop(state.backing.unmapped(vacated)),
                Err(error) => {
                    tracing::debug!(%error, "a further mapping stays");
                    let (address, size) = (vacated.address, vacated.handle.size);
                    state.backing.still_mapped(vacated);
                    drop(state);
                    self.renew_access_of_kept(address, size);
                }
            }
        }
    }
}

/// Bytes of the first reservation; each further one is twice as large, up to 256 times. Address
/// space costs nothing until it is mapped, but the process has 128 TiB of it in all.
const FIRST_RESERVATION: u64 = 64 << 30;

/// Bytes of addresses that a range of its own should have beside it, to grow.
const ROOM: u64 = 1 << 30;

fn sum(handles: &[Handle]) -> u64 {
    handles.iter().map(|handle| handle.size).sum()
}

impl State {
    fn begin_growth(
        &mut self,
        need: &Need,
        ladder: Ladder,
        means: Means,
        available: u64,
    ) -> Result<Build, Lack> {
        let State {
            order,
            backing,
            pages,
            strain,
            ..
        } = self;
        let usable = |free: &crate::space::Free<'_>| {
            let awaited = means
                .awaited
                .is_some_and(|until| free.freed <= until && order.can_be_waited_for(free.ends));
            awaited || order.usable(free.ends, need.stream, need.reasons)
        };
        let room = |within| pages.headroom(within).min(available);
        let terms = Terms {
            wanted: need.wanted(),
            usable: &usable,
            pages,
            ladder,
            budget: room(means.budget),
            strained: strain.is_unusual(),
            forced: room(means.within),
        };
        let build = backing.begin(&terms)?;
        if !pages.promise(build.created()) {
            backing.undo(order, build);
            return Err(Lack::Memory);
        }
        Ok(build)
    }

    /// The number of the latest free up to which the stream would have to wait for memory to be
    /// put together for the request, without more new handles than `budget` allows; if that is
    /// less than `before`.
    pub(super) fn oldest_growth(
        &mut self,
        need: &Need,
        ladder: Ladder,
        budget: u64,
        before: u64,
    ) -> Option<u64> {
        let State {
            order,
            backing,
            pages,
            ..
        } = self;
        let usable = |ends: &Ends| order.usable(ends, need.stream, need.reasons);
        let waitable = |ends: &Ends| order.can_be_waited_for(ends);
        let mut frees = backing.pending_frees(usable, waitable);
        frees.truncate(frees.partition_point(|&freed| freed < before));
        let room = pages.headroom(budget);
        let mut closes = |until: u64| {
            backing.can_build(&Terms {
                wanted: need.wanted(),
                usable: &|free| usable(free.ends) || (free.freed <= until && waitable(free.ends)),
                pages,
                ladder,
                budget: room,
                strained: false,
                forced: 0,
            })
        };
        // Most often there is none.
        let &last = frees.last()?;
        if !closes(last) {
            return None;
        }
        let place = frees.partition_point(|&until| !closes(until));
        frees.get(place).copied()
    }

    fn settle_growth(
        &mut self,
        need: &Need,
        build: Build,
        created: &[Handle],
    ) -> (Claim, Vec<Vacated>) {
        self.pages.kept_promise(sum(created));
        if created.is_empty() {
            self.strain.built();
        }
        let (block, ends) = (build.block, build.ends.clone());
        let (from, to) = (build.map_from, build.map_to);
        let mapped: Vec<HandleSlot> = build
            .parts
            .iter()
            .filter_map(|part| match part {
                Part::Map(_, slot) => Some(*slot),
                Part::Create(_) => None,
            })
            .collect();
        self.backing
            .settle(&self.order, build, created, &need.fresh());
        let surplus = self.backing.vacate_surplus(
            &self.order,
            mapped.into_iter(),
            from,
            to,
            self.strain.is_unusual(),
        );
        (self.claim_occupied(need, block, ends), surplus)
    }
}
