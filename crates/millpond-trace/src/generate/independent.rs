//! See [`JobKind::IndependentStreams`](super::JobKind::IndependentStreams).
//!
//! Twelve threads, each with a stream and 24 MiB of state. A request is a chain of kernels; each
//! allocates what it writes, and frees what the one before it wrote. A thread launches a whole
//! request, waits for its answer, and rests. Since threads go on beside each other, calls of
//! different streams alternate in the host's order.

use super::job::{Block, Job};
use super::{KIB, MIB};

const THREADS: u32 = 12;
const REQUESTS_OF_A_THREAD: usize = 60;
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
            requests_left: REQUESTS_OF_A_THREAD,
            kernels_left: 0,
            output: None,
            state: job.allocate(stream, STATE),
        })
        .collect();
    // The thread that is to go on first does one thing.
    while let Some(index) = (0..threads.len()).min_by_key(|&index| threads[index].at) {
        job.wait_until(threads[index].at);
        if go_on(&mut job, &mut threads[index]) {
            let ended = threads.swap_remove(index);
            job.free(ended.state);
        }
    }
    job
}

/// Gives whether the thread has come to its end.
fn go_on(job: &mut Job, thread: &mut Thread) -> bool {
    let stream = thread.stream;
    if thread.kernels_left == 0 {
        if let Some(answer) = thread.output.take() {
            job.free(answer);
        }
        if thread.requests_left == 0 {
            return true;
        }
        thread.requests_left -= 1;
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
    thread.at = job.now() + job.random.about(10_000);
    if thread.kernels_left == 0 {
        thread.at = job.ready_at(stream) + job.random.about(REST);
    }
    false
}
