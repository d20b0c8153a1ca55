//! The stream sanitizer: finds where the caller's own order does not protect a block.
//!
//! The pool keeps apart what *it* hands from stream to stream. Whether the streams that share a
//! live block are ordered is the caller's business, and an error there shows as wrong numbers once
//! in a thousand runs. A pool that was built with [`PoolBuilder::stream_sanitizer`] goes by what
//! the caller tells it, and reports what that leaves without order, whether or not it went wrong
//! in this run.
//!
//! # What counts
//!
//! *Order* is what the caller made through the pool: each stream's own, [`Pool::record_event`] and
//! [`Pool::wait_event`], [`Pool::synchronize_stream`] and [`Pool::synchronize`], and the legacy
//! stream's with the streams that are ordered with it. Waits that the pool inserts do not count: a
//! program that is right only because of them is right by luck. Order made behind the pool's back
//! is not seen, and gives reports that are wrong.
//!
//! A *use* is
//!
//! - what [`Block::access`] declares: the stream reads or writes the block in what it is given at
//!   this moment, so after all waits, and before all records, that the caller made before and after
//!   the call;
//! - what [`Block::use_on`] or [`Block::hand_over`] declares: the stream uses the block at some time
//!   until the use ends. That may be after a wait that comes later, so it is judged at the end; and
//!   only for streams of which no access is declared.
//!
//! A *free* comes after what any stream that uses the block until then was given, and after every
//! use that ended earlier. So an access is covered if its stream is a user when the block is freed,
//! if it came before the declared end of a use, if a user's order comes after it, or if the host
//! synchronised with it. [`Block::access`] does not make its stream a user.
//!
//! Streams that are being captured, and the memory of graphs, are not judged.
//!
//! # Invariants
//!
//! 1. What is done here changes nothing in the pool, and takes no part in its decisions.
//! 2. The sanitizer's lock is taken last, and nothing is called under it.

mod blocks;
mod happens_before;
mod report;

use std::borrow::Cow;
use std::panic::Location;
use std::sync::PoisonError;

pub use report::{Access, Action, Hazard, OrderReport, ReportedBlock, Site};

use super::error::BlockError;
use super::uses::UseEnd;
use super::{Block, Inner, Pool, PoolBuilder};
use crate::device::{EventId, StreamId, StreamOrder};
use crate::order::StreamKey;
use crate::sync::{Mutex, MutexGuard};
use blocks::Detector;
use happens_before::{StreamNumber, VectorClock};

/// A caller's call for a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockCall {
    pub(super) address: u64,
    /// `None` if the caller has no more than the address.
    pub(super) serial: Option<u64>,
    pub(super) location: Option<&'static Location<'static>>,
}

/// What a sanitizer knew when a wait on the host began.
pub(super) struct Awaited(VectorClock);

/// The sanitizer of one pool.
#[derive(Default, Debug)]
pub(super) struct Sanitizer(Mutex<Detector>);

impl Sanitizer {
    fn lock(&self) -> MutexGuard<'_, Detector> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The sanitizer, and what it calls the stream; `None` where there is nothing to judge.
    fn watched(&self, key: StreamKey) -> Option<(MutexGuard<'_, Detector>, StreamNumber)> {
        let sanitizer = self.sanitizer.as_ref()?;
        if self.graphs.captured(key).is_some() {
            return None;
        }
        // Where the device cannot tell, more order is assumed than there may be.
        let order = self.device.stream_order(key.stream);
        let order = order.unwrap_or(StreamOrder::WithLegacy);
        let mut detector = sanitizer.lock();
        let stream = detector.order.stream(key, order);
        Some((detector, stream))
    }

    pub(super) fn watch_allocation(
        &self,
        call: BlockCall,
        name: Option<&'static str>,
        size: u64,
        key: StreamKey,
    ) {
        if let Some((mut detector, stream)) = self.watched(key) {
            detector.allocated(call, name.map(Cow::Borrowed), size, stream);
        }
    }

    fn watch_access(&self, call: BlockCall, access: Access, stream: StreamId) {
        if self.sanitizer.is_none() {
            return;
        }
        match self.stream_key(stream) {
            Ok(key) => {
                if let Some((mut detector, stream)) = self.watched(key) {
                    detector.accessed(call, access, stream);
                }
            }
            Err(error) => tracing::debug!(%error, "an access on a stream that is not known"),
        }
    }

    pub(super) fn watch_use(&self, call: BlockCall, key: StreamKey, failure: Option<&BlockError>) {
        if is_told(failure)
            && let Some((mut detector, stream)) = self.watched(key)
        {
            detector.use_begins(call, stream);
        }
    }

    pub(super) fn watch_end_of_use(
        &self,
        call: BlockCall,
        key: StreamKey,
        end: UseEnd,
        failure: Option<&BlockError>,
    ) {
        if is_told(failure)
            && let Some((mut detector, stream)) = self.watched(key)
        {
            let end = match end {
                UseEnd::Now => Some(detector.order.clock(stream)),
                UseEnd::AtEvent(event) => detector.order.event(event),
            };
            if let Some(end) = end {
                detector.use_ends(call, stream, end);
            }
        }
    }

    pub(super) fn watch_hand_over(
        &self,
        call: BlockCall,
        key: StreamKey,
        failure: Option<&BlockError>,
    ) {
        if is_told(failure)
            && let Some((mut detector, stream)) = self.watched(key)
        {
            detector.handed_over(call, stream);
        }
    }

