//! Which memory may be used by whom: now, after a wait, or not yet.
//!
//! Every stream has a timeline, a position that rises with each free, each end of a use and each
//! record of a caller's event. A freed range remembers at
//! which position of which streams its last uses ended ([`Ends`]). A stream may use the range when
//! each of these ends is
//!
//! - on the stream itself: what it runs next comes later in any case;
//! - ordered before the stream's next work: a wait on an event says so, directly or through
//!   other streams ([`Timeline::clock`]);
//! - completed, as the host has seen ([`Timeline::done`]).
//!
//! Ordered is enough to use memory; only completed is enough to unmap it.
//!
//! This room makes no device call. It says which events to record, to query and to wait for;
//! the pool does that without its lock, and reports what came of it.
//!
//! # Invariants
//!
//! 1. `done <= now` for every timeline, and both only rise.
//! 2. A marker with position *p* was recorded on its stream after the timeline stood at *p*, so
//!    that its completion implies that all frees up to *p* are completed. What was recorded after
//!    the stream went counts for nothing: its handle's value may be another stream's by then.
//! 3. `clock[r]` of a stream never passes what a wait has really established: knowledge is copied
//!    when a marker or a user's event is recorded, and joined when it is waited for.
//! 4. A slot is given to another stream only when all work of the old one is completed and no live
//!    block names it ([`Timeline::named`]).
//! 5. The positions of a slot never begin again: a stream that takes a slot over goes on from where
//!    the one before it ended, all of that being completed. So whatever is still known of the old
//!    stream, by a clock, an end or a marker that somebody holds, stays true and says nothing of
//!    the new one.
//! 6. `ended` is the last position that an end stands at, or beyond: what a stream did after it
//!    nobody will ask for.

#![forbid(unsafe_code)]

mod clock;
mod ends;
mod events;
mod position;
mod user_events;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::device::{EventId, StreamId};

pub(crate) use clock::Clock;
pub(crate) use ends::{End, Ends};
pub(crate) use events::{EventPool, PooledEvent};
pub(crate) use position::Position;
use user_events::Recorded;

/// A stream that the pool knows, by its slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct StreamIndex(pub(crate) u32);

impl StreamIndex {
    pub(crate) fn slot(self) -> usize {
        self.0 as usize
    }
}

/// How the pool tells streams apart: the handle's value, and the identity that the device gives
/// where a value can stand for several streams.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StreamKey {
    pub(crate) stream: StreamId,
    pub(crate) identity: u64,
}

/// What counts as a reason to use memory of another stream. A stream's own order always counts,
/// and so does what the caller has synchronised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reasons {
    /// Waits on events.
    pub(crate) ordered: bool,
    /// Completion, as the host has seen by asking.
    pub(crate) completed: bool,
}

impl Reasons {
    const ALL: Reasons = Reasons {
        ordered: true,
        completed: true,
    };
}

/// An event of the pool's own that stands for a position of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    pub(crate) stream: StreamIndex,
    pub(crate) position: u64,
    pub(crate) event: Arc<PooledEvent>,
    /// What was ordered before the stream's work when the marker was recorded.
    clock: Clock,
}

/// Whether a stream can still be given events to record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Alive,
    /// Destroyed after a last marker was recorded.
    Retired,
    /// Destroyed without one: what came after its last marker is known to be over only when the
    /// whole device was synchronised.
    Lost,
    /// The slot is empty.
    Vacant,
}

#[derive(Debug)]
struct Timeline {
    key: StreamKey,
    life: Life,
    now: Position,
    ended: u64,
    done: u64,
    /// The part of `done` that the caller himself waited for.
    synchronized: u64,
    clock: Clock,
    /// In order of position.
    markers: VecDeque<Marker>,
    /// Bytes freed since the last marker that the stream has not taken back.
    unmarked: u64,
    /// Live blocks that name this slot, as their owner or as a further user.
    named: u64,
    /// The caller forbids that this stream is made to wait.
    never_waits: bool,
}

impl Timeline {
    /// The position up to which frees are completed or can be asked after.
    fn covered(&self) -> u64 {
        self.markers
            .back()
            .map_or(self.done, |marker| marker.position.max(self.done))
    }
}

/// What the pool has to record so that others can wait for, or ask after, a position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MarkerRequest {
    pub(crate) index: StreamIndex,
    pub(crate) key: StreamKey,
    pub(crate) position: u64,
    /// What the stream knows now; the event is recorded later, so it stands for at least this.
    clock: Clock,
}

