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
//!
//! # Repetitions
//!
//! A repetition begins when the device is done with the one before, and what that left is freed.
//! The pool is not told; it can find out by looking at its events.

use std::sync::Arc;
use std::time::Instant;

use millpond::device::{Device, Observed, Observer, SimDevice, StreamId};
use millpond_check::{Checker, Violation};
use millpond_trace::Step;

use super::allocator::{JobAllocator, PolicyChoice, PoolSettings};
use super::calls::{CallCounter, CallTotals};
use super::delay::Delays;
use super::error::ReplayError;
use super::findings::Findings;
use super::outcome::Outcome;
use super::picture::Recorder;
use super::progress::Progress;
use super::session::{Companion, LiveBlock, Session, Tally};
use super::timeline::{self, Work};
use super::workload::{Workload, stream_of};
use crate::device::DeviceName;

/// The alignment of every request that asks for none, in bytes.
const ALIGNMENT: u64 = 256;

/// What a repetition comes to, but for times of this machine. Two runs give the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Figures {
    tally: Tally,
    totals: CallTotals,
    /// When the host was done, in virtual nanoseconds.
    ended: u64,
    /// When the device was done with all that was queued, in virtual nanoseconds.
    device_ended: u64,
    /// How much later the device is done than without the inserted waits, in nanoseconds.
    delay: u64,
}

/// Who looks at a run.
#[derive(Clone, Default)]
struct Watchers {
    checker: Option<Arc<Checker>>,
    recorder: Option<Arc<Recorder>>,
}

/// What one repetition gave.
struct Repetition {
    figures: Figures,
    /// Time of this machine in all steps.
    host_ns: u64,
    failures: Findings,
    /// What the checker had seen when it was over.
    violations: u64,
}

/// A recording, and the work that goes with it.
struct Script<'a> {
    workload: &'a Workload,
    work: Vec<Work>,
}

impl<'a> Script<'a> {
    fn new(workload: &'a Workload) -> Script<'a> {
        let work = if workload.ordered {
            timeline::work_between_marks(workload)
        } else {
            Vec::new()
        };
        Script { workload, work }
    }
}

/// Replays on a sim with this much memory; gives one outcome for each repetition, with one pool.
pub(super) fn run(
    workload: &Workload,
    device_size: u64,
    settings: PoolSettings,
    repetitions: u32,
    recorder: Option<Arc<Recorder>>,
    progress: &Progress,
) -> Result<Vec<Outcome>, ReplayError> {
    let script = Script::new(workload);
    let device = new_device(device_size);
    let nobody = Watchers::default();
    let timed = play(&script, device, settings, repetitions, nobody, progress)?;
    let device = new_device(device_size);
    let checker = Arc::new(Checker::new(device.capabilities()));
    let watchers = Watchers {
        checker: Some(Arc::clone(&checker)),
        recorder,
    };
    let watched = play(&script, device, settings, repetitions, watchers, progress)?;
    for (first, second) in timed.iter().zip(&watched) {
        if first.figures != second.figures {
            return Err(ReplayError::Undetermined {
                first: Box::new(first.figures),
                second: Box::new(second.figures),
            });
        }
    }
    let violations = checker.finish();
    let left_behind = |violation: &&Violation| matches!(violation, Violation::LeftBehind(_));
    if let Some(violation) = violations.iter().find(left_behind) {
        return Err(ReplayError::LeftBehind(violation.to_string()));
    }

    let active = timeline::device_active_ns(workload);
    let mut outcomes = Vec::new();
    let mut seen = 0;
    for (timed, watched) in timed.into_iter().zip(watched) {
        let Figures { tally, totals, .. } = timed.figures;
        let mut outcome = Outcome::new(workload, DeviceName::Sim, &tally, totals, timed.host_ns);
        if tally.settings.policy == PolicyChoice::Millpond && active > 0 {
            // The policies insert no waits: they wait on the host, which this is not about.
            outcome.final_delay_share = Some(timed.figures.delay as f64 / active as f64);
        }
        outcome.failures = timed.failures;
        outcome.corrupt_blocks = watched.violations - seen;
        seen = watched.violations;
        outcomes.push(outcome);
    }
    if let Some(last) = outcomes.last_mut() {
        // The end of the pool is judged, too.
        last.corrupt_blocks += checker.totals().violations - seen;
        for violation in &violations {
            last.corruptions.add(|| violation.to_string());
        }
    }
    Ok(outcomes)
}

/// Replays once, with nobody but the recorder to look: for whoever wants to see what happens, and
/// not how long it takes.
pub(super) fn record(
    workload: &Workload,
    device_size: u64,
    settings: PoolSettings,
    recorder: &Arc<Recorder>,
) -> Result<Outcome, ReplayError> {
    let script = Script::new(workload);
    let watchers = Watchers {
        checker: None,
        recorder: Some(Arc::clone(recorder)),
    };
    let device = new_device(device_size);
    let hidden = Progress::hidden();
    let mut played = play(&script, device, settings, 1, watchers, &hidden)?;
    let Repetition {
        figures,
        host_ns,
        failures,
        ..
    } = played.remove(0);
    let Figures { tally, totals, .. } = figures;
    let mut outcome = Outcome::new(workload, DeviceName::Sim, &tally, totals, host_ns);
    outcome.failures = failures;
    Ok(outcome)
}

/// Whether no allocation fails on a sim with this much memory.
pub(super) fn completes(
    workload: &Workload,
    device_size: u64,
    settings: PoolSettings,
    progress: &Progress,
) -> Result<bool, ReplayError> {
    let script = Script::new(workload);
    let device = new_device(device_size);
    let (mut session, mut companion, _) =
        open_session(&script, device, settings, Watchers::default())?;
    session.stop_at_failure();
    companion.begin(&session);
    session.play(&mut companion, progress)?;
    let completed = session.tally().failed_allocations == 0;
    session.free_the_rest(&mut companion)?;
    session.end()?;
    Ok(completed)
}

fn new_device(size: u64) -> Arc<SimDevice> {
    Arc::new(SimDevice::builder().total_memory(size).build())
}

fn open_session<'a>(
    script: &'a Script<'_>,
    device: Arc<SimDevice>,
    settings: PoolSettings,
    watchers: Watchers,
) -> Result<(Session<'a>, SimCompanion<'a>, Arc<CallCounter>), ReplayError> {
    let counter = Arc::new(CallCounter::default());
    let delays = Arc::new(Delays::default());
    let mut observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&counter) as _];
    if script.workload.ordered {
        observers.push(Arc::clone(&delays) as _);
    }
    let Watchers { checker, recorder } = watchers;
    observers.extend(checker.iter().map(|checker| Arc::clone(checker) as _));
    observers.extend(recorder.iter().map(|recorder| Arc::clone(recorder) as _));
    let observed = Arc::new(Observed::new(Arc::clone(&device) as _, observers));
    let mut session = Session::new(script.workload, observed, settings)?;
    session.tell(recorder);
    let companion = SimCompanion {
        script,
        began: 0,
        delays,
        work: &[],
        streams: session.streams().to_vec(),
        device,
        checker,
        at: 0,
    };
    Ok((session, companion, counter))
}

