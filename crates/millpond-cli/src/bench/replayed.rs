//! A recording's calls, timed.
//!
//! It is played twice with one pool, since what a pool does for a job that it has seen is another
//! thing than what it does for a new one; and all of that twice, first with no clock inside, then
//! with each operation timed.

use millpond_trace::{Op, Trace};

use super::clock::{Clock, DriverTime, Moment};
use super::error::BenchError;
use super::latencies::{Latencies, Percentiles};
use super::row::Row;
use super::target::Target;
use crate::replay::{BareRepetition, Watch, Workload, play_bare};

const REPETITIONS: usize = 2;

/// A recording, as far as rows tell of it.
pub(super) struct Recording {
    pub(super) name: String,
    pub(super) streams: usize,
    /// Operations: allocations, frees, uses, records and waits.
    pub(super) operations: u64,
    pub(super) allocations: u64,
    pub(super) most_live_blocks: u64,
    /// Bytes.
    pub(super) smallest: u64,
    /// Bytes.
    pub(super) largest: u64,
}

/// What one repetition gave.
pub(super) struct Repetition {
    /// From 1.
    pub(super) number: usize,
    pub(super) ns: u64,
    pub(super) driver: DriverTime,
    /// Of operations, not of pairs.
    pub(super) percentiles: Percentiles,
    pub(super) outcome: BareRepetition,
}

/// Gives a row for each repetition.
pub(crate) fn replay(trace: Trace, target: &Target, clock: &Clock) -> Result<Vec<Row>, BenchError> {
    let workload = Workload::new(trace, 1.0);
    let recording = Recording::new(&workload)?;
    let mut whole = Whole {
        clock,
        began: clock.moment(),
        took: Vec::new(),
    };
    let device = target.device(clock)?;
    let outcomes = play_bare(&workload, &device, REPETITIONS, &mut whole)?;
    drop(device);
    let mut each = Each {
        clock,
        before: None,
        samples: Vec::with_capacity(workload.steps.len()),
        percentiles: Vec::new(),
    };
    let device = target.device(clock)?;
    play_bare(&workload, &device, REPETITIONS, &mut each)?;
    let timed = whole.took.into_iter().zip(each.percentiles).zip(outcomes);
    let row = |(number, (((ns, driver), percentiles), outcome))| {
        let repetition = Repetition {
            number,
            ns,
            driver,
            percentiles,
            outcome,
        };
        Row::of_replay(&recording, target.name(), clock, &repetition)
    };
    Ok((1..).zip(timed).map(row).collect())
}

impl Recording {
    fn new(workload: &Workload) -> Result<Recording, BenchError> {
        let sizes = || workload.blocks.iter().map(|block| block.size);
        let (Some(smallest), Some(largest)) = (sizes().min(), sizes().max()) else {
            return Err(BenchError::NothingAllocated);
        };
        let (mut live, mut most_live_blocks) = (0_u64, 0);
        for step in &workload.steps {
            match step.op {
                Op::Alloc { .. } => live += 1,
                Op::Free { .. } => live -= 1,
                _ => {}
            }
            most_live_blocks = live.max(most_live_blocks);
        }
        Ok(Recording {
            name: workload.name.clone(),
            streams: workload.streams,
            operations: workload.ops(),
            allocations: workload.blocks.len() as u64,
            most_live_blocks,
            smallest,
            largest,
        })
    }
}

/// Times a repetition as a whole.
struct Whole<'a> {
    clock: &'a Clock,
    began: Moment,
    /// Nanoseconds without the sim's driver, and that.
    took: Vec<(u64, DriverTime)>,
}

impl Watch for Whole<'_> {
    fn begin(&mut self) {
        self.began = self.clock.moment();
    }

    #[inline]
    fn operation(&mut self) {}

    fn end(&mut self) {
        let ended = self.clock.moment();
        let ticks = self.clock.between(self.began, ended);
        let driver = ended.driver - self.began.driver;
        self.took.push((self.clock.nanoseconds(ticks), driver));
    }
}

/// Times each operation, from its begin to the next one's.
struct Each<'a> {
    clock: &'a Clock,
    before: Option<Moment>,
    /// Of this repetition, in ticks.
    samples: Vec<u64>,
    percentiles: Vec<Percentiles>,
}

impl Watch for Each<'_> {
    fn begin(&mut self) {
        self.before = None;
    }

    #[inline]
    fn operation(&mut self) {
        let now = self.clock.moment();
        if let Some(before) = self.before {
            self.samples.push(self.clock.between(before, now));
        }
        self.before = Some(now);
    }

    fn end(&mut self) {
        self.operation();
        let mut latencies = Latencies::new();
        for ticks in self.samples.drain(..) {
            latencies.add(self.clock.nanoseconds(ticks));
        }
        self.percentiles.push(latencies.percentiles());
    }
}
