//! What the pool tells streams and hears of them: frees, uses, the caller's events and
//! synchronisations, and the pool's own markers.

use std::sync::Arc;

use super::{Inner, Pool, reaper};
use crate::device::{Call, DeviceError, EventId, Status, StreamId};
use crate::order::{Marker, MarkerRequest, StreamKey};

/// Whether somebody created the stream, and so can destroy it: the default streams stay.
fn is_created(key: StreamKey) -> bool {
    ![StreamId::DEFAULT, StreamId::PER_THREAD].contains(&key.stream)
}

/// Which streams get a marker before the pool looks what is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Marking {
    /// Those that have freed something since their last one, but for per-thread streams: marking
    /// one for another thread takes the legacy stream, which holds up all streams that are ordered
    /// with it.
    Harmless,
    /// All that have freed something since their last one.
    All,
}

impl Inner {
    /// The same as [`Inner::stream_key`] where the handle's value says it all.
    #[inline]
    pub(super) fn key_by_value(&self, stream: StreamId) -> Option<StreamKey> {
        let special = [StreamId::LEGACY, StreamId::PER_THREAD];
        let usual = !special.contains(&stream) && !self.identify_streams;
        (usual && !self.graphs.any_captured()).then_some(StreamKey {
            stream,
            identity: 0,
        })
    }

    /// How the pool tells this stream from others. Asks the device only where the handle's value
    /// is not enough.
    pub(super) fn stream_key(&self, stream: StreamId) -> Result<StreamKey, DeviceError> {
        match stream {
            // Two names of the legacy stream.
            StreamId::DEFAULT | StreamId::LEGACY => Ok(StreamKey {
                stream: StreamId::DEFAULT,
                identity: 0,
            }),
            // A stream that is captured cannot be asked, and is known.
            _ if stream != StreamId::PER_THREAD
                && let Some(key) = self.graphs.captured_key(stream) =>
            {
                Ok(key)
            }
            _ if stream == StreamId::PER_THREAD || self.identify_streams => Ok(StreamKey {
                stream,
                identity: self.device.stream_identity(stream)?,
            }),
            _ => Ok(StreamKey {
                stream,
                identity: 0,
            }),
        }
    }

    /// The stream on which an event can be recorded for another one. A per-thread stream can be
    /// named by its own thread alone; from elsewhere the legacy stream stands in, which comes
    /// after all work of the streams that are ordered with it, the per-thread ones among them.
    fn recordable(&self, key: StreamKey) -> Result<StreamId, DeviceError> {
        if key.stream == StreamId::PER_THREAD
            && self.device.stream_identity(StreamId::PER_THREAD)? != key.identity
        {
            return Ok(StreamId::LEGACY);
        }
        Ok(key.stream)
    }

