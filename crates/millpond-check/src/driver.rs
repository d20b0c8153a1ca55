//! Runs sequences against a pool on any device, and judges everything that can be seen.
//!
//! Every block is filled on its stream with a pattern made from its number, and checked on every
//! stream that uses it, when it begins to and before it is freed. A word that is found instead
//! tells which block was written there.
//!
//! # Invariants
//!
//! - The sequence is a correct program, whatever threads do beside each other: a block is in one
//!   thread's hands at a time; a stream is destroyed when nobody is about to use it; a stream reads
//!   a block only after it waited for its content; one event is recorded or waited for by one
//!   thread at a time. What goes wrong is the pool's fault.
//! - Nothing that a call refuses changes what the driver expects.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use millpond::device::{Device, DeviceError, Findings, Observed, Pattern, StreamId};

use crate::checker::Checker;
use crate::failure::{Corruption, FailedRun, Failure};
use crate::fault::Trigger;
use crate::sequences::{Operation, Sequence};
use crate::streams::Streams;
use crate::tested::{Held, Refusal, TestedPool};

mod blocks;
mod operations;

use blocks::{Block, Blocks};

/// What a run did, so that a test can see that it tested something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Blocks handed out.
    pub allocated: u64,
    /// Requests that found no memory.
    pub refused: u64,
    /// Uses on further streams.
    pub used: u64,
    /// Device calls that were made to fail.
    pub failed_calls: u64,
    /// Device calls that could have been made to fail: those until the sequence's end. What comes
    /// after it, to see that nothing is lost, is left alone.
    pub calls: u64,
}

impl Report {
    /// Adds another run's.
    pub fn add(&mut self, other: &Report) {
        self.allocated += other.allocated;
        self.refused += other.refused;
        self.used += other.used;
        self.failed_calls += other.failed_calls;
        self.calls += other.calls;
    }
}

/// Runs sequences against pools on one device.
#[derive(Debug)]
pub struct Driver {
    device: Arc<dyn Device>,
    checker: Arc<Checker>,
    trigger: Arc<Trigger>,
}

impl Driver {
    /// Puts the checker in front of a device on which nothing happened yet.
    pub fn new(device: Arc<dyn Device>) -> Driver {
        let checker = Arc::new(Checker::new(device.capabilities()));
        let trigger = Arc::new(Trigger::default());
        let observed = Observed::new(
            device,
            vec![Arc::clone(&checker) as _, Arc::clone(&trigger) as _],
        );
        Driver {
            device: Arc::new(observed),
            checker,
            trigger,
        }
    }

    /// The device as the pool is to see it: watched, and failing on demand.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    /// Who watches.
    pub fn checker(&self) -> &Checker {
        &self.checker
    }

    /// Lets one device call of the next run fail, by its number among those that can be failed,
    /// counted from 0.
    pub fn fail_call(&self, number: u64) {
        self.trigger.arm(number, true);
    }

    /// Runs a sequence against a pool, to the pool's end, and gives the first thing that is wrong.
    pub fn run<P: TestedPool>(&self, pool: P, sequence: &Sequence) -> Result<Report, FailedRun> {
        let run = Run::new(self, &pool, sequence).map_err(at_end)?;
        self.trigger.begin();
        let failed = thread::scope(|scope| {
            let threads: Vec<_> = sequence
                .threads
                .iter()
                .enumerate()
                .map(|(number, operations)| {
                    scope.spawn({
                        let run = &run;
                        move || run.thread(number, operations)
                    })
                })
                .collect();
            let results = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            results
                .collect::<Vec<_>>()
                .into_iter()
                .find_map(Result::err)
        });
        if let Some(failed) = failed {
            return Err(failed);
        }
        self.trigger.end();
        let end = run
            .settle()
            .map_err(|failure| at_end(self.cause(failure)))?;
        drop(pool);
        self.close(end)
            .map_err(|failure| at_end(self.cause(failure)))
    }

    /// What broken rules led to is less than the rules that were broken.
    fn cause(&self, failure: Failure) -> Failure {
        let broken = self.checker.violations();
        match failure {
            Failure::Refused(_) | Failure::Statistics { .. } if !broken.is_empty() => {
                Failure::Rules(broken)
            }
            failure => failure,
        }
    }

