//! The judge: follows the device's calls and the pool's blocks, and collects broken rules.
//!
//! # What is told when, and why
//!
//! With several threads the order in which calls reach the checker is not the order in which the
//! device made them. The checker is built so that this can hide a broken rule, but never invent
//! one; with one thread it is exact.
//!
//! - What a call **gives** (a mapping, a handle, an event, a stream) is noted after the call and
//!   before the pool sees the result, so the pool cannot use anything that is not noted.
//! - What a call **takes** (unmap, release, destroy) is judged and noted *before* the call: the
//!   next owner of an address or a value that recurs could otherwise be noted first. If the call
//!   fails it is undone. A call that would break a rule is reported even if it fails.
//! - What a record, a query or a synchronisation **covers** is what was noted before the call
//!   began, and takes effect after it. A pool that counts work as covered that was queued while
//!   the call was on its way is rightly reported. If another thread records the same event in the
//!   meantime, only what both records cover counts.
//! - [`Checker::allocated`] is told after the pool returned. Waits that other threads queue on the
//!   same stream between the two can hide that the order was missing; they cannot make it missing.
//! - [`Checker::freeing`] is told before the pool's free, for the block can be someone else's
//!   before that returns. Between the two, an event recorded on the stream covers the block's
//!   uses: they were launched before.
//! - [`Checker::used`] is told after the pool's call, and before the block is freed.
//! - [`Checker::use_ended`], [`Checker::use_ends_at`] and [`Checker::handed_over`] are told before
//!   the pool is: the pool may count no later position as the use's end than stood then.
//! - [`Checker::stream_ends`] is told before the pool is: from then on frees of blocks on the stream
//!   need no event after them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use millpond::device::{
    CallRecord, Capabilities, DeviceError, EventId, HandleId, Observer, Outcome, StreamId,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::memory::{Memory, Pieces, Taken};
use crate::order::{Clock, DestroyedEvent, Order, StreamRef};
use crate::segments::Ends;
use crate::violation::{BlockSeen, Remaining, Violation};

/// Violations beyond this many are only counted.
const KEPT: usize = 1000;

/// An independent judge of the pool's rules 1 to 4.
///
/// It stands in front of the device as an [`Observer`], is told about blocks by whoever drives
/// the pool, and may be shared by threads. When to tell what is written at each method.
#[derive(Debug)]
pub struct Checker(Mutex<Judge>);

/// What exists now, as the checker counts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Blocks handed out and not freed.
    pub live_blocks: u64,
    /// The bytes that were asked for with them.
    pub live_bytes: u64,
    /// Bytes of the handles that exist, mapped or not, each counted once, and of memory from
    /// `Device::allocate`.
    pub physical_bytes: u64,
    /// Violations so far, including those that were not kept.
    pub violations: u64,
    /// Records that the checker keeps about who had which bytes.
    pub records_kept: usize,
}

/// A free that was announced: proof for [`Checker::free_failed`].
#[derive(Debug)]
pub struct Freeing(Block);

#[derive(Debug)]
struct Block {
    seen: BlockSeen,
    owner: StreamRef,
    /// The streams whose uses are not over, the owner among them.
    used_on: SmallVec<[StreamRef; 2]>,
    /// Ends of uses that are.
    ended: Ends,
    pieces: Pieces,
}

/// What was noted before a call, to be finished after it.
#[derive(Debug)]
enum Begun {
    Map(Option<u64>),
    Taking(Taken),
    Release(HandleId, Option<u64>),
    DestroyStream(StreamId, Option<StreamRef>),
    DestroyEvent(Option<DestroyedEvent>),
    Covers(Clock),
}

#[derive(Debug)]
struct Judge {
    memory: Memory,
    order: Order,
    blocks: FxHashMap<u64, Block>,
    blocks_seen: u64,
    live_bytes: u64,
    /// One entry a thread at most: calls do not nest.
    begun: Vec<(ThreadId, Begun)>,
    violations: Vec<Violation>,
    violations_seen: u64,
}

impl Checker {
    /// A checker for one device, before its first call.
    pub fn new(capabilities: &Capabilities) -> Checker {
        Checker(Mutex::new(Judge {
            memory: Memory::new(capabilities.ordinal),
            order: Order::default(),
            blocks: FxHashMap::default(),
            blocks_seen: 0,
            live_bytes: 0,
            begun: Vec::new(),
            violations: Vec::new(),
            violations_seen: 0,
        }))
    }

