//! Replaying on the sim: no bytes, virtual time, so that the pool itself is what takes time.
//!
//! Everything is replayed twice. The first run is timed. The second one, step for step the same,
//! is watched by the checker, which knows from the device calls alone who owns which byte and what
//! is ordered before what: that takes the place of looking at bytes. Since the sim is
//! deterministic, both must come to the same figures; if they do not, that is an error.
//!
//! # When uses are over
//!
//! - Recordings with order: the host's clock follows the recording (later where the pool's driver
//!   calls took longer than the job had time), and the streams work as [`timeline`] says, so that
//!   a free is as far ahead of the device as it was; but what the pool's inserted waits delay is
//!   later, as [`delay`](super::delay) says.
//! - Recordings without: no work is queued, so every use is over when the block is freed. Where
//!   there are several streams, the job synchronises the device whenever it turns to another one,
//!   so that the pool knows.

use std::sync::Arc;
use std::time::Instant;

use millpond::Pool;
use millpond::device::{Device, Observed, Observer, SimDevice, StreamId};
use millpond_check::{Checker, Violation};
use millpond_trace::Step;

use super::calls::{CallCounter, CallTotals};
use super::delay::Delays;
use super::error::ReplayError;
use super::findings::Findings;
use super::outcome::{Outcome, per_op, ratio};
use super::progress::Progress;
use super::session::{Companion, LiveBlock, PoolSettings, Session};
use super::timeline::{self, Work};
use super::workload::{Workload, stream_of};
use crate::device::DeviceName;

/// The alignment of every request that asks for none, in bytes.
const ALIGNMENT: u64 = 256;

/// What a run comes to, but for times of this machine. Two runs give the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Figures {
    failed_allocations: u64,
    peak_live: u64,
    peak_reserved: u64,
    totals: CallTotals,
    waits_inserted: u64,
    events_recorded: u64,
    event_queries: u64,
    /// When the host was done, in virtual nanoseconds.
    ended: u64,
    /// When the device was done with all that was queued, in virtual nanoseconds.
    device_ended: u64,
    /// How much later the device is done than without the inserted waits, in nanoseconds.
    delay: u64,
}

/// What one run gave.
struct Run {
    figures: Figures,
    /// Time of this machine in all steps.
    host_ns: u64,
    failures: Findings,
}

/// Replays on a sim with this much memory.
pub(super) fn run(
    workload: &Workload,
    device_size: u64,
    settings: PoolSettings,
    progress: &Progress,
) -> Result<Outcome, ReplayError> {
    let work = if workload.ordered {
        timeline::work_between_marks(workload)
    } else {
        Vec::new()
    };
    let new_device = || Arc::new(SimDevice::builder().total_memory(device_size).build());

    let timed = run_once(workload, &work, new_device(), settings, None, progress)?;
    let device = new_device();
    let checker = Arc::new(Checker::new(device.capabilities()));
    let watcher = Some(Arc::clone(&checker));
    let watched = run_once(workload, &work, device, settings, watcher, progress)?;
    if watched.figures != timed.figures {
        return Err(ReplayError::Undetermined {
            first: Box::new(timed.figures),
            second: Box::new(watched.figures),
        });
    }
    let violations = checker.finish();
    let left_behind = |violation: &&Violation| matches!(violation, Violation::LeftBehind(_));
    if let Some(violation) = violations.iter().find(left_behind) {
        return Err(ReplayError::LeftBehind(violation.to_string()));
    }
    let mut corruptions = Findings::default();
    for violation in &violations {
        corruptions.add(|| violation.to_string());
    }

    let (figures, ops) = (timed.figures, workload.ops());
    let active = timeline::device_active_ns(workload);
    Ok(Outcome {
        trace: workload.name.clone(),
        device: DeviceName::Sim.to_string(),
        policy: "millpond",
        scale: workload.scale_if_scaled(),
        ops,
        failed_allocations: figures.failed_allocations,
        corrupt_blocks: checker.totals().violations,
        peak_live_bytes: figures.peak_live,
        peak_reserved_bytes: figures.peak_reserved,
        reserved_over_live: ratio(figures.peak_reserved, figures.peak_live),
        host_ns_per_op: per_op(timed.host_ns, ops),
        driver_ns_per_op: per_op(figures.totals.driver_ns, ops),
        driver_calls: figures.totals.calls,
        waits_inserted: figures.waits_inserted,
        events_recorded: figures.events_recorded,
        event_queries: figures.event_queries,
        final_delay_share: (active > 0).then(|| figures.delay as f64 / active as f64),
        failures: timed.failures,
        corruptions,
    })
}

