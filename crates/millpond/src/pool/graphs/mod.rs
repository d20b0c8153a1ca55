//! Memory for captures of CUDA graphs.
//!
//! A graph uses its memory whenever it is replayed, which no allocator sees. So what a capture
//! allocates comes from a [`GraphMemory`], which serves nothing else and keeps all its memory where
//! it is until the caller drops it. Within a capture memory is used again in the graph's own order.
//!
//! # Invariants
//!
//! 1. On behalf of a captured stream no event is recorded, queried or waited for, and nobody waits
//!    for the device; while any stream is captured, the pool records nothing on it, and nothing on
//!    the legacy stream, which would come after it.
//! 2. The registry's lock comes before an arena's, and an arena's is never held with the state's.
//! 3. Whoever works with an arena holds a clone of it that was made under the registry's lock; so
//!    an arena that only the registry holds is in nobody's hands.
//! 4. `State::graphs` counts what all arenas together have.

mod arena;
mod growth;
mod memory;
mod uses;

pub use memory::{Capture, CaptureError, GraphMemory};

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::Inner;
use crate::device::{Call, DeviceError, EventId, Status, StreamId};
use crate::order::{End, StreamKey};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard};
use arena::{ArenaState, CaptureId, Member};
pub(super) use arena::{Backed, GraphBlock};

/// What the graphs of a pool have together.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct GraphTotals {
    pub(super) reserved: u64,
    pub(super) handles: u64,
    pub(super) live: u64,
    pub(super) blocks: u64,
}

/// The memory of one [`GraphMemory`].
#[derive(Debug)]
pub(in crate::pool) struct Arena {
    id: u64,
    state: Mutex<ArenaState>,
}

impl Arena {
    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What lies under an address of an arena's.
#[derive(Debug)]
pub(super) struct ArenaPointer {
    /// The live block there, and where it starts.
    pub(super) block: Option<(u64, GraphBlock)>,
    /// What is mapped there.
    pub(super) backed: Option<Backed>,
}

/// A captured stream, and where its memory comes from.
#[derive(Clone, Debug)]
pub(super) struct Captured {
    key: StreamKey,
    member: Member,
    arena: Arc<Arena>,
}

#[derive(Debug)]
struct Entry {
    arena: Arc<Arena>,
    /// Whether the caller has it still.
    held: bool,
}

#[derive(Debug, Default)]
struct Registry {
    entries: Vec<Entry>,
    captured: Vec<Captured>,
    captures: CaptureId,
}

/// All graph memory of a pool.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    registry: Mutex<Registry>,
    /// Streams that are captured, for those who only want to know if there are any.
    captured: AtomicUsize,
    /// Arenas that there are.
    arenas: AtomicUsize,
    ids: AtomicU64,
}

