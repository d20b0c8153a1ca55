//! More backed memory for a request that nothing free can serve.
//!
//! A growth has three steps. *Plan*, under the lock: choose the place where the fewest bytes are
//! missing, take the free neighbours there, claim the address space, and promise the bytes.
//! *Carry out*, without the lock: make room, create, map. *Settle*, under the lock: either the
//! block stands, or everything is as it was. Whatever a growth holds between these steps belongs
//! to nobody else, so nothing that was read before has to be trusted afterwards.

use super::Inner;
use super::error::Wall;
use super::reclaim::Vacated;
use super::state::{Claim, Granted, Need, State};
use crate::device::{DeviceError, HandleProperties, Status};
use crate::mapping::{self, Mapping};
use crate::order::{End, Ends};
use crate::pages::Handle;
use crate::space::{Gap, align_up};

/// Why a growth came to nothing.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) wall: Wall,
    pub(super) error: Option<DeviceError>,
}

/// Where a block is to stand: parts that are free already, and a range to be backed.
#[derive(Clone, Copy, Debug)]
struct Site {
    block: u64,
    back_from: u64,
    back_to: u64,
    /// Whether more than `back_to` may be backed, up to here.
    room_to: u64,
}

impl Site {
    fn missing(&self) -> u64 {
        self.back_to - self.back_from
    }
}

/// All that a growth holds.
#[derive(Debug)]
struct Plan {
    block: u64,
    back_from: u64,
    back_to: u64,
    below: Option<Claim>,
    above: Option<Claim>,
    /// Handles that exist and back nothing.
    spare: Vec<Handle>,
    /// Sizes of handles to create; promised.
    create: Vec<u64>,
    /// Mappings to take away, for their handles.
    vacate: Vec<Vacated>,
}

/// What a growth may use.
#[derive(Clone, Copy, Debug)]
struct Means {
    /// The handles of wholly free ranges.
    moving: bool,
    /// New handles, up to so many reserved bytes.
    within: u64,
    /// What the device is believed to have left; it is asked only after it has refused.
    available: u64,
}

/// What the planner says.
enum Planned {
    Go(Box<Plan>),
    /// No gap is large enough.
    NeedsAddresses,
    /// No gap that is large enough has room for the handles that there are, which are larger than
    /// what is missing.
    NeedsRoom,
    NoMemory,
}

/// Why there is no plan for a site.
enum Lack {
    /// Of handles, and of the right to create some.
    Memory,
    /// Of addresses at this site, for a handle larger than what is missing there.
    Room,
}

impl Inner {
    /// Grows the pool so that the request is served, with new handles as far as the limit and the
    /// device allow; with `moving`, also with the memory of wholly free ranges whose uses are
    /// completed. Does not go beyond `within` reserved bytes.
    pub(super) fn grow(&self, need: &Need, moving: bool, within: u64) -> Result<Granted, Refused> {
        if !self.device.capabilities().mapping {
            return match self.grow_plain(need, within) {
                // What is wholly free cannot be moved here, but given back for something larger.
                Err(_) if moving && self.trim_to(0).is_ok_and(|released| released > 0) => {
                    self.grow_plain(need, within)
                }
                outcome => outcome,
            };
        }
        let mut means = Means {
            moving,
            within,
            available: u64::MAX,
        };
        let mut widened = false;
        loop {
            let planned = self.lock().plan_growth(need, &means);
            match planned {
                Planned::Go(plan) => match self.carry_out(need, *plan) {
                    Err(refused)
                        if refused.wall == Wall::DeviceFull && moving && means.available > 0 =>
                    {
                        let asked_before = means.available < u64::MAX;
                        let info = if asked_before {
                            None
                        } else {
                            self.device.memory_info().ok()
                        };
                        means.available = info.map_or(0, |info| info.free);
                    }
                    outcome => return outcome,
                },
                Planned::NeedsAddresses => match self.reserve_for(need) {
                    Ok(()) => {}
                    Err(error) => return self.grow_plain(need, within).map_err(|_| error),
                },
                Planned::NeedsRoom if !widened && self.reserve_for(need).is_ok() => widened = true,
                Planned::NeedsRoom | Planned::NoMemory => {
                    let refused = means.available < u64::MAX;
                    let wall = if refused {
                        Wall::DeviceFull
                    } else {
                        Wall::LimitReached
                    };
                    return Err(Refused { wall, error: None });
                }
            }
        }
    }

