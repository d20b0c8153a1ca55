//! Graphs with real bytes: captures into the pool's graph memory, and replays of what they hold.
//!
//! Nothing here can capture a device's streams, so a capture is a list of what the program queued,
//! and a replay queues it again, on streams of its own with the same order between them. That is
//! what a graph does with its memory: it uses all of it again, without the pool's seeing it.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::host::HostDevice;
use millpond::device::{Device, EventId, Findings, Pattern, StreamId, StreamOrder};
use millpond::{Block, Capture, GraphMemory, Pool};

const MIB: u64 = 1 << 20;
const STREAMS: usize = 3;

/// Numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// What a captured stream was given.
#[derive(Clone, Copy)]
enum Node {
    Fill(u64, u64, Pattern),
    Verify(u64, u64, Pattern),
    Record(usize),
    Wait(usize),
}

struct Graph {
    nodes: Vec<(usize, Node)>,
    events: usize,
    /// Blocks that outlive the capture.
    outputs: Vec<(Block, Pattern)>,
}

struct Program {
    device: Arc<dyn Device>,
    pool: Pool,
    captured: [StreamId; STREAMS],
    replaying: [StreamId; STREAMS],
    findings: Arc<Findings>,
    random: Random,
    patterns: u64,
}

struct Held {
    block: Block,
    pattern: Pattern,
    users: Vec<usize>,
}

impl Program {
    fn new(seed: u64) -> Program {
        let device = HostDevice::builder()
            .total_memory(128 * MIB)
            .delays(seed, Duration::from_micros(300))
            .build();
        let device: Arc<dyn Device> = Arc::new(device.expect("a host device"));
        let stream = || device.create_stream(StreamOrder::Independent);
        let streams = || [(); STREAMS].map(|()| stream().expect("a stream"));
        Program {
            pool: Pool::builder(Arc::clone(&device)).build().expect("a pool"),
            captured: streams(),
            replaying: streams(),
            findings: Findings::new(),
            random: Random(seed),
            patterns: 0,
            device,
        }
    }

