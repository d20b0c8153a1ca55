//! Timelines for the tests of other rooms: streams to put on them, and events to mark them with.

use std::sync::Arc;

use super::{EventPool, Order, Reasons, StreamIndex, StreamKey};
use crate::device::StreamId;
use crate::device::sim::SimDevice;

/// All reasons count.
pub(crate) const REASONS: Reasons = Reasons::ALL;

pub(crate) struct Clockwork {
    pub(crate) order: Order,
    events: Arc<EventPool>,
    streams: u64,
}

impl Clockwork {
    pub(crate) fn new() -> Clockwork {
        Clockwork {
            order: Order::default(),
            events: EventPool::new(Arc::new(SimDevice::new())),
            streams: 0,
        }
    }

    pub(crate) fn stream(&mut self) -> StreamIndex {
        self.streams += 1;
        self.order.stream(StreamKey {
            stream: StreamId(self.streams + 8),
            identity: 0,
        })
    }

    /// Marks a stream's present position.
    pub(crate) fn mark(&mut self, stream: StreamIndex) {
        if let Some(request) = self.order.marker_request(stream) {
            let event = self.events.take().expect("the sim creates events");
            self.order.marked(request, event);
        }
    }

    /// The oldest marker of a stream is seen to be completed.
    pub(crate) fn see(&mut self, stream: StreamIndex) {
        let oldest = self.order.oldest_markers();
        if let Some(marker) = oldest.iter().find(|marker| marker.stream == stream) {
            self.order.marker_completed(marker);
        }
    }
}
