//! The rules of the timelines one by one; all together against a graph of work in [`model`].

use super::*;
use crate::device::sim::SimDevice;

mod model;

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
fn a_stream_keeps_its_slot() {
    let mut bench = Bench::new();
    let (a, b) = (bench.stream(), bench.stream());
    assert_ne!(a, b);
    assert_eq!(bench.order.stream(key(1)), a);
    assert_eq!(bench.order.known(key(2)), Some(b));
    assert_eq!(bench.order.known(key(3)), None);
    assert_eq!(bench.order.slots(), 2);
}

#[test]
fn a_value_with_another_identity_has_a_predecessor_until_that_is_gone() {
    let mut bench = Bench::new();
    let old = bench.stream();
    let new = StreamKey {
        identity: 99,
        ..key(1)
    };
    assert_eq!(bench.order.predecessor(key(1)), None);
    assert_eq!(bench.order.predecessor(new), Some(old));
    bench.order.lose(old);
    assert_eq!(bench.order.predecessor(new), None);
}

#[test]
fn positions_rise_with_each_free() {
    let mut bench = Bench::new();
    let a = bench.stream();
    let (first, second) = (bench.order.advance(a), bench.order.advance(a));
    assert!(first.position < second.position);
    assert!(!bench.order.is_completed(first));
    bench.check();
}

#[test]
fn an_end_is_before_its_own_stream_and_no_other() {
    let mut bench = Bench::new();
    let (a, b) = (bench.stream(), bench.stream());
    let end = bench.order.advance(a);
    assert!(bench.order.is_before(end, a));
    assert!(!bench.order.is_before(end, b));
}

#[test]
fn a_range_is_usable_when_all_its_ends_are_before_the_asker() {
    let mut bench = Bench::new();
    let (a, b) = (bench.stream(), bench.stream());
    let both: Ends = [a, b].map(|s| bench.order.advance(s)).into_iter().collect();
    assert!(
        !bench.order.usable(&both, a, Reasons::ALL) && !bench.order.usable(&both, b, Reasons::ALL)
    );
    let marker = bench.marker(b);
    bench.order.waited(a, &marker);
    assert!(bench.order.usable(&both, a, Reasons::ALL) && !bench.order.completed(&both));
    assert!(
        bench.order.usable(&Ends::default(), a, Reasons::ALL)
            && bench.order.completed(&Ends::default())
    );
}

#[test]
fn of_two_ends_on_one_stream_the_later_stays() {
    let (a, b) = (StreamIndex(0), StreamIndex(1));
    let end = |stream, position| End { stream, position };
    let mut ends = Ends::from(end(a, 5));
    ends.add(end(a, 3));
    assert_eq!(ends.iter().collect::<Vec<_>>(), [end(a, 5)]);
    assert_eq!(ends.only_stream(), Some(a));
    ends.merge(&[end(b, 1), end(a, 9)].into_iter().collect());
    assert_eq!(ends.iter().collect::<Vec<_>>(), [end(a, 9), end(b, 1)]);
    assert_eq!(ends.only_stream(), None);
    let ends: Ends = ends.iter().filter(|end| end.stream == b).collect();
    assert_eq!(ends, Ends::from(end(b, 1)));
}

#[test]
fn a_callers_event_passes_on_what_its_stream_knew_when_it_was_recorded() {
    let mut bench = Bench::new();
    let (a, b, c) = (bench.stream(), bench.stream(), bench.stream());
    let before = bench.order.advance(a);
    let through = bench.order.knowledge(a);
    bench.order.learn(b, &through);
    let recorded = bench.order.recording(b);
    bench.order.remember_event(EVENT, recorded);
    let after = bench.order.advance(a);
    let known = bench.order.event_knowledge(EVENT).unwrap();
    bench.order.learn(c, &known);
    assert!(bench.order.is_before(before, c), "through b");
    assert!(!bench.order.is_before(after, c));
    bench.order.forget_event(EVENT);
    assert_eq!(bench.order.event_knowledge(EVENT), None);
    bench.check();
}

#[test]
fn a_marker_stands_for_what_its_stream_waited_for() {
    let mut bench = Bench::new();
    let (a, b, c) = (bench.stream(), bench.stream(), bench.stream());
    let (on_a, on_b) = (bench.order.advance(a), bench.order.advance(b));
    let marker = bench.marker(a);
    bench.order.waited(b, &marker);
    let last = bench.order.advance(b);
    let marker = bench.marker(b);
    bench.order.waited(c, &marker);
    for end in [on_a, on_b, last] {
        assert!(bench.order.is_before(end, c));
        assert!(!bench.order.is_completed(end));
    }
    bench.order.marker_completed(&marker);
    for end in [on_a, on_b, last] {
        assert!(bench.order.is_completed(end));
    }
    bench.check();
}

