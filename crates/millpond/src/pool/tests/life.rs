//! Every sequence of calls on a few blocks and two streams, up to a length, against a plain model
//! of what a block's memory is: allocated, used, ended, pending, free, a graph's.
//!
//! The model knows who used what, in which order the streams are, and what the device has done; of
//! the pool it knows nothing. It checks that nobody gets memory before its uses are over or ordered
//! before him, that memory that he may have is not passed over, that a graph's memory stays the
//! graph's, and that the statistics say what there is.

use super::*;
use crate::device::EventId;
use crate::{Capture, GraphMemory};

const SIZE: u64 = 2 * MIB;
const LONG: u64 = 1_000_000_000;
const BLOCKS: usize = 3;
const STREAMS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Allocate(usize),
    Use(usize, usize),
    EndUse(usize),
    Free(usize),
    /// The second stream comes after the first, as the pool is told.
    Order(usize, usize),
    /// The device does all that it was given.
    Complete,
    Begin(usize),
    End,
}

fn steps() -> Vec<Step> {
    let streams = 0..STREAMS;
    let mut all: Vec<Step> = streams.clone().map(Step::Allocate).collect();
    for block in 0..BLOCKS {
        all.extend([Step::Free(block), Step::EndUse(block)]);
        all.extend(streams.clone().map(|stream| Step::Use(block, stream)));
    }
    all.extend([Step::Order(0, 1), Step::Order(1, 0), Step::Complete]);
    all.extend(streams.map(Step::Begin));
    all.push(Step::End);
    all
}

/// Where a use ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    stream: usize,
    position: u64,
    /// In a capture: its number. Otherwise the device is done with it at `time`.
    capture: Option<u64>,
    time: u64,
    /// Whether the pool could record a marker just there.
    marked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Using {
    stream: usize,
    capture: Option<u64>,
}

#[derive(Debug)]
struct Piece {
    address: u64,
    of_graph: bool,
    /// The block that has it.
    block: Option<Block>,
    uses: Vec<Using>,
    ended: Vec<Ended>,
}

#[derive(Default)]
struct Lane {
    position: u64,
    /// Positions of all streams that come before whatever it runs next.
    knows: [u64; STREAMS],
}

struct Life {
    bench: Bench,
    memory: GraphMemory,
    streams: [StreamId; STREAMS],
    event: EventId,
    pieces: Vec<Piece>,
    lanes: [Lane; STREAMS],
    /// The same within the capture under way.
    captured: [Option<Lane>; STREAMS],
    capture: Option<Capture>,
    captures: u64,
}

impl Life {
    fn new() -> Life {
        let bench = Bench::new(256 * MIB);
        let streams = [(); STREAMS].map(|()| bench.stream());
        // Both are known from the beginning, so that markers are recorded from the beginning.
        for stream in streams {
            bench.pool.may_wait(stream).unwrap();
        }
        Life {
            memory: bench.pool.graph_memory(),
            event: bench.sim.create_event().unwrap(),
            bench,
            streams,
            pieces: Vec::new(),
            lanes: Default::default(),
            captured: [None, None],
            capture: None,
            captures: 0,
        }
    }

    /// The pieces that blocks have, in order of address: what steps number.
    fn live(&self, number: usize) -> Option<usize> {
        let live = self.pieces.iter().enumerate();
        let mut live = live.filter(|(_, piece)| piece.block.is_some());
        live.nth(number).map(|(place, _)| place)
    }

