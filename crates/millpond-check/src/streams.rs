//! The streams and events of a run, and who may use them when.
//!
//! # Invariants
//!
//! - Whoever gives a stream work holds its slot for reading; whoever destroys it, for writing.
//!   Nobody waits for a slot while holding a higher one.
//! - Before a stream goes, an event is recorded on it that stands for all it did; it lives as long
//!   as the run.
//! - One event is recorded or waited for by one thread at a time.
//! - The per-thread stream of a thread has a slot of its own, behind those that all share; only
//!   that thread can name it.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use millpond::device::{Device, DeviceError, EventId, StreamId, StreamOrder};
use rustc_hash::FxHashMap;

use crate::sequences::Sequence;

/// The program's events that all threads share.
const EVENTS: usize = 4;

/// A stream for ever: its slot, and which of the streams that were in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Incarnation {
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

/// What is in a slot now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupant {
    pub(crate) stream: StreamId,
    pub(crate) is: Incarnation,
}

/// Two events of one thread: one that the pool hears of, and one that it does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadEvents {
    pub(crate) told: EventId,
    pub(crate) untold: EventId,
}

#[derive(Debug)]
pub(crate) struct Streams {
    slots: Vec<RwLock<Occupant>>,
    /// Slots that all threads share.
    shared: usize,
    /// Whether the first slot has the default stream, which cannot be destroyed.
    default_first: bool,
    departed: Mutex<FxHashMap<Incarnation, EventId>>,
    /// Events that stand for nothing, to be destroyed at the end.
    spent: Mutex<Vec<EventId>>,
    events: Vec<Mutex<EventId>>,
    thread_events: Vec<ThreadEvents>,
}

impl Streams {
    pub(crate) fn new(
        device: &dyn Device,
        sequence: &Sequence,
        threads: usize,
    ) -> Result<Streams, DeviceError> {
        let shared = usize::from(sequence.streams.max(1));
        let of_threads = if sequence.per_thread { threads } else { 0 };
        let slot = |slot: usize| {
            let stream = match slot {
                0 if sequence.default_stream => StreamId::DEFAULT,
                _ if slot >= shared => StreamId::PER_THREAD,
                _ => device.create_stream(order_of(slot))?,
            };
            let is = Incarnation {
                slot,
                generation: 0,
            };
            Ok(RwLock::new(Occupant { stream, is }))
        };
        let slots = (0..shared + of_threads).map(slot);
        let events = (0..EVENTS).map(|_| device.create_event().map(Mutex::new));
        let thread_events = (0..threads).map(|_| {
            Ok(ThreadEvents {
                told: device.create_event()?,
                untold: device.create_event()?,
            })
        });
        Ok(Streams {
            slots: slots.collect::<Result<_, DeviceError>>()?,
            shared,
            default_first: sequence.default_stream,
            departed: Mutex::default(),
            spent: Mutex::default(),
            events: events.collect::<Result<_, DeviceError>>()?,
            thread_events: thread_events.collect::<Result<_, DeviceError>>()?,
        })
    }

    /// The slot of this choice, for this thread.
    pub(crate) fn slot(&self, choice: u32, thread: usize) -> usize {
        let has_own = self.slots.len() > self.shared;
        let slot = choice as usize % (self.shared + usize::from(has_own));
        if slot < self.shared {
            slot
        } else {
            self.shared + thread
        }
    }

    /// Whether the thread can name what is in the slot.
    pub(crate) fn reaches(&self, thread: usize, slot: usize) -> bool {
        slot < self.shared || slot - self.shared == thread
    }

    /// Holds a slot for use.
    pub(crate) fn hold(&self, slot: usize) -> RwLockReadGuard<'_, Occupant> {
        self.slots[slot]
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds two slots for use; one guard if they are one.
    pub(crate) fn hold_both(
        &self,
        one: usize,
        other: usize,
    ) -> (
        RwLockReadGuard<'_, Occupant>,
        Option<RwLockReadGuard<'_, Occupant>>,
    ) {
        if one == other {
            return (self.hold(one), None);
        }
        if one < other {
            let first = self.hold(one);
            (first, Some(self.hold(other)))
        } else {
            let second = self.hold(other);
            (self.hold(one), Some(second))
        }
    }

    /// Holds a slot to destroy what is in it; `None` if that cannot be.
    pub(crate) fn hold_to_replace(&self, slot: usize) -> Option<RwLockWriteGuard<'_, Occupant>> {
        if slot >= self.shared || slot == 0 && self.default_first {
            return None;
        }
        let held = self.slots[slot].write();
        Some(held.unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a new stream where one was destroyed; `event` stands for all that one did.
    pub(crate) fn replace(
        &self,
        device: &dyn Device,
        occupant: &mut Occupant,
        event: EventId,
    ) -> Result<(), DeviceError> {
        self.lock_departed().insert(occupant.is, event);
        occupant.stream = device.create_stream(order_of(occupant.is.slot))?;
        occupant.is.generation += 1;
        Ok(())
    }

    /// The event that stands for a destroyed stream.
    pub(crate) fn departed(&self, stream: Incarnation) -> Option<EventId> {
        self.lock_departed().get(&stream).copied()
    }

    /// An event that came to nothing.
    pub(crate) fn spend(&self, event: EventId) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.push(event);
    }

    /// The program's event of this choice, for one thread at a time.
    pub(crate) fn event(&self, choice: u32) -> MutexGuard<'_, EventId> {
        self.events[choice as usize % EVENTS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn thread_events(&self, thread: usize) -> ThreadEvents {
        self.thread_events[thread]
    }

    fn lock_departed(&self) -> MutexGuard<'_, FxHashMap<Incarnation, EventId>> {
        self.departed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Destroys all streams and events.
    pub(crate) fn close(self, device: &dyn Device) -> Result<(), DeviceError> {
        for slot in self.slots {
            let occupant = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
            if ![StreamId::DEFAULT, StreamId::PER_THREAD].contains(&occupant.stream) {
                device.destroy_stream(occupant.stream)?;
            }
        }
        let of = |event: Mutex<EventId>| event.into_inner().unwrap_or_else(PoisonError::into_inner);
        let departed = self.departed.into_inner();
        let spent = self.spent.into_inner();
        let events = self
            .events
            .into_iter()
            .map(of)
            .chain(
                departed
                    .unwrap_or_else(PoisonError::into_inner)
                    .into_values(),
            )
            .chain(spent.unwrap_or_else(PoisonError::into_inner))
            .chain(self.thread_events.iter().flat_map(|e| [e.told, e.untold]));
        for event in events {
            device.destroy_event(event)?;
        }
        Ok(())
    }
}

/// Every second stream is ordered with the default stream.
fn order_of(slot: usize) -> StreamOrder {
    match slot % 2 {
        0 => StreamOrder::Independent,
        _ => StreamOrder::WithLegacy,
    }
}