#[test]
fn the_earliest_marker_that_covers_an_end_is_given() {
    let mut bench = Bench::new();
    let a = bench.stream();
    let first = bench.order.advance(a);
    let low = bench.marker(a);
    let second = bench.order.advance(a);
    assert!(bench.order.marker_for(second).is_none());
    assert_eq!(bench.order.unmarked_streams(), [a]);
    let high = bench.marker(a);
    let position = |end| bench.order.marker_for(end).unwrap().position;
    assert_eq!(position(first), low.position);
    assert_eq!(position(second), high.position);
    assert_eq!(bench.order.unmarked_streams(), []);
    assert_eq!(bench.order.oldest_markers()[0].position, low.position);
    assert_eq!(bench.order.marker_request(a), None, "one stands there");
}

#[test]
fn markers_recorded_out_of_turn_stand_in_order() {
    let mut bench = Bench::new();
    let a = bench.stream();
    bench.order.advance(a);
    let early = bench.order.marker_request(a).unwrap();
    bench.order.advance(a);
    let late = bench.order.marker_request(a).unwrap();
    bench.mark(late);
    bench.mark(early);
    bench.check();
}

#[test]
fn a_marker_that_comes_after_its_completion_hides_no_completion() {
    let mut bench = Bench::new();
    let a = bench.stream();
    bench.order.advance(a);
    let early = bench.order.marker_request(a).unwrap();
    bench.order.advance(a);
    let all = bench.order.everything();
    bench.order.synchronized_knowledge(&all);
    bench.mark(early);
    assert_eq!(
        bench.order.unmarked_streams(),
        [],
        "nothing is left to mark"
    );
    assert_eq!(bench.order.marker_request(a), None);
}

#[test]
fn one_stream_alone_is_not_marked_and_two_are_by_share_and_floor() {
    let mut bench = Bench::new();
    let a = bench.stream();
    bench.order.advance(a);
    assert_eq!(bench.order.freed(a, 1 << 40, 0), None);
    bench.stream();
    bench.order.timelines[a.slot()].unmarked = 0;
    assert_eq!(bench.order.freed(a, MARKER_FLOOR - 1, 0), None);
    assert!(bench.order.freed(a, 1, 0).is_some());
    let live = MARKER_FLOOR * MARKER_SHARE * 10;
    assert_eq!(bench.order.freed(a, MARKER_FLOOR * 10 - 1, live), None);
    assert!(bench.order.freed(a, 1, live).is_some());
}

#[test]
fn what_the_host_saw_never_passes_what_was_freed() {
    let mut bench = Bench::new();
    let (a, b) = (bench.stream(), bench.stream());
    let end = bench.order.advance(a);
    let seen = bench.order.everything();
    let later = bench.order.advance(a);
    bench.order.synchronized_knowledge(&seen);
    assert!(bench.order.is_completed(end) && bench.order.is_before(end, b));
    assert!(!bench.order.is_completed(later));
    bench.check();
}

#[test]
fn a_stream_with_live_blocks_is_closed_by_a_marker_for_their_last_uses() {
    let mut bench = Bench::new();
    let a = bench.stream();
    bench.order.name(a);
    bench.order.advance(a);
    bench.marker(a);
    // The block may have been used since that marker.
    let request = bench.order.closing(a).unwrap();
    bench.mark(request);
    bench.order.retire(a);
    assert!(!bench.order.has_lost_work());
    let end = bench.order.advance(a);
    let earlier = bench.order.oldest_markers()[0].clone();
    bench.order.marker_completed(&earlier);
    assert!(!bench.order.is_completed(end));
    let last = bench.order.marker_for(end).unwrap();
    bench.order.marker_completed(&last);
    assert!(bench.order.is_completed(end));
    assert_eq!(bench.order.finished(), [a]);
    bench.check();
}

#[test]
fn a_stream_that_nothing_names_and_that_is_marked_needs_no_closing() {
    let mut bench = Bench::new();
    let a = bench.stream();
    assert_eq!(bench.order.closing(a), None);
    bench.order.retire(a);
    assert_eq!(bench.order.finished(), [a]);
}

