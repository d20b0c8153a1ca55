//! See [`JobKind::VaryingBatches`](super::JobKind::VaryingBatches).
//!
//! Twelve layers of width 1024, a vocabulary of 32,000, half precision, Adam. A step takes a
//! sequence length from 128 to 2048 and as many sequences as make up to 8192 tokens. The forward
//! pass keeps what the backward pass needs, which frees it in reverse; gradients live until the
//! optimizer has used them. The host is a step ahead at most.

use super::job::{Block, Job};

const STREAM: u32 = 0;
const STEPS: usize = 60;
const LAYERS: usize = 12;
const WIDTH: u64 = 1024;
const HEADS: u64 = 16;
const VOCABULARY: u64 = 32_000;
const TOKENS: u64 = 8192;
/// Bytes of a number in half and in single precision.
const HALF: u64 = 2;
const SINGLE: u64 = 4;
/// Weights of a layer, as matrices: query, key and value; projection; up; down.
const MATRICES: [u64; 4] = [3, 1, 4, 4];

/// What a product of `tokens` rows with a square matrix takes, in nanoseconds.
fn product_time(tokens: u64) -> u64 {
    5_000 + tokens * 5
}

pub(super) fn run(seed: u64) -> Job {
    let mut job = Job::new(seed, 1);
    let sizes: Vec<u64> = (0..LAYERS)
        .flat_map(|_| MATRICES.map(|squares| squares * WIDTH * WIDTH))
        .chain([VOCABULARY * WIDTH])
        .collect();
    let mut parameters = allocate_each(&mut job, &sizes, HALF);
    job.launch(STREAM, 2_000_000, &parameters);
    let mut step_before = 0;
    for step in 0..STEPS {
        let gradients = forward_and_backward(&mut job, &sizes);
        if step == 0 {
            // Adam's two averages, when they are first needed.
            parameters.extend(allocate_each(&mut job, &sizes, SINGLE));
            parameters.extend(allocate_each(&mut job, &sizes, SINGLE));
        }
        for gradient in gradients {
            job.launch(STREAM, 30_000, [&gradient]);
            job.free(gradient);
        }
        let ends = job.ready_at(STREAM);
        job.wait_until(step_before);
        step_before = ends;
    }
    // They are saved, and that is waited for.
    job.launch(STREAM, 5_000_000, &parameters);
    job.wait_until(job.ready_at(STREAM));
    job.free_all(parameters);
    job
}

/// A block for each number of elements.
fn allocate_each(job: &mut Job, sizes: &[u64], bytes: u64) -> Vec<Block> {
    let allocate = |&size: &u64| job.allocate(STREAM, size * bytes);
    sizes.iter().map(allocate).collect()
}

/// A batch through the layers and back; gives the gradients of all parameters.
fn forward_and_backward(job: &mut Job, sizes: &[u64]) -> Vec<Block> {
    let length = job.random.between(2, 32) * 64;
    let most = TOKENS / length;
    let sequences = job.random.between(most.div_ceil(2), most);
    let tokens = sequences * length;
    let row = tokens * WIDTH * HALF;
    let time = product_time(tokens);
    job.think(500_000);

    // Forward: per layer what is kept, the layer's input first.
    let ids = job.allocate(STREAM, tokens * 8);
    let mut input = job.allocate(STREAM, row);
    job.launch(STREAM, time / 4, [&ids, &input]);
    let mut kept: Vec<Vec<Block>> = Vec::new();
    for _ in 0..LAYERS {
        let normed = job.allocate(STREAM, row);
        job.launch(STREAM, time / 8, [&input, &normed]);
        let query_key_value = job.allocate(STREAM, 3 * row);
        job.launch(STREAM, 3 * time, [&normed, &query_key_value]);
        let attended = job.allocate(STREAM, row);
        let sums = job.allocate(STREAM, tokens * HEADS * SINGLE);
        job.launch(STREAM, 2 * time, [&query_key_value, &attended, &sums]);
        let projected = job.allocate(STREAM, row);
        job.launch(STREAM, time, [&attended, &projected]);
        let up = job.allocate(STREAM, 4 * row);
        job.launch(STREAM, 4 * time, [&projected, &up]);
        let activated = job.allocate(STREAM, 4 * row);
        job.launch(STREAM, time / 2, [&up, &activated]);
        let output = job.allocate(STREAM, row);
        job.launch(STREAM, 4 * time, [&activated, &projected, &output]);
        job.free(projected);
        let input = std::mem::replace(&mut input, output);
        kept.push(vec![
            input,
            normed,
            query_key_value,
            attended,
            sums,
            up,
            activated,
        ]);
    }

    // The loss, over the whole vocabulary.
    let logits = job.allocate(STREAM, tokens * VOCABULARY * HALF);
    job.launch(STREAM, 31 * time, [&input, &logits]);
    let probabilities = job.allocate(STREAM, tokens * VOCABULARY * HALF);
    job.launch(STREAM, 4 * time, [&logits, &probabilities, &ids]);
    job.free(logits);
    let mut gradients = Vec::new();
    let mut backward = job.allocate(STREAM, row);
    job.launch(STREAM, 31 * time, [&probabilities, &backward]);
    // Of the parameters, the vocabulary's come last.
    let mut sizes = sizes.iter().rev();
    gradients.extend(sizes.next().map(|size| job.allocate(STREAM, size * HALF)));
    job.launch(
        STREAM,
        31 * time,
        gradients.iter().chain([&probabilities, &input]),
    );
    job.free(probabilities);
    job.free(input);

    // Backward: a layer's gradients, then what it kept goes, last made first.
    while let Some(mut layer) = kept.pop() {
        let of_activated = job.allocate(STREAM, 4 * row);
        job.launch(
            STREAM,
            4 * time,
            layer.iter().chain([&backward, &of_activated]),
        );
        for size in sizes.by_ref().take(MATRICES.len()) {
            let gradient = job.allocate(STREAM, size * HALF);
            let squares = size / (WIDTH * WIDTH);
            job.launch(STREAM, squares * time, layer.iter().chain([&gradient]));
            gradients.push(gradient);
        }
        job.free_all(layer.drain(5..).rev());
        let of_attended = job.allocate(STREAM, row);
        job.launch(STREAM, 4 * time, [&of_activated, &of_attended]);
        job.free(of_activated);
        let of_query_key_value = job.allocate(STREAM, 3 * row);
        let blocks = layer.iter().chain([&of_attended, &of_query_key_value]);
        job.launch(STREAM, 4 * time, blocks);
        job.free(of_attended);
        let further = job.allocate(STREAM, row);
        job.launch(STREAM, 3 * time, [&of_query_key_value, &further]);
        job.free(of_query_key_value);
        job.free_all(layer.into_iter().rev());
        job.free(std::mem::replace(&mut backward, further));
    }
    job.free(backward);
    job.free(ids);
    gradients
}
