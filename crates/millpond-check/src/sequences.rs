//! Random sequences of what a program does with a pool: from a seed, or from proptest.
//!
//! An operation is drawn as four numbers and decoded by one function, so that both generators give
//! the same mix, and so that proptest, which makes numbers smaller, makes sequences simpler.
//! Numbers name blocks, streams and events by choice, not by identity: what is there when the
//! operation runs is taken modulo its count. So every part of a sequence is a sequence.

use proptest::collection::vec;
use proptest::prelude::{Strategy, any};

/// How sequences are to be.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Most threads; at least 1.
    pub threads: u8,
    /// Most streams; at least 1.
    pub streams: u8,
    /// Most operations, over all threads.
    pub operations: usize,
    /// Most bytes that a request asks for, but for those that ask for too much on purpose.
    pub largest: u64,
    /// Whether device calls are made to fail.
    pub faults: bool,
    /// Whether streams are destroyed behind the pool's back, too.
    pub undeclared: bool,
}

/// One operation. The numbers choose among what is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Ask for a block on a stream, and fill it there.
    Allocate {
        /// Bytes.
        size: u64,
        /// Bytes; not always a power of two.
        alignment: u64,
        /// The stream.
        stream: u32,
    },
    /// Free a block, when all its streams have been given the check of its content.
    Free {
        /// The block.
        block: u32,
    },
    /// Free what is no block; must be refused.
    FreeWrongly {
        /// The live block that the address is made from.
        block: u32,
        /// How it is wrong.
        mistake: Mistake,
    },
    /// Use a block on a further stream: it waits for the block's content, and checks it.
    Use {
        /// The block.
        block: u32,
        /// The stream.
        stream: u32,
        /// Whether the wait is made through the pool; if not, it knows nothing of it.
        told: bool,
    },
    /// Say that one of a block's uses is over, before the block is freed.
    EndUse {
        /// The block.
        block: u32,
        /// Which of its streams.
        stream: u32,
        /// Whether it ends at an event, not now.
        at_event: bool,
    },
    /// Hand a block over to another stream, which waits for its content, and checks it.
    HandOver {
        /// The block.
        block: u32,
        /// The stream.
        stream: u32,
        /// Whether the wait is made through the pool.
        told: bool,
    },
    /// Check a block's content on one of its streams.
    Verify {
        /// The block.
        block: u32,
        /// Which of its streams.
        stream: u32,
    },
    /// Record the program's event on a stream.
    Record {
        /// The event.
        event: u32,
        /// The stream.
        stream: u32,
    },
    /// Let a stream wait for the program's event.
    Wait {
        /// The event.
        event: u32,
        /// The stream.
        stream: u32,
    },
    /// Wait on the host for a stream, through the pool.
    SynchronizeStream {
        /// The stream.
        stream: u32,
    },
    /// Wait on the host for the device, through the pool.
    Synchronize,
    /// Give memory back until this much is left.
    Trim {
        /// Bytes.
        keep: u64,
    },
    /// Destroy a stream, and create one in its place.
    ReplaceStream {
        /// The stream.
        stream: u32,
        /// Whether the pool is told.
        declared: bool,
    },
    /// Make one of the next calls to the device fail.
    Fault {
        /// How many calls succeed before that.
        after: u32,
        /// Whether it fails for want of memory, or otherwise.
        out_of_memory: bool,
    },
}

/// How an address that is to be freed can be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// It lies inside a block.
    Interior,
    /// It belongs to nobody.
    Foreign,
}

/// What threads do with one pool, and what they share.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Streams at any time.
    pub streams: u8,
    /// Whether the first of them is the default stream.
    pub default_stream: bool,
    /// Whether threads use their per-thread streams besides.
    pub per_thread: bool,
    /// For each thread, its operations in order.
    pub threads: Vec<Vec<Operation>>,
}

impl Sequence {
    /// The sequence of this seed.
    pub fn from_seed(seed: u64, shape: &Shape) -> Sequence {
        let mut random = Random(seed);
        let streams = 1 + random.below(u32::from(shape.streams.max(1))) as u8;
        let threads = 1 + random.below(u32::from(shape.threads.max(1)));
        let length = 1 + random.below(shape.operations.max(1) as u32) / threads;
        let mut thread = || (0..length).map(|_| decode(random.four(), shape)).collect();
        let threads: Vec<Vec<Operation>> = (0..threads).map(|_| thread()).collect();
        Sequence {
            streams,
            default_stream: random.below(4) == 0,
            per_thread: random.below(4) == 0,
            threads,
        }
    }