#[test]
fn what_was_not_marked_before_a_stream_went_is_lost_until_the_device_is_done() {
    for lose in [false, true] {
        let mut bench = Bench::new();
        let a = bench.stream();
        bench.order.name(a);
        let end = bench.order.advance(a);
        if lose {
            bench.order.lose(a);
        } else {
            bench.order.retire(a);
        }
        assert!(bench.order.has_lost_work());
        assert_eq!(bench.order.marker_request(a), None);
        assert_eq!(bench.order.finished(), []);
        let all = bench.order.everything();
        bench.order.synchronized_knowledge(&all);
        assert!(bench.order.is_completed(end) && !bench.order.has_lost_work());
        bench.check();
    }
}

#[test]
fn a_lost_streams_live_blocks_may_have_been_used_after_its_last_marker() {
    let mut bench = Bench::new();
    let a = bench.stream();
    bench.order.name(a);
    bench.order.advance(a);
    let marker = bench.marker(a);
    bench.order.lose(a);
    bench.order.marker_completed(&marker);
    let end = bench.order.advance(a);
    assert!(!bench.order.is_completed(end));
}

#[test]
fn a_marker_recorded_after_its_stream_went_counts_for_nothing() {
    // Its event may stand on another stream that was given the same handle value.
    let mut bench = Bench::new();
    let a = bench.stream();
    let end = bench.order.advance(a);
    let request = bench.order.marker_request(a).unwrap();
    bench.order.lose(a);
    bench.mark(request);
    assert!(bench.order.marker_for(end).is_none());
}

#[test]
fn a_slot_that_a_live_block_names_is_not_given_away() {
    let mut bench = Bench::new();
    let a = bench.stream();
    bench.order.name(a);
    bench.order.lose(a);
    let all = bench.order.everything();
    bench.order.synchronized_knowledge(&all);
    bench.order.vacate(a);
    assert_ne!(bench.stream(), a);
    bench.order.unname(a);
    bench.order.vacate(a);
    assert_eq!(bench.stream(), a);
    bench.check();
}

#[test]
fn what_was_known_of_a_slots_old_stream_says_nothing_of_its_new_one() {
    let mut bench = Bench::new();
    let (a, b) = (bench.stream(), bench.stream());
    let old = [bench.order.advance(b), bench.order.advance(b)];
    let knowledge = bench.order.knowledge(b);
    bench.order.learn(a, &knowledge);
    let recorded = bench.order.recording(b);
    bench.order.remember_event(EVENT, recorded);
    bench.order.advance(a);
    // A query, a wait and a synchronisation are under way while the slot changes hands.
    let queried = bench.marker(a);
    let synchronised = bench.order.everything();
    bench.order.synchronized_knowledge(&synchronised);
    bench.order.retire(b);
    bench.order.vacate(b);
    let (new, c) = (bench.stream(), bench.stream());
    assert_eq!(new, b, "the slot is used again");
    let end = bench.order.advance(new);
    bench.order.marker_completed(&queried);
    bench.order.synchronized_knowledge(&synchronised);
    bench.order.waited(c, &queried);
    let known = bench.order.event_knowledge(EVENT).unwrap();
    bench.order.learn(c, &known);
    assert!(!bench.order.is_completed(end));
    assert!(!bench.order.is_before(end, a) && !bench.order.is_before(end, c));
    assert!(old.iter().all(|&end| bench.order.is_completed(end)));
    bench.check();
}

#[test]
fn an_event_on_loan_is_nobody_elses_until_the_last_holder_lets_go() {
    let events = EventPool::new(Arc::new(SimDevice::new()));
    let first = events.take().unwrap();
    let again = Arc::clone(&first);
    let id = first.id();
    drop(first);
    assert_ne!(events.take().unwrap().id(), id);
    drop(again);
    let taken = [events.take().unwrap(), events.take().unwrap()];
    assert!(taken.iter().any(|event| event.id() == id));
}

#[test]
fn an_order_or_a_completion_that_does_not_count_makes_nothing_usable() {
    let mut bench = Bench::new();
    let (a, b) = (bench.stream(), bench.stream());
    let reasons = |ordered, completed| Reasons { ordered, completed };
    let ends = Ends::from(bench.order.advance(a));
    let marker = bench.marker(a);
    assert!(bench.order.usable(&ends, a, reasons(false, false)));
    bench.order.waited(b, &marker);
    assert!(!bench.order.usable(&ends, b, reasons(false, true)));
    assert!(bench.order.usable(&ends, b, reasons(true, false)));
    bench.order.marker_completed(&marker);
    assert!(bench.order.usable(&ends, b, reasons(false, true)));
    assert!(!bench.order.usable(&ends, b, reasons(false, false)));
    // The caller waited himself: no policy is needed to believe that.
    let all = bench.order.everything();
    bench.order.synchronized_knowledge(&all);
    assert!(bench.order.usable(&ends, b, reasons(false, false)));
}
