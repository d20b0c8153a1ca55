//! The uses of a block: on which streams, until when.
//!
//! A use that the caller does not end is over when the block is freed. A caller who knows better
//! says so, and the block's memory serves others earlier; to say nothing is always safe.
//!
//! # Invariants
//!
//! 1. A block's `users` are exactly the streams whose uses are not over, and each of their slots
//!    is named for it (`Order::name`).
//! 2. A use that is over stays in `ended` until the block is freed; so the ends of a freed block
//!    cover all its uses.

use std::panic::Location;

use super::error::BlockError;
use super::sanitizer::BlockCall;
use super::state::{MarkerRequests, State};
use super::{Block, Inner, Pool};
use crate::device::{EventId, StreamId};
use crate::order::StreamKey;

/// Where a use ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum UseEnd {
    /// With what the stream was given up to now.
    Now,
    /// Where this event of the caller's was recorded.
    AtEvent(EventId),
}

impl State {
    /// Frees a live block in the order of the streams that used it. With a serial number, only if
    /// the block is still the one that had it.
    pub(super) fn free_block(
        &mut self,
        address: u64,
        serial: Option<u64>,
    ) -> Result<MarkerRequests, BlockError> {
        self.take_into_books(address);
        let Some(record) = self.blocks.remove(address, serial) else {
            return Err(self.block_error(address));
        };
        self.fronts.of_thread().usage.freed(record.requested);
        let live = self.fronts.live_bytes();
        let early = record.ended.iter().next().is_some();
        let mut ends = record.ended;
        let mut requests = MarkerRequests::new();
        for &stream in &record.users {
            ends.add(self.order.advance(stream));
            self.order.unname(stream);
            requests.extend(self.order.freed(stream, record.size, live));
        }
        if early {
            self.order.leave_out_implied(&mut ends, &record.users);
        }
        let freed = self.backing.number_free();
        self.release(address, record.size, record.place, ends, freed);
        Ok(requests)
    }

    /// The block is used on a further stream from now on.
    pub(super) fn use_on(&mut self, address: u64, key: StreamKey) -> Result<(), BlockError> {
        self.take_into_books(address);
        if self.blocks.get(address).is_none() {
            return Err(self.block_error(address));
        }
        let user = self.stream(key);
        if let Some(record) = self.blocks.get_mut(address)
            && !record.users.contains(&user)
        {
            record.users.push(user);
            self.order.name(user);
        }
        Ok(())
    }

    /// A stream's use of the block is over. Gives what to record so that others can ask for that
    /// position and no later one.
    pub(super) fn end_use(
        &mut self,
        address: u64,
        key: StreamKey,
        end: UseEnd,
    ) -> Result<MarkerRequests, BlockError> {
        self.take_into_books(address);
        let Some(record) = self.blocks.get(address) else {
            return Err(self.block_error(address));
        };
        let size = record.size;
        let user = self.order.known(key);
        let Some(user) = user.filter(|user| record.users.contains(user)) else {
            let stream = key.stream;
            return Err(BlockError::NotUsed { address, stream });
        };
        let end = match end {
            UseEnd::Now => self.order.advance(user),
            UseEnd::AtEvent(event) => {
                let end = self.order.end_at_event(event);
                end.ok_or(BlockError::UnknownEvent { event })?
            }
        };
        if let Some(record) = self.blocks.get_mut(address) {
            record.users.retain(|stream| *stream != user);
            record.ended.add(end);
        }
        self.order.unname(user);
        let live = self.fronts.live_bytes();
        let request = self.order.freed(end.stream, size, live);
        Ok(request.into_iter().collect())
    }