    /// After the pool's end: nothing is left, and nothing was overwritten.
    fn close(&self, end: End) -> Result<Report, Failure> {
        let device_failed = |error: DeviceError| Failure::Refused(error.to_string());
        self.device.synchronize().map_err(device_failed)?;
        // What was in use when the pool went.
        millpond::pool::reap_waiting(&self.device).map_err(device_failed)?;
        end.streams.close(&*self.device).map_err(device_failed)?;
        let broken = self.checker.finish();
        if !broken.is_empty() {
            return Err(Failure::Rules(broken));
        }
        let blocks = end.report.allocated;
        let checks = end.checks.iter();
        let corrupt: Vec<Corruption> = checks
            .filter_map(|(block, findings)| corruption(*block, findings, blocks))
            .collect();
        if !corrupt.is_empty() {
            return Err(Failure::Contents(corrupt));
        }
        Ok(end.report)
    }
}

fn at_end(failure: Failure) -> FailedRun {
    FailedRun {
        failure,
        operation: None,
    }
}

/// What is left of a run when the pool goes.
struct End {
    streams: Streams,
    checks: Vec<(u64, Arc<Findings>)>,
    report: Report,
}

/// One sequence on its way.
struct Run<'a, P> {
    driver: &'a Driver,
    pool: &'a P,
    /// One thread alone: everything can be compared at every step.
    alone: bool,
    /// Blocks stay live to the pool's end.
    abandons: bool,
    streams: Streams,
    blocks: Blocks,
    checks: Mutex<Vec<(u64, Arc<Findings>)>>,
    failing: AtomicBool,
    refused: AtomicU64,
    used: AtomicU64,
}