    /// The pool handed out a block; told after its call returned, before the block is used.
    ///
    /// `size` and `alignment` are what was asked for. Judges rules 1 to 3 and returns what is
    /// broken. A block of no bytes at address 0 is nothing, and is not followed.
    pub fn allocated(
        &self,
        address: u64,
        size: u64,
        alignment: u64,
        stream: StreamId,
    ) -> Vec<Violation> {
        if size == 0 && address == 0 {
            return Vec::new();
        }
        self.lock().allocated(address, size, alignment, stream)
    }

    /// The block is going to be used on another stream as well. Told after the pool's call.
    /// Returns whether a live block begins at this address.
    pub fn used(&self, address: u64, stream: StreamId) -> bool {
        self.lock().used(address, stream)
    }

    /// The block's use on the stream is over, with what that was given up to now. Told *before* the
    /// pool's call. Returns whether the stream used a live block that begins at this address.
    pub fn use_ended(&self, address: u64, stream: StreamId) -> bool {
        let mut judge = self.lock();
        let stream = judge.order.stream(stream);
        judge.use_ended(address, stream, None)
    }

    /// The block's use on the stream ended before the event was last recorded. Told *before* the
    /// pool's call. Returns as [`Checker::use_ended`].
    pub fn use_ends_at(&self, address: u64, stream: StreamId, event: EventId) -> bool {
        let mut judge = self.lock();
        let stream = judge.order.stream(stream);
        judge.use_ended(address, stream, Some(event))
    }

    /// The block's owner is done with it, and this stream owns it from now on. Told *before* the
    /// pool's call. Returns whether a live block begins at this address.
    pub fn handed_over(&self, address: u64, stream: StreamId) -> bool {
        self.lock().handed_over(address, stream)
    }

    /// The stream is about to be destroyed, and is given no more work: an event recorded on it from
    /// now on covers all uses of its blocks, also of those that are freed later. Told *before* the
    /// pool's call.
    pub fn stream_ends(&self, stream: StreamId) {
        self.lock().order.stream_ends(stream);
    }

    /// The block is about to be freed: all its uses are launched. Told *before* the pool's call.
    /// `None` if no live block begins at this address; the pool must then refuse the free.
    pub fn freeing(&self, address: u64) -> Option<Freeing> {
        self.lock().freeing(address)
    }

    /// The free that was announced did not happen: the block is live as before.
    pub fn free_failed(&self, freeing: Freeing) -> Vec<Violation> {
        self.lock().free_failed(freeing.0)
    }

    /// All violations so far, in the order they were found; at most 1000 are kept.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// All violations so far, and everything that still exists on the device: to be asked when
    /// the pool and the test have given back what they took. Streams are not counted.
    pub fn finish(&self) -> Vec<Violation> {
        let judge = self.lock();
        let mut events: Vec<EventId> = judge.order.remaining_events().collect();
        events.sort_unstable();
        let events = events.iter().map(|event| Remaining::Event(event.0));
        let remaining = judge.memory.remaining().into_iter().chain(events);
        let mut all = judge.violations.clone();
        all.extend(remaining.map(Violation::LeftBehind));
        all
    }

