//! What can go wrong between a program and its pools, and what to do about it.

use crate::device::{DeviceError, StreamId};
use crate::pool::{AllocError, BlockError, PoolError, PoolLocation};

/// Why a call of [`Pools`](super::Pools) failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolsError {
    /// No device of this ordinal was given to these pools (invalid device, 101).
    #[error("there is no device {ordinal} here; these pools have devices {known:?}")]
    NoSuchDevice {
        /// The ordinal asked for.
        ordinal: u32,
        /// The ordinals that there are.
        known: Vec<u32>,
    },
    /// Two devices were given that have one ordinal.
    #[error("two devices have the ordinal {ordinal}; each device is named once")]
    SameDevice {
        /// The ordinal.
        ordinal: u32,
    },
    /// None of the devices can use memory that lies there (not supported, 801).
    #[error("no device of these pools can use mapped memory that lies at {location:?}")]
    NoSuchLocation {
        /// Where.
        location: PoolLocation,
    },
    /// The pool's memory does not lie where it was to be the current pool (invalid value, 1).
    #[error(
        "the pool's memory lies at {pool:?}, so it cannot be the current pool of {location:?}; \
         the current pool is local"
    )]
    WrongLocation {
        /// Where the pool's memory lies.
        pool: PoolLocation,
        /// What it was to be the current pool of.
        location: PoolLocation,
    },
    /// The pool works with a device that is not one of these pools'.
    #[error("the pool works with a device that these pools do not have")]
    NotOurs,
    /// The pool was destroyed.
    #[error("the pool was destroyed; choose another one")]
    Destroyed,
    /// The stream is not one of the device's (invalid handle, 400).
    #[error("stream {stream} is not one of device {device}; name a stream of that device")]
    WrongStream {
        /// The stream given.
        stream: StreamId,
        /// The ordinal of the device.
        device: u32,
    },
    /// A pool could not be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// There is no memory, or the request cannot be served.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The address is no block's.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
