//! See [`JobKind::ModelMixture`](super::JobKind::ModelMixture).
//!
//! Five models, three of them loaded at a time; when another is asked for, the one that was used
//! least recently goes. An image model's feature maps shrink from layer to layer, and every fourth
//! is needed again at the end; a language model's stay the same for a random length. The host is at most 4 calls ahead.

use super::job::{Block, Job};
use super::{KIB, MIB};

const STREAM: u32 = 0;
const CALLS: usize = 500;
const LOADED_AT_ONCE: usize = 3;
const AHEAD: usize = 4;
/// Calls in a row for the same model, at most.
const CALLS_IN_A_ROW: u64 = 12;

struct Model {
    /// Blocks of weights, and the size of each.
    weights: (u64, u64),
    layers: u32,
    /// Bytes of the first layer's output for one item.
    output: u64,
    /// After how many layers the output is half as large; 0: never.
    halves_after: u32,
    /// Every how many layers the output is needed again at the end; 0: never.
    kept_every: u32,
    /// Items of a call at most.
    items: u64,
    /// What a layer takes for a MiB that it writes, in nanoseconds.
    time_for_a_mib: u64,
}

const MODELS: [Model; 5] = [
    // Images, classified.
    Model {
        weights: (48, MIB + 256 * KIB),
        layers: 24,
        output: 3 * MIB,
        halves_after: 6,
        kept_every: 0,
        items: 32,
        time_for_a_mib: 4_000,
    },
    // Images, each pixel.
    Model {
        weights: (40, 3 * MIB),
        layers: 20,
        output: 10 * MIB,
        halves_after: 5,
        kept_every: 4,
        items: 12,
        time_for_a_mib: 5_000,
    },
    // A language model; an item is 64 tokens.
    Model {
        weights: (24, 24 * MIB),
        layers: 24,
        output: 256 * KIB,
        halves_after: 0,
        kept_every: 0,
        items: 128,
        time_for_a_mib: 12_000,
    },
    // Its smaller sister.
    Model {
        weights: (12, 7 * MIB + 512 * KIB),
        layers: 12,
        output: 96 * KIB,
        halves_after: 0,
        kept_every: 0,
        items: 256,
        time_for_a_mib: 10_000,
    },
    // Sound.
    Model {
        weights: (64, 700 * KIB),
        layers: 32,
        output: 5 * MIB / 2,
        halves_after: 12,
        kept_every: 8,
        items: 20,
        time_for_a_mib: 6_000,
    },
];

pub(super) fn run(seed: u64) -> Job {
    let mut job = Job::new(seed, 1);
    // The one used last stands at the end.
    let mut loaded: Vec<(usize, Vec<Block>)> = Vec::new();
    let mut ends = Vec::new();
    let mut calls_left = 0;
    let mut chosen = 0;
    for _ in 0..CALLS {
        if calls_left == 0 {
            calls_left = job.random.skewed(1, CALLS_IN_A_ROW);
            chosen = job.random.below(MODELS.len());
        }
        calls_left -= 1;
        let known = loaded.iter().position(|(model, _)| *model == chosen);
        let (_, weights) = match known {
            Some(index) => loaded.remove(index),
            None => {
                if loaded.len() == LOADED_AT_ONCE {
                    job.wait_until(job.ready_at(STREAM));
                    let (_, weights) = loaded.remove(0);
                    job.free_all(weights);
                }
                (chosen, load(&mut job, &MODELS[chosen]))
            }
        };
        call(&mut job, &MODELS[chosen], &weights);
        loaded.push((chosen, weights));
        ends.push(job.ready_at(STREAM));
        if ends.len() > AHEAD {
            job.wait_until(ends.remove(0));
        }
    }
    for (_, weights) in loaded {
        job.free_all(weights);
    }
    job
}

fn load(job: &mut Job, model: &Model) -> Vec<Block> {
    let (count, size) = model.weights;
    let mut weights = Vec::new();
    for _ in 0..count {
        let block = job.allocate(STREAM, size);
        job.launch(STREAM, size / KIB * 20, [&block]);
        weights.push(block);
    }
    weights
}

fn call(job: &mut Job, model: &Model, weights: &[Block]) {
    job.think(150_000);
    let items = job.random.skewed(1, model.items);
    let mut size = items * model.output;
    let mut input = job.allocate(STREAM, size);
    job.launch(STREAM, size / KIB * 20, [&input]);
    let mut kept = Vec::new();
    for layer in 1..=model.layers {
        if model.halves_after > 0 && layer % model.halves_after == 0 {
            size /= 2;
        }
        let workspace = job.allocate(STREAM, size / 2 + 512);
        let output = job.allocate(STREAM, size);
        let time = 8_000 + size / KIB * model.time_for_a_mib / KIB;
        job.launch(
            STREAM,
            time,
            weights.iter().chain([&input, &workspace, &output]),
        );
        job.free(workspace);
        let input = std::mem::replace(&mut input, output);
        if model.kept_every > 0 && layer % model.kept_every == 0 {
            kept.push(input);
        } else {
            job.free(input);
        }
    }
    while let Some(again) = kept.pop() {
        job.launch(STREAM, 50_000, [&again, &input]);
        job.free(again);
    }
    job.free(input);
}
