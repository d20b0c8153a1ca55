//! A recording of a real job, replayed against the pool on a device.
//!
//! - [`workload`]: a recording made ready; [`timeline`]: what the device did meanwhile.
//! - [`session`]: the job; [`allocator`]: its pool, or another's policy to compare; [`sim`] and [`real`]: what goes along with it;
//!   [`delay`]: what inserted waits cost; [`min_limit`]: how little memory would do.
//! - [`calls`]: counts driver calls; [`outcome`]: what comes of it; [`findings`]: what goes wrong;
//!   [`error`]: why there is no outcome.
//! - [`bare`]: the job's calls alone, for whoever takes their time.
//! - [`picture`]: the address space over time, as an SVG.
//! - [`progress`]: a bar for the impatient.

mod allocator;
mod bare;
mod calls;
mod delay;
mod error;
mod findings;
mod min_limit;
mod outcome;
mod picture;
mod progress;
mod real;
mod session;
mod sim;
mod timeline;
mod workload;

use std::num::NonZeroU32;
use std::sync::Arc;

use millpond::device::HostDevice;
use millpond_trace::Trace;

pub(crate) use allocator::{PolicyChoice, PoolSettings};
pub(crate) use bare::{BareRepetition, Watch, play_bare};
pub(crate) use error::ReplayError;
pub(crate) use outcome::{Outcome, table};
pub(crate) use picture::{Band, Block, Recorder, Recording};
pub(crate) use progress::Progress;
pub(crate) use workload::{Scale, Workload};

use crate::device::DeviceName;
use real::RealDevice;
use workload::fitting_scale;

/// A device's memory where nothing else is said, on the sim: an H200's.
const SIM_MEMORY: u64 = 141_000_000_000;

/// A device's memory where nothing else is said, on the host, at most: a long job writes and reads
/// its memory hundreds of times over, which takes minutes with more.
const HOST_MEMORY: u64 = 1 << 30;

/// The smallest device: one handle.
const SMALLEST_DEVICE: u64 = 2 << 20;

/// Up to this part of a device's free memory, live blocks fit; a recording that is shrunk comes as
/// close to it as it can. The rest is for what a pool needs beyond them, in handles of 2 MiB and
/// more: on the small devices of the host that is much, on a GPU little.
const HOST_FILL: (u64, u64) = (3, 4);
const CUDA_FILL: (u64, u64) = (15, 16);

/// How recordings are replayed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Settings {
    pub(crate) device: DeviceName,
    /// Bytes, of an emulated device; without it, the device's default.
    pub(crate) device_size: Option<u64>,
    /// Without it, 1 on the sim, and elsewhere so that it fits.
    pub(crate) scale: Option<Scale>,
    pub(crate) pool: PoolSettings,
    /// For the delays of the host device's streams; without it, there are none.
    pub(crate) seed: Option<u64>,
    /// How often the job is played with the same pool, where it is to be repeated.
    pub(crate) repeat: Option<NonZeroU32>,
    /// Whether the smallest limit is looked for at which it completes.
    pub(crate) min_limit: bool,
}

/// What is replayed on.
#[derive(Debug)]
enum Target {
    /// Sims with this much memory.
    Sim(u64),
    Real(RealDevice),
}

/// A recording that is ready to be replayed on a device.
#[derive(Debug)]
pub(crate) struct Prepared {
    workload: Workload,
    target: Target,
    pool: PoolSettings,
    repeat: Option<NonZeroU32>,
    min_limit: bool,
    /// The bytes that the recording did not fit into, where it was shrunk.
    shrunk_for: Option<u64>,
}

/// Replays a recording on the sim at full size, and sees where everything is.
pub(crate) fn record(
    workload: &Workload,
    settings: PoolSettings,
    recorder: &Arc<Recorder>,
) -> Result<Outcome, ReplayError> {
    sim::record(workload, SIM_MEMORY, settings, recorder)
}