    fn pattern(&mut self) -> Pattern {
        self.patterns += 1;
        Pattern(self.patterns.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Lets one captured stream come after another, as the pool sees it. Nothing is queued on the
    /// device: the events stand for places in the graph.
    fn order(&self, graph: &mut Graph, event: EventId, from: usize, to: usize) {
        let [before, after] = [from, to].map(|stream| self.captured[stream]);
        self.pool.record_event(event, before).expect("recorded");
        self.pool.wait_event(after, event).expect("waited");
        graph.nodes.push((from, Node::Record(graph.events)));
        graph.nodes.push((to, Node::Wait(graph.events)));
        graph.events += 1;
    }

    fn capture(&mut self, memory: &GraphMemory) -> Graph {
        let mut graph = Graph {
            nodes: Vec::new(),
            events: 0,
            outputs: Vec::new(),
        };
        let event = self.device.create_event().expect("an event");
        let capture = memory.begin_capture(self.captured[0]).expect("a capture");
        for stream in 1..STREAMS {
            self.order(&mut graph, event, 0, stream);
        }
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..60 {
            self.step(&mut graph, &mut held, event);
        }
        // The streams come together again, as a capture must end.
        for stream in 1..STREAMS {
            self.order(&mut graph, event, stream, 0);
        }
        for held in held {
            graph.outputs.push((held.block, held.pattern));
        }
        Capture::end(capture);
        self.pool.forget_event(event);
        self.device.destroy_event(event).expect("destroyed");
        graph
    }

    fn step(&mut self, graph: &mut Graph, held: &mut Vec<Held>, event: EventId) {
        let stream = self.random.below(STREAMS);
        match self.random.below(10) {
            0..4 => {
                let size = 1 + self.random.below(MIB as usize) as u64;
                let block = self.pool.allocate(size, self.captured[stream]);
                let block = block.expect("memory");
                let pattern = self.pattern();
                let node = Node::Fill(block.address(), size, pattern);
                graph.nodes.push((stream, node));
                let users = vec![stream];
                held.push(Held {
                    block,
                    pattern,
                    users,
                });
            }
            4..6 if !held.is_empty() => {
                let place = self.random.below(held.len());
                let from = held[place].users[0];
                if from != stream {
                    self.order(graph, event, from, stream);
                }
                let held = &mut held[place];
                held.block.use_on(self.captured[stream]).expect("used");
                if !held.users.contains(&stream) {
                    held.users.push(stream);
                }
                let node = Node::Verify(held.block.address(), held.block.size(), held.pattern);
                graph.nodes.push((stream, node));
            }
            6..9 if !held.is_empty() => {
                let place = self.random.below(held.len());
                let Held {
                    block,
                    pattern,
                    users,
                } = held.swap_remove(place);
                for stream in users {
                    let node = Node::Verify(block.address(), block.size(), pattern);
                    graph.nodes.push((stream, node));
                }
                drop(block);
            }
            _ => {
                let other = self.random.below(STREAMS);
                if other != stream {
                    self.order(graph, event, stream, other);
                }
            }
        }
    }

    /// Queues what the graph holds, and waits until it is done: graphs that share memory do not
    /// overlap.
    fn replay(&self, graph: &Graph) {
        let device = &*self.device;
        let events: Vec<EventId> = (0..graph.events)
            .map(|_| device.create_event().expect("an event"))
            .collect();
        for &(stream, node) in &graph.nodes {
            let stream = self.replaying[stream];
            let queued = match node {
                Node::Fill(address, size, pattern) => device.fill(stream, address, size, pattern),
                Node::Verify(address, size, pattern) => {
                    device.verify(stream, address, size, pattern, &self.findings)
                }
                Node::Record(event) => device.record_event(events[event], stream),
                Node::Wait(event) => device.wait_event(stream, events[event]),
            };
            queued.expect("queued");
        }
        device
            .synchronize_stream(self.replaying[0])
            .expect("replayed");
        for (block, pattern) in &graph.outputs {
            let (address, size) = (block.address(), block.size());
            let stream = self.replaying[0];
            device
                .verify(stream, address, size, *pattern, &self.findings)
                .expect("queued");
        }
        device
            .synchronize_stream(self.replaying[0])
            .expect("verified");
        for event in events {
            device.destroy_event(event).expect("destroyed");
        }
    }

    /// The program's other work: blocks of the pool's, on streams that were captured before.
    fn work_beside(&mut self) -> Vec<(Block, Pattern)> {
        let blocks = (0..6).map(|_| {
            let stream = self.captured[self.random.below(STREAMS)];
            let size = 1 + self.random.below(2 * MIB as usize) as u64;
            let block = self.pool.allocate(size, stream).expect("memory");
            let pattern = self.pattern();
            self.device
                .fill(stream, block.address(), size, pattern)
                .expect("queued");
            (block, pattern)
        });
        blocks.collect()
    }

    fn verify(&self, blocks: &[(Block, Pattern)]) {
        self.device.synchronize().expect("done");
        for (block, pattern) in blocks {
            let stream = self.replaying[0];
            let (address, size) = (block.address(), block.size());
            self.device
                .verify(stream, address, size, *pattern, &self.findings)
                .expect("queued");
        }
        self.device.synchronize().expect("done");
        assert_eq!(self.findings.wrong_bytes(), 0, "{:?}", self.findings);
        self.pool.validate().expect("books that agree");
    }
}

#[test]
fn replays_find_what_they_left() {
    for seed in 0..25 {
        let mut program = Program::new(seed);
        // Two graphs share memory, one has its own.
        let (shared, own) = (program.pool.graph_memory(), program.pool.graph_memory());
        let mut graphs = Vec::new();
        for memory in [&shared, &own, &shared] {
            let mut graph = program.capture(memory);
            // Some outputs are given up when the capture is over.
            let kept = program.random.below(graph.outputs.len() + 1);
            graph.outputs.truncate(kept);
            graphs.push(graph);
        }
        let mut beside = program.work_beside();
        for round in 0..6 {
            // Once everything around the graphs was freed, moved and given back.
            if round == 3 {
                beside.clear();
                program.pool.synchronize().expect("synchronised");
                program.pool.trim(0).expect("trimmed");
                beside = program.work_beside();
            }
            for place in [0, 2, 1, 2, 0] {
                program.replay(&graphs[place]);
            }
            program.verify(&beside);
        }
        drop((beside, graphs, shared, own));
        program.pool.synchronize().expect("synchronised");
        program.pool.trim(0).expect("trimmed");
        let left = program.pool.statistics();
        assert_eq!(left.reserved_bytes, 0, "seed {seed}: {left:?}");
        let info = program.device.memory_info().expect("figures");
        assert_eq!(info.free, info.total, "seed {seed}");
    }
}

#[test]
fn memory_is_shared_within_a_capture_and_between_graphs() {
    // What the random captures of one memory hold at most, not the sum of them.
    let mut program = Program::new(1);
    let memory = program.pool.graph_memory();
    let first = program.capture(&memory);
    let once = memory.reserved_bytes();
    let asked: u64 = first
        .nodes
        .iter()
        .map(|(_, node)| match node {
            Node::Fill(_, size, _) => *size,
            _ => 0,
        })
        .sum();
    assert!(once < asked, "{once} of {asked}");
    drop(first);
    for _ in 0..20 {
        drop(program.capture(&memory));
    }
    let many = memory.reserved_bytes();
    assert!(many <= 2 * once, "{many} for 21 graphs, {once} for one");
}
