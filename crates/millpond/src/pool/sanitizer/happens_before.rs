//! Which points of the streams come before which, from what the caller tells alone.
//!
//! Vector clocks: every stream knows, for each stream, the last point that comes before whatever it
//! is given next. This shares nothing with `order`, which the pool itself goes by: that one also
//! counts what the pool did of its own accord, and a program must not depend on that.
//!
//! # Invariants
//!
//! 1. A stream's number is its own for ever, also where handle values recur.
//! 2. A stream whose number is not known any more is gone and was synchronised: all it did comes
//!    before everything.
//! 3. Nothing that is synchronised stays in a clock: `host` stands for it.

use rustc_hash::FxHashMap;

use crate::device::{EventId, StreamId, StreamOrder};
use crate::order::StreamKey;

/// A stream's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct StreamNumber(u64);

/// A point of a stream: what it was given then, and all before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub(super) stream: StreamNumber,
    position: u64,
}

/// For each stream the last point that is known of it.
#[derive(Clone, Default, Debug)]
pub(super) struct VectorClock(FxHashMap<StreamNumber, u64>);

impl VectorClock {
    fn at(&self, stream: StreamNumber) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }

    fn join(&mut self, other: &VectorClock) {
        for (&stream, &position) in &other.0 {
            let known = self.0.entry(stream).or_default();
            *known = position.max(*known);
        }
    }
}

#[derive(Debug)]
struct Timeline {
    stream: StreamId,
    order: StreamOrder,
    /// Itself included.
    clock: VectorClock,
    gone: bool,
}

/// The streams of a program and what the caller said of their order.
#[derive(Default, Debug)]
pub(super) struct HappensBefore {
    numbers: FxHashMap<StreamKey, StreamNumber>,
    timelines: FxHashMap<StreamNumber, Timeline>,
    legacy: Option<StreamNumber>,
    next: u64,
    /// What the caller waited for on the host.
    host: VectorClock,
    /// What the caller's events stand for.
    events: FxHashMap<EventId, VectorClock>,
}

impl HappensBefore {
    /// The number of a stream, which gets one if it has none. It is about to be given something, or
    /// to be asked for what it was given: what the legacy stream's order implies counts from now on.
    pub(super) fn stream(&mut self, key: StreamKey, order: StreamOrder) -> StreamNumber {
        let number = match self.numbers.get(&key) {
            Some(&number) => number,
            None => self.add(key, order),
        };
        self.join_legacy(number);
        number
    }

    fn add(&mut self, key: StreamKey, order: StreamOrder) -> StreamNumber {
        let number = StreamNumber(self.next);
        self.next += 1;
        let timeline = Timeline {
            stream: key.stream,
            order,
            clock: VectorClock::default(),
            gone: false,
        };
        self.numbers.insert(key, number);
        self.timelines.insert(number, timeline);
        if key.stream == StreamId::DEFAULT {
            self.legacy = Some(number);
        }
        number
    }

    /// The legacy stream comes after all that the streams ordered with it were given, and they come
    /// after what it was given.
    pub(super) fn join_legacy(&mut self, number: StreamNumber) {
        let Some(legacy) = self.legacy else { return };
        let mut implied = VectorClock::default();
        if number == legacy {
            for timeline in self.timelines.values() {
                if timeline.order == StreamOrder::WithLegacy {
                    implied.join(&timeline.clock);
                }
            }
        } else {
            let ordered = self.timelines.get(&number);
            if ordered.is_some_and(|t| t.order == StreamOrder::WithLegacy && !t.gone) {
                implied = self.clock(legacy);
            }
        }
        self.learn(number, &implied);
    }

    fn learn(&mut self, number: StreamNumber, knowledge: &VectorClock) {
        if let Some(timeline) = self.timelines.get_mut(&number) {
            timeline.clock.join(knowledge);
        }
    }

    /// The handle of a stream.
    pub(super) fn id(&self, number: StreamNumber) -> Option<StreamId> {
        self.timelines.get(&number).map(|timeline| timeline.stream)
    }

    /// The stream is given something: the point where that stands.
    pub(super) fn step(&mut self, stream: StreamNumber) -> Point {
        let timeline = self.timelines.get_mut(&stream);
        let position = timeline.map_or(0, |timeline| {
            let own = timeline.clock.0.entry(stream).or_default();
            // Positions go on where a synchronisation left the stream out of its own clock.
            *own = 1 + self.host.at(stream).max(*own);
            *own
        });
        Point { stream, position }
    }

    /// What comes before whatever the stream is given next.
    pub(super) fn clock(&self, stream: StreamNumber) -> VectorClock {
        let timeline = self.timelines.get(&stream);
        timeline.map_or_else(VectorClock::default, |timeline| timeline.clock.clone())
    }

    /// Whether a point comes before all that is later than this.
    pub(super) fn is_before(&self, point: Point, clock: &VectorClock) -> bool {
        !self.timelines.contains_key(&point.stream)
            || self.host.at(point.stream) >= point.position
            || clock.at(point.stream) >= point.position
    }

    pub(super) fn recorded(&mut self, event: EventId, stream: StreamNumber) {
        self.events.insert(event, self.clock(stream));
    }

    pub(super) fn forget_event(&mut self, event: EventId) {
        self.events.remove(&event);
    }

    /// What an event stands for, if the caller recorded it through the pool.
    pub(super) fn event(&self, event: EventId) -> Option<VectorClock> {
        self.events.get(&event).cloned()
    }

    pub(super) fn waited(&mut self, stream: StreamNumber, event: EventId) {
        if let Some(knowledge) = self.event(event) {
            self.learn(stream, &knowledge);
        }
    }

    /// All that any stream was given up to now.
    pub(super) fn everything(&self) -> VectorClock {
        let mut everything = VectorClock::default();
        for timeline in self.timelines.values() {
            everything.join(&timeline.clock);
        }
        everything
    }

    /// The caller waited for all this on the host.
    pub(super) fn synchronized(&mut self, knowledge: &VectorClock) {
        self.host.join(knowledge);
        let host = &self.host;
        let clocks = self.timelines.values_mut().map(|t| &mut t.clock);
        for clock in clocks.chain(self.events.values_mut()) {
            clock.0.retain(|&stream, at| *at > host.at(stream));
        }
        let finished = |_: &StreamNumber, t: &mut Timeline| t.gone && t.clock.0.is_empty();
        for (number, _) in self.timelines.extract_if(finished) {
            self.host.0.remove(&number);
        }
    }

    /// The stream is given nothing any more; its handle may be another one's.
    pub(super) fn destroyed(&mut self, key: StreamKey) {
        let Some(number) = self.numbers.remove(&key) else {
            return;
        };
        if let Some(timeline) = self.timelines.get_mut(&number) {
            timeline.gone = true;
        }
    }
}
