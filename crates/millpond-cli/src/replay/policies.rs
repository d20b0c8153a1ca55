//! The same job with another allocator's policy, to compare with the pool.
//!
//! - On the sim, as for the pool: a run that is timed, then one that the checker watches; both must
//!   come to the same. The device is as far behind its host as it was, where the recording says.
//! - On a device with bytes, every block is filled and verified as for the pool.
//!
//! What is reserved and which driver calls were made is counted from the device calls alone.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use millpond::device::{
    Device, DeviceError, EventId, Observed, Observer, SimDevice, StreamId, StreamOrder,
};
use millpond_check::{Checker, Violation};
use millpond_policies::{Allocator, PolicyError, PolicyName, PolicyNameError, Reserved};
use millpond_trace::{Op, Step};

use super::Target;
use super::calls::{CallCounter, CallTotals};
use super::error::ReplayError;
use super::findings::Findings;
use super::outcome::{Outcome, per_op, ratio};
use super::progress::Progress;
use super::real::{Bytes, RealDevice};
use super::session::LiveBlock;
use super::timeline::{self, Work};
use super::workload::Workload;
use crate::device::DeviceName;

/// The alignment of every request, in bytes.
const ALIGNMENT: u64 = 256;
/// Steps between two looks at the progress bar.
const CHUNK: usize = 1 << 13;

/// Whose rules a job is replayed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PolicyChoice {
    /// The pool's.
    Millpond,
    /// Another allocator's.
    Other(PolicyName),
}

/// A text that names no policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; and millpond")]
pub(crate) struct PolicyChoiceError(PolicyNameError);

impl FromStr for PolicyChoice {
    type Err = PolicyChoiceError;

    fn from_str(text: &str) -> Result<PolicyChoice, PolicyChoiceError> {
        match text {
            "millpond" => Ok(PolicyChoice::Millpond),
            _ => text
                .parse()
                .map(PolicyChoice::Other)
                .map_err(PolicyChoiceError),
        }
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyChoice::Millpond => f.write_str("millpond"),
            PolicyChoice::Other(policy) => policy.fmt(f),
        }
    }
}

/// Replays with a policy.
pub(super) fn run(
    policy: PolicyName,
    workload: &Workload,
    target: &Target,
    limit: Option<u64>,
    progress: &Progress,
) -> Result<Outcome, ReplayError> {
    let replay = Replay {
        policy,
        workload,
        limit,
        progress,
    };
    match target {
        Target::Sim(memory) => replay.on_sim(*memory),
        Target::Real(device) => replay.on(device),
    }
}

/// What is replayed, and how.
#[derive(Clone, Copy)]
struct Replay<'a> {
    policy: PolicyName,
    workload: &'a Workload,
    limit: Option<u64>,
    progress: &'a Progress,
}

/// What a run comes to, but for times of this machine. Two runs on sims give the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Figures {
    failed_allocations: u64,
    peak_live: u64,
    peak_reserved: u64,
    totals: CallTotals,
    events_recorded: u64,
    event_queries: u64,
}