    /// Records a marker that was asked for. If its stream turns out to be gone there is none, and
    /// there will be none.
    pub(super) fn mark(&self, request: MarkerRequest) -> Result<(), DeviceError> {
        if self.graphs.any_captured() {
            // What is recorded on a captured stream becomes part of its graph.
            let on = self.recordable(request.key)?;
            if self.graphs.forbids_record(request.key, on) {
                return Ok(());
            }
        }
        let event = self.events.take()?;
        let recorded = self.record_on(event.id(), request.key);
        let mut state = self.lock();
        match recorded {
            Ok(()) => {
                state.counters.events_recorded += 1;
                state.order.marked(request, event);
                Ok(())
            }
            Err(error) if error.status == Status::INVALID_HANDLE && is_created(request.key) => {
                tracing::debug!(%error, "a stream was destroyed without the pool's being told");
                if let Some(gone) = state.order.known(request.key) {
                    state.lose_stream(gone);
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Records an event on the very stream that is meant: invalid handle if its value is no
    /// stream's, or another stream's.
    fn record_on(&self, event: EventId, key: StreamKey) -> Result<(), DeviceError> {
        self.device.record_event(event, self.recordable(key)?)?;
        // Identities do not recur: a stream that has its own now had it when it was recorded.
        if is_created(key) && self.stream_key(key.stream)? != key {
            return Err(DeviceError::new(
                Call::RecordEvent,
                Status::INVALID_HANDLE,
                format!("{} is another stream now", key.stream),
            ));
        }
        Ok(())
    }

    /// Records a marker that nobody depends on: without it others only learn later that memory is
    /// free.
    pub(super) fn mark_or_leave(&self, request: MarkerRequest) {
        if let Err(error) = self.mark(request) {
            tracing::debug!(%error, "a marker could not be recorded");
        }
    }

    /// Looks which markers have completed, after recording some.
    pub(super) fn observe(&self, marking: Marking) {
        let requests: Vec<MarkerRequest> = {
            let mut state = self.lock();
            state.hear_fronts();
            let mut streams = state.order.unmarked_streams();
            if marking == Marking::Harmless {
                streams.retain(|&s| state.order.key(s).stream != StreamId::PER_THREAD);
            }
            let requests = streams.into_iter().map(|s| state.order.marker_request(s));
            requests.flatten().collect()
        };
        for request in requests {
            self.mark_or_leave(request);
        }
        let mut oldest = self.lock().order.oldest_markers();
        while !oldest.is_empty() {
            let completed: Vec<Marker> = oldest
                .into_iter()
                .filter(|marker| self.is_completed(marker))
                .collect();
            let mut state = self.lock();
            for marker in &completed {
                state.order.marker_completed(marker);
            }
            // Where the oldest was done, the next may be.
            let streams: Vec<_> = completed.iter().map(|marker| marker.stream).collect();
            oldest = state.order.oldest_markers();
            oldest.retain(|marker| streams.contains(&marker.stream));
        }
        self.lock().settle_finished_streams();
    }

    fn is_completed(&self, marker: &Marker) -> bool {
        let answer = self.device.query_event(marker.event.id());
        self.lock().counters.event_queries += 1;
        // A failed query is not a completion.
        answer.unwrap_or_else(|error| {
            tracing::debug!(%error, "a marker could not be queried");
            false
        })
    }

    /// Waits on the host for one marker.
    pub(super) fn await_marker(&self, marker: &Marker) -> Result<(), DeviceError> {
        self.device.synchronize_event(marker.event.id())?;
        self.lock().order.marker_completed(marker);
        Ok(())
    }
}

/// The caller's own order, made through the pool or told to it, so that memory can be used again
/// across streams where the caller has ordered them anyway.
impl Pool {
    /// Records the caller's event on a stream ([`Device::record_event`]), and remembers what it
    /// stands for.
    ///
    /// [`Device::record_event`]: crate::device::Device::record_event
    pub fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let key = self.inner.stream_key(stream)?;
        if let Some(captured) = self.inner.graphs.captured(key) {
            return self.inner.record_captured(&captured, event, stream);
        }
        if self.inner.graphs.any() {
            self.inner.forget_event(event);
        }
        let recorded = {
            let mut state = self.inner.lock();
            let index = state.stream(key);
            state.order.forget_event(event);
            state.order.recording(index)
        };
        self.inner.device.record_event(event, stream)?;
        self.inner.lock().order.remember_event(event, recorded);
        self.inner.watch_record(event, key);
        Ok(())
    }

    /// Lets a stream wait for the caller's event ([`Device::wait_event`]). If it was recorded
    /// through the pool, the pool knows from then on that the stream comes after it.
    ///
    /// [`Device::wait_event`]: crate::device::Device::wait_event
    pub fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let key = self.inner.stream_key(stream)?;
        if let Some(waited) = self.inner.wait_captured(stream, key, event) {
            return waited;
        }
        let knowledge = self.inner.lock().order.event_knowledge(event);
        self.inner.device.wait_event(stream, event)?;
        if let Some(knowledge) = knowledge {
            let mut state = self.inner.lock();
            let index = state.stream(key);
            state.order.learn(index, &knowledge);
        }
        self.inner.watch_wait(key, event);
        Ok(())
    }

    /// Forgets the caller's event: it is about to be destroyed, or recorded behind the pool's
    /// back.
    pub fn forget_event(&self, event: EventId) {
        self.inner.forget_event(event);
    }

    /// Forbids the pool to let this stream wait: whatever the policies, no wait is ever inserted
    /// into it, until [`Pool::may_wait`] takes that back or the stream is destroyed.
    ///
    /// A wait that the pool inserts can close a circle with waits that it knows nothing of: those
    /// on words in memory (`cuStreamWaitValue64`, a kernel that spins) and those inside
    /// collectives. If stream A holds until B writes a word, a wait for A that is inserted into B
    /// before the write lets neither go on. So the stream to declare is the one whose *later* work
    /// others wait for in such a way: the one that writes the word, and every stream that runs
    /// collectives.
    ///
    /// A request on such a stream gets new memory where another would wait. If there is none, it
    /// still waits on the host for memory to be completed, as the last thing before it fails.
    pub fn never_wait(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.inner.set_may_wait(stream, false)
    }

    /// Takes [`Pool::never_wait`] back.
    pub fn may_wait(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.inner.set_may_wait(stream, true)
    }

    /// Waits on the host for a stream. Everything it did is then known to be completed.
    pub fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        let key = self.inner.stream_key(stream)?;
        let call = Call::SynchronizeStream;
        self.inner.graphs.refuse_wait(call, Some(key))?;
        let knowledge = {
            let mut state = self.inner.lock();
            let index = state.stream(key);
            state.order.everything_on(index)
        };
        let awaited = self.inner.watch_synchronization(Some(key));
        self.inner.device.synchronize_stream(stream)?;
        self.inner.lock().order.synchronized_knowledge(&knowledge);
        self.inner.watch_synchronized(awaited);
        self.inner.apply_release_threshold();
        Ok(())
    }

    /// Waits on the host for the caller's event ([`Device::synchronize_event`]). If it was recorded
    /// through the pool ([`Pool::record_event`]), everything it stands for is then known to be
    /// completed, and free for all.
    ///
    /// [`Device::synchronize_event`]: crate::device::Device::synchronize_event
    pub fn synchronize_event(&self, event: EventId) -> Result<(), DeviceError> {
        let knowledge = self.inner.lock().order.event_knowledge(event);
        let awaited = self.inner.watch_event_synchronization(event);
        self.inner.device.synchronize_event(event)?;
        if let Some(knowledge) = knowledge {
            let mut state = self.inner.lock();
            // If it was recorded again meanwhile, that may be what was waited for.
            if state.order.event_knowledge(event).as_ref() == Some(&knowledge) {
                state.order.synchronized_knowledge(&knowledge);
            }
        }
        self.inner.watch_synchronized(awaited);
        self.inner.apply_release_threshold();
        Ok(())
    }

    /// Waits on the host for the whole device. Everything freed so far is then free for all.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let awaited = self.inner.watch_synchronization(None);
        self.inner.synchronize()?;
        self.inner.watch_synchronized(awaited);
        self.inner.apply_release_threshold();
        Ok(())
    }