    /// To be called before the pool frees the block: afterwards its address may be another one's.
    pub(super) fn watch_free(&self, call: BlockCall) {
        if let Some(sanitizer) = &self.sanitizer {
            sanitizer.lock().freed(call);
        }
    }

    pub(super) fn watch_record(&self, event: EventId, key: StreamKey) {
        if let Some((mut detector, stream)) = self.watched(key) {
            detector.order.recorded(event, stream);
        }
    }

    pub(super) fn watch_wait(&self, key: StreamKey, event: EventId) {
        if let Some((mut detector, stream)) = self.watched(key) {
            detector.order.waited(stream, event);
        }
    }

    pub(super) fn watch_forgotten_event(&self, event: EventId) {
        if let Some(sanitizer) = &self.sanitizer {
            sanitizer.lock().order.forget_event(event);
        }
    }

    /// To be called before a wait on the host, for one stream or the whole device.
    pub(super) fn watch_synchronization(&self, key: Option<StreamKey>) -> Option<Awaited> {
        let knowledge = match key {
            Some(key) => {
                let (detector, stream) = self.watched(key)?;
                detector.order.clock(stream)
            }
            None => self.sanitizer.as_ref()?.lock().order.everything(),
        };
        Some(Awaited(knowledge))
    }

    /// The same before a wait for the caller's event.
    pub(super) fn watch_event_synchronization(&self, event: EventId) -> Option<Awaited> {
        let knowledge = self.sanitizer.as_ref()?.lock().order.event(event)?;
        Some(Awaited(knowledge))
    }

    /// To be called when that wait is over.
    pub(super) fn watch_synchronized(&self, awaited: Option<Awaited>) {
        if let (Some(sanitizer), Some(Awaited(knowledge))) = (&self.sanitizer, awaited) {
            sanitizer.lock().order.synchronized(&knowledge);
        }
    }

    pub(super) fn watch_destroyed(&self, key: StreamKey) {
        if let Some(sanitizer) = &self.sanitizer {
            sanitizer.lock().order.destroyed(key);
        }
    }
}

/// Whether a call did what it was asked for, or failed because the block is not live.
fn is_told(failure: Option<&BlockError>) -> bool {
    matches!(failure, None | Some(BlockError::NotLive { .. }))
}

impl PoolBuilder {
    /// Lets the pool check the caller's own order between streams, and report what it does not
    /// protect: see [`Pool::order_reports`]. For tests and for the search of an error: every call
    /// takes a lock more, and what is known of a block is kept after its free.
    #[must_use]
    pub fn stream_sanitizer(mut self) -> PoolBuilder {
        self.stream_sanitizer = true;
        self
    }
}

impl Pool {
    /// What the [stream sanitizer](PoolBuilder::stream_sanitizer) found: uses that are not ordered
    /// after the allocation, frees that are not ordered after a use, uses after a free, and accesses
    /// that conflict. Each is given with both places in the program's source, and warned of
    /// (`tracing`) when it is found first. Empty without a sanitizer.
    ///
    /// Order is what the caller made through this pool ([`Pool::record_event`],
    /// [`Pool::wait_event`], [`Pool::synchronize_stream`], [`Pool::synchronize`]); what a stream
    /// does is told by [`Block::access`], or by [`Block::use_on`], which is judged when the use
    /// ends. A wait that the pool inserted counts for nothing.
    pub fn order_reports(&self) -> Vec<OrderReport> {
        let sanitizer = self.inner.sanitizer.as_ref();
        sanitizer.map_or_else(Vec::new, |sanitizer| sanitizer.lock().reports.all())
    }

    /// Declares an access to a block that is known by its raw address: see [`Block::access`].
    #[track_caller]
    pub fn access(&self, address: u64, stream: StreamId, access: Access) {
        let call = BlockCall::raw(address, Location::caller());
        self.inner.watch_access(call, access, stream);
    }
}

impl Block {
    /// Tells the pool's [stream sanitizer](PoolBuilder::stream_sanitizer) that `stream` reads or
    /// writes the block in what it is given now. To be called when the work is queued: after the
    /// waits on which the work depends, and before the records of events that stand for it.
    ///
    /// It changes nothing else, and does nothing without a sanitizer. In particular it is no
    /// declaration that the stream uses the block until the free ([`Block::use_on`]).
    #[track_caller]
    pub fn access(&self, stream: StreamId, access: Access) {
        let call = self.call(Location::caller());
        self.inner.watch_access(call, access, stream);
    }

    /// Names the block in the reports of the [stream sanitizer](PoolBuilder::stream_sanitizer).
    /// Does nothing without one.
    pub fn set_name(&self, name: impl Into<Cow<'static, str>>) {
        if let Some(sanitizer) = &self.inner.sanitizer {
            let call = self.call(Location::caller());
            sanitizer.lock().named(call, name.into());
        }
    }

    pub(super) fn call(&self, location: &'static Location<'static>) -> BlockCall {
        BlockCall {
            address: self.address,
            serial: Some(self.serial),
            location: Some(location),
        }
    }
}

impl BlockCall {
    pub(super) fn raw(address: u64, location: &'static Location<'static>) -> BlockCall {
        BlockCall {
            address,
            serial: None,
            location: Some(location),
        }
    }
}