    /// What exists now.
    pub fn totals(&self) -> Totals {
        let judge = self.lock();
        Totals {
            live_blocks: judge.blocks.len() as u64,
            live_bytes: judge.live_bytes,
            physical_bytes: judge.memory.physical_bytes(),
            violations: judge.violations_seen,
            records_kept: judge.memory.segments(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Judge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Checker {
    fn before(&self, call: &CallRecord) -> Result<(), DeviceError> {
        self.lock().before(call);
        Ok(())
    }

    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, _started: u64, _ended: u64) {
        self.lock().after(call, outcome);
    }
}

impl Judge {
    fn report(&mut self, found: &[Violation]) {
        self.violations_seen += found.len() as u64;
        let room = KEPT.saturating_sub(self.violations.len());
        self.violations.extend(found.iter().take(room).cloned());
    }

    // --- Blocks ------------------------------------------------------------------------------

    fn allocated(
        &mut self,
        address: u64,
        size: u64,
        alignment: u64,
        stream: StreamId,
    ) -> Vec<Violation> {
        let owner = self.order.stream(stream);
        let seen = BlockSeen {
            number: self.blocks_seen,
            address,
            size,
            stream,
        };
        self.blocks_seen += 1;
        self.order.follow_legacy(owner);
        self.order.advance(owner);

        let mut found = Vec::new();
        if alignment > 1 && !address.is_multiple_of(alignment) {
            found.push(Violation::Misaligned {
                given: seen,
                alignment,
            });
        }
        let pieces = if size == 0 {
            Pieces::new()
        } else {
            let (pieces, gap) = self.memory.translate(address, size);
            found.extend(gap.map(|(address, gap)| Violation::Unusable {
                given: seen,
                address,
                gap,
            }));
            pieces
        };
        let block = Block {
            seen,
            owner,
            used_on: SmallVec::from_iter([owner]),
            ended: Ends::new(),
            pieces,
        };
        self.take_over(block, &mut found);
        self.memory.prune(self.order.completed());
        self.report(&found);
        found
    }

    /// Makes the block the owner of its bytes, and judges rules 1 and 3.
    fn take_over(&mut self, block: Block, found: &mut Vec<Violation>) {
        let given = block.seen;
        let order = &self.order;
        let (clock, completed) = (order.clock(block.owner), order.completed());
        self.memory
            .claim(&block.pieces, given, |handle, offset, former| {
                let length = former.length;
                if former.live {
                    found.push(Violation::SharedByte {
                        given,
                        owner: former.block,
                        handle,
                        offset,
                        length,
                    });
                }
                for &end in &former.ends {
                    if !completed.covers(end) && !clock.covers(end) {
                        found.push(Violation::Unordered {
                            given,
                            earlier: former.block,
                            used_on: order.name(end.stream),
                            position: end.position,
                            ordered: clock.get(end.stream),
                            completed: completed.get(end.stream),
                            handle,
                            offset,
                            length,
                        });
                    }
                }
            });
        self.live_bytes += given.size;
        if let Some(former) = self.blocks.insert(given.address, block) {
            self.live_bytes -= former.seen.size;
            // Where both have bytes, those are reported already.
            if given.size == 0 || former.seen.size == 0 {
                found.push(Violation::SharedAddress {
                    given,
                    owner: former.seen,
                });
            }
        }
    }

    fn used(&mut self, address: u64, stream: StreamId) -> bool {
        let stream = self.order.stream(stream);
        self.order.follow_legacy(stream);
        self.order.advance(stream);
        let Some(block) = self.blocks.get_mut(&address) else {
            return false;
        };
        if !block.used_on.contains(&stream) {
            block.used_on.push(stream);
        }
        true
    }

    fn use_ended(&mut self, address: u64, stream: StreamRef, at: Option<EventId>) -> bool {
        let end = match at {
            None => self.order.end_of_use(stream),
            Some(event) => self.order.end_at(stream, event),
        };
        let Some(block) = self.blocks.get_mut(&address) else {
            return false;
        };
        let Some(place) = block.used_on.iter().position(|user| *user == stream) else {
            return false;
        };
        block.used_on.swap_remove(place);
        block.ended.extend(end);
        true
    }

    fn handed_over(&mut self, address: u64, stream: StreamId) -> bool {
        let Some(block) = self.blocks.get(&address) else {
            return false;
        };
        let former = block.owner;
        let heir = self.order.stream(stream);
        if former != heir {
            self.use_ended(address, former, None);
        }
        if let Some(block) = self.blocks.get_mut(&address) {
            block.owner = heir;
        }
        self.used(address, stream)
    }

    fn freeing(&mut self, address: u64) -> Option<Freeing> {
        let block = self.blocks.remove(&address)?;
        self.live_bytes -= block.seen.size;
        let streams = block.used_on.iter();
        let ends: Ends = streams
            .filter_map(|&stream| self.order.end_of_use(stream))
            .chain(block.ended.iter().copied())
            .collect();
        self.memory
            .vacate(&block.pieces, &block.seen, &ends, self.order.completed());
        Some(Freeing(block))
    }

    fn free_failed(&mut self, block: Block) -> Vec<Violation> {
        let mut found = Vec::new();
        let own = block.seen.number;
        self.take_over(block, &mut found);
        // Its own uses are no obstacle to itself, whatever their streams.
        found.retain(|violation| {
            !matches!(violation, Violation::Unordered { earlier, .. } if earlier.number == own)
        });
        self.report(&found);
        found
    }

    // --- Calls -------------------------------------------------------------------------------

    fn before(&mut self, call: &CallRecord) {
        let mut found = Vec::new();
        let begun = match *call {
            CallRecord::Map { handle, .. } => Begun::Map(self.memory.handle(handle)),
            CallRecord::Unmap { address, size } => Begun::Taking(self.memory.unmapping(
                call.call(),
                address,
                size,
                &self.order,
                &mut found,
            )),
            CallRecord::Free { address } => Begun::Taking(self.memory.freeing_allocation(
                address,
                &self.order,
                &mut found,
            )),
            CallRecord::FreeReservation { base, .. } => {
                Begun::Taking(self.memory.freeing_reservation(base))
            }
            CallRecord::Release { handle } => {
                Begun::Release(handle, self.memory.releasing(handle, &mut found))
            }
            CallRecord::DestroyStream { stream } => {
                Begun::DestroyStream(stream, self.order.stream_destroyed(stream))
            }
            CallRecord::DestroyEvent { event } => {
                Begun::DestroyEvent(self.order.event_destroyed(event))
            }
            CallRecord::RecordEvent { stream, .. } => {
                let stream = self.order.stream(stream);
                self.order.follow_legacy(stream);
                Begun::Covers(self.order.clock(stream).clone())
            }
            CallRecord::SynchronizeStream { stream } => {
                let stream = self.order.stream(stream);
                Begun::Covers(self.order.clock(stream).clone())
            }
            CallRecord::Synchronize => Begun::Covers(self.order.everything()),
            CallRecord::QueryEvent { event }
            | CallRecord::WaitEvent { event, .. }
            | CallRecord::SynchronizeEvent { event } => Begun::Covers(self.order.covered_by(event)),
            _ => return,
        };
        self.report(&found);
        self.begun.push((thread::current().id(), begun));
    }

    fn after(&mut self, call: &CallRecord, outcome: Outcome<'_>) {
        // Nothing was begun if another observer failed the call before the checker saw it.
        let begun = match self.begun.is_empty() {
            true => None,
            false => {
                let thread = thread::current().id();
                let place = self.begun.iter().position(|(of, _)| *of == thread);
                place.map(|place| self.begun.swap_remove(place).1)
            }
        };
        match outcome {
            Outcome::Failed(_) => self.undo(call, begun),
            Outcome::Completed(false) => {}
            Outcome::Done | Outcome::Completed(true) => self.done(call, begun),
            Outcome::Value(value) => self.gave(call, value),
        }
    }

    fn undo(&mut self, call: &CallRecord, begun: Option<Begun>) {
        match begun {
            Some(Begun::Taking(taken)) => self.memory.restored(call.call(), taken),
            Some(Begun::Release(value, Some(serial))) => self.memory.unreleased(value, serial),
            Some(Begun::DestroyStream(value, Some(stream))) => {
                self.order.stream_restored(value, stream);
            }
            Some(Begun::DestroyEvent(Some(event))) => self.order.event_restored(event),
            _ => {}
        }
    }

    fn done(&mut self, call: &CallRecord, begun: Option<Begun>) {
        match (call, begun) {
            (&CallRecord::Map { address, size, .. }, Some(Begun::Map(handle))) => {
                let broken = self.memory.mapped(address, size, handle).err();
                self.report(broken.as_slice());
            }
            (
                CallRecord::SetAccess {
                    address,
                    size,
                    grants,
                },
                _,
            ) => {
                self.memory.access_set(*address, *size, grants);
            }
            (_, Some(Begun::Taking(taken))) => self.memory.gone(taken),
            (_, Some(Begun::Release(_, Some(serial)))) => self.memory.released(serial),
            (&CallRecord::RecordEvent { event, .. }, Some(Begun::Covers(covered))) => {
                self.order.recorded(event, covered);
            }
            (&CallRecord::WaitEvent { stream, event }, Some(Begun::Covers(earlier))) => {
                let covered = self.order.covered_since(event, &earlier);
                let stream = self.order.stream(stream);
                self.order.waits(stream, &covered);
            }
            (
                &CallRecord::QueryEvent { event } | &CallRecord::SynchronizeEvent { event },
                Some(Begun::Covers(earlier)),
            ) => {
                let covered = self.order.covered_since(event, &earlier);
                self.order.complete(&covered);
            }
            (
                CallRecord::SynchronizeStream { .. } | CallRecord::Synchronize,
                Some(Begun::Covers(covered)),
            ) => self.order.complete(&covered),
            (
                &CallRecord::Fill { stream, .. }
                | &CallRecord::Verify { stream, .. }
                | &CallRecord::Copy { stream, .. }
                | &CallRecord::HostFunction { stream },
                _,
            ) => {
                let stream = self.order.stream(stream);
                self.order.follow_legacy(stream);
                self.order.advance(stream);
            }
            _ => {}
        }
    }

    fn gave(&mut self, call: &CallRecord, value: u64) {
        match *call {
            CallRecord::Reserve { size, .. } => {
                let broken = self.memory.reserved(value, size);
                self.report(broken.as_slice());
            }
            CallRecord::Create { size, .. } | CallRecord::Import { size } => {
                self.memory.created(HandleId(value), size);
            }
            CallRecord::Allocate { size } => {
                let broken = self.memory.allocated(value, size);
                self.report(broken.as_slice());
            }
            CallRecord::CreateStream { order } => {
                self.order.stream_created(StreamId(value), order);
            }
            CallRecord::CreateEvent => self.order.event_created(EventId(value)),
            _ => {}
        }
    }
}