impl Replay<'_> {
    fn on_sim(&self, memory: u64) -> Result<Outcome, ReplayError> {
        let work = if self.workload.ordered {
            timeline::work_between_marks(self.workload)
        } else {
            Vec::new()
        };
        let new_sim = || Arc::new(SimDevice::builder().total_memory(memory).build());
        let run_once = |device: Arc<SimDevice>, checker: Option<&Arc<Checker>>| {
            let observers = checker.map(|checker| Arc::clone(checker) as _);
            let mut job = Job::new(self, Arc::clone(&device) as _, observers)?;
            let mut beside = OnSim {
                device,
                streams: job.streams.clone(),
                work: &work,
                checker: checker.map(Arc::as_ref),
                workload: self.workload,
            };
            let started = Instant::now();
            job.play(&mut beside)?;
            let host_ns = started.elapsed().as_nanos() as u64;
            let figures = job.figures();
            Ok::<_, ReplayError>((figures, host_ns, job.end(&mut beside)?))
        };
        let (timed, host_ns, failures) = run_once(new_sim(), None)?;
        let device = new_sim();
        let checker = Arc::new(Checker::new(device.capabilities()));
        let (watched, ..) = run_once(device, Some(&checker))?;
        if watched != timed {
            let fault = format!("two runs differ: {timed:?}, then {watched:?}");
            return Err(self.at_fault(fault));
        }
        let violations = checker.finish();
        let left_behind = |violation: &&Violation| matches!(violation, Violation::LeftBehind(_));
        if let Some(left) = violations.iter().find(left_behind) {
            return Err(self.at_fault(left.to_string()));
        }
        let mut corruptions = Findings::default();
        for violation in &violations {
            corruptions.add(|| violation.to_string());
        }
        let found = (checker.totals().violations, corruptions);
        Ok(Outcome {
            failures,
            ..self.outcome(DeviceName::Sim, &timed, host_ns, found)
        })
    }

    fn on(&self, target: &RealDevice) -> Result<Outcome, ReplayError> {
        let device = Arc::clone(&target.device);
        let mut job = Job::new(self, Arc::clone(&device), None)?;
        let streams = job.streams.clone();
        let mut bytes = Bytes::new(device, self.workload, streams, target.window_bytes)?;
        let before = job.counter.totals();
        job.play(&mut bytes)?;
        let figures = job.figures();
        let in_calls = figures.totals.driver_ns + figures.totals.other_ns - before.other_ns;
        let host_ns = job.policy_ns.saturating_sub(in_calls);
        let failures = job.end(&mut bytes)?;
        let found = bytes.finish()?;
        Ok(Outcome {
            failures,
            ..self.outcome(target.name, &figures, host_ns, found)
        })
    }

    fn outcome(
        &self,
        device: DeviceName,
        figures: &Figures,
        host_ns: u64,
        (corrupt_blocks, corruptions): (u64, Findings),
    ) -> Outcome {
        let ops = self.workload.ops();
        Outcome {
            trace: self.workload.name.clone(),
            device: device.to_string(),
            policy: self.policy.as_str(),
            scale: self.workload.scale_if_scaled(),
            ops,
            failed_allocations: figures.failed_allocations,
            corrupt_blocks,
            peak_live_bytes: figures.peak_live,
            peak_reserved_bytes: figures.peak_reserved,
            reserved_over_live: ratio(figures.peak_reserved, figures.peak_live),
            host_ns_per_op: per_op(host_ns, ops),
            driver_ns_per_op: per_op(figures.totals.driver_ns, ops),
            driver_calls: figures.totals.calls,
            waits_inserted: 0,
            events_recorded: figures.events_recorded,
            event_queries: figures.event_queries,
            final_delay_share: None,
            failures: Findings::default(),
            corruptions,
        }
    }

    fn at_fault(&self, fault: String) -> ReplayError {
        let policy = self.policy;
        ReplayError::PolicyAtFault { policy, fault }
    }
}

/// What goes along with the job: how far the device is, and who watches the blocks.
trait Beside {
    /// Whether each of the policy's calls is timed by itself.
    const TIMES_CALLS: bool;

