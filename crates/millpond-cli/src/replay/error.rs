//! Why a recording could not be replayed to its end.

use std::io;
use std::path::PathBuf;

use millpond::device::DeviceError;
use millpond::{BlockError, PoolError};
use millpond_policies::{PolicyError, PolicyName};
use millpond_trace::TraceError;

use super::sim::Figures;
use crate::size::ByteSize;

/// Why there is no outcome for a recording.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("a device of {} is less than one handle; give 2 MiB or more", ByteSize(*.0))]
    DeviceTooSmall(u64),
    #[error(
        "at the smallest scale its live blocks take {}, and the device has room for {}; give a \
         larger --device-size, or free memory of the GPU",
        ByteSize(*.live),
        ByteSize(*.room)
    )]
    DoesNotFit { live: u64, room: u64 },
    #[error("the device failed, and the replay ends there: {0}")]
    Device(#[from] DeviceError),
    #[error("step {step}: the pool refused what the job did, which is a bug in millpond: {error}")]
    Refused { step: usize, error: BlockError },
    #[error(
        "two runs of the same recording differ, which is a bug in millpond: {first:?}, then \
         {second:?}"
    )]
    Undetermined {
        first: Box<Figures>,
        second: Box<Figures>,
    },
    #[error("the pool did not give everything back, which is a bug in millpond: {0}")]
    LeftBehind(String),
    #[error("the picture could not be written to {}: {error}", path.display())]
    Picture { path: PathBuf, error: io::Error },
    #[error("the policy {policy} failed, and the replay ends there: {error}")]
    Policy {
        policy: PolicyName,
        error: PolicyError,
    },
}
