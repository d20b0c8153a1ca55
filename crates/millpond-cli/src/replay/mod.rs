//! A recording of a real job, replayed against the pool on a device.
//!
//! - [`workload`]: a recording made ready; [`timeline`]: what the device did meanwhile.
//! - [`session`]: the job and its pool; [`sim`] and [`real`]: what goes along with it;
//!   [`delay`]: what inserted waits cost.
//! - [`policies`]: the same job with other allocators' policies, to compare.
//! - [`calls`]: counts driver calls; [`outcome`]: what comes of it; [`findings`]: what goes wrong;
//!   [`error`]: why there is no outcome.
//! - [`progress`]: a bar for the impatient.

mod calls;
mod delay;
mod error;
mod findings;
mod outcome;
mod policies;
mod progress;
mod real;
mod session;
mod sim;
mod timeline;
mod workload;

use millpond::device::HostDevice;
use millpond_trace::Trace;

pub(crate) use error::ReplayError;
pub(crate) use outcome::{Outcome, table};
pub(crate) use policies::PolicyChoice;
pub(crate) use progress::Progress;
pub(crate) use session::PoolSettings;
pub(crate) use workload::Scale;

use crate::device::DeviceName;
use real::RealDevice;
use workload::{Workload, fitting_scale};

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
    /// The bytes that the recording did not fit into, where it was shrunk.
    shrunk_for: Option<u64>,
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
        runs * self.workload.steps.len() as u64
    }

    /// Replays it with this policy.
    pub(crate) fn replay(
        &self,
        policy: PolicyChoice,
        progress: &Progress,
    ) -> Result<Outcome, ReplayError> {
        if let PolicyChoice::Other(policy) = policy {
            let limit = self.pool.limit;
            return policies::run(policy, &self.workload, &self.target, limit, progress);
        }
        match &self.target {
            Target::Sim(memory) => sim::run(&self.workload, *memory, self.pool, progress),
            Target::Real(device) => real::run(&self.workload, device, self.pool, progress),
        }
    }
}