    fn makes_sense(&self, step: Step) -> bool {
        match step {
            Step::Allocate(_) => self.live(BLOCKS - 1).is_none(),
            Step::Free(number) => self.live(number).is_some(),
            Step::EndUse(number) => {
                let place = self.live(number);
                place.is_some_and(|place| !self.pieces[place].uses.is_empty())
            }
            Step::Use(number, stream) => self.live(number).is_some_and(|place| {
                let mut uses = self.pieces[place].uses.iter();
                uses.all(|using| using.stream != stream)
            }),
            // A captured stream cannot wait for what is not captured.
            Step::Order(from, to) => self.captured[from].is_some() || self.captured[to].is_none(),
            Step::Complete => true,
            Step::Begin(_) => self.capture.is_none(),
            Step::End => self.capture.is_some(),
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Allocate(stream) => self.allocate(stream),
            Step::Use(number, stream) => {
                let place = self.live(number).unwrap();
                let block = self.pieces[place].block.as_ref().unwrap();
                block.use_on(self.streams[stream]).unwrap();
                self.begin_use(place, stream);
            }
            Step::EndUse(number) => {
                let place = self.live(number).unwrap();
                let using = self.pieces[place].uses.remove(0);
                let block = self.pieces[place].block.as_ref().unwrap();
                block.use_ended(self.streams[using.stream]).unwrap();
                self.end_use(place, using);
            }
            Step::Free(number) => {
                let place = self.live(number).unwrap();
                for using in std::mem::take(&mut self.pieces[place].uses) {
                    self.end_use(place, using);
                }
                drop(self.pieces[place].block.take());
            }
            Step::Order(from, to) => self.order(from, to),
            Step::Complete => self.bench.sim.advance_host_by(100 * LONG),
            Step::Begin(stream) => {
                let capture = self.memory.begin_capture(self.streams[stream]).unwrap();
                self.capture = Some(capture);
                self.captures += 1;
                self.captured[stream] = Some(Lane::default());
            }
            Step::End => {
                self.capture = None;
                self.captured = [None, None];
                // What was captured is an ordinary use from now on.
                for using in self.pieces.iter_mut().flat_map(|piece| &mut piece.uses) {
                    using.capture = None;
                }
            }
        }
    }

    /// The stream uses the piece from now on, and is given work.
    fn begin_use(&mut self, place: usize, stream: usize) {
        let in_graph = self.captured[stream].is_some();
        let capture = (in_graph && self.pieces[place].of_graph).then_some(self.captures);
        if !in_graph {
            let stream = self.streams[stream];
            self.bench.sim.enqueue_work(stream, LONG).unwrap();
        }
        self.pieces[place].uses.push(Using { stream, capture });
    }

    fn end_use(&mut self, place: usize, using: Using) {
        let Using { stream, capture } = using;
        let in_graph = self.captured[stream].is_some();
        let lane = match (&mut self.captured[stream], capture) {
            (Some(lane), Some(_)) => lane,
            _ => &mut self.lanes[stream],
        };
        lane.position += 1;
        let ended = Ended {
            stream,
            position: lane.position,
            capture,
            time: self
                .bench
                .sim
                .stream_ready_at(self.streams[stream])
                .unwrap(),
            marked: !in_graph,
        };
        self.pieces[place].ended.push(ended);
    }

    fn order(&mut self, from: usize, to: usize) {
        let [before, after] = [from, to].map(|stream| self.streams[stream]);
        self.bench.pool.record_event(self.event, before).unwrap();
        self.bench.pool.wait_event(after, self.event).unwrap();
        let known = |lane: &Lane| {
            let mut knows = lane.knows;
            knows[from] = lane.position;
            knows
        };
        let (knows, lane) = match &self.captured[from] {
            Some(lane) => {
                let knows = known(lane);
                (knows, self.captured[to].get_or_insert_default())
            }
            None => (known(&self.lanes[from]), &mut self.lanes[to]),
        };
        for (mine, theirs) in lane.knows.iter_mut().zip(knows) {
            *mine = theirs.max(*mine);
        }
    }

    /// Whether a stream may have the piece now; and whether the pool must know that it may.
    fn usable(&self, piece: &Piece, stream: usize) -> (bool, bool) {
        let in_graph = self.captured[stream].is_some();
        if piece.block.is_some() || piece.of_graph != in_graph {
            return (false, false);
        }
        let (mut may, mut known) = (true, true);
        for end in &piece.ended {
            if let Some(capture) = end.capture {
                let over = self.capture.is_none() || capture != self.captures;
                let lane = self.captured[stream].as_ref();
                let before = lane.is_some_and(|lane| lane.knows[end.stream] >= end.position);
                may &= over || end.stream == stream || before;
                continue;
            }
            let completed = self.bench.sim.now() >= end.time;
            let ordered = !in_graph
                && (end.stream == stream || self.lanes[stream].knows[end.stream] >= end.position);
            may &= completed || ordered;
            // In a capture nothing is asked; and a marker may stand for more than this use.
            known &= ordered || (completed && end.marked && !in_graph);
        }
        (may, may && known)
    }