impl Graphs {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any stream is captured. Whoever is asked on behalf of a captured stream is asked
    /// after its capture was declared, so this needs no order of its own.
    pub(super) fn any_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed) > 0
    }

    /// Whether there is any memory of graphs.
    pub(super) fn any(&self) -> bool {
        self.arenas.load(Ordering::Relaxed) > 0
    }

    /// The stream as a captured one, if it is.
    pub(super) fn captured(&self, key: StreamKey) -> Option<Captured> {
        if !self.any_captured() {
            return None;
        }
        let registry = self.lock();
        registry.captured.iter().find(|c| c.key == key).cloned()
    }

    /// The key of the captured stream with this handle value.
    pub(super) fn captured_key(&self, stream: StreamId) -> Option<StreamKey> {
        if !self.any_captured() {
            return None;
        }
        let registry = self.lock();
        let mut keys = registry.captured.iter().map(|captured| captured.key);
        keys.find(|key| key.stream == stream)
    }

    /// Whether nothing may be recorded for this stream while any is captured.
    pub(super) fn forbids_record(&self, key: StreamKey, on: StreamId) -> bool {
        on == StreamId::LEGACY || on == StreamId::DEFAULT || self.captured(key).is_some()
    }

    /// A wait for the device, or for a stream, is refused while that is captured: the driver would
    /// refuse it too, and end the capture.
    pub(super) fn refuse_wait(
        &self,
        call: Call,
        key: Option<StreamKey>,
    ) -> Result<(), DeviceError> {
        let captured = match key {
            None => self.any_captured(),
            Some(key) => self.captured(key).is_some(),
        };
        if !captured {
            return Ok(());
        }
        let detail = "a stream is being captured; synchronise after the capture";
        Err(DeviceError::new(call, Status::CAPTURE_UNSUPPORTED, detail))
    }

    fn arenas(&self) -> Vec<Arc<Arena>> {
        if !self.any() {
            return Vec::new();
        }
        let registry = self.lock();
        let arenas = registry.entries.iter().map(|e| Arc::clone(&e.arena));
        arenas.collect()
    }

    /// The arena that an address belongs to.
    fn arena_of(&self, address: u64) -> Option<Arc<Arena>> {
        let mut arenas = self.arenas().into_iter();
        arenas.find(|arena| arena.lock().holds(address))
    }

    /// What lies under an address, if it is an arena's.
    pub(super) fn pointer(&self, address: u64) -> Option<ArenaPointer> {
        let arena = self.arena_of(address)?;
        let state = arena.lock();
        let block = state.around(address);
        let in_it =
            |backed: &&Backed| backed.address <= address && address - backed.address < backed.size;
        Some(ArenaPointer {
            block: block.map(|(start, block)| (start, block.clone())),
            backed: state.backed.iter().find(in_it).copied(),
        })
    }

    fn arena(&self, id: u64) -> Option<Arc<Arena>> {
        self.arenas().into_iter().find(|arena| arena.id == id)
    }

    /// Takes out the arenas that the caller has dropped, and whose blocks are all freed.
    pub(super) fn take_closable(&self) -> Vec<Arc<Arena>> {
        if !self.any() {
            return Vec::new();
        }
        let mut registry = self.lock();
        if !registry.captured.is_empty() {
            return Vec::new();
        }
        let closable = |entry: &mut Entry| {
            let alone = !entry.held && Arc::strong_count(&entry.arena) == 1;
            alone && entry.arena.lock().is_unused()
        };
        let taken = registry.entries.extract_if(.., closable);
        let taken: Vec<Arc<Arena>> = taken.map(|entry| entry.arena).collect();
        self.arenas.fetch_sub(taken.len(), Ordering::Relaxed);
        taken
    }

    /// Takes all out: the pool goes.
    pub(super) fn take_all(&self) -> Vec<Arc<Arena>> {
        let mut registry = self.lock();
        let captured = std::mem::take(&mut registry.captured);
        self.captured.fetch_sub(captured.len(), Ordering::Relaxed);
        let entries = std::mem::take(&mut registry.entries);
        self.arenas.fetch_sub(entries.len(), Ordering::Relaxed);
        entries.into_iter().map(|entry| entry.arena).collect()
    }

    /// Puts arenas back that could not be closed.
    fn put_back(&self, arenas: Vec<Arc<Arena>>) {
        let mut registry = self.lock();
        self.arenas.fetch_add(arenas.len(), Ordering::Relaxed);
        let entries = arenas.into_iter().map(|arena| Entry { arena, held: false });
        registry.entries.extend(entries);
    }

    /// Whether something could be given back if the device were synchronised.
    pub(super) fn any_closable(&self) -> bool {
        if !self.any() {
            return false;
        }
        let registry = self.lock();
        let unused = |entry: &Entry| !entry.held && entry.arena.lock().is_unused();
        registry.captured.is_empty() && registry.entries.iter().any(unused)
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        let arenas = self.arenas();
        arenas.iter().try_for_each(|arena| arena.lock().validate())
    }
}

impl Inner {
    /// Closes arenas that were taken out before the device was synchronised.
    pub(super) fn close_graphs(&self, arenas: Vec<Arc<Arena>>) {
        let mut left = Vec::new();
        for arena in arenas {
            let mut state = std::mem::take(&mut *arena.lock());
            if !self.give_back_graph(&mut state) {
                *arena.lock() = state;
                left.push(arena);
            }
        }
        if !left.is_empty() {
            self.graphs.put_back(left);
        }
    }

    /// Closes nothing: the device could not be synchronised.
    pub(super) fn keep_graphs(&self, arenas: Vec<Arc<Arena>>) {
        if !arenas.is_empty() {
            self.graphs.put_back(arenas);
        }
    }

    /// Makes memory free whose ordinary uses the pool knows to be completed.
    fn settle_late(&self, arena: &Arena) {
        let mut late = std::mem::take(&mut arena.lock().late);
        if late.is_empty() {
            return;
        }
        let completed: Vec<_> = {
            let state = self.lock();
            let completed = late.extract_if(.., |late| state.order.completed(&late.ordinary));
            completed.collect()
        };
        let mut arena = arena.lock();
        arena.late.extend(late);
        for late in completed {
            arena.put_free(late.address, late.size, late.ends);
        }
    }

    /// Waits on the host until what is free in an arena is free for all. Not for what a captured
    /// stream did.
    fn await_late(&self, arena: &Arena) -> Result<(), DeviceError> {
        let ends: Vec<End> = {
            let arena = arena.lock();
            let ends = arena.late.iter().flat_map(|late| late.ordinary.iter());
            ends.collect()
        };
        for end in ends {
            let (key, completed) = {
                let state = self.lock();
                (state.order.key(end.stream), state.order.is_completed(end))
            };
            if !completed && self.graphs.captured(key).is_none() {
                self.await_end(end)?;
            }
        }
        self.settle_late(arena);
        Ok(())
    }

    fn await_end(&self, end: End) -> Result<(), DeviceError> {
        let request = {
            let mut state = self.lock();
            match state.order.marker_for(end) {
                Some(_) => None,
                None => state.order.marker_request(end.stream),
            }
        };
        if let Some(request) = request {
            self.mark(request)?;
        }
        let marker = self.lock().order.marker_for(end);
        match marker {
            Some(marker) => self.await_marker(&marker),
            None if self.lock().order.is_completed(end) => Ok(()),
            None => self.synchronize(),
        }
    }

