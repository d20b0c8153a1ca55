//! What goes wrong in a policy.

use millpond::device::{DeviceError, Status};

/// A request that a policy could not serve.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The device, or a limit on it, has no room for what the policy needs.
    #[error(
        "{requested} bytes were asked for, which needs {needed} more of the device, and it has no \
         room: {cause}"
    )]
    OutOfMemory {
        /// Bytes that were asked for.
        requested: u64,
        /// Bytes that the policy asked the device for.
        needed: u64,
        /// The device's answer.
        cause: DeviceError,
    },
    /// No address range is as large.
    #[error("{0} bytes are more than any address range; ask for less")]
    TooLarge(u64),
    /// What was to be freed or used is not live.
    #[error("no live block begins at {0:#x}; it may have been freed already")]
    NotLive(u64),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl PolicyError {
    /// Whether there was no room, so that giving something back can help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, PolicyError::OutOfMemory { .. })
    }

    /// Why the device gave nothing for a request.
    pub(crate) fn growing(requested: u64, needed: u64, cause: DeviceError) -> PolicyError {
        if cause.status != Status::OUT_OF_MEMORY {
            return PolicyError::Device(cause);
        }
        PolicyError::OutOfMemory {
            requested,
            needed,
            cause,
        }
    }
}