    fn allocate(&mut self, stream: usize) {
        let usable: Vec<(bool, bool)> = self
            .pieces
            .iter()
            .map(|piece| self.usable(piece, stream))
            .collect();
        // What touches it may have become one with it, and holds it up.
        let alone = |place: usize| {
            let piece = &self.pieces[place];
            self.pieces.iter().zip(&usable).all(|(other, (_, known))| {
                let near = other.address.abs_diff(piece.address) <= SIZE * BLOCKS as u64 * 2;
                !near || other.block.is_some() || other.of_graph != piece.of_graph || *known
            })
        };
        let surely = (0..usable.len()).any(|place| usable[place].1 && alone(place));
        let before = self.bench.pool.statistics().reserved_bytes;
        let block = self.bench.allocate(SIZE, self.streams[stream]);
        let grown = self.bench.pool.statistics().reserved_bytes - before;
        let address = block.address();
        let in_graph = self.captured[stream].is_some();
        let place = self
            .pieces
            .iter()
            .position(|piece| piece.address == address);
        let place = match place {
            Some(place) => {
                assert!(usable[place].0, "{:?}", self.pieces[place]);
                assert_eq!(grown, 0);
                self.pieces[place].ended.clear();
                place
            }
            None => {
                for piece in &self.pieces {
                    assert!(piece.address.abs_diff(address) >= SIZE, "{piece:?}");
                }
                assert!(!surely, "there was memory that it could have");
                assert_eq!(grown, SIZE);
                let piece = Piece {
                    address,
                    of_graph: in_graph,
                    block: None,
                    uses: Vec::new(),
                    ended: Vec::new(),
                };
                let place = self.pieces.partition_point(|p| p.address < address);
                self.pieces.insert(place, piece);
                place
            }
        };
        self.pieces[place].block = Some(block);
        self.begin_use(place, stream);
    }

    fn check(&self) {
        self.bench.check();
        let count = |of_graph: bool, live: bool| {
            let pieces = self.pieces.iter();
            let of = pieces.filter(|p| p.of_graph == of_graph && (!live || p.block.is_some()));
            of.count() as u64
        };
        let said = self.bench.pool.statistics();
        let counted = [
            count(false, true),
            count(true, true),
            (count(false, false) - count(false, true)) * SIZE,
            count(true, false) * SIZE,
            (count(false, false) + count(true, false)) * SIZE,
        ];
        let said = [
            said.live_blocks,
            said.graph_live_blocks,
            said.free_bytes,
            said.graph_reserved_bytes,
            said.reserved_bytes,
        ];
        assert_eq!(said, counted);
        assert_eq!(self.bench.pool.statistics().waits_inserted, 0);
    }

    /// Everything is freed and over; nothing is left.
    fn finish(self) {
        let Life {
            bench,
            memory,
            pieces,
            capture,
            ..
        } = self;
        drop((pieces, capture, memory));
        bench.pool.synchronize().unwrap();
        bench.pool.trim(0).unwrap();
        assert_eq!(bench.pool.statistics().reserved_bytes, 0);
    }
}

/// Runs a sequence; gives whether all of it made sense, and how long the part was that did.
fn run(sequence: &[Step]) -> Result<(), usize> {
    let mut life = Life::new();
    for (place, &step) in sequence.iter().enumerate() {
        if !life.makes_sense(step) {
            return Err(place);
        }
        life.apply(step);
        // What came before was looked at with a shorter sequence.
        if place + 1 == sequence.len() {
            life.check();
        }
    }
    life.finish();
    Ok(())
}

/// Runs every sequence up to a length that begins with these steps. Gives how many there were.
fn explore(sequence: &mut Vec<Step>, steps: &[Step], length: usize) -> u64 {
    let mut runs = 0;
    for &step in steps {
        sequence.push(step);
        let outcome = std::panic::catch_unwind(|| run(sequence));
        match outcome {
            Ok(Ok(())) => {
                runs += 1;
                if sequence.len() < length {
                    runs += explore(sequence, steps, length);
                }
            }
            Ok(Err(_)) => {}
            Err(_) => panic!("after {sequence:?}"),
        }
        sequence.pop();
    }
    runs
}

/// `MILLPOND_LIFE=7` tries sequences of up to seven calls.
#[test]
fn every_sequence_of_calls_does_as_the_model_says() {
    let length = std::env::var("MILLPOND_LIFE").map_or(5, |length| length.parse().unwrap());
    let runs = explore(&mut Vec::new(), &steps(), length);
    assert!(runs > 10_000, "{runs}");
}