    fn before(&mut self, index: usize, step: &Step) -> Result<(), DeviceError>;
    fn allocated(&mut self, block: LiveBlock) -> Result<(), DeviceError>;
    fn used(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError>;
    fn use_ended(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError>;
    fn freeing(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError>;
}

/// Brings the sim to where the device was, and tells the checker what the policy does.
struct OnSim<'a> {
    device: Arc<SimDevice>,
    streams: Vec<StreamId>,
    /// What is still to be queued.
    work: &'a [Work],
    checker: Option<&'a Checker>,
    workload: &'a Workload,
}

impl Beside for OnSim<'_> {
    const TIMES_CALLS: bool = false;

    fn before(&mut self, index: usize, step: &Step) -> Result<(), DeviceError> {
        if !self.workload.ordered {
            return Ok(());
        }
        while let Some((work, rest)) = self.work.split_first()
            && work.before_step as usize <= index
        {
            let stream = self.streams[work.stream as usize];
            self.device.enqueue_work(stream, work.duration())?;
            self.work = rest;
        }
        self.device.advance_host_to(step.host_ns);
        Ok(())
    }

    fn allocated(&mut self, block: LiveBlock) -> Result<(), DeviceError> {
        if let Some(checker) = self.checker {
            let facts = self.workload.blocks[block.number as usize];
            let stream = self.streams[facts.stream as usize];
            checker.allocated(block.address, facts.size, ALIGNMENT, stream);
        }
        Ok(())
    }

    fn used(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError> {
        if let Some(checker) = self.checker {
            checker.used(block.address, self.streams[stream as usize]);
        }
        Ok(())
    }

    fn use_ended(&mut self, _block: LiveBlock, _stream: u32) -> Result<(), DeviceError> {
        Ok(())
    }

    fn freeing(&mut self, block: LiveBlock, _stream: u32) -> Result<(), DeviceError> {
        if let Some(checker) = self.checker {
            checker.freeing(block.address);
        }
        Ok(())
    }
}

impl Beside for Bytes<'_> {
    const TIMES_CALLS: bool = true;

    fn before(&mut self, _index: usize, _step: &Step) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocated(&mut self, block: LiveBlock) -> Result<(), DeviceError> {
        self.fill(block)
    }

    fn used(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError> {
        self.order(block, stream)
    }

    fn use_ended(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError> {
        self.verify(block, stream)
    }

    fn freeing(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError> {
        self.verify(block, stream)
    }
}

/// The job and its allocator: makes the calls that a recording says.
struct Job<'a> {
    replay: &'a Replay<'a>,
    device: Arc<dyn Device>,
    allocator: Allocator,
    counter: Arc<CallCounter>,
    reserved: Arc<Reserved>,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    addresses: Vec<Option<u64>>,
    failed_allocations: u64,
    failures: Findings,
    /// Time in the policy's calls, in nanoseconds, where it is taken.
    policy_ns: u64,
}

impl<'a> Job<'a> {
    fn new(
        replay: &'a Replay<'a>,
        device: Arc<dyn Device>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Job<'a>, ReplayError> {
        let counter = Arc::new(CallCounter::default());
        let reserved = Arc::new(Reserved::new(replay.limit));
        let mut observers: Vec<Arc<dyn Observer>> =
            vec![Arc::clone(&counter) as _, Arc::clone(&reserved) as _];
        observers.extend(observer);
        let device: Arc<dyn Device> = Arc::new(Observed::new(device, observers));
        let streams = (0..replay.workload.streams)
            .map(|_| device.create_stream(StreamOrder::Independent))
            .collect::<Result<_, _>>()?;
        let events = (0..replay.workload.events)
            .map(|_| device.create_event())
            .collect::<Result<_, _>>()?;
        Ok(Job {
            allocator: Allocator::new(replay.policy, Arc::clone(&device)),
            device,
            counter,
            reserved,
            streams,
            events,
            addresses: vec![None; replay.workload.blocks.len()],
            failed_allocations: 0,
            failures: Findings::default(),
            policy_ns: 0,
            replay,
        })
    }

    fn figures(&self) -> Figures {
        Figures {
            failed_allocations: self.failed_allocations,
            peak_live: self.allocator.peak_live_bytes(),
            peak_reserved: self.reserved.peak_bytes(),
            totals: self.counter.totals(),
            events_recorded: self.allocator.events_recorded(),
            event_queries: self.allocator.event_queries(),
        }
    }

    fn play<B: Beside>(&mut self, beside: &mut B) -> Result<(), ReplayError> {
        let mut index = 0;
        for chunk in self.replay.workload.steps.chunks(CHUNK) {
            for step in chunk {
                beside.before(index, step)?;
                self.step(beside, index, step)?;
                index += 1;
            }
            self.replay.progress.advance(chunk.len());
        }
        Ok(())
    }

    fn step<B: Beside>(
        &mut self,
        beside: &mut B,
        index: usize,
        step: &Step,
    ) -> Result<(), ReplayError> {
        match step.op {
            Op::Alloc {
                block,
                size,
                stream,
            } => return self.allocate(beside, index, (block, size, stream)),
            Op::Free { block, .. } => return self.free(beside, index, block),
            Op::Use { block, stream } => {
                if let Some(block) = self.live(block) {
                    let user = self.streams[stream as usize];
                    self.timed::<B, _>(|allocator| allocator.use_on(block.address, user))
                        .map_err(|error| self.failed(index, error))?;
                    beside.used(block, stream)?;
                }
            }
            Op::UseEnd { block, stream, .. } => {
                if let Some(block) = self.live(block) {
                    beside.use_ended(block, stream)?;
                }
            }
            Op::Record { event, stream, .. } => {
                let (event, stream) = (self.events[event as usize], self.streams[stream as usize]);
                self.device.record_event(event, stream)?;
            }
            Op::Wait { event, stream } => {
                let (event, stream) = (self.events[event as usize], self.streams[stream as usize]);
                self.device.wait_event(stream, event)?;
            }
        }
        Ok(())
    }

    fn allocate<B: Beside>(
        &mut self,
        beside: &mut B,
        index: usize,
        (number, size, stream): (u32, u64, u32),
    ) -> Result<(), ReplayError> {
        let stream = self.streams[stream as usize];
        match self.timed::<B, _>(|allocator| allocator.allocate(size, stream)) {
            Ok(address) => {
                self.addresses[number as usize] = Some(address);
                Ok(beside.allocated(LiveBlock { number, address })?)
            }
            Err(error @ (PolicyError::OutOfMemory { .. } | PolicyError::TooLarge(_))) => {
                self.failed_allocations += 1;
                let policy = self.replay.policy;
                self.failures
                    .add(|| format!("{policy}, block {number}: {error}"));
                Ok(())
            }
            Err(error) => Err(self.failed(index, error)),
        }
    }

    fn free<B: Beside>(
        &mut self,
        beside: &mut B,
        index: usize,
        number: u32,
    ) -> Result<(), ReplayError> {
        let Some(block) = self.live(number) else {
            return Ok(());
        };
        let stream = self.replay.workload.blocks[number as usize].stream;
        beside.freeing(block, stream)?;
        self.addresses[number as usize] = None;
        self.timed::<B, _>(|allocator| allocator.free(block.address))
            .map_err(|error| self.failed(index, error))
    }

    /// Frees what the job left, and gives everything back; gives the failures.
    fn end<B: Beside>(mut self, beside: &mut B) -> Result<Findings, ReplayError> {
        let steps = self.replay.workload.steps.len();
        for number in 0..self.addresses.len() as u32 {
            self.free(beside, steps, number)?;
        }
        let policy = self.replay.policy;
        self.allocator
            .close()
            .map_err(|error| ReplayError::Policy {
                policy,
                step: steps,
                error,
            })?;
        for event in self.events {
            self.device.destroy_event(event)?;
        }
        for stream in self.streams {
            self.device.destroy_stream(stream)?;
        }
        Ok(self.failures)
    }

    fn live(&self, number: u32) -> Option<LiveBlock> {
        let address = self.addresses[number as usize]?;
        Some(LiveBlock { number, address })
    }

    fn timed<B: Beside, T>(&mut self, call: impl FnOnce(&mut Allocator) -> T) -> T {
        if !B::TIMES_CALLS {
            return call(&mut self.allocator);
        }
        let started = Instant::now();
        let result = call(&mut self.allocator);
        self.policy_ns += started.elapsed().as_nanos() as u64;
        result
    }

    fn failed(&self, step: usize, error: PolicyError) -> ReplayError {
        let policy = self.replay.policy;
        ReplayError::Policy {
            policy,
            step,
            error,
        }
    }
}