/// All timelines of a pool.
#[derive(Debug, Default)]
pub(crate) struct Order {
    timelines: Vec<Timeline>,
    by_key: FxHashMap<StreamKey, StreamIndex>,
    user_events: FxHashMap<EventId, Recorded>,
    alive: usize,
    /// The stream that was asked for last: most often it is the next one as well.
    recent: StreamIndex,
}

/// The share of the live bytes that may be freed on a stream before a marker is recorded: one per
/// 2 %. A marker that is recorded only when somebody asks covers all work queued since, and the
/// asker is serialised behind it.
const MARKER_SHARE: u64 = 50;

/// Bytes freed on a stream below which no marker is recorded unless somebody asks: a megabyte is
/// worth less than a driver call.
const MARKER_FLOOR: u64 = 1 << 20;

impl Order {
    /// The slot of a stream, which gets one if it has none.
    pub(crate) fn stream(&mut self, key: StreamKey) -> StreamIndex {
        if let Some(index) = self.known(key) {
            return index;
        }
        let vacant = self.timelines.iter().position(|t| t.life == Life::Vacant);
        let slot = vacant.unwrap_or(self.timelines.len());
        let start = vacant.map_or(0, |slot| self.timelines[slot].now.get());
        let timeline = Timeline {
            key,
            life: Life::Alive,
            now: Position::new(start),
            ended: start,
            done: start,
            synchronized: start,
            clock: Clock::default(),
            markers: VecDeque::new(),
            unmarked: 0,
            named: 0,
            never_waits: false,
        };
        match self.timelines.get_mut(slot) {
            Some(vacant) => *vacant = timeline,
            None => self.timelines.push(timeline),
        }
        let index = StreamIndex(slot as u32);
        self.by_key.insert(key, index);
        self.alive += 1;
        index
    }

    /// The slot of a stream that the pool already knows.
    pub(crate) fn known(&mut self, key: StreamKey) -> Option<StreamIndex> {
        let recent = self.timelines.get(self.recent.slot());
        if recent.is_some_and(|t| t.key == key && t.life == Life::Alive) {
            return Some(self.recent);
        }
        self.recent = *self.by_key.get(&key)?;
        Some(self.recent)
    }

    /// The stream's key under the same handle value but another identity, if the pool knows one:
    /// the handle's value was given to a new stream.
    pub(crate) fn predecessor(&self, key: StreamKey) -> Option<StreamIndex> {
        self.timelines.iter().enumerate().find_map(|(slot, t)| {
            let same_value = t.key.stream == key.stream && t.key.identity != key.identity;
            (t.life == Life::Alive && same_value).then_some(StreamIndex(slot as u32))
        })
    }

