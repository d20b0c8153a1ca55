//! A program, its host and its device, in a simple model of how work goes on.
//!
//! # The model
//! - The host does one thing after the other; each call takes it a little time.
//! - A kernel begins when its stream has done everything before it, but not before it was launched.
//!   Kernels of different streams do not slow each other down.
//! - A wait holds a stream up until the event's stream has come to the record.
//! - A block's last use on a stream is over when the last kernel there that was given it is.
//!
//! # Invariants
//! - The steps keep every rule of [`Trace`].
//! - A block is freed at most once, since freeing takes it.

use std::num::NonZeroU64;

use super::random::Random;
use crate::model::{Format, Op, Step, Trace};

/// What a call takes the host, in nanoseconds, give or take a quarter.
const ALLOCATION: u64 = 3_000;
const FREE: u64 = 2_000;
const LAUNCH: u64 = 6_000;
const EVENT_CALL: u64 = 1_500;

/// A live block.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Block(u32);

/// An event that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Event(u32);

#[derive(Debug)]
struct BlockState {
    stream: u32,
    /// When its last use on its own stream is over, or 0.
    own_use_ends: u64,
    /// Further streams, and when its last use there is over, or 0.
    other_uses: Vec<(u32, u64)>,
}

/// See the [module](self). All times are in nanoseconds.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) random: Random,
    host_ns: u64,
    /// When each stream has done what it was given.
    ready: Vec<u64>,
    blocks: Vec<BlockState>,
    /// When each event is reached.
    events: Vec<u64>,
    steps: Vec<Step>,
}

impl Job {
    pub(super) fn new(seed: u64, streams: usize) -> Job {
        Job {
            random: Random::new(seed),
            host_ns: 0,
            ready: vec![0; streams],
            blocks: Vec::new(),
            events: Vec::new(),
            steps: Vec::new(),
        }
    }

    // --- The host ----------------------------------------------------------------------------

    /// The host's time.
    pub(super) fn now(&self) -> u64 {
        self.host_ns
    }

    /// The host does something else for about this time.
    pub(super) fn think(&mut self, ns: u64) {
        self.host_ns += self.random.about(ns);
    }

    /// The host does nothing until this time.
    pub(super) fn wait_until(&mut self, ns: u64) {
        self.host_ns = self.host_ns.max(ns);
    }

    /// When a stream has done what it was given so far.
    pub(super) fn ready_at(&self, stream: u32) -> u64 {
        self.ready[stream as usize]
    }

    // --- Memory ------------------------------------------------------------------------------

    /// Allocates bytes on a stream.
    pub(super) fn allocate(&mut self, stream: u32, size: u64) -> Block {
        let block = self.blocks.len() as u32;
        self.blocks.push(BlockState {
            stream,
            own_use_ends: 0,
            other_uses: Vec::new(),
        });
        self.push(Op::Alloc {
            block,
            size,
            stream,
        });
        self.think(ALLOCATION);
        Block(block)
    }

    /// Says that a block is used on a further stream from now on.
    pub(super) fn use_on(&mut self, block: &Block, stream: u32) {
        let block = block.0;
        self.blocks[block as usize].other_uses.push((stream, 0));
        self.push(Op::Use { block, stream });
    }

    /// Frees a block; the kernels that were given it may still run.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "taken, so that it is freed once"
    )]
    pub(super) fn free(&mut self, block: Block) {
        let Block(block) = block;
        let state = &mut self.blocks[block as usize];
        let (stream, own_use_ends) = (state.stream, state.own_use_ends);
        for (stream, ends) in std::mem::take(&mut state.other_uses) {
            self.push(Op::UseEnd {
                block,
                stream,
                device_ns: NonZeroU64::new(ends),
            });
        }
        self.push(Op::Free {
            block,
            stream,
            device_ns: NonZeroU64::new(own_use_ends),
        });
        self.think(FREE);
    }

    /// Frees blocks, in this order.
    pub(super) fn free_all(&mut self, blocks: impl IntoIterator<Item = Block>) {
        for block in blocks {
            self.free(block);
        }
    }

    // --- Work and order ----------------------------------------------------------------------

    /// Launches a kernel that takes about this time and touches these blocks, of this stream or
    /// used on it.
    pub(super) fn launch<'b>(
        &mut self,
        stream: u32,
        ns: u64,
        blocks: impl IntoIterator<Item = &'b Block>,
    ) {
        self.think(LAUNCH);
        let ready = &mut self.ready[stream as usize];
        let ends = self.host_ns.max(*ready) + self.random.about(ns);
        *ready = ends;
        for block in blocks {
            let state = &mut self.blocks[block.0 as usize];
            if state.stream == stream {
                state.own_use_ends = ends;
            }
            let others = state.other_uses.iter_mut();
            for (_, use_ends) in others.filter(|(user, _)| *user == stream) {
                *use_ends = ends;
            }
        }
    }

    /// Records an event.
    pub(super) fn record(&mut self, stream: u32) -> Event {
        let event = self.events.len() as u32;
        let reached = self.host_ns.max(self.ready[stream as usize]);
        self.events.push(reached);
        self.push(Op::Record {
            event,
            stream,
            device_ns: NonZeroU64::new(reached),
        });
        self.think(EVENT_CALL);
        Event(event)
    }

    /// Lets a stream wait for an event.
    pub(super) fn wait(&mut self, stream: u32, event: Event) {
        let ready = &mut self.ready[stream as usize];
        *ready = (*ready).max(self.events[event.0 as usize]);
        self.push(Op::Wait {
            event: event.0,
            stream,
        });
        self.think(EVENT_CALL);
    }

    // --- The end -----------------------------------------------------------------------------

    /// The recording of it: streams in the order of their first step, under their numbers here.
    pub(super) fn finish(self, name: &str) -> Trace {
        let mut steps = self.steps;
        let mut streams: Vec<u32> = Vec::new();
        let origin = steps.first().map_or(0, |step| step.host_ns);
        for step in &mut steps {
            // Nothing comes before the first step.
            step.host_ns -= origin;
            let (Op::Alloc { stream, .. }
            | Op::Free { stream, .. }
            | Op::Use { stream, .. }
            | Op::UseEnd { stream, .. }
            | Op::Record { stream, .. }
            | Op::Wait { stream, .. }) = &mut step.op;
            let known = streams.iter().position(|known| known == stream);
            let index = known.unwrap_or_else(|| {
                streams.push(*stream);
                streams.len() - 1
            });
            *stream = index as u32;
            if let Op::Free { device_ns, .. }
            | Op::UseEnd { device_ns, .. }
            | Op::Record { device_ns, .. } = &mut step.op
            {
                let since = |ns: NonZeroU64| NonZeroU64::new(ns.get() - origin);
                *device_ns = device_ns.and_then(since);
            }
        }
        Trace {
            name: name.to_owned(),
            format: Format::OrderedCsv,
            ordered: true,
            streams: streams.iter().map(u32::to_string).collect(),
            block_count: self.blocks.len() as u32,
            event_count: self.events.len() as u32,
            steps,
            reserved: Vec::new(),
            failures: Vec::new(),
            addresses: Vec::new(),
            sites: Vec::new(),
            block_sites: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn push(&mut self, op: Op) {
        let host_ns = self.host_ns;
        self.steps.push(Step { host_ns, op });
    }
}
