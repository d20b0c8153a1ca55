//! The uses and the end of a graph's block.
//!
//! A use on a stream of a capture that is under way ends in the order of that capture. Any other is
//! an ordinary use, and ends in the pool's own order, with the pool's own markers.

use super::arena::{GraphBlock, Late};
use super::{Arena, Captured};
use crate::order::{End, Ends, StreamIndex, StreamKey};
use crate::pool::Inner;
use crate::pool::error::BlockError;
use crate::pool::state::MarkerRequests;
use crate::pool::uses::UseEnd;

impl Arena {
    /// The live block at an address, or why there is none.
    fn block_error(&self, address: u64) -> BlockError {
        match self.lock().around(address) {
            Some((start, block)) => BlockError::Interior {
                address,
                start,
                size: block.requested,
            },
            None => BlockError::NotLive { address },
        }
    }
}

impl Inner {
    /// Frees a block of a graph's, if the address belongs to one.
    pub(in crate::pool) fn free_captured(
        &self,
        address: u64,
        serial: Option<u64>,
    ) -> Option<Result<(), BlockError>> {
        let arena = self.graphs.arena_of(address)?;
        let removed = {
            let mut state = arena.lock();
            let block = state.blocks.get(&address);
            let is_it = block.is_some_and(|b| serial.is_none_or(|serial| serial == b.serial));
            let block = is_it.then(|| state.blocks.remove(&address)).flatten();
            block.map(|block| {
                let mut ends = block.ended.clone();
                let slots: Vec<StreamIndex> = block.captured.iter().map(|m| m.slot).collect();
                for &slot in &slots {
                    ends.add(state.order.advance(slot));
                    state.order.unname(slot);
                }
                state.order.leave_out_implied(&mut ends, &slots);
                (block, ends)
            })
        };
        let Some((block, ends)) = removed else {
            return Some(Err(arena.block_error(address)));
        };
        let (ordinary, requests) = self.end_ordinary(&block);
        let completed = ordinary.iter().next().is_none();
        let size = block.size;
        let mut state = arena.lock();
        if completed {
            state.put_free(address, size, ends);
        } else {
            state.late.push(Late {
                address,
                size,
                ends,
                ordinary,
            });
        }
        drop(state);
        self.mark_all(requests);
        Some(Ok(()))
    }

    /// Ends all ordinary uses of a block that is freed. Gives where they ended, as far as the pool
    /// does not know them to be completed.
    fn end_ordinary(&self, block: &GraphBlock) -> (Ends, MarkerRequests) {
        let mut state = self.lock();
        state.graphs.blocks -= 1;
        state.graphs.live -= block.requested;
        for member in &block.captured {
            state.order.unname(member.stream);
        }
        let live = state.fronts.live_bytes();
        let mut ends = block.ended_ordinary.clone();
        let mut requests = MarkerRequests::new();
        for &stream in &block.ordinary {
            ends.add(state.order.advance(stream));
            state.order.unname(stream);
            requests.extend(state.order.freed(stream, block.size, live));
        }
        ends.retain(|end| !state.order.is_completed(end));
        (ends, requests)
    }

    /// Says that a block of a graph's is used on a further stream, if the address belongs to one.
    pub(in crate::pool) fn use_captured(
        &self,
        address: u64,
        key: StreamKey,
    ) -> Option<Result<(), BlockError>> {
        let arena = self.graphs.arena_of(address)?;
        if !arena.lock().blocks.contains_key(&address) {
            return Some(Err(arena.block_error(address)));
        }
        let captured = self.graphs.captured(key);
        let captured = captured.filter(|captured| captured.arena.id == arena.id);
        let stream = {
            let mut state = self.lock();
            let stream = state.stream(key);
            state.order.name(stream);
            stream
        };
        if !add_use(&arena, address, captured, stream) {
            self.lock().order.unname(stream);
        }
        Some(Ok(()))
    }

    /// Ends a use of a block of a graph's, if the address belongs to one.
    pub(in crate::pool) fn end_captured_use(
        &self,
        address: u64,
        key: StreamKey,
        end: UseEnd,
    ) -> Option<Result<(), BlockError>> {
        let arena = self.graphs.arena_of(address)?;
        Some(self.end_use_in(&arena, address, key, end))
    }

