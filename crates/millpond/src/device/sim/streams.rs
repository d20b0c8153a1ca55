//! The sim's streams: when, in virtual time, each will have done its work.
//!
//! Since every duration is known when work is queued, so is the time at which it ends. A stream is
//! then no queue but a time: the one at which it will have done everything.
//!
//! # Invariants
//!
//! - No stream's `ready_at` ever goes back.
//! - Slot 0 is the legacy stream. It and the per-thread streams are never destroyed.
//! - `device_until` is the latest `ready_at` that any stream ever had, `ordered_until` the latest
//!   of those that are ordered with the legacy stream; so destroyed streams count in both.

use std::thread::{self, ThreadId};

use rustc_hash::FxHashMap;

use crate::device::{Call, DeviceError, Status, StreamId, StreamOrder};

/// The slot of the legacy stream.
const LEGACY: u32 = 0;
/// The first handle value of a created stream, and the step to the next.
const FIRST_VALUE: u64 = 0x1000;
const VALUE_STEP: u64 = 0x10;

#[derive(Debug)]
struct Stream {
    ready_at: u64,
    identity: u64,
    order: StreamOrder,
}

/// A stream's place; good while the stream is not destroyed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(u32);

/// All streams of a sim.
#[derive(Debug)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free_slots: Vec<u32>,
    by_value: FxHashMap<u64, u32>,
    per_thread: FxHashMap<ThreadId, u32>,
    next_value: u64,
    /// Values to be given again, last destroyed first; stays empty if values do not recur.
    old_values: Vec<u64>,
    values_recur: bool,
    next_identity: u64,
    device_until: u64,
    ordered_until: u64,
}

impl Streams {
    /// Only the default streams, with identities from `first_identity` on; the handle values of
    /// created ones come after `first_value`.
    pub(super) fn new(values_recur: bool, first_value: u64, first_identity: u64) -> Streams {
        Streams {
            slots: vec![Stream {
                ready_at: 0,
                identity: first_identity,
                order: StreamOrder::WithLegacy,
            }],
            free_slots: Vec::new(),
            by_value: FxHashMap::default(),
            per_thread: FxHashMap::default(),
            next_value: first_value + FIRST_VALUE,
            old_values: Vec::new(),
            values_recur,
            next_identity: first_identity + 1,
            device_until: 0,
            ordered_until: 0,
        }
    }

    /// The stream with this handle value; of the calling thread, where that decides.
    pub(super) fn find(&mut self, call: Call, stream: StreamId) -> Result<Slot, DeviceError> {
        match stream {
            StreamId::DEFAULT | StreamId::LEGACY => Ok(Slot(LEGACY)),
            StreamId::PER_THREAD => Ok(self.of_this_thread()),
            StreamId(value) => match self.by_value.get(&value) {
                Some(&slot) => Ok(Slot(slot)),
                None => Err(no_stream(call, stream)),
            },
        }
    }

    fn of_this_thread(&mut self) -> Slot {
        let thread = thread::current().id();
        if let Some(&slot) = self.per_thread.get(&thread) {
            return Slot(slot);
        }
        // Per-thread default streams are ordered with the legacy one (DRV, stream synchronization
        // behaviour).
        let slot = self.add(StreamOrder::WithLegacy);
        self.per_thread.insert(thread, slot);
        Slot(slot)
    }

    fn add(&mut self, order: StreamOrder) -> u32 {
        let stream = Stream {
            ready_at: 0,
            identity: self.next_identity,
            order,
        };
        self.next_identity += 1;
        if let Some(slot) = self.free_slots.pop() {
            self.slots[slot as usize] = stream;
            return slot;
        }
        self.slots.push(stream);
        (self.slots.len() - 1) as u32
    }

    pub(super) fn create(&mut self, order: StreamOrder) -> StreamId {
        let value = self.old_values.pop().unwrap_or_else(|| {
            let value = self.next_value;
            self.next_value += VALUE_STEP;
            value
        });
        let slot = self.add(order);
        self.by_value.insert(value, slot);
        StreamId(value)
    }

    pub(super) fn destroy(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        let slot = self
            .by_value
            .remove(&stream.0)
            .ok_or_else(|| no_stream(Call::DestroyStream, stream))?;
        self.free_slots.push(slot);
        if self.values_recur {
            self.old_values.push(stream.0);
        }
        Ok(())
    }

    pub(super) fn order(&self, slot: Slot) -> StreamOrder {
        self.slots[slot.0 as usize].order
    }

    pub(super) fn identity(&self, slot: Slot) -> u64 {
        self.slots[slot.0 as usize].identity
    }

    /// When all that is queued on the stream is over.
    pub(super) fn ready_at(&self, slot: Slot) -> u64 {
        self.slots[slot.0 as usize].ready_at
    }

    /// When all that was ever queued on the device is over.
    pub(super) fn device_until(&self) -> u64 {
        self.device_until
    }

    /// Queues work, from `now` on; gives when it begins and when it ends.
    pub(super) fn enqueue(&mut self, slot: Slot, now: u64, duration: u64) -> (u64, u64) {
        let start = self.front(slot).max(now);
        let end = start.saturating_add(duration);
        self.hold_until(slot, end);
        (start, end)
    }

    /// What is queued on the stream from now on begins at this time at the earliest.
    pub(super) fn wait(&mut self, slot: Slot, until: u64) {
        let front = self.front(slot);
        self.hold_until(slot, front.max(until));
    }

    /// When an operation that is queued now could begin, as far as the streams say: its stream's
    /// work is done, and, between the legacy stream and those ordered with it, the other side's.
    fn front(&self, slot: Slot) -> u64 {
        let stream = &self.slots[slot.0 as usize];
        match stream.order {
            StreamOrder::Independent => stream.ready_at,
            StreamOrder::WithLegacy if slot.0 == LEGACY => self.ordered_until,
            StreamOrder::WithLegacy => stream.ready_at.max(self.slots[LEGACY as usize].ready_at),
        }
    }

    fn hold_until(&mut self, slot: Slot, time: u64) {
        let stream = &mut self.slots[slot.0 as usize];
        stream.ready_at = stream.ready_at.max(time);
        self.device_until = self.device_until.max(time);
        if stream.order == StreamOrder::WithLegacy {
            self.ordered_until = self.ordered_until.max(time);
        }
    }
}

fn no_stream(call: Call, stream: StreamId) -> DeviceError {
    let detail = if stream.0 <= StreamId::PER_THREAD.0 {
        format!("{stream} is a default stream, which is not destroyed")
    } else {
        format!("{stream} is not a stream of this device, or was destroyed")
    };
    DeviceError::new(call, Status::INVALID_HANDLE, detail)
}