    /// Slots, of streams that live and of others.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> usize {
        self.timelines.len()
    }

    /// How the pool tells the stream from others.
    pub(crate) fn key(&self, stream: StreamIndex) -> StreamKey {
        self.timelines[stream.slot()].key
    }

    /// The position of the stream's next free, taken: all it ran so far comes before. A stream
    /// that is gone was given nothing after its last position ([`Order::closing`],
    /// [`Order::lose`]), so that one stands for all.
    pub(crate) fn advance(&mut self, stream: StreamIndex) -> End {
        let end = self.pass(stream);
        self.end_stands(end);
        end
    }

    /// Takes a position without saying that anything ended there.
    fn pass(&mut self, stream: StreamIndex) -> End {
        let timeline = &mut self.timelines[stream.slot()];
        if timeline.life == Life::Alive {
            timeline.now.raise_by_one();
        }
        End {
            stream,
            position: timeline.now.get(),
        }
    }

    /// The position of a stream, to number frees by that are told of only later: see [`Position`].
    pub(crate) fn position(&self, stream: StreamIndex) -> Position {
        self.timelines[stream.slot()].now.clone()
    }

    /// Something ended at a position that was read with [`Position::next`].
    pub(crate) fn reached(&mut self, end: End) {
        self.timelines[end.stream.slot()].now.raise_to(end.position);
        self.end_stands(end);
    }

    fn end_stands(&mut self, end: End) {
        let timeline = &mut self.timelines[end.stream.slot()];
        timeline.ended = timeline.ended.max(end.position);
    }

    /// Leaves out the ends that follow from others of them. `fresh` are streams whose end was taken
    /// just now: what such a stream was made to wait for is completed when that end is.
    pub(crate) fn leave_out_implied(&self, ends: &mut Ends, fresh: &[StreamIndex]) {
        ends.retain(|end| {
            !fresh.iter().any(|&later| {
                let clock = &self.timelines[later.slot()].clock;
                later != end.stream && clock.at(end.stream) >= end.position
            })
        });
    }

    /// A live block names the slot from now on.
    pub(crate) fn name(&mut self, stream: StreamIndex) {
        self.timelines[stream.slot()].named += 1;
    }

    /// A live block that named the slot is freed.
    pub(crate) fn unname(&mut self, stream: StreamIndex) {
        self.timelines[stream.slot()].named -= 1;
    }

    /// Whether the pool may let the stream wait for another one's work.
    pub(crate) fn may_wait(&self, stream: StreamIndex) -> bool {
        !self.timelines[stream.slot()].never_waits
    }

    /// Says whether the pool may let the stream wait for another one's work.
    pub(crate) fn set_may_wait(&mut self, stream: StreamIndex, may: bool) {
        self.timelines[stream.slot()].never_waits = !may;
    }

    /// Whether the work up to an end is completed, as the host has seen.
    pub(crate) fn is_completed(&self, end: End) -> bool {
        self.timelines[end.stream.slot()].done >= end.position
    }

    /// Whether the work up to an end comes before whatever `asker` runs next, for any reason.
    pub(crate) fn is_before(&self, end: End, asker: StreamIndex) -> bool {
        self.is_before_by(end, asker, Reasons::ALL)
    }

    fn is_before_by(&self, end: End, asker: StreamIndex, reasons: Reasons) -> bool {
        let ordered = || self.timelines[asker.slot()].clock.at(end.stream) >= end.position;
        end.stream == asker
            || self.timelines[end.stream.slot()].synchronized >= end.position
            || (reasons.ordered && ordered())
            || (reasons.completed && self.is_completed(end))
    }

    /// Whether `asker` may use a range with these ends at once, for reasons that count.
    pub(crate) fn usable(&self, ends: &Ends, asker: StreamIndex, reasons: Reasons) -> bool {
        ends.iter()
            .all(|end| self.is_before_by(end, asker, reasons))
    }

    /// Whether a stream can be made to wait for these ends. It cannot where a stream was destroyed
    /// before its last work was marked.
    pub(crate) fn can_be_waited_for(&self, ends: &Ends) -> bool {
        ends.iter().all(|end| {
            let timeline = &self.timelines[end.stream.slot()];
            timeline.life == Life::Alive || timeline.covered() >= end.position
        })
    }

    /// Whether nobody will have to wait for, or ask after, one of these pasts and not the other.
    pub(crate) fn alike(&self, one: &Ends, other: &Ends) -> bool {
        match (one.only_end(), other.only_end()) {
            (Some(a), Some(b)) if a.stream == b.stream => self.covering(a) == self.covering(b),
            _ => one == other || (self.completed(one) && self.completed(other)),
        }
    }

    /// How many markers stand before the one that covers an end: none for what is completed.
    fn covering(&self, end: End) -> usize {
        let timeline = &self.timelines[end.stream.slot()];
        if timeline.done >= end.position {
            return 0;
        }
        let markers = &timeline.markers;
        1 + markers.partition_point(|marker| marker.position < end.position)
    }

    /// Whether nothing uses a range with these ends any more, as the host has seen.
    pub(crate) fn completed(&self, ends: &Ends) -> bool {
        ends.iter().all(|end| self.is_completed(end))
    }

    /// The stream comes after all this from now on: it was made to wait for it.
    pub(crate) fn learn(&mut self, stream: StreamIndex, knowledge: &Clock) {
        self.timelines[stream.slot()].clock.join(knowledge);
    }

    /// What comes before whatever the stream runs next.
    pub(crate) fn knowledge(&self, stream: StreamIndex) -> Clock {
        let timeline = &self.timelines[stream.slot()];
        let mut knowledge = timeline.clock.clone();
        knowledge.raise(stream, timeline.now.get());
        knowledge
    }

    /// Everything that was queued on any stream up to now.
    pub(crate) fn everything(&mut self) -> Clock {
        for slot in 0..self.timelines.len() {
            self.pass(StreamIndex(slot as u32));
        }
        self.timelines.iter().map(|t| t.now.get()).collect()
    }

    /// Everything that was queued on the stream up to now, or comes before that.
    pub(crate) fn everything_on(&mut self, stream: StreamIndex) -> Clock {
        self.pass(stream);
        self.knowledge(stream)
    }

    /// The caller has waited for all this on the host.
    pub(crate) fn synchronized_knowledge(&mut self, knowledge: &Clock) {
        for (slot, timeline) in self.timelines.iter_mut().enumerate() {
            let position = knowledge
                .at(StreamIndex(slot as u32))
                .min(timeline.now.get());
            timeline.synchronized = timeline.synchronized.max(position);
        }
        self.completed_knowledge(knowledge);
    }

    /// Whether more than one stream lives, so that one may wait for another.
    pub(crate) fn is_shared(&self) -> bool {
        self.alive >= 2 || self.timelines.len() >= 2
    }

    /// The host has seen that all this is completed.
    fn completed_knowledge(&mut self, knowledge: &Clock) {
        for (slot, timeline) in self.timelines.iter_mut().enumerate() {
            let position = knowledge
                .at(StreamIndex(slot as u32))
                .min(timeline.now.get());
            timeline.done = timeline.done.max(position);
            while timeline
                .markers
                .front()
                .is_some_and(|m| m.position <= timeline.done)
            {
                timeline.markers.pop_front();
            }
        }
    }

    /// Bytes were freed that a stream had used. Gives what to record now, if anything: nothing while
    /// one stream has the pool for itself, then a marker per 2 % of the live bytes.
    pub(crate) fn freed(
        &mut self,
        stream: StreamIndex,
        bytes: u64,
        live_bytes: u64,
    ) -> Option<MarkerRequest> {
        self.freed_unasked(stream, bytes);
        self.marker_by_share(stream, live_bytes)
    }

    /// The same where nothing can be recorded now: the next free may ask for it.
    pub(crate) fn freed_unasked(&mut self, stream: StreamIndex, bytes: u64) {
        self.timelines[stream.slot()].unmarked += bytes;
    }

    fn marker_by_share(&mut self, stream: StreamIndex, live_bytes: u64) -> Option<MarkerRequest> {
        let unmarked = self.timelines[stream.slot()].unmarked;
        let wanted = self.alive >= 2 && unmarked >= (live_bytes / MARKER_SHARE).max(MARKER_FLOOR);
        if wanted {
            self.marker_request(stream)
        } else {
            None
        }
    }

    /// Bytes that were freed on a stream are in use there again: nobody else will ask for them.
    pub(crate) fn taken_back(&mut self, stream: StreamIndex, bytes: u64) {
        let timeline = &mut self.timelines[stream.slot()];
        timeline.unmarked = timeline.unmarked.saturating_sub(bytes);
    }

    /// What to record so that the stream's present position can be waited for. `None` if the
    /// stream is gone, or a marker stands there already.
    pub(crate) fn marker_request(&mut self, stream: StreamIndex) -> Option<MarkerRequest> {
        let timeline = &mut self.timelines[stream.slot()];
        if timeline.life != Life::Alive || timeline.covered() >= timeline.now.get() {
            return None;
        }
        timeline.unmarked = 0;
        let (key, position) = (timeline.key, timeline.now.get());
        Some(MarkerRequest {
            index: stream,
            key,
            position,
            clock: self.knowledge(stream),
        })
    }

    /// A requested marker was recorded. Nothing comes of it if the stream went meanwhile.
    pub(crate) fn marked(&mut self, request: MarkerRequest, event: Arc<PooledEvent>) {
        let timeline = &mut self.timelines[request.index.slot()];
        if timeline.key != request.key || timeline.life != Life::Alive {
            return;
        }
        let MarkerRequest {
            index,
            position,
            clock,
            ..
        } = request;
        let marker = Marker {
            stream: index,
            position,
            event,
            clock,
        };
        let place = timeline.markers.partition_point(|m| m.position <= position);
        timeline.markers.insert(place, marker);
    }

    /// The earliest marker that covers an end.
    pub(crate) fn marker_for(&self, end: End) -> Option<Marker> {
        let markers = &self.timelines[end.stream.slot()].markers;
        let place = markers.partition_point(|m| m.position < end.position);
        markers.get(place).cloned()
    }

    /// A wait for a marker was inserted into a stream.
    pub(crate) fn waited(&mut self, asker: StreamIndex, marker: &Marker) {
        let timeline = &mut self.timelines[asker.slot()];
        timeline.clock.join(&marker.clock);
        timeline.clock.raise(marker.stream, marker.position);
    }

    /// The oldest marker of every stream that has any: what to query next.
    pub(crate) fn oldest_markers(&self) -> Vec<Marker> {
        self.timelines
            .iter()
            .filter_map(|t| t.markers.front().cloned())
            .collect()
    }

    /// A marker is completed, as the host has seen.
    pub(crate) fn marker_completed(&mut self, marker: &Marker) {
        self.completed_knowledge(&marker.clock);
    }

    /// Ends that no marker covers: their streams need one before anybody can ask or wait.
    pub(crate) fn unmarked_streams(&self) -> Vec<StreamIndex> {
        (0..self.timelines.len())
            .filter(|&slot| {
                let t = &self.timelines[slot];
                t.life == Life::Alive && t.covered() < t.ended
            })
            .map(|slot| StreamIndex(slot as u32))
            .collect()
    }

    /// Whether some work can no longer be marked, because its stream was destroyed before it was:
    /// only synchronising the device tells when it is over.
    pub(crate) fn has_lost_work(&self) -> bool {
        self.timelines
            .iter()
            .any(|t| t.life == Life::Lost && t.done < t.now.get())
    }

    /// What to record before the stream is destroyed. Live blocks that name it may have been used
    /// since its last free, and are freed only later; the marker covers these uses too.
    pub(crate) fn closing(&mut self, stream: StreamIndex) -> Option<MarkerRequest> {
        if self.timelines[stream.slot()].named > 0 {
            self.advance(stream);
        }
        self.marker_request(stream)
    }

    /// The stream is about to be destroyed, after its closing marker was recorded. If that
    /// failed, or more was freed meanwhile, the rest is lost.
    pub(crate) fn retire(&mut self, stream: StreamIndex) {
        let timeline = &self.timelines[stream.slot()];
        let life = if timeline.covered() >= timeline.now.get() {
            Life::Retired
        } else {
            Life::Lost
        };
        self.end(stream, life);
    }

    /// The stream turns out to have been destroyed behind the pool's back. What it did with
    /// blocks that are still live is not covered by any marker.
    pub(crate) fn lose(&mut self, stream: StreamIndex) {
        if self.timelines[stream.slot()].named > 0 {
            self.advance(stream);
        }
        self.end(stream, Life::Lost);
    }

    fn end(&mut self, stream: StreamIndex, life: Life) {
        let timeline = &mut self.timelines[stream.slot()];
        if timeline.life != Life::Alive {
            return;
        }
        timeline.life = life;
        self.by_key.remove(&timeline.key);
        self.alive -= 1;
    }

    /// Streams that are gone and whose work is completed. The pool moves the free ranges of their
    /// silos to the common one, then calls [`Order::vacate`].
    pub(crate) fn finished(&self) -> Vec<StreamIndex> {
        (0..self.timelines.len())
            .filter(|&slot| {
                let t = &self.timelines[slot];
                matches!(t.life, Life::Retired | Life::Lost) && t.done >= t.now.get()
            })
            .map(|slot| StreamIndex(slot as u32))
            .collect()
    }

    /// Empties a finished stream's slot, if nothing names it any more.
    pub(crate) fn vacate(&mut self, stream: StreamIndex) {
        if self.timelines[stream.slot()].named > 0 {
            return;
        }
        let timeline = &mut self.timelines[stream.slot()];
        timeline.life = Life::Vacant;
        timeline.markers.clear();
    }

    /// Checks the invariants that can be seen from here.
    pub(crate) fn validate(&self) -> Result<(), String> {
        for (slot, t) in self.timelines.iter().enumerate() {
            let now = t.now.get();
            if t.ended > now {
                return Err(format!(
                    "stream slot {slot}: an end at {} is past now {now}",
                    t.ended
                ));
            }
            if t.done > now {
                return Err(format!(
                    "stream slot {slot}: done {} is past now {now}",
                    t.done
                ));
            }
            let positions: Vec<u64> = t.markers.iter().map(|m| m.position).collect();
            if !positions.is_sorted() || positions.last().is_some_and(|&p| p > now) {
                return Err(format!(
                    "stream slot {slot}: markers out of order: {positions:?}"
                ));
            }
            if t.clock.at(StreamIndex(slot as u32)) > now {
                return Err(format!("stream slot {slot} knows its own future"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod clockwork;
#[cfg(test)]
mod tests;