fn play(
    script: &Script<'_>,
    device: Arc<SimDevice>,
    settings: PoolSettings,
    repetitions: u32,
    watchers: Watchers,
    progress: &Progress,
) -> Result<Vec<Repetition>, ReplayError> {
    let (mut session, mut companion, counter) = open_session(script, device, settings, watchers)?;
    let mut played = Vec::new();
    let mut before = CallTotals::default();
    for _ in 0..repetitions {
        session.begin();
        companion.begin(&session);
        let started = Instant::now();
        session.play(&mut companion, progress)?;
        let host_ns = started.elapsed().as_nanos() as u64;
        let figures = Figures {
            tally: session.tally(),
            totals: counter.totals().since(before),
            ended: companion.device.now(),
            device_ended: companion.device_ends(),
            delay: companion.delays.of_the_device(),
        };
        session.free_the_rest(&mut companion)?;
        companion.end();
        before = counter.totals();
        let checker = companion.checker.as_ref();
        played.push(Repetition {
            figures,
            host_ns,
            failures: session.take_failures(),
            violations: checker.map_or(0, |checker| checker.totals().violations),
        });
    }
    session.end()?;
    Ok(played)
}

/// Brings the sim to where the device was, and tells the checker what the pool does.
struct SimCompanion<'a> {
    script: &'a Script<'a>,
    /// When the repetition began, in virtual nanoseconds.
    began: u64,
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
    /// A repetition begins.
    fn begin(&mut self, session: &Session<'_>) {
        self.work = &self.script.work;
        self.delays.begin(session.streams(), session.events());
    }

    /// A repetition is over: the next one begins when the device is done with it.
    fn end(&mut self) {
        self.began = self.device.now().max(self.device_ends());
        self.device.advance_host_to(self.began);
    }

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
            duration = duration.max((self.began + over).saturating_sub(begins));
        }
        self.device.enqueue_work(stream, duration)?;
        Ok(())
    }
}

impl Companion for SimCompanion<'_> {
    const TIMES_CALLS: bool = false;

    #[inline]
    fn before(
        &mut self,
        pool: &JobAllocator,
        index: usize,
        step: &Step,
    ) -> Result<(), ReplayError> {
        if !self.script.workload.ordered {
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
        let host = self.began + self.delays.come_to(step);
        self.device.advance_host_to(host);
        Ok(())
    }

    #[inline]
    fn allocated(&mut self, block: LiveBlock) -> Result<(), ReplayError> {
        if let Some(checker) = &self.checker {
            let facts = self.script.workload.blocks[block.number as usize];
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

    fn figures(workload: &Workload, waits: Waits, repetitions: u32) -> Vec<Figures> {
        let settings = PoolSettings {
            waits,
            ..PoolSettings::default()
        };
        let (script, hidden) = (Script::new(workload), Progress::hidden());
        let device = Arc::new(SimDevice::new());
        let played = play(
            &script,
            device,
            settings,
            repetitions,
            Watchers::default(),
            &hidden,
        )
        .unwrap();
        played.iter().map(|repetition| repetition.figures).collect()
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
                let [figures] = figures(&workload, waits, 1)[..] else {
                    panic!("one repetition gives one set of figures")
                };
                let off = figures.device_ended.abs_diff(recorded + figures.delay);
                assert!(
                    off < COST_OF_CALLS,
                    "{name}, {waits:?}, {recorded}: {figures:?}"
                );
                if figures.tally.waits_inserted == 0 {
                    assert_eq!(figures.delay, 0, "{name}, {waits:?}");
                }
            }
        }
    }
}
