//! Many streams and threads take, use, hand on and free blocks of a pool that is too small for all
//! of it, while kernels write and check every block: `gpu_stress [SECONDS]`, 10 without.
//!
//! Every block is written on its stream and checked there; every third one is used on a second
//! stream as well, which the program orders after the first by an event of its own. The pool's
//! limit is half as much again as what is live, so that memory is reused across streams and put
//! together by further mappings all the time.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millpond::Pool;
use millpond::device::StreamId;
use support::{Gpu, Note, Outcome, ensure};

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;
const THREADS: u64 = 4;
const STREAMS: usize = 3;

/// Bytes live in each thread at most, and what the pool may have for all of them.
const LIVE: u64 = GIB;
const LIMIT: u64 = THREADS * LIVE * 3 / 2;

fn main() -> Outcome {
    let Some(gpu) = Gpu::open(0)? else {
        return Ok(());
    };
    let seconds = std::env::args()
        .nth(1)
        .map_or(Ok(10), |text| text.parse())?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let pool = Pool::builder(gpu.shared()).limit(LIMIT).build()?;
    let blocks = AtomicU64::new(0);
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (pool, blocks) = (&pool, &blocks);
                scope.spawn(move || {
                    thread(pool, seed, until, blocks).map_err(|error| error.to_string())
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|outcome| outcome.unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect()
    });
    for outcome in outcomes {
        outcome?;
    }
    pool.synchronize()?;
    let statistics = pool.statistics();
    ensure(statistics.live_blocks == 0, || format!("{statistics:?}"))?;
    ensure(statistics.peak_reserved_bytes <= LIMIT, || {
        format!("{statistics:?}")
    })?;
    println!(
        "{} blocks in {seconds} s on {} streams: nothing corrupt; {} waits inserted, {} handles",
        blocks.into_inner(),
        THREADS as usize * STREAMS,
        statistics.waits_inserted,
        statistics.handles
    );
    Ok(())
}

/// A small generator of numbers (SplitMix64), so that a run can be repeated.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 512 bytes to 64 MiB, as many of each power of two.
    fn size(&mut self) -> u64 {
        let power = 9 + self.next() % 18;
        let size = (1 << power) + self.next() % (1 << power);
        size.next_multiple_of(4).min(65536 * KIB)
    }
}

fn thread(pool: &Pool, seed: u64, until: Instant, blocks: &AtomicU64) -> Outcome {
    // The kernels, once more for this thread.
    let Some(gpu) = Gpu::open(0)? else {
        return Err("the GPU is gone".into());
    };
    let mut numbers = Numbers(seed);
    let streams: Vec<StreamId> = (0..STREAMS)
        .map(|_| gpu.stream())
        .collect::<Result<_, _>>()?;
    let event = pool.device().create_event()?;
    let note = Note::new()?;
    let mut live = Vec::new();
    let mut bytes = 0;
    while Instant::now() < until {
        for _ in 0..64 {
            let size = numbers.size();
            while bytes + size > LIVE {
                let block: millpond::Block = live.swap_remove(numbers.next() as usize % live.len());
                bytes -= block.size();
            }
            let stream = streams[numbers.next() as usize % STREAMS];
            let block = pool.allocate(size, stream)?;
            let (words, value) = (size / 4 * 4, (numbers.next() as u32) >> 4 << 4);
            gpu.write(stream, block.address(), words, value)?;
            gpu.check(stream, block.address(), words, value, &note)?;
            if numbers.next().is_multiple_of(3) {
                let second = streams[numbers.next() as usize % STREAMS];
                pool.record_event(event, stream)?;
                pool.wait_event(second, event)?;
                block.use_on(second)?;
                gpu.check(second, block.address(), words, value, &note)?;
            }
            bytes += size;
            live.push(block);
            blocks.fetch_add(1, Ordering::Relaxed);
        }
        // Not so far ahead that all streams are full of checks.
        for &stream in &streams {
            gpu.synchronize(stream)?;
        }
        note.clean(seed)?;
    }
    drop(live);
    for &stream in &streams {
        gpu.synchronize(stream)?;
        pool.stream_destroyed(stream)?;
    }
    note.clean(seed)
}
