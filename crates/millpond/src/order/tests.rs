//! The rules of the timelines one by one.

use super::*;
use crate::device::sim::SimDevice;

/// Timelines, streams to put on them, and events to mark them with.
struct Bench {
    order: Order,
    events: Arc<EventPool>,
    streams: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            order: Order::default(),
            events: EventPool::new(Arc::new(SimDevice::new())),
            streams: 0,
        }
    }

    fn stream(&mut self) -> StreamIndex {
        self.streams += 1;
        self.order.stream(key(self.streams))
    }

    /// Records what was asked for.
    fn mark(&mut self, request: MarkerRequest) {
        self.order.marked(request, self.events.take().unwrap());
    }

    /// Marks the stream's present position; gives the marker.
    fn marker(&mut self, stream: StreamIndex) -> Marker {
        let request = self.order.marker_request(stream).unwrap();
        self.mark(request);
        let markers = &self.order.timelines[stream.slot()].markers;
        markers.back().unwrap().clone()
    }

    fn check(&self) {
        self.order.validate().unwrap();
    }
}

fn key(number: u64) -> StreamKey {
    StreamKey {
        stream: StreamId(number),
        identity: number,
    }
}

const EVENT: EventId = EventId(77);

#[test]
fn what_was_known_of_a_slots_old_stream_says_nothing_of_its_new_one() {
    let mut bench = Bench::new();
    let (a, b) = (bench.stream(), bench.stream());
    let old = [bench.order.advance(b), bench.order.advance(b)];
    let knowledge = bench.order.knowledge(b);
    bench.order.learn(a, &knowledge);
    bench.order.remember_event(EVENT, knowledge);
    bench.order.advance(a);
    // A query, a wait and a synchronisation are under way while the slot changes hands.
    let queried = bench.marker(a);
    let synchronised = bench.order.everything();
    bench.order.completed_knowledge(&synchronised);
    bench.order.retire(b, true);
    bench.order.vacate(b);
    let (new, c) = (bench.stream(), bench.stream());
    assert_eq!(new, b, "the slot is used again");
    let end = bench.order.advance(new);
    bench.order.marker_completed(&queried);
    bench.order.completed_knowledge(&synchronised);
    bench.order.waited(c, &queried);
    let known = bench.order.event_knowledge(EVENT).unwrap();
    bench.order.learn(c, &known);
    assert!(!bench.order.is_completed(end));
    assert!(!bench.order.is_before(end, a) && !bench.order.is_before(end, c));
    assert!(old.iter().all(|&end| bench.order.is_completed(end)));
    bench.check();
}