    fn begin_capture(&self, id: u64, stream: StreamId) -> Result<CaptureId, CaptureError> {
        let key = self.stream_key(stream)?;
        if let Some(arena) = self.graphs.arena(id) {
            self.await_late(&arena)?;
        }
        // What was freed on the stream can be asked after only if that is recorded now.
        let request = {
            let mut state = self.lock();
            let index = state.stream(key);
            state.hear_fronts();
            state.order.marker_request(index)
        };
        if let Some(request) = request {
            self.mark_or_leave(request);
        }
        let capture = {
            let mut registry = self.graphs.lock();
            registry.captures += 1;
            let capture = registry.captures;
            let arena = registry.entries.iter().find(|e| e.arena.id == id);
            if let Some(entry) = arena {
                entry.arena.lock().running.push(capture);
            }
            capture
        };
        match self.join_capture(id, capture, key) {
            Ok(()) => Ok(capture),
            Err(error) => {
                self.end_capture(id, capture);
                Err(error)
            }
        }
    }

    /// A stream belongs to the capture from now on. Nothing happens if it does already.
    fn join_capture(
        &self,
        id: u64,
        capture: CaptureId,
        key: StreamKey,
    ) -> Result<(), CaptureError> {
        let stream = self.lock().stream(key);
        let mut registry = self.graphs.lock();
        if let Some(other) = registry.captured.iter().find(|c| c.key == key) {
            let stream = key.stream;
            return match other.member.capture == capture {
                true => Ok(()),
                false => Err(CaptureError::AlreadyCaptured { stream }),
            };
        }
        let arena = registry.entries.iter().find(|e| e.arena.id == id);
        let Some(arena) = arena.map(|entry| Arc::clone(&entry.arena)) else {
            return Ok(());
        };
        let members = registry.captured.iter();
        let number = members.filter(|c| c.member.capture == capture).count() as u64;
        // No stream of the program's: the slot is the capture's alone.
        let slot = arena.lock().order.stream(StreamKey {
            stream: StreamId(number),
            identity: capture,
        });
        let member = Member {
            capture,
            slot,
            stream,
        };
        let captured = Captured { key, member, arena };
        registry.captured.push(captured);
        self.graphs.captured.fetch_add(1, Ordering::Relaxed);
        self.device.capturing(true);
        Ok(())
    }

    fn end_capture(&self, id: u64, capture: CaptureId) {
        let mut registry = self.graphs.lock();
        let mine = |captured: &mut Captured| captured.member.capture == capture;
        let ended: Vec<Captured> = registry.captured.extract_if(.., mine).collect();
        self.graphs
            .captured
            .fetch_sub(ended.len(), Ordering::Relaxed);
        ended.iter().for_each(|_| self.device.capturing(false));
        let slots: Vec<_> = ended.iter().map(|captured| captured.member.slot).collect();
        if let Some(entry) = registry.entries.iter().find(|e| e.arena.id == id) {
            entry.arena.lock().capture_ended(capture, &slots);
        }
    }

    /// The caller's event was recorded on a captured stream: it stands for a place in the graph.
    pub(super) fn record_captured(
        &self,
        captured: &Captured,
        event: EventId,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        let recorded = captured.arena.lock().order.recording(captured.member.slot);
        self.forget_event(event);
        self.device.record_event(event, stream)?;
        let mut arena = captured.arena.lock();
        arena.order.remember_event(event, recorded);
        arena.events.insert(event, captured.member.capture);
        Ok(())
    }

    /// Lets a stream wait for an event of a capture's, if it is one: the stream belongs to the
    /// capture then, as it does for the driver. `None` if neither is captured.
    pub(super) fn wait_captured(
        &self,
        stream: StreamId,
        key: StreamKey,
        event: EventId,
    ) -> Option<Result<(), DeviceError>> {
        if !self.graphs.any_captured() {
            return None;
        }
        let mut arenas = self.graphs.arenas().into_iter();
        let source = arenas.find_map(|arena| {
            let state = arena.lock();
            let capture = *state.events.get(&event)?;
            let knowledge = state.order.event_knowledge(event)?;
            Some((arena.id, capture, knowledge))
        });
        if source.is_none() && self.graphs.captured(key).is_none() {
            return None;
        }
        if let Err(error) = self.device.wait_event(stream, event) {
            return Some(Err(error));
        }
        if let Some((id, capture, knowledge)) = source
            && self.join_capture(id, capture, key).is_ok()
            && let Some(captured) = self.graphs.captured(key)
            && captured.member.capture == capture
        {
            let slot = captured.member.slot;
            captured.arena.lock().order.learn(slot, &knowledge);
        }
        Some(Ok(()))
    }

    /// The caller's event stands for nothing that is known any more.
    pub(super) fn forget_event(&self, event: EventId) {
        self.watch_forgotten_event(event);
        self.lock().order.forget_event(event);
        for arena in self.graphs.arenas() {
            let mut arena = arena.lock();
            arena.order.forget_event(event);
            arena.events.remove(&event);
        }
    }
}
