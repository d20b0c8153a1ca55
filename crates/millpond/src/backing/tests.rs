//! The room by cases that somebody thought of, and at random against a plain model.

mod cases;
mod model;
mod random;

use std::sync::Arc;

use crate::device::StreamId;
use crate::device::sim::SimDevice;
use crate::order::{EventPool, Order, Reasons, StreamIndex, StreamKey};

const REASONS: Reasons = Reasons {
    ordered: true,
    completed: true,
};

/// Timelines, streams to put on them, and events to mark them with.
struct Clockwork {
    order: Order,
    events: Arc<EventPool>,
    streams: u64,
}

impl Clockwork {
    fn new() -> Clockwork {
        Clockwork {
            order: Order::default(),
            events: EventPool::new(Arc::new(SimDevice::new())),
            streams: 0,
        }
    }

    fn stream(&mut self) -> StreamIndex {
        self.streams += 1;
        self.order.stream(StreamKey {
            stream: StreamId(self.streams + 8),
            identity: 0,
        })
    }

    /// Marks a stream's present position.
    fn mark(&mut self, stream: StreamIndex) {
        if let Some(request) = self.order.marker_request(stream) {
            let event = self.events.take().expect("the sim creates events");
            self.order.marked(request, event);
        }
    }

    /// The oldest marker of a stream is seen to be completed.
    fn see(&mut self, stream: StreamIndex) {
        let oldest = self.order.oldest_markers();
        if let Some(marker) = oldest.iter().find(|marker| marker.stream == stream) {
            self.order.marker_completed(marker);
        }
    }
}