    /// Reserves address space for a request that fits in no gap: twice what it needs, or a share
    /// of the device that doubles with each reservation; less where the address space is short.
    fn reserve_for(&self, need: &Need) -> Result<(), Refused> {
        let capabilities = self.device.capabilities();
        let granularity = capabilities.granularity;
        let alignment = need.alignment.max(granularity);
        let least = need.size.checked_next_multiple_of(granularity);
        let Some(least) = least else {
            return Err(Refused {
                wall: Wall::AddressSpace,
                error: None,
            });
        };
        let count = self.lock().reservations.count().min(8) as u32;
        let usual = capabilities.total_memory.min(FIRST_RESERVATION) << count;
        let wanted = usual
            .max(least.saturating_mul(2))
            .next_multiple_of(granularity);
        let mut size = wanted;
        loop {
            match self.device.reserve(size, alignment) {
                Ok(base) => {
                    self.lock().reservations.add(base, size);
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

    /// Creates, makes room and maps, in this order: what is most likely to be refused comes
    /// first, when nothing has to be undone for it.
    fn carry_out(&self, need: &Need, mut plan: Plan) -> Result<Granted, Refused> {
        let mut handles = std::mem::take(&mut plan.spare);
        let mut created = Vec::new();
        let mut vacated = Vec::new();
        let mut stranded = Vec::new();
        let outcome = self
            .create_handles(&plan.create, &mut created)
            .and_then(|()| self.unmap_in_turn(&mut plan.vacate, &mut vacated))
            .and_then(|()| {
                handles.extend(vacated.iter().map(|entry| entry.mapping.handle));
                handles.extend(&created);
                mapping::back(&*self.device, plan.back_from, &handles, &self.grants).map_err(
                    |failed| {
                        stranded = failed.stranded;
                        failed.error
                    },
                )
            });
        let error = match outcome {
            Ok(mappings) => {
                let mut state = self.lock();
                for entry in vacated {
                    state.settle_vacated(entry);
                }
                state.pages.created(&created);
                return Ok(state.settle_growth(need, plan, mappings));
            }
            Err(error) => error,
        };
        // What was created goes back to the device, but for what is stranded or is not taken.
        let is_stranded = |h: &Handle| stranded.iter().any(|s: &Mapping| s.handle.id == h.id);
        let kept = created
            .iter()
            .filter(|h| is_stranded(h) || self.device.release(h.id).is_err());
        let kept: Vec<Handle> = kept.copied().collect();
        let mut spare: Vec<Handle> = handles;
        spare.retain(|h| !created.contains(h));
        spare.extend(kept.iter().copied());
        spare.retain(|h| !is_stranded(h));
        let mut state = self.lock();
        state.pages.created(&created);
        state
            .pages
            .broken_promise(plan.create.iter().sum::<u64>() - sum(&created));
        for &handle in created.iter().filter(|h| !kept.contains(h)) {
            state.pages.released(handle);
        }
        for entry in vacated {
            let handle = entry.mapping.handle;
            if !spare.contains(&handle) && !is_stranded(&handle) {
                spare.push(handle);
            }
            state.settle_vacated(entry);
        }
        state.undo_growth(plan, spare, stranded);
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

    fn create_handles(&self, sizes: &[u64], into: &mut Vec<Handle>) -> Result<(), DeviceError> {
        for &size in sizes {
            let id = self.device.create(size, HandleProperties::default())?;
            into.push(Handle { size, id });
        }
        Ok(())
    }

    /// Takes mappings away until one refuses; moves those that went from `entries` to `gone`.
    fn unmap_in_turn(
        &self,
        entries: &mut Vec<Vacated>,
        gone: &mut Vec<Vacated>,
    ) -> Result<(), DeviceError> {
        while let Some(entry) = entries.last() {
            self.device
                .unmap(entry.mapping.address, entry.mapping.handle.size)?;
            gone.extend(entries.pop());
        }
        Ok(())
    }
}

/// Bytes of the first reservation; each further one is twice as large, up to 256 times. Address
/// space costs nothing until it is mapped, but the process has 128 TiB of it in all.
const FIRST_RESERVATION: u64 = 64 << 30;

fn sum(handles: &[Handle]) -> u64 {
    handles.iter().map(|handle| handle.size).sum()
}

impl State {
    fn plan_growth(&mut self, need: &Need, means: &Means) -> Planned {
        let sites = self.sites(need);
        if sites.is_empty() {
            return Planned::NeedsAddresses;
        }
        for site in &sites {
            match self.plan_at(site, need, means) {
                Ok(plan) => return Planned::Go(Box::new(plan)),
                // Elsewhere even more is missing.
                Err(Lack::Memory) => return Planned::NoMemory,
                Err(Lack::Room) => {}
            }
        }
        Planned::NeedsRoom
    }

    fn plan_at(&mut self, site: &Site, need: &Need, means: &Means) -> Result<Plan, Lack> {
        let missing = site.missing();
        let mut lack = Lack::Memory;
        let below = self.take_neighbour(site.block, site.back_from);
        let above = self.take_neighbour(site.back_to, site.block + need.size);
        let mut plan = Plan {
            block: site.block,
            back_from: site.back_from,
            back_to: site.back_to,
            below,
            above,
            spare: self.pages.take_spare(missing),
            create: Vec::new(),
            vacate: Vec::new(),
        };
        let mut got = sum(&plan.spare);
        if site.back_from + got > site.room_to {
            // Spare handles that do not fit here serve somebody else.
            for handle in std::mem::take(&mut plan.spare) {
                self.pages.put_spare(handle);
            }
            got = 0;
            lack = Lack::Room;
        }
        let headroom = self.pages.headroom(means.within).min(means.available);
        let headroom = headroom - headroom % self.pages.granularity();
        if got < missing && means.moving && headroom < missing - got {
            let want = missing - got - headroom.min(missing - got);
            let room = site.room_to - site.back_from - got;
            let (vacate, too_large) = self.take_vacatable(want, room);
            if too_large {
                lack = Lack::Room;
            }
            let sizes = vacate.iter().map(|entry| entry.mapping.handle.size);
            got += sizes.sum::<u64>();
            plan.vacate = vacate;
        }
        if got < missing {
            plan.create = self.pages.ladder(missing - got, need.size);
            let created: u64 = plan.create.iter().sum();
            if created > headroom {
                plan.create.clear();
                self.put_back(plan);
                return Err(lack);
            }
            self.pages.promise(created);
            got += created;
        }
        plan.back_to = site.back_from + got;
        self.reservations.claim(plan.back_from, plan.back_to);
        Ok(plan)
    }

    /// The places for a request: where the fewest bytes are missing comes first, of equal ones
    /// the lowest.
    fn sites(&self, need: &Need) -> Vec<Site> {
        let gaps = self.reservations.gaps();
        let mut sites: Vec<Site> = gaps.flat_map(|gap| self.sites_in(need, gap)).collect();
        sites.sort_by_key(|site| (site.missing(), site.back_from));
        sites
    }

    /// Ways to place the block in a gap: on from what is free below it, down from what is free
    /// above it, or across it.
    fn sites_in(&self, need: &Need, gap: Gap) -> Vec<Site> {
        let granularity = self.pages.granularity();
        let usable = |id: &crate::space::ExtentId| {
            self.order
                .usable(&self.extents.get(*id).ends, need.stream, need.reasons)
        };
        let below = if self.reservations.joins(gap.start) {
            self.extents.free_below_gap(gap.start).filter(usable)
        } else {
            None
        };
        let above = if self.reservations.joins(gap.end) {
            self.extents.free_above_gap(gap.end).filter(usable)
        } else {
            None
        };
        let mut sites = Vec::new();
        let from = below.map_or(gap.start, |id| self.extents.get(id).address);
        if let Some(block) = align_up(from, need.alignment)
            && let Some(end) = block.checked_add(need.size)
        {
            // A block that begins beyond the gap's start leaves a hole before it unbacked.
            let back_from = gap.start.max(block & !(granularity - 1));
            let upper = end.next_multiple_of(granularity).min(gap.end);
            let reach = above.map_or(gap.end, |id| self.extents.get(id).end());
            if back_from < upper && end <= reach {
                let room_to = gap.end;
                sites.push(Site {
                    block,
                    back_from,
                    back_to: upper,
                    room_to,
                });
            }
        }
        if let Some(above) = above {
            let over = self.extents.get(above);
            let inside = need
                .size
                .saturating_sub(over.size)
                .next_multiple_of(granularity);
            if inside > 0 && inside <= gap.end - gap.start {
                let back_from = gap.end - inside;
                let block = back_from;
                let fits = block.is_multiple_of(need.alignment) && block + need.size <= over.end();
                if fits {
                    let room_to = gap.end;
                    sites.push(Site {
                        block,
                        back_from,
                        back_to: gap.end,
                        room_to,
                    });
                }
            }
        }
        sites
    }

    /// Takes what is free at `start..end`, which is empty or lies beside a gap.
    fn take_neighbour(&mut self, start: u64, end: u64) -> Option<Claim> {
        if start >= end {
            return None;
        }
        let below = self.extents.free_below_gap(end);
        let id = below.or_else(|| self.extents.free_above_gap(start))?;
        Some(self.take_across(id, start, end))
    }

    /// Gives back all that a plan took, before anything was done for it.
    fn put_back(&mut self, plan: Plan) {
        for claim in [plan.below, plan.above].into_iter().flatten() {
            self.unclaim(claim);
        }
        for handle in plan.spare {
            self.pages.put_spare(handle);
        }
        for entry in plan.vacate {
            self.unclaim(entry.claim);
        }
    }

    fn settle_growth(&mut self, need: &Need, plan: Plan, mappings: Vec<Mapping>) -> Granted {
        for mapping in mappings {
            self.mappings.add(mapping);
        }
        let size = plan.back_to - plan.back_from;
        let link_below = self.reservations.joins(plan.back_from);
        let link_above = self.reservations.joins(plan.back_to);
        let backed = self
            .extents
            .insert_taken(plan.back_from, size, link_below, link_above);
        let mut whole = match plan.below {
            Some(below) => self.extents.join_taken(below.extent, backed),
            None => backed,
        };
        if let Some(above) = plan.above {
            whole = self.extents.join_taken(whole, above.extent);
        }
        self.cut_out(need, whole, plan.block)
    }

    /// Makes the block out of a taken extent that holds it, and frees what is left over: memory
    /// that nobody has used yet, and that is the asking stream's first.
    pub(super) fn cut_out(
        &mut self,
        need: &Need,
        whole: crate::space::ExtentId,
        block: u64,
    ) -> Granted {
        let unused = Ends::from(End {
            stream: need.stream,
            position: 0,
        });
        let mut extent = whole;
        if self.extents.get(whole).address < block {
            extent = self.extents.split_taken(whole, block);
            self.extents.free_extent(whole, unused.clone());
        }
        if self.extents.get(extent).end() > block + need.size {
            let rest = self.extents.split_taken(extent, block + need.size);
            self.extents.free_extent(rest, unused);
        }
        self.hand_out(need, extent)
    }

    fn undo_growth(&mut self, plan: Plan, spare: Vec<Handle>, stranded: Vec<Mapping>) {
        for handle in spare {
            self.pages.put_spare(handle);
        }
        self.reservations.unclaim(plan.back_from, plan.back_to);
        for mapping in stranded {
            self.reservations.claim(mapping.address, mapping.end());
            self.stranded.push(mapping);
        }
        self.put_back(plan);
    }
}
