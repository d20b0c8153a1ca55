//! See [`JobKind::ProducerConsumers`](super::JobKind::ProducerConsumers).
//!
//! Batches of 64 to 96 MiB, and six models that each read every batch. The producer is faster than
//! the slowest of them, and nothing in the program holds it back but the host, which launches 40
//! batches and then waits until all is done.

use std::collections::VecDeque;

use super::MIB;
use super::job::{Block, Job};

const PRODUCER: u32 = 0;
const CONSUMERS: u32 = 6;
const ROUNDS: usize = 20;
const BATCHES_OF_A_ROUND: usize = 40;
/// Of each consumer.
const WEIGHTS: [u64; 4] = [24 * MIB; 4];
const WORKSPACE: u64 = 12 * MIB;
const RESULT: u64 = MIB / 2;
/// Batches after which the results are taken.
const RESULTS_KEPT: usize = 8;
/// What the host does between rounds, in nanoseconds.
const BETWEEN_ROUNDS: u64 = 500_000;
/// What a batch takes, in nanoseconds.
const PRODUCING: u64 = 700_000;
const CONSUMING: [u64; CONSUMERS as usize] =
    [400_000, 520_000, 640_000, 760_000, 880_000, 1_000_000];

pub(super) fn run(seed: u64) -> Job {
    let mut job = Job::new(seed, CONSUMERS as usize + 1);
    let mut weights: Vec<[Block; WEIGHTS.len()]> = Vec::new();
    for consumer in 1..=CONSUMERS {
        let blocks = WEIGHTS.map(|size| job.allocate(consumer, size));
        job.launch(consumer, 500_000, &blocks);
        weights.push(blocks);
    }
    let mut results: VecDeque<Vec<Block>> = VecDeque::new();
    for _ in 0..ROUNDS {
        for _ in 0..BATCHES_OF_A_ROUND {
            results.push_back(batch(&mut job, &weights));
            if results.len() > RESULTS_KEPT
                && let Some(oldest) = results.pop_front()
            {
                job.free_all(oldest);
            }
        }
        for stream in PRODUCER..=CONSUMERS {
            job.wait_until(job.ready_at(stream));
        }
        job.think(BETWEEN_ROUNDS);
    }
    job.free_all(results.into_iter().flatten());
    job.free_all(weights.into_iter().flatten());
    job
}

/// Makes a batch and gives it to all consumers; gives what they make of it.
fn batch(job: &mut Job, weights: &[[Block; WEIGHTS.len()]]) -> Vec<Block> {
    job.think(40_000);
    let size = job.random.between(16, 24) * 4 * MIB;
    let batch = job.allocate(PRODUCER, size);
    job.launch(PRODUCER, PRODUCING, [&batch]);
    let produced = job.record(PRODUCER);
    let mut results = Vec::new();
    for (consumer, weights) in (1..=CONSUMERS).zip(weights) {
        job.wait(consumer, produced);
        job.use_on(&batch, consumer);
        let workspace = job.allocate(consumer, WORKSPACE);
        let result = job.allocate(consumer, RESULT);
        let time = CONSUMING[consumer as usize - 1];
        let blocks = weights.iter().chain([&batch, &workspace, &result]);
        job.launch(consumer, time, blocks);
        job.free(workspace);
        results.push(result);
    }
    job.free(batch);
    results
}