    /// Says that a stream is about to be destroyed. What was freed on it is not lost: others can
    /// use it once the stream's work is done. To be called before the stream is destroyed.
    pub fn stream_destroyed(&self, stream: StreamId) -> Result<(), DeviceError> {
        let key = self.inner.stream_key(stream)?;
        self.inner.watch_destroyed(key);
        let request = {
            let mut state = self.inner.lock();
            let Some(index) = state.order.known(key) else {
                return Ok(());
            };
            state.take_front_away(index);
            state.order.closing(index)
        };
        let marked = match request {
            Some(request) => self.inner.mark(request),
            None => Ok(()),
        };
        let mut state = self.inner.lock();
        if let Some(index) = state.order.known(key) {
            // Another thread may have allocated on it meanwhile.
            state.take_front_away(index);
            state.order.retire(index);
        }
        state.settle_finished_streams();
        marked
    }
}

impl Inner {
    fn set_may_wait(&self, stream: StreamId, may: bool) -> Result<(), DeviceError> {
        let key = self.stream_key(stream)?;
        let mut state = self.lock();
        let index = state.stream(key);
        state.order.set_may_wait(index, may);
        Ok(())
    }

    pub(super) fn synchronize(self: &Inner) -> Result<(), DeviceError> {
        self.graphs.refuse_wait(Call::Synchronize, None)?;
        let graphs = self.take_unused_graphs();
        let others = reaper::Awaited::before(&self.device, Some(self));
        let everything = self.lock().order.everything();
        if let Err(error) = self.device.synchronize() {
            self.keep_graphs(graphs);
            return Err(error);
        }
        {
            let mut state = self.lock();
            state.order.synchronized_knowledge(&everything);
            state.settle_finished_streams();
        }
        self.close_graphs(graphs);
        others.over();
        Ok(())
    }

    /// Inserts into a stream the waits that it needs before it may use memory with these ends.
    pub(super) fn insert_waits(
        &self,
        stream: StreamKey,
        missing: &[crate::order::End],
    ) -> Result<(), DeviceError> {
        for &end in missing {
            let (marker, asker) = {
                let mut state = self.lock();
                let asker = state.stream(stream);
                // A front may have numbered it without having told so yet.
                state.order.reached(end);
                if state.order.is_before(end, asker) {
                    continue;
                }
                match state.order.marker_for(end) {
                    Some(marker) => (marker, asker),
                    None => {
                        let request = state.order.marker_request(end.stream);
                        drop(state);
                        if let Some(request) = request {
                            self.mark(request)?;
                        }
                        let Some(marker) = self.lock().order.marker_for(end) else {
                            // Nothing can be recorded there any more: the whole device it is.
                            self.synchronize()?;
                            continue;
                        };
                        (marker, asker)
                    }
                }
            };
            self.device
                .wait_event(stream.stream, Arc::clone(&marker.event).id())?;
            let mut state = self.lock();
            state.counters.waits_inserted += 1;
            state.order.waited(asker, &marker);
        }
        Ok(())
    }
}
