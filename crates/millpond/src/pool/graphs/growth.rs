//! More memory for graphs, and the end of it: the steps that call the device.
//!
//! In a capture these are mapping calls alone, which touch no stream; where nothing can be mapped,
//! a plain allocation.

use super::arena::{ArenaState, Backed, Plan, Range, Wish};
use super::{Arena, Captured};
use crate::device::{DeviceError, HandleProperties, Status};
use crate::pool::error::{AllocError, Wall};
use crate::pool::growth::Refused;
use crate::pool::{Inner, Request};
use crate::space::{GRAIN, align_up};

/// Bytes of a range's reservation, or twice what is asked for: address space costs nothing until
/// it is mapped, but a process has only 128 TiB of it for all its graphs.
const RANGE: u64 = 16 << 30;

impl Inner {
    /// Serves a request on a captured stream from its graph memory. Gives address and serial
    /// number.
    pub(in crate::pool) fn allocate_captured(
        &self,
        captured: &Captured,
        request: Request,
    ) -> Result<(u64, u64), AllocError> {
        let member = captured.member;
        let wish = Wish {
            requested: request.size,
            size: align_up(request.size.max(1), GRAIN).unwrap_or(u64::MAX),
            alignment: request.alignment.max(GRAIN),
            member,
            reasons: self.reasons(),
        };
        let arena = &captured.arena;
        // Named first, so that the slot is the stream's when the block stands.
        self.lock().order.name(member.stream);
        let allocated = self.find_captured(arena, &wish);
        let mut state = self.lock();
        match allocated {
            Ok(granted) => {
                state.graphs.blocks += 1;
                state.graphs.live += wish.requested;
                Ok(granted)
            }
            Err(refused) => {
                state.order.unname(member.stream);
                drop(state);
                Err(self.refused_captured(arena, request, refused))
            }
        }
    }

    fn find_captured(&self, arena: &Arena, wish: &Wish) -> Result<(u64, u64), Refused> {
        if let Some(granted) = arena.lock().allocate(wish) {
            return Ok(granted);
        }
        self.settle_late(arena);
        if let Some(granted) = arena.lock().allocate(wish) {
            return Ok(granted);
        }
        let most = self.lock().pages.most();
        let most = most.min(self.device.capabilities().total_memory);
        if wish.size > most {
            let (wall, error) = (Wall::NeverFits, None);
            return Err(Refused { wall, error });
        }
        let mut refused = match self.grow_captured(arena, wish) {
            Ok(granted) => return Ok(granted),
            Err(refused) => refused,
        };
        // What the pool has and does not use may be what is missing: so much first, then all of it,
        // since handles are given back whole. Where nothing can be mapped, giving it back could
        // wait for the device.
        if self.device.capabilities().mapping {
            let enough = self.lock().pages.reserved().saturating_sub(wish.size);
            for keep in [enough, 0] {
                if !self.trim_to(keep).is_ok_and(|trimmed| trimmed.released > 0) {
                    continue;
                }
                refused = match self.grow_captured(arena, wish) {
                    Ok(granted) => return Ok(granted),
                    Err(refused) => refused,
                };
            }
        }
        Err(refused)
    }

    fn grow_captured(&self, arena: &Arena, wish: &Wish) -> Result<(u64, u64), Refused> {
        let capabilities = self.device.capabilities();
        if !capabilities.mapping {
            return self.grow_captured_plain(arena, wish);
        }
        let granularity = capabilities.granularity;
        loop {
            let planned = arena.lock().plan(wish, granularity);
            match planned {
                Some(plan) => return self.map_planned(arena, wish, plan),
                None => self.reserve_range(arena, wish, granularity)?,
            }
        }
    }

    fn reserve_range(&self, arena: &Arena, wish: &Wish, granularity: u64) -> Result<(), Refused> {
        let short = |error| Refused {
            wall: Wall::AddressSpace,
            error,
        };
        let alignment = wish.alignment.max(granularity);
        let least = wish.size.checked_next_multiple_of(granularity);
        let least = least.ok_or_else(|| short(None))?;
        let mut size = least.saturating_mul(2).max(RANGE);
        loop {
            match self.device.reserve(size, alignment) {
                Ok(base) => {
                    arena.lock().ranges.push(Range {
                        base,
                        size,
                        mapped: base,
                        reserved: true,
                    });
                    return Ok(());
                }
                Err(error) if size > least && error.status == Status::OUT_OF_MEMORY => {
                    size = (size / 2).next_multiple_of(granularity).max(least);
                }
                Err(error) => return Err(short(Some(error))),
            }
        }
    }

