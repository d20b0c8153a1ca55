//! A recording of a real job, replayed against the pool on an emulated device.
//!
//! - [`workload`]: a recording made ready; [`timeline`]: what the device did meanwhile.
//! - [`session`]: the job and its pool; [`sim`] and [`host`]: what goes along with it.
//! - [`calls`]: counts driver calls; [`outcome`]: what comes of it; [`findings`]: what goes wrong;
//!   [`error`]: why there is no outcome.
//! - [`progress`]: a bar for the impatient.

mod calls;
mod error;
mod findings;
mod host;
mod outcome;
mod progress;
mod session;
mod sim;
mod timeline;
mod workload;

use millpond::device::HostDevice;
use millpond_trace::Trace;

pub(crate) use error::ReplayError;
pub(crate) use outcome::{Outcome, table};
pub(crate) use progress::Progress;
pub(crate) use workload::Scale;

use workload::{Workload, fitting_scale};

/// A device's memory where nothing else is said, on the sim: an H200's.
const SIM_MEMORY: u64 = 141_000_000_000;

/// A device's memory where nothing else is said, on the host, at most: a long job writes and reads
/// its memory hundreds of times over, which takes minutes with more.
const HOST_MEMORY: u64 = 1 << 30;

/// The smallest device: one handle.
const SMALLEST_DEVICE: u64 = 2 << 20;

/// How full a device may be made by the live blocks of a recording that is shrunk to fit: three
/// quarters. The rest is for what a pool needs beyond them.
const FILL: (u64, u64) = (3, 4);

/// The device to replay on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum DeviceChoice {
    /// This machine's memory: every block is filled and verified
    Host,
    /// No bytes, virtual time: an H200 by its measured costs
    Sim,
}

/// How recordings are replayed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Settings {
    pub(crate) device: DeviceChoice,
    /// Bytes; without it, the device's default.
    pub(crate) device_size: Option<u64>,
    /// Without it, 1 on the sim and to fit on the host.
    pub(crate) scale: Option<Scale>,
    /// Bytes that the pool may take.
    pub(crate) limit: Option<u64>,
    /// For the delays of the host device's streams; without it, there are none.
    pub(crate) seed: Option<u64>,
}

/// A recording that is ready to be replayed on a device of a certain size.
#[derive(Debug)]
pub(crate) struct Prepared {
    workload: Workload,
    device_size: u64,
    settings: Settings,
    /// The recording was shrunk to fit.
    shrunk: bool,
}

/// Makes a recording ready.
pub(crate) fn prepare(trace: Trace, settings: &Settings) -> Result<Prepared, ReplayError> {
    let device_size = match (settings.device_size, settings.device) {
        (Some(size), _) => size,
        (None, DeviceChoice::Sim) => SIM_MEMORY,
        (None, DeviceChoice::Host) => match settings.scale {
            None => HostDevice::default_memory().min(HOST_MEMORY),
            Some(_) => HostDevice::default_memory(),
        },
    };
    if device_size < SMALLEST_DEVICE {
        return Err(ReplayError::DeviceTooSmall(device_size));
    }
    let by_default = match settings.device {
        DeviceChoice::Host => Scale::Auto,
        DeviceChoice::Sim => Scale::Factor(1.0),
    };
    let scale = settings.scale.unwrap_or(by_default);
    let factor = match scale {
        Scale::Factor(factor) => factor,
        Scale::Auto => {
            let room = device_size / FILL.1 * FILL.0;
            fitting_scale(&trace, room).map_err(|live| ReplayError::DoesNotFit { live, room })?
        }
    };
    Ok(Prepared {
        workload: Workload::new(trace, factor),
        device_size,
        settings: *settings,
        shrunk: scale == Scale::Auto && factor != 1.0,
    })
}

impl Prepared {
    /// The recording's name.
    pub(crate) fn name(&self) -> &str {
        &self.workload.name
    }

    /// The scale to which the recording was shrunk, and the bytes of the device that it did not
    /// fit into.
    pub(crate) fn shrunk(&self) -> Option<(f64, u64)> {
        self.shrunk
            .then_some((self.workload.scale, self.device_size))
    }

    /// Steps that [`Prepared::replay`] goes through.
    pub(crate) fn steps(&self) -> u64 {
        let runs = match self.settings.device {
            DeviceChoice::Host => 1,
            DeviceChoice::Sim => 2,
        };
        runs * self.workload.steps.len() as u64
    }

    /// Replays it.
    pub(crate) fn replay(&self, progress: &Progress) -> Result<Outcome, ReplayError> {
        let Settings { limit, seed, .. } = self.settings;
        match self.settings.device {
            DeviceChoice::Sim => sim::run(&self.workload, self.device_size, limit, progress),
            DeviceChoice::Host => {
                host::run(&self.workload, self.device_size, limit, seed, progress)
            }
        }
    }
}
