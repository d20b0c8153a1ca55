//! Runs the threads of a pattern, pass after pass.
//!
//! # Invariants
//!
//! - A thread stays the same from its first block to its last one, so that what a pool keeps for a
//!   thread is the right thread's.
//! - Every thread comes to every meeting, also one whose work has failed, so that none is waited
//!   for in vain.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use super::clock::{Clock, DriverTime};
use super::error::BenchError;
use super::latencies::{Latencies, Percentiles};
use super::work::Work;

/// Passes of each kind, at most, and at least one.
const MOST_PASSES: usize = 49;

/// No further pass of a kind begins when those before took so long together, in nanoseconds.
const LONG_ENOUGH_NS: u64 = 400_000_000;

/// Empty rounds of a waiting thread before it lets others run.
const SPINS: u32 = 100;

/// What all threads do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    /// Time all pairs together.
    Whole,
    /// Time each pair.
    Each,
    End,
}

/// See the [module](self).
pub(super) struct Passes<'a> {
    pub(super) clock: &'a Clock,
    pub(super) threads: usize,
    /// Of one pass and thread.
    pub(super) pairs: usize,
}

/// What the passes gave.
pub(super) struct Measured {
    /// From the first thread's begin to the last one's end, for one pass: the median of all.
    pub(super) pass_ns: u64,
    pub(super) percentiles: Percentiles,
    /// Driver calls in all passes, where they are watched.
    pub(super) driver: DriverTime,
    /// Pairs in all passes, of all threads.
    pub(super) all_pairs: u64,
}

/// What a thread did in one pass.
#[derive(Clone, Copy)]
struct Part {
    began: u64,
    ended: u64,
    driver: DriverTime,
}

/// What the threads share.
struct Meeting {
    barrier: Barrier,
    /// Threads that came to the start, in all passes.
    arrived: AtomicUsize,
    next: AtomicU8,
    failed: AtomicBool,
    /// Of this pass.
    parts: Mutex<Vec<Part>>,
    /// How long each pass took in which all pairs were timed together, in ticks.
    whole: Mutex<Vec<u64>>,
}

/// What a thread brings home.
struct Brought {
    latencies: Latencies,
    driver: DriverTime,
    passes: u64,
}

impl Passes<'_> {
    /// Runs the work of each thread, by number from 0.
    pub(super) fn run<W: Work>(
        &self,
        make: impl Fn(usize) -> Result<W, BenchError> + Sync,
    ) -> Result<Measured, BenchError> {
        let meeting = Meeting {
            barrier: Barrier::new(self.threads),
            arrived: AtomicUsize::new(0),
            next: AtomicU8::new(Kind::Whole as u8),
            failed: AtomicBool::new(false),
            parts: Mutex::default(),
            whole: Mutex::default(),
        };
        let brought: Vec<Result<Brought, BenchError>> = thread::scope(|scope| {
            let (meeting, make) = (&meeting, &make);
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| scope.spawn(move || self.thread(thread, meeting, make)))
                .collect();
            let join = |handle: thread::ScopedJoinHandle<'_, _>| {
                handle
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let mut latencies = Latencies::new();
        let (mut driver, mut all_pairs) = (DriverTime::default(), 0);
        for brought in brought {
            let brought = brought?;
            latencies.add_all(&brought.latencies);
            driver.calls += brought.driver.calls;
            driver.device_ns += brought.driver.device_ns;
            all_pairs += brought.passes * self.pairs as u64;
        }
        let mut whole = meeting
            .whole
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        whole.sort_unstable();
        Ok(Measured {
            pass_ns: self.clock.nanoseconds(whole[whole.len() / 2]),
            percentiles: latencies.percentiles(),
            driver,
            all_pairs,
        })
    }

    fn thread<W: Work>(
        &self,
        thread: usize,
        meeting: &Meeting,
        make: impl Fn(usize) -> Result<W, BenchError>,
    ) -> Result<Brought, BenchError> {
        let mut work = make(thread);
        let mut brought = Brought {
            latencies: Latencies::new(),
            driver: DriverTime::default(),
            passes: 0,
        };
        let mut samples = Vec::new();
        // What the first thread knows of the passes of the present kind: ticks, and how many.
        let (mut took, mut done) = (0, 0);
        loop {
            if let Ok(work) = &mut work {
                work.prepare(self.pairs);
            } else {
                meeting.failed.store(true, Ordering::Relaxed);
            }
            meeting.barrier.wait();
            if meeting.failed.load(Ordering::Relaxed) {
                break;
            }
            let kind = meeting.next.load(Ordering::Relaxed);
            if kind == Kind::End as u8 {
                break;
            }
            brought.passes += 1;
            self.wait_for_all(meeting, brought.passes as usize);
            let each = kind == Kind::Each as u8;
            let part = match &mut work {
                Ok(running) if each => self.each(running, &mut samples),
                Ok(running) => self.whole(running),
                // Seen at the meeting above.
                Err(_) => break,
            };
            match part {
                Ok(part) => {
                    brought.driver.calls += part.driver.calls;
                    brought.driver.device_ns += part.driver.device_ns;
                    lock(&meeting.parts).push(part);
                }
                Err(error) => work = Err(error),
            }
            for ticks in samples.drain(..) {
                brought.latencies.add(self.clock.nanoseconds(ticks));
            }
            meeting.barrier.wait();
            if thread == 0 {
                let ticks = pass_ticks(&mut lock(&meeting.parts));
                (took, done) = (took + ticks, done + 1);
                if !each {
                    lock(&meeting.whole).push(ticks);
                }
                if done >= MOST_PASSES || self.clock.nanoseconds(took) > LONG_ENOUGH_NS {
                    (took, done) = (0, 0);
                    let next = if each { Kind::End } else { Kind::Each };
                    meeting.next.store(next as u8, Ordering::Relaxed);
                }
            }
        }
        work.map(|_| brought)
    }

    /// So that all begin at one time, which a barrier alone does not bring about.
    fn wait_for_all(&self, meeting: &Meeting, pass: usize) {
        meeting.arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0;
        while meeting.arrived.load(Ordering::Acquire) < pass * self.threads {
            spins += 1;
            if spins % SPINS == 0 {
                thread::yield_now();
            }
            hint::spin_loop();
        }
    }

    fn whole<W: Work>(&self, work: &mut W) -> Result<Part, BenchError> {
        let began = self.clock.moment();
        for number in 0..self.pairs {
            work.step(number)?;
        }
        let ended = self.clock.moment();
        Ok(Part {
            began: began.ticks,
            ended: ended.ticks,
            driver: ended.driver - began.driver,
        })
    }

    fn each<W: Work>(&self, work: &mut W, samples: &mut Vec<u64>) -> Result<Part, BenchError> {
        samples.reserve(self.pairs);
        let began = self.clock.moment();
        for number in 0..self.pairs {
            let before = self.clock.moment();
            work.step(number)?;
            let after = self.clock.moment();
            samples.push(self.clock.between(before, after));
        }
        let ended = self.clock.moment();
        Ok(Part {
            began: began.ticks,
            ended: ended.ticks,
            driver: ended.driver - began.driver,
        })
    }
}

/// From the first begin to the last end, each without its thread's time in the driver.
fn pass_ticks(parts: &mut Vec<Part>) -> u64 {
    let began = parts.iter().map(|part| part.began).min().unwrap_or(0);
    let took = parts
        .drain(..)
        .map(|part| part.ended.saturating_sub(began + part.driver.ticks))
        .max();
    took.unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
