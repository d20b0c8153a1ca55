//! Order truth: what is ordered before what, and what the host has seen complete.
//!
//! Every stream has a position that rises with each thing seen on it. A [`Clock`] says for every
//! stream up to which position something is ordered after it.
//!
//! Invariants:
//! - A stream's clock holds its own position under its own index, so that whatever was seen on it
//!   is ordered before its next work.
//! - Clocks and positions never fall, also when an index is given to another stream. An index is
//!   given anew only when its whole past is complete; so a clock that names the old stream says
//!   nothing about the new one that is not true.
//! - `completed` holds only what a successful query or synchronisation covered.
//!
//! The implicit order between the legacy stream and the streams ordered with it (CUDA programming
//! guide, "implicit synchronization") is followed for streams that the device created so, and for
//! per-thread streams. Of other streams nobody says how they stand to it: they are taken for
//! independent, which is stricter than the device may be, never laxer.

use std::thread::{self, ThreadId};

use millpond::device::{EventId, StreamId, StreamOrder};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A stream's place in clocks.
pub(crate) type StreamIndex = u32;

/// One stream for ever: its place, and which of the streams that had the place it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamRef {
    pub(crate) index: StreamIndex,
    generation: u32,
}

/// The end of a use: work on a stream up to a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) stream: StreamIndex,
    pub(crate) position: u64,
}

/// For each stream, a position; absent means nothing.
#[derive(Clone, Default, Debug)]
pub(crate) struct Clock(SmallVec<[u64; 8]>);

impl Clock {
    pub(crate) fn get(&self, stream: StreamIndex) -> u64 {
        self.0.get(stream as usize).copied().unwrap_or(0)
    }

    fn slot(&mut self, stream: StreamIndex) -> &mut u64 {
        let index = stream as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        &mut self.0[index]
    }

    fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, &theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = theirs.max(*mine);
        }
    }

    /// What both cover.
    fn meet(&self, other: &Clock) -> Clock {
        Clock(
            self.0
                .iter()
                .zip(&other.0)
                .map(|(&a, &b)| a.min(b))
                .collect(),
        )
    }

    pub(crate) fn covers(&self, end: End) -> bool {
        self.get(end.stream) >= end.position
    }
}

/// What tells streams of one moment apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum StreamKey {
    Value(u64),
    /// The per-thread default stream is one value, but a stream in every thread.
    OfThread(ThreadId),
}

impl StreamKey {
    fn of(stream: StreamId) -> StreamKey {
        match stream {
            StreamId::PER_THREAD => StreamKey::OfThread(thread::current().id()),
            StreamId::LEGACY => StreamKey::Value(StreamId::DEFAULT.0),
            StreamId(value) => StreamKey::Value(value),
        }
    }
}

#[derive(Debug)]
struct Stream {
    name: StreamId,
    clock: Clock,
    /// Destroyed, or given nothing more until it is.
    ended: bool,
    generation: u32,
    order: StreamOrder,
}

#[derive(Clone, Default, Debug)]
struct Event {
    /// What the last record covers; nothing if it was never recorded.
    covers: Clock,
    /// Whether the device created it, so that it has to be destroyed.
    created: bool,
}

/// An event that was destroyed, to be brought back if the call failed.
#[derive(Debug)]
pub(crate) struct DestroyedEvent(EventId, Event);

#[derive(Default, Debug)]
pub(crate) struct Order {
    streams: Vec<Stream>,
    indices: FxHashMap<StreamKey, StreamIndex>,
    /// Indices of destroyed streams.
    retired: Vec<StreamIndex>,
    events: FxHashMap<EventId, Event>,
    completed: Clock,
}

impl Order {
    /// The stream that has this value now.
    pub(crate) fn stream(&mut self, stream: StreamId) -> StreamRef {
        match self.indices.get(&StreamKey::of(stream)) {
            Some(&index) => self.reference(index),
            None => {
                let order = match stream {
                    StreamId::PER_THREAD => StreamOrder::WithLegacy,
                    _ => StreamOrder::Independent,
                };
                self.stream_created(stream, order)
            }
        }
    }

    fn reference(&self, index: StreamIndex) -> StreamRef {
        StreamRef {
            index,
            generation: self.streams[index as usize].generation,
        }
    }

    /// A stream that is another one than any before, whatever its value.
    pub(crate) fn stream_created(&mut self, stream: StreamId, order: StreamOrder) -> StreamRef {
        if let Some(former) = self.indices.remove(&StreamKey::of(stream)) {
            self.retire(former);
        }
        let reusable = self.retired.iter().position(|&index| {
            self.completed.get(index) >= self.streams[index as usize].clock.get(index)
        });
        let index = match reusable {
            Some(place) => {
                let index = self.retired.swap_remove(place);
                let slot = &mut self.streams[index as usize];
                let position = slot.clock.get(index);
                slot.name = stream;
                slot.ended = false;
                slot.generation += 1;
                slot.order = order;
                slot.clock = Clock::default();
                *slot.clock.slot(index) = position;
                index
            }
            None => {
                let index = self.streams.len() as StreamIndex;
                self.streams.push(Stream {
                    name: stream,
                    clock: Clock::default(),
                    ended: false,
                    generation: 0,
                    order,
                });
                index
            }
        };
        self.indices.insert(StreamKey::of(stream), index);
        self.reference(index)
    }