impl<'a, P: TestedPool> Run<'a, P> {
    fn new(driver: &'a Driver, pool: &'a P, sequence: &Sequence) -> Result<Run<'a, P>, Failure> {
        let threads = sequence.threads.len();
        let streams = Streams::new(&*driver.device, sequence, threads)
            .map_err(|error| Failure::Refused(error.to_string()))?;
        Ok(Run {
            driver,
            pool,
            alone: threads <= 1,
            abandons: sequence.len() % 4 == 3,
            streams,
            blocks: Blocks::default(),
            checks: Mutex::default(),
            failing: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            used: AtomicU64::new(0),
        })
    }

    fn device(&self) -> &dyn Device {
        &*self.driver.device
    }

    /// One thread's operations; stops when any thread fails.
    fn thread(&self, number: usize, operations: &[Operation]) -> Result<(), FailedRun> {
        for (place, operation) in operations.iter().enumerate() {
            if self.failing.load(Ordering::Relaxed) {
                break;
            }
            let result = self
                .operate_until_it_counts(number, operation)
                .and_then(|()| self.compare(place));
            if let Err(failure) = result {
                self.failing.store(true, Ordering::Relaxed);
                let failure = self.driver.cause(failure);
                let at = format!("thread {number}, operation {place}, {operation:?}");
                return Err(FailedRun {
                    failure,
                    operation: Some(at),
                });
            }
        }
        Ok(())
    }

    /// Does an operation; and again, if it did not happen because a call was made to fail: the
    /// same call must succeed later.
    fn operate_until_it_counts(&self, thread: usize, operation: &Operation) -> Result<(), Failure> {
        let failed = self.driver.trigger.failed();
        let mut happened = self.operate(thread, operation)?;
        if !happened && self.alone && self.driver.trigger.failed() > failed {
            happened = self.operate(thread, operation)?;
        }
        if !happened && matches!(operation, Operation::Allocate { .. }) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Compares what can be compared between operations.
    fn compare(&self, place: usize) -> Result<(), Failure> {
        let totals = self.driver.checker.totals();
        if totals.violations > 0 {
            return Err(Failure::Rules(self.driver.checker.violations()));
        }
        // Looking at everything at every step would make long runs quadratic.
        if self.alone && (place < 256 || place.is_multiple_of(64)) {
            self.compare_books()?;
        }
        Ok(())
    }

    /// Compares the pool's books with a plain count. Only while no call is on its way.
    fn compare_books(&self) -> Result<(), Failure> {
        let said = self.pool.held();
        let (live_blocks, live_bytes) = self.blocks.count();
        let counted = Held {
            live_blocks,
            live_bytes,
            reserved_bytes: self.driver.checker.totals().physical_bytes,
        };
        if said != counted {
            return Err(Failure::Statistics { said, counted });
        }
        self.pool.validate().map_err(Failure::Books)
    }

    /// The end of a sequence: what is free serves again, and can be given back; unless the
    /// sequence leaves its blocks to the pool's end.
    fn settle(self) -> Result<End, Failure> {
        self.compare_books()?;
        if self.abandons {
            for block in self.blocks.take_all() {
                self.driver.checker.freeing(block.address);
            }
        } else {
            self.free_all()?;
            self.reuse_and_give_back()?;
        }
        let report = Report {
            allocated: self.blocks.handed_out(),
            refused: self.refused.into_inner(),
            used: self.used.into_inner(),
            failed_calls: self.driver.trigger.failed(),
            calls: self.driver.trigger.seen(),
        };
        let checks = self.checks.into_inner();
        Ok(End {
            streams: self.streams,
            checks: checks.unwrap_or_else(PoisonError::into_inner),
            report,
        })
    }

    fn free_all(&self) -> Result<(), Failure> {
        while let Some(block) = self.blocks.take(0) {
            self.free(NO_THREAD, 0, block)?;
        }
        self.compare_books()
    }

    fn reuse_and_give_back(&self) -> Result<(), Failure> {
        self.pool.synchronize().map_err(refused)?;
        // Half of the limit must be there for one request, now that all else is free.
        let limit = self
            .pool
            .limit()
            .min(self.device().capabilities().total_memory);
        let size = limit / 2;
        let stream = self.streams.hold(0).stream;
        let half = self.pool.allocate(size, 256, stream).map_err(|refusal| {
            Failure::Refused(format!("{size} of {limit} bytes, all free: {refusal}"))
        })?;
        let broken = self.driver.checker.allocated(half, size, 256, stream);
        if !broken.is_empty() {
            return Err(Failure::Rules(broken));
        }
        self.driver.checker.freeing(half);
        self.pool.free(half).map_err(refused)?;
        self.pool.synchronize().map_err(refused)?;
        self.pool.trim(0).map_err(refused)?;
        self.compare_books()?;
        match self.pool.held().reserved_bytes {
            0 => Ok(()),
            left => Err(Failure::Refused(format!(
                "to give back {left} bytes, with all free and complete"
            ))),
        }
    }

    fn lock_checks(&self) -> MutexGuard<'_, Vec<(u64, Arc<Findings>)>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call may fail for no reason of its own: something was made to fail.
    fn may_fail(&self) -> bool {
        self.driver.trigger.failed() > 0
    }

    /// A device error that nobody caused is the pool's, or the device's.
    fn excuse(&self, result: Result<(), DeviceError>) -> Result<bool, Failure> {
        match result {
            Ok(()) => Ok(true),
            Err(_) if self.may_fail() => Ok(false),
            Err(error) => Err(Failure::Refused(error.to_string())),
        }
    }

    /// Queues the check of a block's content on a stream that has it.
    fn verify(&self, block: &Block, stream: StreamId) -> Result<(), Failure> {
        if block.size == 0 || !block.filled {
            return Ok(());
        }
        let pattern = pattern_of(block.number);
        let Block { address, size, .. } = *block;
        self.device()
            .verify(stream, address, size, pattern, &block.findings)
            .map_err(refused)
    }
}

fn refused(error: impl Into<Refusal>) -> Failure {
    Failure::Refused(error.into().to_string())
}

/// The thread that is none of a sequence's, so that it has none of their streams.
const NO_THREAD: usize = usize::MAX;

/// An odd factor, and what undoes it: numbers that lie close together get words that do not.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
const INVERSE: u64 = 0xF1DE_83E1_9937_733D;

/// What a block is filled with. Never all zeros: that is what fresh memory shows.
fn pattern_of(block: u64) -> Pattern {
    Pattern((block + 1).wrapping_mul(FACTOR))
}

fn corruption(block: u64, findings: &Findings, blocks: u64) -> Option<Corruption> {
    let found_word = findings.found_word()?;
    let other = found_word.wrapping_mul(INVERSE).wrapping_sub(1);
    Some(Corruption {
        block,
        wrong_bytes: findings.wrong_bytes(),
        found_word,
        overwritten_by: (other < blocks).then_some(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_found_word_names_its_block() {
        assert_eq!(FACTOR.wrapping_mul(INVERSE), 1);
        let findings = Findings::default();
        findings.report(8, pattern_of(17).0);
        let found = corruption(4, &findings, 18).expect("wrong bytes");
        assert_eq!((found.block, found.overwritten_by), (4, Some(17)));
        let foreign = corruption(4, &findings, 17).expect("wrong bytes");
        assert_eq!(foreign.overwritten_by, None);
    }
}
