//! See [`JobKind::StageChain`](super::JobKind::StageChain).
//!
//! A model in four stages of 256 MiB of weights. A step sends 24 micro-batches of 12 to 16 samples
//! through them; the host is ahead of the device until it has launched them all, and then waits for
//! what came out. A stage waits for the one before it,
//! reads what that wrote, needs some memory to work in, and writes as much. An activation is freed
//! by the host as soon as the next stage is launched.

use super::MIB;
use super::job::{Block, Event, Job};

const STAGES: u32 = 4;
const STEPS: usize = 30;
const MICRO_BATCHES: usize = 24;
/// Of each stage.
const WEIGHTS: [u64; 8] = [32 * MIB; 8];
/// Of a sample.
const ACTIVATION: u64 = 4 * MIB;
const WORKSPACE: u64 = 3 * MIB / 2;
/// What a stage takes for a sample, in nanoseconds.
const STAGE_TIMES: [u64; STAGES as usize] = [70_000, 63_000, 77_000, 66_000];
/// What the host has to do for a stage beside its calls, in nanoseconds.
const HOST_TIME: u64 = 25_000;
/// What it does with what came out of a step, in nanoseconds.
const BETWEEN_STEPS: u64 = 300_000;

pub(super) fn run(seed: u64) -> Job {
    let mut job = Job::new(seed, STAGES as usize);
    let mut weights: Vec<[Block; WEIGHTS.len()]> = Vec::new();
    for stage in 0..STAGES {
        let blocks = WEIGHTS.map(|size| job.allocate(stage, size));
        job.launch(stage, 1_000_000, &blocks);
        weights.push(blocks);
    }
    for _ in 0..STEPS {
        let mut results = Vec::new();
        for _ in 0..MICRO_BATCHES {
            results.push(micro_batch(&mut job, &weights));
        }
        job.wait_until(job.ready_at(STAGES - 1));
        job.think(BETWEEN_STEPS);
        job.free_all(results);
    }
    job.free_all(weights.into_iter().flatten());
    job
}

/// Sends one through all stages; gives what comes out.
fn micro_batch(job: &mut Job, weights: &[[Block; WEIGHTS.len()]]) -> Block {
    let samples = job.random.between(12, 16);
    let mut activation = job.allocate(0, samples * ACTIVATION);
    job.launch(0, samples * 8_000, [&activation]);
    let mut written: Option<Event> = None;
    for (stage, weights) in (0..STAGES).zip(weights) {
        job.think(HOST_TIME);
        if let Some(written) = written {
            job.wait(stage, written);
            job.use_on(&activation, stage);
        }
        let workspace = job.allocate(stage, samples * WORKSPACE);
        let last = stage + 1 == STAGES;
        let size = if last {
            samples * MIB / 16
        } else {
            samples * ACTIVATION
        };
        let output = job.allocate(stage, size);
        let time = samples * STAGE_TIMES[stage as usize];
        let blocks = weights.iter().chain([&activation, &workspace, &output]);
        job.launch(stage, time, blocks);
        job.free(workspace);
        job.free(std::mem::replace(&mut activation, output));
        if !last {
            written = Some(job.record(stage));
        }
    }
    activation
}