/// Makes a recording ready.
pub(crate) fn prepare(trace: Trace, settings: &Settings) -> Result<Prepared, ReplayError> {
    if let Some(size) = settings.device_size
        && size < SMALLEST_DEVICE
    {
        return Err(ReplayError::DeviceTooSmall(size));
    }
    let (target, memory, fill) = match settings.device {
        DeviceName::Sim => {
            let memory = settings.device_size.unwrap_or(SIM_MEMORY);
            (Target::Sim(memory), memory, HOST_FILL)
        }
        DeviceName::Host => {
            let memory = settings.device_size.unwrap_or_else(|| {
                let most = match settings.scale {
                    None => HOST_MEMORY,
                    Some(_) => u64::MAX,
                };
                HostDevice::default_memory().min(most)
            });
            let device = RealDevice::host(memory, settings.seed)?;
            (Target::Real(device), memory, HOST_FILL)
        }
        DeviceName::Cuda(ordinal) => {
            let device = RealDevice::cuda(ordinal)?;
            let free = device.free_memory()?;
            (Target::Real(device), free, CUDA_FILL)
        }
    };
    let by_default = match target {
        Target::Real(_) => Scale::Auto,
        Target::Sim(_) => Scale::Factor(1.0),
    };
    let scale = settings.scale.unwrap_or(by_default);
    let factor = match scale {
        Scale::Factor(factor) => factor,
        Scale::Auto => {
            let room = memory / fill.1 * fill.0;
            fitting_scale(&trace, room).map_err(|live| ReplayError::DoesNotFit { live, room })?
        }
    };
    let shrunk = scale == Scale::Auto && factor != 1.0;
    Ok(Prepared {
        workload: Workload::new(trace, factor),
        target,
        pool: settings.pool,
        repeat: settings.repeat,
        min_limit: settings.min_limit,
        shrunk_for: shrunk.then_some(memory),
    })
}

impl Prepared {
    /// The recording's name.
    pub(crate) fn name(&self) -> &str {
        &self.workload.name
    }

    /// The scale to which the recording was shrunk, and the bytes of memory that it did not fit
    /// into.
    pub(crate) fn shrunk(&self) -> Option<(f64, u64)> {
        self.shrunk_for.map(|memory| (self.workload.scale, memory))
    }

    /// Steps that [`Prepared::replay`] goes through.
    pub(crate) fn steps(&self) -> u64 {
        let runs = match self.target {
            Target::Real(_) => 1,
            Target::Sim(_) => 2,
        };
        let repetitions = u64::from(self.repetitions());
        runs * repetitions * self.workload.steps.len() as u64
    }

    fn repetitions(&self) -> u32 {
        self.repeat.map_or(1, NonZeroU32::get)
    }

    /// Replays it with this policy; gives an outcome for each repetition. The recorder, if there is
    /// one, sees all of it.
    pub(crate) fn replay(
        &self,
        policy: PolicyChoice,
        recorder: Option<&Arc<Recorder>>,
        progress: &Progress,
    ) -> Result<Vec<Outcome>, ReplayError> {
        let (workload, repetitions) = (&self.workload, self.repetitions());
        let settings = PoolSettings {
            policy,
            ..self.pool
        };
        let mut outcomes = match &self.target {
            Target::Sim(memory) => {
                let recorder = recorder.map(Arc::clone);
                sim::run(workload, *memory, settings, repetitions, recorder, progress)?
            }
            Target::Real(device) => {
                real::run(workload, device, settings, repetitions, recorder, progress)?
            }
        };
        if self.repeat.is_some() {
            for (outcome, number) in outcomes.iter_mut().zip(1..) {
                outcome.repetition = Some(number);
            }
        }
        if self.min_limit
            && let Some(outcome) = outcomes.first_mut()
        {
            outcome.min_limit_bytes = Some(self.min_limit_after(outcome, settings, progress)?);
        }
        Ok(outcomes)
    }

    /// The smallest limit, after a replay without one.
    fn min_limit_after(
        &self,
        unlimited: &Outcome,
        unlimited_settings: PoolSettings,
        progress: &Progress,
    ) -> Result<Option<u64>, ReplayError> {
        if unlimited.failed_allocations > 0 {
            return Ok(None);
        }
        let completes = |limit: u64| {
            let settings = PoolSettings {
                limit: Some(limit),
                ..unlimited_settings
            };
            progress.expect_more(self.workload.steps.len());
            match &self.target {
                Target::Sim(memory) => sim::completes(&self.workload, *memory, settings, progress),
                Target::Real(device) => real::completes(&self.workload, device, settings, progress),
            }
        };
        let (live, enough) = (unlimited.peak_live_bytes, unlimited.peak_reserved_bytes);
        let memory = match &self.target {
            Target::Sim(memory) => *memory,
            Target::Real(device) => device.total_memory(),
        };
        // What was enough without a limit may not be with one: a pool near its limit acts
        // differently.
        let mut enough = enough.next_multiple_of(min_limit::STEP);
        while !completes(enough)? {
            if enough >= memory {
                return Ok(None);
            }
            enough += (enough / 8).next_multiple_of(min_limit::STEP);
        }
        min_limit::search(live, enough, completes).map(Some)
    }
}
