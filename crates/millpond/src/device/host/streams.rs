//! The device's streams and events, and who waits for whom.
//!
//! # Invariants
//!
//! - One lock orders all queueing, so that a mark taken under it covers everything that was queued
//!   before.
//! - An event is the mark of its last record. A wait holds a copy of the mark, so that neither a
//!   later record nor the event's end changes it.
//! - The legacy stream's work waits for all work queued earlier on streams ordered with it, and
//!   their later work waits for it; such a wait is queued once, and only while it is needed.
//! - A worker thread ends when its queue is closed and empty; dropping the streams joins them all.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

use rustc_hash::FxHashMap;

use super::queue::{Mark, Operation, Queue};
use super::worker::{self, Worker};
use crate::device::{Call, DeviceError, EventId, Status, StreamId, StreamOrder};

/// The identity of the stream created last, of any host device.
static IDENTITY: AtomicU64 = AtomicU64::new(0);

/// The first handle value of a created stream, and the distance between two.
const FIRST_VALUE: u64 = 0x1000;
const VALUE_STEP: u64 = 0x10;

/// See the [module](self).
pub(super) struct Streams {
    worker: Arc<Worker>,
    values_recur: bool,
    table: Mutex<Table>,
}

struct Table {
    legacy: Stream,
    per_thread: HashMap<ThreadId, Stream>,
    created: FxHashMap<StreamId, Stream>,
    /// Destroyed streams whose work was not done yet.
    destroyed: Vec<Stream>,
    /// `None`: never recorded.
    events: FxHashMap<EventId, Option<Mark>>,
    threads: Vec<JoinHandle<()>>,
    /// Handle values of destroyed streams, for the next ones.
    free_values: Vec<StreamId>,
    next_value: u64,
    next_ordinal: u64,
    next_event: u64,
}

struct Stream {
    identity: u64,
    order: StreamOrder,
    queue: Arc<Queue>,
    /// Up to where in the legacy stream's queue it waits.
    waits_for_legacy: u64,
    /// Up to where in its own queue the legacy stream waits.
    legacy_waits: u64,
}

impl Stream {
    fn new(value: StreamId, ordinal: u64, order: StreamOrder) -> Stream {
        Stream {
            identity: IDENTITY.fetch_add(1, Ordering::Relaxed) + 1,
            order,
            queue: Queue::new(value, ordinal),
            waits_for_legacy: 0,
            legacy_waits: 0,
        }
    }
}

impl Streams {
    /// The handle values of created streams come after `first_value`.
    pub(super) fn new(worker: Arc<Worker>, values_recur: bool, first_value: u64) -> Streams {
        Streams {
            worker,
            values_recur,
            table: Mutex::new(Table {
                legacy: Stream::new(StreamId::LEGACY, 0, StreamOrder::WithLegacy),
                per_thread: HashMap::new(),
                created: FxHashMap::default(),
                destroyed: Vec::new(),
                events: FxHashMap::default(),
                threads: Vec::new(),
                free_values: Vec::new(),
                next_value: first_value + FIRST_VALUE,
                next_ordinal: 1,
                next_event: 1,
            }),
        }
    }

