//! Why there is no row.

use millpond::device::DeviceError;
use millpond::{AllocError, BlockError, PoolError};

use crate::replay::ReplayError;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Allocation(#[from] AllocError),
    #[error("a block could not be freed: {0}")]
    Free(#[from] BlockError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("the recording allocates nothing")]
    NothingAllocated,
}