    /// The block's owner is done with it, and another stream owns it from now on.
    pub(super) fn hand_over(
        &mut self,
        address: u64,
        key: StreamKey,
    ) -> Result<MarkerRequests, BlockError> {
        self.take_into_books(address);
        let Some(record) = self.blocks.get(address) else {
            return Err(self.block_error(address));
        };
        let former = record.owner;
        let busy = record.users.contains(&former);
        let heir = self.stream(key);
        if heir == former && busy {
            return Ok(MarkerRequests::new());
        }
        // Before the former owner's use ends, so that the block has a user at all times.
        self.use_on(address, key)?;
        let mut requests = MarkerRequests::new();
        if busy {
            let former_key = self.order.key(former);
            if self.order.known(former_key) == Some(former) {
                requests = self.end_use(address, former_key, UseEnd::Now)?;
            } else if let Some(record) = self.blocks.get_mut(address) {
                // It is gone, and was given nothing after its last position.
                record.users.retain(|stream| *stream != former);
                record.ended.add(self.order.advance(former));
                self.order.unname(former);
            }
        }
        if let Some(record) = self.blocks.get_mut(address) {
            record.owner = heir;
        }
        Ok(requests)
    }
}

impl Inner {
    pub(super) fn free_block(&self, call: BlockCall) -> Result<(), BlockError> {
        let BlockCall {
            address, serial, ..
        } = call;
        self.watch_free(call);
        if self.free_in_front(address, serial) {
            return Ok(());
        }
        let freed = self.lock().free_block(address, serial);
        let requests = match freed {
            Ok(requests) => requests,
            Err(error) => {
                return self.unless_captured(error, |inner| inner.free_captured(address, serial));
            }
        };
        self.mark_all(requests);
        Ok(())
    }

    fn use_block(&self, call: BlockCall, stream: StreamId) -> Result<(), BlockError> {
        let address = call.address;
        let key = self.stream_key(stream)?;
        let used = self.lock().use_on(address, key);
        self.watch_use(call, key, used.as_ref().err());
        used.or_else(|error| self.unless_captured(error, |inner| inner.use_captured(address, key)))
    }

    fn end_use(&self, call: BlockCall, stream: StreamId, end: UseEnd) -> Result<(), BlockError> {
        let address = call.address;
        let key = self.stream_key(stream)?;
        let ended = self.lock().end_use(address, key, end);
        self.watch_end_of_use(call, key, end, ended.as_ref().err());
        match ended {
            Ok(requests) => {
                self.mark_all(requests);
                Ok(())
            }
            Err(error) => {
                self.unless_captured(error, |inner| inner.end_captured_use(address, key, end))
            }
        }
    }

    fn hand_over(&self, call: BlockCall, stream: StreamId) -> Result<(), BlockError> {
        let address = call.address;
        let key = self.stream_key(stream)?;
        let handed = self.lock().hand_over(address, key);
        self.watch_hand_over(call, key, handed.as_ref().err());
        match handed {
            Ok(requests) => {
                self.mark_all(requests);
                Ok(())
            }
            Err(error) => {
                self.unless_captured(error, |inner| inner.hand_over_captured(address, key))
            }
        }
    }

    /// What is not the pool's own may be a graph's.
    fn unless_captured(
        &self,
        error: BlockError,
        of_graph: impl FnOnce(&Inner) -> Option<Result<(), BlockError>>,
    ) -> Result<(), BlockError> {
        match error {
            BlockError::Foreign { .. } if self.graphs.any() => of_graph(self).unwrap_or(Err(error)),
            error => Err(error),
        }
    }

    pub(super) fn mark_all(&self, requests: MarkerRequests) {
        for request in requests {
            self.mark_or_leave(request);
        }
    }
}

impl Block {
    /// Says that the block is used on a further stream from now on, until it is freed or the use is
    /// ended. Whether that stream's work comes after the allocation is the caller's business; the
    /// pool sees to it that nobody gets the memory before the stream is done with it.
    #[track_caller]
    pub fn use_on(&self, stream: StreamId) -> Result<(), BlockError> {
        self.inner.use_block(self.call(Location::caller()), stream)
    }