    /// Sequences for property tests.
    pub fn strategy(shape: Shape) -> impl Strategy<Value = Sequence> {
        let one = any::<[u32; 4]>().prop_map(move |drawn| decode(drawn, &shape));
        let streams = 1..=shape.streams.max(1);
        let threads = 1..=usize::from(shape.threads.max(1));
        let special = (0..4_u8, 0..4_u8).prop_map(|drawn| (drawn.0 == 3, drawn.1 == 3));
        (streams, threads, special).prop_flat_map(
            move |(streams, threads, (default_stream, per_thread))| {
                let length = 1..=(shape.operations / threads).max(1);
                let thread = vec(one.clone(), length);
                vec(thread, threads).prop_map(move |threads| Sequence {
                    streams,
                    default_stream,
                    per_thread,
                    threads,
                })
            },
        )
    }

    /// Operations of all threads.
    pub fn len(&self) -> usize {
        self.threads.iter().map(Vec::len).sum()
    }

    /// Whether nothing is done.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How often each kind of operation comes, in 256ths; the simplest first.
const WEIGHTS: [u32; 13] = [86, 66, 26, 8, 14, 14, 6, 3, 5, 4, 4, 8, 4];

/// The kind that a number below 256 draws; the rest draws the kind after the last.
fn kind_of(drawn: u32) -> usize {
    let mut bound = 0;
    let reached = |weight: &u32| {
        bound += weight;
        drawn < bound
    };
    WEIGHTS.iter().position(reached).unwrap_or(WEIGHTS.len())
}

fn decode([kind, a, b, c]: [u32; 4], shape: &Shape) -> Operation {
    match kind_of(kind >> 24) {
        0 => Operation::Allocate {
            size: size(a, b, shape.largest),
            alignment: alignment(kind & 0xFF_FFFF),
            stream: c,
        },
        1 => Operation::Free { block: a },
        2 => Operation::Use {
            block: a,
            stream: b,
            told: c & 1 == 0,
        },
        3 => Operation::Verify {
            block: a,
            stream: b,
        },
        4 => Operation::Record {
            event: a,
            stream: b,
        },
        5 => Operation::Wait {
            event: a,
            stream: b,
        },
        6 => Operation::SynchronizeStream { stream: a },
        7 => Operation::Synchronize,
        8 => Operation::Trim {
            keep: size(a, b, shape.largest * 4),
        },
        9 => Operation::FreeWrongly {
            block: a,
            mistake: if b & 1 == 0 {
                Mistake::Interior
            } else {
                Mistake::Foreign
            },
        },
        10 => Operation::ReplaceStream {
            stream: a,
            declared: !shape.undeclared || b & 1 == 0,
        },
        11 => Operation::EndUse {
            block: a,
            stream: b,
            at_event: c & 1 > 0,
        },
        12 => Operation::HandOver {
            block: a,
            stream: b,
            told: c & 1 == 0,
        },
        _ if shape.faults => Operation::Fault {
            after: a % 12,
            out_of_memory: b & 1 == 0,
        },
        _ => Operation::Synchronize,
    }
}

/// Of every size class as often as of any other; one in 64 is nothing, one in 64 too much.
fn size(class: u32, within: u32, largest: u64) -> u64 {
    let largest = largest.max(1);
    match class >> 26 {
        62 => 0,
        63 => u64::MAX - u64::from(within),
        _ => {
            let classes = largest.ilog2() + 1;
            let floor = 1_u64 << (class % classes);
            (floor + u64::from(within) % floor).min(largest)
        }
    }
}

/// Mostly what a pool gives anyway; now and then up to 4 MiB, or what is no alignment.
fn alignment(drawn: u32) -> u64 {
    match drawn % 16 {
        0..12 => 256,
        12..15 => 1 << (drawn / 16 % 23),
        _ => match drawn / 16 % 4 {
            0 => 0,
            1 => 3,
            _ => 512,
        },
    }
}

/// A generator of numbers (SplitMix64): the same seed, the same numbers.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    fn four(&mut self) -> [u32; 4] {
        let (a, b) = (self.next(), self.next());
        [(a >> 32) as u32, a as u32, (b >> 32) as u32, b as u32]
    }
}