    pub(crate) fn stream_destroyed(&mut self, stream: StreamId) -> Option<StreamRef> {
        let index = self.indices.remove(&StreamKey::of(stream))?;
        self.retire(index);
        Some(self.reference(index))
    }

    /// The destruction failed.
    pub(crate) fn stream_restored(&mut self, stream: StreamId, restored: StreamRef) {
        self.retired.retain(|&retired| retired != restored.index);
        self.streams[restored.index as usize].ended = false;
        self.indices.insert(StreamKey::of(stream), restored.index);
    }

    fn retire(&mut self, index: StreamIndex) {
        self.streams[index as usize].ended = true;
        self.retired.push(index);
    }

    pub(crate) fn name(&self, index: StreamIndex) -> StreamId {
        self.streams[index as usize].name
    }

    /// The stream gets something next: the legacy stream's implicit order comes first.
    pub(crate) fn follow_legacy(&mut self, stream: StreamRef) {
        let legacy = self.indices.get(&StreamKey::of(StreamId::DEFAULT));
        let Some(&legacy) = legacy else {
            return;
        };
        let with_legacy = |s: &Stream| !s.ended && s.order == StreamOrder::WithLegacy;
        if stream.index == legacy {
            let mut clock = std::mem::take(&mut self.streams[legacy as usize].clock);
            for other in self.streams.iter().filter(|other| with_legacy(other)) {
                clock.join(&other.clock);
            }
            self.streams[legacy as usize].clock = clock;
        } else if with_legacy(&self.streams[stream.index as usize]) {
            let clock = self.streams[legacy as usize].clock.clone();
            self.waits(stream, &clock);
        }
    }

    /// Something was queued on the stream, or is about to be.
    pub(crate) fn advance(&mut self, stream: StreamRef) {
        *self.streams[stream.index as usize].clock.slot(stream.index) += 1;
    }

    /// The stream is given nothing more.
    pub(crate) fn stream_ends(&mut self, stream: StreamId) {
        let stream = self.stream(stream);
        self.streams[stream.index as usize].ended = true;
    }

    /// A use of this stream ends here. On a stream that is given nothing more it ended with the
    /// last that it was given; `None` if all of that stream is long complete.
    pub(crate) fn end_of_use(&mut self, stream: StreamRef) -> Option<End> {
        if self.reference(stream.index) != stream {
            return None;
        }
        if !self.streams[stream.index as usize].ended {
            self.advance(stream);
        }
        Some(End {
            stream: stream.index,
            position: self.clock(stream).get(stream.index),
        })
    }

    /// A use of this stream ended before the event was last recorded; `None` if all of that stream
    /// is long complete.
    pub(crate) fn end_at(&mut self, stream: StreamRef, event: EventId) -> Option<End> {
        if self.reference(stream.index) != stream {
            return None;
        }
        Some(End {
            stream: stream.index,
            position: self.covered_by(event).get(stream.index),
        })
    }

    /// What the stream's next work is ordered after.
    pub(crate) fn clock(&self, stream: StreamRef) -> &Clock {
        &self.streams[stream.index as usize].clock
    }

    /// Everything queued on any stream, the destroyed ones too.
    pub(crate) fn everything(&self) -> Clock {
        let positions = self.streams.iter().zip(0..);
        Clock(
            positions
                .map(|(stream, index)| stream.clock.get(index))
                .collect(),
        )
    }

    pub(crate) fn completed(&self) -> &Clock {
        &self.completed
    }

    /// The host has seen all this complete.
    pub(crate) fn complete(&mut self, covered: &Clock) {
        self.completed.join(covered);
    }

    pub(crate) fn event_created(&mut self, event: EventId) {
        let created = Event {
            covers: Clock::default(),
            created: true,
        };
        self.events.insert(event, created);
    }

    pub(crate) fn event_destroyed(&mut self, event: EventId) -> Option<DestroyedEvent> {
        let state = self.events.remove(&event)?;
        Some(DestroyedEvent(event, state))
    }

    /// The destruction failed.
    pub(crate) fn event_restored(&mut self, event: DestroyedEvent) {
        self.events.insert(event.0, event.1);
    }

    pub(crate) fn recorded(&mut self, event: EventId, covers: Clock) {
        self.events.entry(event).or_default().covers = covers;
    }

    /// What the event's last record covers.
    pub(crate) fn covered_by(&self, event: EventId) -> Clock {
        self.events
            .get(&event)
            .map(|event| event.covers.clone())
            .unwrap_or_default()
    }

    /// What the event covers for certain if it covered `earlier` when the call began: another
    /// thread may have recorded it again meanwhile, and nobody knows which record was met.
    pub(crate) fn covered_since(&self, event: EventId, earlier: &Clock) -> Clock {
        match self.events.get(&event) {
            Some(event) => event.covers.meet(earlier),
            None => earlier.clone(),
        }
    }

    /// The stream's next work is ordered after all this.
    pub(crate) fn waits(&mut self, stream: StreamRef, covered: &Clock) {
        self.streams[stream.index as usize].clock.join(covered);
    }

    pub(crate) fn remaining_events(&self) -> impl Iterator<Item = EventId> {
        let created = self.events.iter().filter(|(_, event)| event.created);
        created.map(|(&event, _)| event)
    }
}
