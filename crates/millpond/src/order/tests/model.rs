//! Order against a graph: every piece of work, record and wait is a node with an edge from what
//! it comes after, and what comes before what is found by searching it.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Work on a stream that uses what the stream may use.
    Launch(usize),
    /// A range is freed after some work on it; it stays free for ever.
    Free(usize),
    /// A block is named by a stream; it is freed later, perhaps when the stream is gone.
    Hold(usize),
    FreeHeld(usize),
    Record(usize, u64),
    Wait(usize, u64),
    /// A range is freed whose use ended where an event was recorded.
    EndAt(u64),
    /// A marker is requested, recorded, or completed and seen to be: each at its own time.
    Request(usize),
    Mark(usize),
    Query(usize),
    See(usize),
    /// A wait for the marker of a freed range.
    WaitFor(usize, usize),
    /// The host waits for a stream or for everything: begun, and over with `See`.
    Synchronize(Option<usize>),
    /// A stream is destroyed, with or without a word to the pool; a new one comes.
    Replace(usize, bool),
    Vacate,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..4_usize;
    let which = 0..64_usize;
    let event = 0..3_u64;
    prop_oneof![
        2 => stream.clone().prop_map(Step::Launch),
        4 => stream.clone().prop_map(Step::Free),
        2 => stream.clone().prop_map(Step::Hold),
        2 => which.clone().prop_map(Step::FreeHeld),
        2 => (stream.clone(), event.clone()).prop_map(|(s, e)| Step::Record(s, e)),
        2 => (stream.clone(), event.clone()).prop_map(|(s, e)| Step::Wait(s, e)),
        2 => event.prop_map(Step::EndAt),
        3 => stream.clone().prop_map(Step::Request),
        3 => which.clone().prop_map(Step::Mark),
        2 => which.clone().prop_map(Step::Query),
        3 => which.clone().prop_map(Step::See),
        3 => (stream.clone(), which).prop_map(|(s, w)| Step::WaitFor(s, w)),
        1 => proptest::option::of(stream.clone()).prop_map(Step::Synchronize),
        1 => (stream, any::<bool>()).prop_map(|(s, told)| Step::Replace(s, told)),
        2 => Just(Step::Vacate),
    ]
}

#[derive(Default)]
struct Node {
    after: Vec<usize>,
    completed: bool,
}

/// A freed range: its end, and the last piece of work that may use it.
struct Freed {
    end: End,
    node: usize,
}

/// What the host will have seen, when it comes back.
enum Seeing {
    Marker(Marker),
    All(Clock),
}

#[derive(Clone, Copy)]
struct Lane {
    index: StreamIndex,
    key: StreamKey,
    last: usize,
}

struct Pair {
    bench: Bench,
    nodes: Vec<Node>,
    lanes: Vec<Lane>,
    freed: Vec<Freed>,
    /// Named blocks: the slot, and the last piece of work of its stream if that is gone.
    held: Vec<(Lane, Option<usize>)>,
    /// The node of each event's record, and the last piece of work before it.
    events: FxHashMap<u64, (usize, usize)>,
    requests: Vec<(MarkerRequest, usize)>,
    /// The node that each marker's event was recorded at.
    marks: FxHashMap<EventId, usize>,
    seeing: Vec<Seeing>,
}

impl Pair {
    fn new() -> Pair {
        let mut pair = Pair {
            bench: Bench::new(),
            nodes: Vec::new(),
            lanes: Vec::new(),
            freed: Vec::new(),
            held: Vec::new(),
            events: FxHashMap::default(),
            requests: Vec::new(),
            marks: FxHashMap::default(),
            seeing: Vec::new(),
        };
        for _ in 0..4 {
            let lane = pair.new_lane();
            pair.lanes.push(lane);
        }
        pair
    }

    fn new_lane(&mut self) -> Lane {
        let index = self.bench.stream();
        let key = key(self.bench.streams);
        self.nodes.push(Node::default());
        let last = self.nodes.len() - 1;
        Lane { index, key, last }
    }

    /// Queues something on a stream, after what it ran before and after `waits`.
    fn queue(&mut self, lane: usize, waits: Option<usize>) -> usize {
        let mut after = vec![self.lanes[lane].last];
        after.extend(waits);
        let completed = false;
        self.nodes.push(Node { after, completed });
        self.lanes[lane].last = self.nodes.len() - 1;
        self.lanes[lane].last
    }

