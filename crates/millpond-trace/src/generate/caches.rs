//! See [`JobKind::GrowingCaches`](super::JobKind::GrowingCaches).
//!
//! Sixteen layers of width 2048, 4 KiB of cache for each token and layer. Sixteen requests are
//! served at a time, with prompts of 100 to 2000 tokens and answers of 50 to 800; each pass gives every
//! one of them a further token. A layer's cache of a request is one block. When it is full, a
//! block for 128 tokens more takes its place.

use super::job::{Block, Job};
use super::{KIB, MIB};

const STREAM: u32 = 0;
const LAYERS: usize = 16;
const WIDTH: u64 = 2048;
const VOCABULARY: u64 = 32_000;
const CACHE_OF_A_TOKEN: u64 = 4 * KIB;
const CHUNK: u64 = 128;
const SERVED_AT_ONCE: usize = 16;
const REQUESTS: usize = 80;
const LAYER_WEIGHTS: u64 = 40 * MIB;
/// What a layer takes to read its weights, and for each token, in nanoseconds.
const TIME_OF_A_LAYER: u64 = 25_000;
const TIME_OF_A_TOKEN: u64 = 400;
/// Passes that the host is ahead of the device at most: it looks at a pass's tokens later.
const AHEAD: usize = 3;

struct Request {
    /// Tokens that it has.
    tokens: u64,
    /// Tokens for which there is room.
    room: u64,
    tokens_left: u64,
    /// One for each layer.
    caches: Vec<Block>,
}

pub(super) fn run(seed: u64) -> Job {
    let mut job = Job::new(seed, 1);
    let weights: Vec<Block> = (0..LAYERS)
        .map(|_| job.allocate(STREAM, LAYER_WEIGHTS))
        .collect();
    let head = job.allocate(STREAM, VOCABULARY * WIDTH * 2);
    job.launch(STREAM, 5_000_000, weights.iter().chain([&head]));
    let mut served: Vec<Request> = Vec::new();
    let mut to_come = REQUESTS;
    let mut ends: Vec<u64> = Vec::new();
    while to_come > 0 || !served.is_empty() {
        if to_come > 0 && served.len() < SERVED_AT_ONCE {
            to_come -= 1;
            let request = begin(&mut job, &weights);
            served.push(request);
        }
        one_token_more(&mut job, &mut served, &weights, &head);
        let (over, going_on) = served
            .into_iter()
            .partition(|r: &Request| r.tokens_left == 0);
        served = going_on;
        for request in over {
            job.free_all(request.caches);
        }
        ends.push(job.ready_at(STREAM));
        if ends.len() > AHEAD {
            job.wait_until(ends.remove(0));
        }
    }
    job.free(head);
    job.free_all(weights);
    job
}

/// Reads a prompt.
fn begin(job: &mut Job, weights: &[Block]) -> Request {
    let tokens = job.random.skewed(100, 2000);
    let tokens_left = job.random.skewed(50, 800);
    let room = tokens.next_multiple_of(CHUNK);
    job.think(200_000);
    let mut hidden = job.allocate(STREAM, tokens * WIDTH * 2);
    let mut caches = Vec::new();
    for weights in weights {
        let cache = job.allocate(STREAM, room * CACHE_OF_A_TOKEN);
        let up = job.allocate(STREAM, tokens * WIDTH * 8);
        let output = job.allocate(STREAM, tokens * WIDTH * 2);
        let time = TIME_OF_A_LAYER + tokens * TIME_OF_A_TOKEN;
        job.launch(STREAM, time, [weights, &hidden, &cache, &up, &output]);
        job.free(up);
        job.free(std::mem::replace(&mut hidden, output));
        caches.push(cache);
    }
    job.free(hidden);
    Request {
        tokens,
        room,
        tokens_left,
        caches,
    }
}

/// One pass for all.
fn one_token_more(job: &mut Job, served: &mut [Request], weights: &[Block], head: &Block) {
    let count = served.len() as u64;
    for request in &mut *served {
        request.tokens += 1;
        request.tokens_left -= 1;
    }
    let mut hidden = job.allocate(STREAM, count * WIDTH * 2);
    for (layer, weights) in weights.iter().enumerate() {
        for request in &mut *served {
            if request.tokens > request.room {
                let size = (request.room + CHUNK) * CACHE_OF_A_TOKEN;
                let larger = job.allocate(STREAM, size);
                let cache = &mut request.caches[layer];
                job.launch(STREAM, 2_000 + size / KIB, [&larger, &*cache]);
                job.free(std::mem::replace(cache, larger));
            }
        }
        let output = job.allocate(STREAM, count * WIDTH * 2);
        let caches = served.iter().map(|request| &request.caches[layer]);
        let time = TIME_OF_A_LAYER + count * TIME_OF_A_TOKEN;
        job.launch(STREAM, time, caches.chain([weights, &hidden, &output]));
        job.free(std::mem::replace(&mut hidden, output));
    }
    for request in served {
        if request.tokens > request.room {
            request.room += CHUNK;
        }
    }
    let logits = job.allocate(STREAM, count * VOCABULARY * 4);
    job.launch(STREAM, TIME_OF_A_LAYER, [head, &hidden, &logits]);
    job.free(hidden);
    job.free(logits);
}