fn run_once(
    workload: &Workload,
    work: &[Work],
    device: Arc<SimDevice>,
    settings: PoolSettings,
    checker: Option<Arc<Checker>>,
    progress: &Progress,
) -> Result<Run, ReplayError> {
    let counter = Arc::new(CallCounter::default());
    let delays = Arc::new(Delays::default());
    let mut observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&counter) as _];
    if workload.ordered {
        observers.push(Arc::clone(&delays) as _);
    }
    observers.extend(checker.iter().map(|checker| Arc::clone(checker) as _));
    let observed = Arc::new(Observed::new(Arc::clone(&device) as _, observers));
    let mut session = Session::new(workload, observed, settings)?;
    delays.begin(session.streams(), session.events());
    let mut companion = SimCompanion {
        workload,
        delays,
        work,
        streams: session.streams().to_vec(),
        device,
        checker,
        at: 0,
    };
    let started = Instant::now();
    session.play(&mut companion, progress)?;
    let host_ns = started.elapsed().as_nanos() as u64;
    let statistics = session.pool().statistics();
    let figures = Figures {
        failed_allocations: session.failed_allocations,
        peak_live: statistics.peak_live_bytes,
        peak_reserved: statistics.peak_reserved_bytes,
        totals: counter.totals(),
        waits_inserted: statistics.waits_inserted,
        events_recorded: statistics.events_recorded,
        event_queries: statistics.event_queries,
        ended: companion.device.now(),
        device_ended: companion.device_ends(),
        delay: companion.delays.of_the_device(),
    };
    session.free_the_rest(&mut companion)?;
    let failures = std::mem::take(&mut session.failures);
    session.end()?;
    Ok(Run {
        figures,
        host_ns,
        failures,
    })
}

/// Brings the sim to where the device was, and tells the checker what the pool does.
struct SimCompanion<'a> {
    workload: &'a Workload,
    /// What is still to be queued.
    work: &'a [Work],
    streams: Vec<StreamId>,
    delays: Arc<Delays>,
    device: Arc<SimDevice>,
    checker: Option<Arc<Checker>>,
    /// The stream of the last step.
    at: u32,
}

impl SimCompanion<'_> {
    /// When the job's streams have done all that is queued.
    fn device_ends(&self) -> u64 {
        let ready = |&stream| self.device.stream_ready_at(stream);
        self.streams.iter().filter_map(ready).max().unwrap_or(0)
    }

    fn queue(&self, work: &Work) -> Result<(), ReplayError> {
        let stream = self.streams[work.stream as usize];
        let mut duration = work.duration();
        let over = self.delays.queue(work);
        if over > work.ended {
            // Late, as far as it would begin earlier by itself.
            let ready = self.device.stream_ready_at(stream).unwrap_or(0);
            let begins = ready.max(self.device.now());
            duration = duration.max(over.saturating_sub(begins));
        }
        self.device.enqueue_work(stream, duration)?;
        Ok(())
    }
}

impl Companion for SimCompanion<'_> {
    const TIMES_CALLS: bool = false;

    #[inline]
    fn before(&mut self, pool: &Pool, index: usize, step: &Step) -> Result<(), ReplayError> {
        if !self.workload.ordered {
            let stream = stream_of(step.op);
            if stream != self.at {
                self.at = stream;
                pool.synchronize()?;
            }
            return Ok(());
        }
        while let Some((work, rest)) = self.work.split_first()
            && work.before_step as usize <= index
        {
            self.queue(work)?;
            self.work = rest;
        }
        self.device.advance_host_to(self.delays.come_to(step));
        Ok(())
    }

    #[inline]
    fn allocated(&mut self, block: LiveBlock) -> Result<(), ReplayError> {
        if let Some(checker) = &self.checker {
            let facts = self.workload.blocks[block.number as usize];
            let stream = self.streams[facts.stream as usize];
            checker.allocated(block.address, facts.size, ALIGNMENT, stream);
        }
        Ok(())
    }

    fn used(&mut self, block: LiveBlock, stream: u32) -> Result<(), ReplayError> {
        if let Some(checker) = &self.checker {
            checker.used(block.address, self.streams[stream as usize]);
        }
        Ok(())
    }

    fn use_ended(&mut self, _block: LiveBlock, _stream: u32) -> Result<(), ReplayError> {
        Ok(())
    }

    #[inline]
    fn freeing(&mut self, block: LiveBlock) -> Result<(), ReplayError> {
        if let Some(checker) = &self.checker {
            checker.freeing(block.address);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millpond::pool::Waits;
    use millpond_trace::read_path;

    use super::*;
    use crate::replay::timeline::mark_of;

    /// What the host's time for calls may change, in nanoseconds.
    const COST_OF_CALLS: u64 = 200_000;

    fn play(workload: &Workload, waits: Waits) -> Figures {
        let work = timeline::work_between_marks(workload);
        let device = Arc::new(SimDevice::new());
        let settings = PoolSettings { limit: None, waits };
        let hidden = Progress::hidden();
        let run = run_once(workload, &work, device, settings, None, &hidden).unwrap();
        run.figures
    }

    fn last_mark(workload: &Workload) -> u64 {
        let marks = workload.steps.iter().filter_map(|step| mark_of(step.op));
        marks.max().unwrap()
    }

    #[test]
    fn the_recordings_end_when_they_did_and_as_much_later_as_is_said() {
        for name in ["offload_streams", "fsdp_prefetch", "mixed_dynamic"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../traces")
                .join(format!("{name}.ordered.csv.gz"));
            let workload = Workload::new(read_path(&path).unwrap(), 1.0);
            let recorded = last_mark(&workload);
            for waits in [Waits::TimeFirst, Waits::Balanced, Waits::MemoryFirst] {
                let figures = play(&workload, waits);
                let off = figures.device_ended.abs_diff(recorded + figures.delay);
                assert!(
                    off < COST_OF_CALLS,
                    "{name}, {waits:?}, {recorded}: {figures:?}"
                );
                if figures.waits_inserted == 0 {
                    assert_eq!(figures.delay, 0, "{name}, {waits:?}");
                }
            }
        }
    }
}
