//! Jobs that are in no file: seeded generators of ordered recordings.
//!
//! Each is a program of its own, run in the execution model of [`job`]. The
//! same kind and seed give the same steps, on every machine.
//!
//! # Invariants
//! - What is generated is valid ([`Trace::validate`]), and every block is freed.
//! - Integers alone decide, so that no machine's floating point does.

mod caches;
mod chain;
mod fan_out;
mod independent;
mod job;
mod mixture;
mod random;
mod training;

use crate::model::Trace;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A kind of job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JobKind {
    /// A chain of stages, each on a stream of its own, through which the host sends one
    /// micro-batch after the other to the end before it begins the next (depth first). In the
    /// host's order hardly more than one micro-batch is live; the device has one in every stage.
    StageChain,
    /// Many streams, each fed by a thread of its own, that share nothing: every thread runs small
    /// models for its own requests, and waits for each answer.
    IndependentStreams,
    /// A producer makes batches on its stream; each is read by many consumers on theirs, at
    /// different speeds, and is freed by the host as soon as all were told of it.
    ProducerConsumers,
    /// A transformer's training step on one stream, with another batch size and sequence length
    /// at each step.
    VaryingBatches,
    /// A server of a language model on one stream: the cache of every request grows in chunks, by
    /// a larger block and a copy, until the answer is complete.
    GrowingCaches,
    /// Several unlike models on one stream, called in random order with random batches; only some
    /// have their weights on the device at a time.
    ModelMixture,
}

impl JobKind {
    /// All kinds.
    pub const ALL: [JobKind; 6] = [
        JobKind::StageChain,
        JobKind::IndependentStreams,
        JobKind::ProducerConsumers,
        JobKind::VaryingBatches,
        JobKind::GrowingCaches,
        JobKind::ModelMixture,
    ];

    /// Its name: lower case, with hyphens.
    pub fn name(self) -> &'static str {
        match self {
            JobKind::StageChain => "stage-chain",
            JobKind::IndependentStreams => "independent-streams",
            JobKind::ProducerConsumers => "producer-consumers",
            JobKind::VaryingBatches => "varying-batches",
            JobKind::GrowingCaches => "growing-caches",
            JobKind::ModelMixture => "model-mixture",
        }
    }

    /// What it is, in a line for people.
    pub fn about(self) -> &'static str {
        match self {
            JobKind::StageChain => {
                "4 stages on streams of their own, fed depth first by micro-batches"
            }
            JobKind::IndependentStreams => "12 streams of 12 threads that share nothing",
            JobKind::ProducerConsumers => {
                "a producer's batches, each read by 6 consumers on streams of their own"
            }
            JobKind::VaryingBatches => {
                "one stream: a transformer's training, other batches and lengths at each step"
            }
            JobKind::GrowingCaches => {
                "one stream: a language model's server, whose caches grow by copies"
            }
            JobKind::ModelMixture => {
                "one stream: unlike models in random order, loaded and unloaded"
            }
        }
    }

    /// Makes the recording of such a job; it has the kind's name.
    pub fn generate(self, seed: u64) -> Trace {
        let job = match self {
            JobKind::StageChain => chain::run(seed),
            JobKind::IndependentStreams => independent::run(seed),
            JobKind::ProducerConsumers => fan_out::run(seed),
            JobKind::VaryingBatches => training::run(seed),
            JobKind::GrowingCaches => caches::run(seed),
            JobKind::ModelMixture => mixture::run(seed),
        };
        job.finish(self.name())
    }
}