    /// Nothing panics half way through a change, so a poisoned lock is as good as any.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn create(&self, order: StreamOrder) -> StreamId {
        let mut table = self.table();
        let value = table.free_values.pop().unwrap_or_else(|| {
            let value = StreamId(table.next_value);
            table.next_value += VALUE_STEP;
            value
        });
        let stream = Stream::new(value, table.new_ordinal(), order);
        table.created.insert(value, stream);
        value
    }

    pub(super) fn destroy(&self, stream: StreamId) -> Result<(), DeviceError> {
        let mut table = self.table();
        let destroyed = table
            .created
            .remove(&stream)
            .ok_or_else(|| not_a_stream(Call::DestroyStream, stream))?;
        destroyed.queue.close();
        table.destroyed.push(destroyed);
        table.forget_finished();
        if self.values_recur {
            table.free_values.push(stream);
        }
        Ok(())
    }

    pub(super) fn identity(&self, stream: StreamId) -> Result<u64, DeviceError> {
        Ok(self.table().stream(Call::StreamIdentity, stream)?.identity)
    }

    pub(super) fn order(&self, stream: StreamId) -> Option<StreamOrder> {
        let mut table = self.table();
        let stream = table.stream(Call::StreamIdentity, stream);
        stream.ok().map(|stream| stream.order)
    }

    /// Queues an operation.
    pub(super) fn push(
        &self,
        call: Call,
        stream: StreamId,
        operation: Operation,
    ) -> Result<(), DeviceError> {
        let mut table = self.table();
        let queue = self.take_turn(&mut table, call, stream)?;
        self.push_to(&mut table, call, &queue, operation)
    }

    /// Everything queued on a stream so far.
    pub(super) fn work_of(&self, stream: StreamId) -> Result<Mark, DeviceError> {
        let mut table = self.table();
        Ok(table.stream(Call::SynchronizeStream, stream)?.queue.mark())
    }

    /// Everything queued on any stream so far.
    pub(super) fn all_work(&self) -> Vec<Mark> {
        let mut table = self.table();
        table.forget_finished();
        let legacy = table.legacy.queue.mark();
        let others = table.all_but_legacy().map(|stream| stream.queue.mark());
        others.chain([legacy]).collect()
    }

    pub(super) fn create_event(&self) -> EventId {
        let mut table = self.table();
        let event = EventId(table.next_event);
        table.next_event += 1;
        table.events.insert(event, None);
        event
    }

    pub(super) fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        let removed = self.table().events.remove(&event);
        removed
            .map(drop)
            .ok_or_else(|| not_an_event(Call::DestroyEvent, event))
    }

    pub(super) fn record(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let call = Call::RecordEvent;
        let mut table = self.table();
        table.event(call, event)?;
        let mark = self.take_turn(&mut table, call, stream)?.mark();
        table.events.insert(event, Some(mark));
        Ok(())
    }

    /// The work of an event's last record; `None` if there was none.
    pub(super) fn recorded(&self, call: Call, event: EventId) -> Result<Option<Mark>, DeviceError> {
        Ok(self.table().event(call, event)?.clone())
    }

    pub(super) fn wait(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let call = Call::WaitEvent;
        let mut table = self.table();
        let mark = table.event(call, event)?.clone();
        let queue = self.take_turn(&mut table, call, stream)?;
        match mark {
            Some(mark) if !mark.is_completed() => {
                self.push_to(&mut table, call, &queue, Operation::Wait(mark))
            }
            _ => Ok(()),
        }
    }

    /// A stream's queue, with the waits in it that the legacy stream's order wants before the next
    /// operation.
    fn take_turn(
        &self,
        table: &mut Table,
        call: Call,
        stream: StreamId,
    ) -> Result<Arc<Queue>, DeviceError> {
        let legacy = Arc::clone(&table.legacy.queue);
        let queue = Arc::clone(&table.stream(call, stream)?.queue);
        if Arc::ptr_eq(&queue, &legacy) {
            let mut waits = Vec::new();
            for other in table.all_but_legacy() {
                let mark = other.queue.mark();
                if other.order == StreamOrder::WithLegacy
                    && mark.position() > other.legacy_waits
                    && !mark.is_completed()
                {
                    other.legacy_waits = mark.position();
                    waits.push(mark);
                }
            }
            for mark in waits {
                self.push_to(table, call, &legacy, Operation::Wait(mark))?;
            }
        } else {
            let mark = legacy.mark();
            let own = table.stream(call, stream)?;
            if own.order == StreamOrder::WithLegacy
                && mark.position() > own.waits_for_legacy
                && !mark.is_completed()
            {
                own.waits_for_legacy = mark.position();
                self.push_to(table, call, &queue, Operation::Wait(mark))?;
            }
        }
        Ok(queue)
    }

    fn push_to(
        &self,
        table: &mut Table,
        call: Call,
        queue: &Arc<Queue>,
        operation: Operation,
    ) -> Result<(), DeviceError> {
        if queue.needs_worker() {
            table.forget_finished();
            let thread = worker::start(&self.worker, queue).map_err(|error| {
                let detail = format!(
                    "a stream is a thread of its own, and the system gives none: {error}; destroy \
                     streams, or raise `ulimit -u` or `ulimit -v`"
                );
                DeviceError::new(call, Status::OPERATING_SYSTEM, detail)
            })?;
            table.threads.push(thread);
            queue.has_worker();
        }
        queue.push(operation);
        Ok(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        table.legacy.queue.close();
        for stream in table.all_but_legacy() {
            stream.queue.close();
        }
        let threads = mem::take(&mut table.threads);
        // The last owner may be a host function. Its thread cannot wait for itself, nor for others
        // that may wait for it; they all end by themselves, and the memory goes with the last.
        let here = thread::current().id();
        if threads.iter().any(|thread| thread.thread().id() == here) {
            return;
        }
        for thread in threads {
            // Workers catch panics, and would have made the device fail.
            let _ = thread.join();
        }
    }
}

impl Table {
    fn new_ordinal(&mut self) -> u64 {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        ordinal
    }

    fn all_but_legacy(&mut self) -> impl Iterator<Item = &mut Stream> {
        let created = self.created.values_mut();
        created
            .chain(self.per_thread.values_mut())
            .chain(&mut self.destroyed)
    }

    fn stream(&mut self, call: Call, stream: StreamId) -> Result<&mut Stream, DeviceError> {
        match stream {
            StreamId::DEFAULT | StreamId::LEGACY => Ok(&mut self.legacy),
            StreamId::PER_THREAD => {
                let next_ordinal = &mut self.next_ordinal;
                let thread = thread::current().id();
                Ok(self.per_thread.entry(thread).or_insert_with(|| {
                    let ordinal = *next_ordinal;
                    *next_ordinal += 1;
                    Stream::new(stream, ordinal, StreamOrder::WithLegacy)
                }))
            }
            _ => self
                .created
                .get_mut(&stream)
                .ok_or_else(|| not_a_stream(call, stream)),
        }
    }

    fn event(&self, call: Call, event: EventId) -> Result<&Option<Mark>, DeviceError> {
        self.events
            .get(&event)
            .ok_or_else(|| not_an_event(call, event))
    }

    /// Lets go of destroyed streams whose work is done, and of threads that ended.
    fn forget_finished(&mut self) {
        self.destroyed
            .retain(|stream| !stream.queue.mark().is_completed());
        for ended in self.threads.extract_if(.., |thread| thread.is_finished()) {
            // It ended, so this does not wait.
            let _ = ended.join();
        }
    }
}

fn not_a_stream(call: Call, stream: StreamId) -> DeviceError {
    let detail = format!("{stream} is no stream of this device, or one that was destroyed");
    DeviceError::new(call, Status::INVALID_HANDLE, detail)
}

fn not_an_event(call: Call, event: EventId) -> DeviceError {
    let detail = format!(
        "{} is no event of this device, or one that was destroyed",
        event.0
    );
    DeviceError::new(call, Status::INVALID_HANDLE, detail)
}