    fn map_planned(&self, arena: &Arena, wish: &Wish, plan: Plan) -> Result<(u64, u64), Refused> {
        let size = plan.to - plan.from;
        if let Err(refused) = self.promise_graph(size) {
            arena.lock().undo(plan, false);
            return Err(refused);
        }
        match self.map_new(plan.from, size) {
            Ok(backed) => {
                self.count_backed(&backed);
                Ok(arena.lock().settle(plan, wish, backed))
            }
            Err((error, None)) => {
                self.lock().pages.broken_promise(size);
                arena.lock().undo(plan, false);
                Err(error.into())
            }
            Err((error, Some(left))) => {
                self.count_backed(&left);
                arena.lock().undo_leaving(plan, left);
                Err(error.into())
            }
        }
    }

    fn count_backed(&self, backed: &Backed) {
        let mut state = self.lock();
        state.pages.kept_promise(backed.size);
        state.graphs.reserved += backed.size;
        state.graphs.handles += u64::from(backed.handle.is_some());
    }

    /// Promises so many bytes, if the limit allows them.
    fn promise_graph(&self, size: u64) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.pages.headroom(u64::MAX) < size || !state.pages.promise(size) {
            let (wall, error) = (Wall::LimitReached, None);
            return Err(Refused { wall, error });
        }
        Ok(())
    }

    /// Creates a handle and maps it. If that fails it is undone; what is left if that fails too is
    /// of no use, and is given back when the memory is closed.
    fn map_new(&self, address: u64, size: u64) -> Result<Backed, (DeviceError, Option<Backed>)> {
        // DRV, graph memory nodes: no handle types.
        let properties = HandleProperties {
            share: None,
            ..self.properties.of_handles()
        };
        let created = self.device.create(size, properties);
        let handle = created.map_err(|error| (error, None))?;
        let mut mapped = false;
        let outcome = self.device.map(address, size, handle).and_then(|()| {
            mapped = true;
            self.device
                .set_access(address, size, &self.access.current().grants)
        });
        let backed = |mapped| Backed {
            address,
            size,
            handle: Some((handle, mapped)),
        };
        let Err(error) = outcome else {
            return Ok(backed(true));
        };
        if mapped && self.device.unmap(address, size).is_err() {
            return Err((error, Some(backed(true))));
        }
        if self.device.release(handle).is_err() {
            return Err((error, Some(backed(false))));
        }
        Err((error, None))
    }

    fn grow_captured_plain(&self, arena: &Arena, wish: &Wish) -> Result<(u64, u64), Refused> {
        let granularity = self.device.capabilities().granularity;
        let padding = if wish.alignment > GRAIN {
            wish.alignment
        } else {
            0
        };
        let size = wish.size.checked_add(padding);
        let size = size.and_then(|size| size.checked_next_multiple_of(granularity));
        let Some(size) = size else {
            let (wall, error) = (Wall::NeverFits, None);
            return Err(Refused { wall, error });
        };
        self.promise_graph(size)?;
        match self.device.allocate(size) {
            Ok(address) => {
                let backed = Backed {
                    address,
                    size,
                    handle: None,
                };
                self.count_backed(&backed);
                Ok(arena.lock().settle_plain(backed, wish))
            }
            Err(error) => {
                self.lock().pages.broken_promise(size);
                Err(error.into())
            }
        }
    }

    fn refused_captured(&self, arena: &Arena, request: Request, refused: Refused) -> AllocError {
        let largest_free = arena.lock().largest_free();
        self.refusal(request, refused, |_, _, wall| (wall, largest_free))
    }

    /// Gives all memory back of an arena that nobody can reach any more, and that no replay uses:
    /// the device was synchronised since the last that could be. Whether nothing is left; what the
    /// device refuses to take stays for another time.
    pub(super) fn give_back_graph(&self, arena: &mut ArenaState) -> bool {
        arena.forget_free();
        let mut left = Vec::new();
        for mut backed in std::mem::take(&mut arena.backed) {
            if let Err(error) = self.give_back(&mut backed) {
                tracing::debug!(%error, "memory of a graph could not be given back yet");
                left.push(backed);
            }
        }
        arena.backed = left;
        if !arena.backed.is_empty() {
            return false;
        }
        arena.ranges.retain(|range| {
            let given = match range.reserved {
                true => self.device.free_reservation(range.base, range.size),
                false => Ok(()),
            };
            given.is_err()
        });
        arena.ranges.is_empty()
    }

    fn give_back(&self, backed: &mut Backed) -> Result<(), DeviceError> {
        let Backed { address, size, .. } = *backed;
        match &mut backed.handle {
            Some((handle, mapped)) => {
                if *mapped {
                    self.device.unmap(address, size)?;
                    *mapped = false;
                }
                self.device.release(*handle)?;
            }
            None => self.device.free(address)?,
        }
        let mut state = self.lock();
        state.pages.returned(size);
        state.graphs.reserved -= size;
        state.graphs.handles -= u64::from(backed.handle.is_some());
        Ok(())
    }
}