    /// Says that `stream` was given all that it is ever to do with the block: its use ends with what
    /// is queued on it now, and what it is given later holds the memory no longer.
    ///
    /// The caller promises that no work that touches the block is queued on `stream` after this call,
    /// unless [`Block::use_on`] declares a new use before. It is safe because the pool takes the
    /// stream's position at this call, which comes after everything that was queued before; the block
    /// itself stays live. Uses on other streams are untouched.
    ///
    /// [`BlockError::NotUsed`] if the stream does not use the block.
    #[track_caller]
    pub fn use_ended(&self, stream: StreamId) -> Result<(), BlockError> {
        self.inner
            .end_use(self.call(Location::caller()), stream, UseEnd::Now)
    }

    /// Says that the use on `stream` ended where the caller's event was last recorded by
    /// [`Pool::record_event`].
    ///
    /// The caller promises that all work of `stream` that touches the block was queued before that
    /// record began, and comes before it in stream order: the event was recorded on `stream`, or on
    /// a stream that was made to wait for that work before. It is safe because the pool took the
    /// position of the event's stream when it was recorded, and that position comes after the work;
    /// later records of the event change nothing.
    ///
    /// [`BlockError::UnknownEvent`] if the event was not recorded through the pool, or forgotten
    /// since; [`BlockError::NotUsed`] if the stream does not use the block.
    #[track_caller]
    pub fn use_ends_at(&self, stream: StreamId, event: EventId) -> Result<(), BlockError> {
        let end = UseEnd::AtEvent(event);
        self.inner
            .end_use(self.call(Location::caller()), stream, end)
    }

    /// Hands the block over to another stream: the owner, which is the stream it was allocated for
    /// or last handed over to, is done with it, and `stream` owns it from now on.
    ///
    /// The same as [`Block::use_on`] the new owner and [`Block::use_ended`] on the old one, with
    /// the promises of both. If the new owner is made to wait for the old one's uses by an event
    /// that the pool is told of ([`Pool::record_event`] after the hand-over or after the end that
    /// was named with [`Block::use_ends_at`], then [`Pool::wait_event`]), then the old owner's end
    /// is implied by the new owner's, and after the free the memory is the new owner's like any
    /// that was its own. If not, both ends are waited for.
    #[track_caller]
    pub fn hand_over(&self, stream: StreamId) -> Result<(), BlockError> {
        self.inner.hand_over(self.call(Location::caller()), stream)
    }
}

/// The same for blocks that are known by their raw address ([`Block::into_raw`]).
impl Pool {
    /// Frees the block that starts at a raw address, in the order of the streams that used it.
    #[track_caller]
    pub fn free(&self, address: u64) -> Result<(), BlockError> {
        self.inner
            .free_block(BlockCall::raw(address, Location::caller()))
    }

    /// Says that the block is used on a further stream from now on: see [`Block::use_on`].
    #[track_caller]
    pub fn use_on(&self, address: u64, stream: StreamId) -> Result<(), BlockError> {
        let call = BlockCall::raw(address, Location::caller());
        self.inner.use_block(call, stream)
    }

    /// Says that a stream's use of the block is over: see [`Block::use_ended`].
    #[track_caller]
    pub fn use_ended(&self, address: u64, stream: StreamId) -> Result<(), BlockError> {
        let call = BlockCall::raw(address, Location::caller());
        self.inner.end_use(call, stream, UseEnd::Now)
    }

    /// Says that a stream's use of the block ended where an event was recorded: see
    /// [`Block::use_ends_at`].
    #[track_caller]
    pub fn use_ends_at(
        &self,
        address: u64,
        stream: StreamId,
        event: EventId,
    ) -> Result<(), BlockError> {
        let call = BlockCall::raw(address, Location::caller());
        self.inner.end_use(call, stream, UseEnd::AtEvent(event))
    }

    /// Hands the block over to another stream: see [`Block::hand_over`].
    #[track_caller]
    pub fn hand_over(&self, address: u64, stream: StreamId) -> Result<(), BlockError> {
        let call = BlockCall::raw(address, Location::caller());
        self.inner.hand_over(call, stream)
    }
}