    fn end_use_in(
        &self,
        arena: &Arena,
        address: u64,
        key: StreamKey,
        end: UseEnd,
    ) -> Result<(), BlockError> {
        let not_used = BlockError::NotUsed {
            address,
            stream: key.stream,
        };
        let Some(stream) = self.lock().order.known(key) else {
            return Err(not_used);
        };
        {
            let mut guard = arena.lock();
            let state = &mut *guard;
            let Some(block) = state.blocks.get_mut(&address) else {
                drop(guard);
                return Err(arena.block_error(address));
            };
            let place = block.captured.iter().position(|m| m.stream == stream);
            if let Some(place) = place {
                let slot = block.captured[place].slot;
                let end = match end {
                    UseEnd::Now => state.order.advance(slot),
                    UseEnd::AtEvent(event) => {
                        let end = state.order.end_at_event(event);
                        end.ok_or(BlockError::UnknownEvent { event })?
                    }
                };
                block.captured.remove(place);
                block.ended.add(end);
                state.order.unname(slot);
                drop(guard);
                self.lock().order.unname(stream);
                return Ok(());
            }
            if !block.ordinary.contains(&stream) {
                return Err(not_used);
            }
        }
        let (end, request) = {
            let mut state = self.lock();
            let end: End = match end {
                UseEnd::Now => state.order.advance(stream),
                UseEnd::AtEvent(event) => {
                    let end = state.order.end_at_event(event);
                    end.ok_or(BlockError::UnknownEvent { event })?
                }
            };
            let live = state.fronts.live_bytes();
            let request = state.order.freed(end.stream, 0, live);
            state.order.unname(stream);
            (end, request)
        };
        if let Some(block) = arena.lock().blocks.get_mut(&address) {
            // One that was captured and is ordinary now may stand beside one that always was.
            let place = block.ordinary.iter().position(|user| *user == stream);
            place.map(|place| block.ordinary.remove(place));
            block.ended_ordinary.add(end);
        }
        self.mark_all(request.into_iter().collect());
        Ok(())
    }

    /// Hands a block of a graph's over to another stream, if the address belongs to one.
    pub(in crate::pool) fn hand_over_captured(
        &self,
        address: u64,
        key: StreamKey,
    ) -> Option<Result<(), BlockError>> {
        let arena = self.graphs.arena_of(address)?;
        let Some(former) = arena.lock().blocks.get(&address).map(|block| block.owner) else {
            return Some(Err(arena.block_error(address)));
        };
        let (heir, former_key) = {
            let mut state = self.lock();
            (state.stream(key), state.order.key(former))
        };
        let used = self.use_captured(address, key)?;
        if let Err(error) = used {
            return Some(Err(error));
        }
        if heir != former {
            match self.end_use_in(&arena, address, former_key, UseEnd::Now) {
                // It ended before; or its stream is gone, and it ends with the free.
                Ok(()) | Err(BlockError::NotUsed { .. }) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        if let Some(block) = arena.lock().blocks.get_mut(&address) {
            block.owner = heir;
        }
        Some(Ok(()))
    }
}

/// Whether the block did not have this use yet.
fn add_use(arena: &Arena, address: u64, captured: Option<Captured>, stream: StreamIndex) -> bool {
    let mut guard = arena.lock();
    let state = &mut *guard;
    let Some(block) = state.blocks.get_mut(&address) else {
        return false;
    };
    // A capture that ended meanwhile has no slots any more.
    let captured = captured.filter(|c| state.running.contains(&c.member.capture));
    match captured {
        Some(captured) => {
            if block
                .captured
                .iter()
                .any(|m| m.slot == captured.member.slot)
            {
                return false;
            }
            block.captured.push(captured.member);
            state.order.name(captured.member.slot);
        }
        None => {
            if block.ordinary.contains(&stream) {
                return false;
            }
            block.ordinary.push(stream);
        }
    }
    true
}