    /// Whether each node comes before `node`, or is it.
    fn before(&self, node: usize) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut reached[node], true) {
                open.extend(&self.nodes[node].after);
            }
        }
        reached
    }

    /// The device does everything up to a node.
    fn complete(&mut self, node: usize) {
        let reached = self.before(node);
        for (node, reached) in self.nodes.iter_mut().zip(reached) {
            node.completed |= reached;
        }
    }

    fn free(&mut self, lane: Lane, node: usize) {
        let end = self.bench.order.advance(lane.index);
        self.freed.push(Freed { end, node });
    }

    fn mark(&mut self, request: MarkerRequest, lane: Option<usize>) {
        let event = self.bench.events.take().unwrap();
        // On a stream that is gone the record goes to whatever has its value now: to nothing.
        let node = match lane {
            Some(lane) => self.queue(lane, None),
            None => {
                let completed = true;
                let after = Vec::new();
                self.nodes.push(Node { after, completed });
                self.nodes.len() - 1
            }
        };
        self.marks.insert(event.id(), node);
        self.bench.order.marked(request, event);
    }

    fn apply(&mut self, step: &Step) {
        let order = &mut self.bench.order;
        match *step {
            Step::Launch(lane) => {
                self.queue(lane, None);
            }
            Step::Free(lane) => {
                let node = self.queue(lane, None);
                self.free(self.lanes[lane], node);
            }
            Step::Hold(lane) => {
                order.name(self.lanes[lane].index);
                self.held.push((self.lanes[lane], None));
            }
            Step::FreeHeld(which) if !self.held.is_empty() => {
                let (lane, last) = self.held.remove(which % self.held.len());
                let now = self.lanes.iter().find(|l| l.key == lane.key);
                let node = last.or(now.map(|l| l.last)).unwrap();
                self.free(lane, node);
                self.bench.order.unname(lane.index);
            }
            Step::Record(lane, event) => {
                let recorded = order.recording(self.lanes[lane].index);
                order.remember_event(EventId(event), recorded);
                let work = self.lanes[lane].last;
                let node = self.queue(lane, None);
                self.events.insert(event, (node, work));
            }
            Step::EndAt(event) => {
                if let Some(end) = order.end_at_event(EventId(event)) {
                    let (_, node) = self.events[&event];
                    self.freed.push(Freed { end, node });
                }
            }
            Step::Wait(lane, event) => {
                if let Some(knowledge) = order.event_knowledge(EventId(event)) {
                    order.learn(self.lanes[lane].index, &knowledge);
                    let (node, _) = self.events[&event];
                    self.queue(lane, Some(node));
                }
            }
            Step::Request(lane) => {
                if let Some(request) = order.marker_request(self.lanes[lane].index) {
                    self.requests.push((request, lane));
                }
            }
            Step::Mark(which) if !self.requests.is_empty() => {
                let (request, lane) = self.requests.remove(which % self.requests.len());
                let there = self.lanes[lane].key == request.key;
                self.mark(request, there.then_some(lane));
            }
            Step::Query(which) => {
                let markers = order.oldest_markers();
                if !markers.is_empty() {
                    let marker = markers[which % markers.len()].clone();
                    self.complete(self.marks[&marker.event.id()]);
                    self.seeing.push(Seeing::Marker(marker));
                }
            }
            Step::See(which) if !self.seeing.is_empty() => {
                match self.seeing.remove(which % self.seeing.len()) {
                    Seeing::Marker(marker) => order.marker_completed(&marker),
                    Seeing::All(clock) => order.synchronized_knowledge(&clock),
                }
            }
            Step::WaitFor(lane, which) if !self.freed.is_empty() => {
                let end = self.freed[which % self.freed.len()].end;
                if let Some(marker) = order.marker_for(end) {
                    let asker = self.lanes[lane].index;
                    order.waited(asker, &marker);
                    assert!(order.is_before(end, asker), "it waited for just that");
                    let node = self.marks[&marker.event.id()];
                    self.queue(lane, Some(node));
                }
            }
            Step::Synchronize(Some(lane)) => {
                let knowledge = order.knowledge(self.lanes[lane].index);
                self.seeing.push(Seeing::All(knowledge));
                self.complete(self.lanes[lane].last);
            }
            Step::Synchronize(None) => {
                self.seeing.push(Seeing::All(order.everything()));
                for node in &mut self.nodes {
                    node.completed = true;
                }
            }
            Step::Replace(lane, told) => {
                let old = self.lanes[lane];
                if told {
                    let closing = order.closing(old.index);
                    if let Some(request) = closing {
                        self.mark(request, Some(lane));
                    }
                    self.bench.order.retire(old.index);
                } else {
                    order.lose(old.index);
                }
                let last = self.lanes[lane].last;
                for (held, end) in &mut self.held {
                    if held.key == old.key {
                        *end = Some(last);
                    }
                }
                self.lanes[lane] = self.new_lane();
            }
            Step::Vacate => {
                for finished in order.finished() {
                    order.vacate(finished);
                }
            }
            Step::FreeHeld(_) | Step::Mark(_) | Step::See(_) | Step::WaitFor(..) => {}
        }
    }

    fn check(&self) {
        let order = &self.bench.order;
        order.validate().unwrap();
        for freed in &self.freed {
            let done = self.nodes[freed.node].completed;
            assert!(done || !order.is_completed(freed.end), "{:?}", freed.end);
        }
        for lane in &self.lanes {
            let before = self.before(lane.last);
            for freed in &self.freed {
                let said = order.is_before(freed.end, lane.index);
                let is = before[freed.node] || self.nodes[freed.node].completed;
                assert!(is || !said, "{:?} before {:?}", freed.end, lane.index);
                let own = freed.end.stream == lane.index;
                assert!(said || !own, "a stream comes after its own past");
            }
        }
    }

    /// In the end the host waits for the device, and everything is completed.
    fn finish(&mut self) {
        let all = self.bench.order.everything();
        self.bench.order.synchronized_knowledge(&all);
        let order = &self.bench.order;
        assert!(self.freed.iter().all(|freed| order.is_completed(freed.end)));
        assert!(!order.has_lost_work() && order.oldest_markers().is_empty());
    }
}

proptest! {
    #[test]
    fn nothing_is_said_that_the_graph_does_not_hold(
        steps in proptest::collection::vec(step(), 1..150),
    ) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.apply(step);
            pair.check();
        }
        pair.finish();
    }
}
