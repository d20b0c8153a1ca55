//! See [`JobKind::IndependentStreams`](super::JobKind::IndependentStreams).
//!
//! Twelve threads, each with a stream and 24 MiB of state. A request is a chain of kernels; each
//! allocates what it writes, and frees what the one before it wrote. A thread launches a whole
//! request, waits for its answer, and rests. Since threads go on beside each other, calls of
//! different streams alternate in the host's order. Every four requests, all threads wait for each
//! other.

use super::job::{Block, Job};
use super::{KIB, MIB};

const THREADS: u32 = 12;
const ROUNDS: usize = 15;
const REQUESTS_OF_A_ROUND: usize = 4;
const STATE: u64 = 24 * MIB;
/// Kernels of a request.
const KERNELS: (u64, u64) = (8, 24);
/// The largest that a kernel writes.
const LARGEST: u64 = 48 * MIB;
/// What a kernel takes for a MiB, and for itself, in nanoseconds.
const TIME_FOR_A_MIB: u64 = 12_000;
const TIME_OF_A_KERNEL: u64 = 20_000;
/// How long a thread rests after an answer, in nanoseconds.
const REST: u64 = 2_000_000;

/// What a thread is at.
struct Thread {
    stream: u32,
    /// When it goes on.
    at: u64,
    /// In this round.
    requests_left: usize,
    kernels_left: u64,
    /// What its last kernel wrote.
    output: Option<Block>,
    state: Block,
}

pub(super) fn run(seed: u64) -> Job {
    let mut job = Job::new(seed, THREADS as usize);
    let mut threads: Vec<Thread> = (0..THREADS)
        .map(|stream| Thread {
            stream,
            at: 0,
            requests_left: 0,
            kernels_left: 0,
            output: None,
            state: job.allocate(stream, STATE),
        })
        .collect();
    for _ in 0..ROUNDS {
        for thread in &mut threads {
            thread.requests_left = REQUESTS_OF_A_ROUND;
            thread.at = job.now();
        }
        // The thread that is to go on first does one thing.
        let busy = |thread: &&mut Thread| thread.requests_left > 0;
        while let Some(next) = threads
            .iter_mut()
            .filter(busy)
            .min_by_key(|thread| thread.at)
        {
            job.wait_until(next.at);
            go_on(&mut job, next);
        }
    }
    for thread in threads {
        job.free(thread.state);
    }
    job
}

/// Launches a kernel, or ends a request.
fn go_on(job: &mut Job, thread: &mut Thread) {
    let stream = thread.stream;
    if thread.kernels_left == 0 {
        if let Some(answer) = thread.output.take() {
            job.free(answer);
            thread.requests_left -= 1;
            thread.at = job.now() + job.random.about(REST);
            return;
        }
        thread.kernels_left = job.random.between(KERNELS.0, KERNELS.1);
    }
    let size = job.random.skewed(64 * KIB, LARGEST);
    let output = job.allocate(stream, size);
    let time = TIME_OF_A_KERNEL + size / KIB * TIME_FOR_A_MIB / KIB;
    let blocks = thread.output.iter().chain([&thread.state, &output]);
    job.launch(stream, time, blocks);
    if let Some(input) = thread.output.replace(output) {
        job.free(input);
    }
    thread.kernels_left -= 1;
    thread.at = if thread.kernels_left == 0 {
        job.ready_at(stream)
    } else {
        job.now() + job.random.about(10_000)
    };
}
