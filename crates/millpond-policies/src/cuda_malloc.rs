//! `cuda-malloc`: a driver call for every operation.
//!
//! Source: CUDA driver API, `cuMemAlloc` and `cuMemFree`. Nothing is cached. A free waits for all
//! work of the device, as `cuMemFree` does (measured: it waited as long as a kernel ran); the
//! contract promises no such wait, so it is made here.

use std::sync::Arc;

use millpond::device::{Device, StreamId};

use crate::PolicyError;
use crate::policy::Policy;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct CudaMalloc(Arc<dyn Device>);

impl CudaMalloc {
    pub(crate) fn new(device: Arc<dyn Device>) -> CudaMalloc {
        CudaMalloc(device)
    }
}

impl Policy for CudaMalloc {
    fn allocate(&mut self, size: u64, _stream: StreamId) -> Result<u64, PolicyError> {
        self.0
            .allocate(size)
            .map_err(|cause| PolicyError::growing(size, size, cause))
    }

    fn free(&mut self, address: u64) -> Result<(), PolicyError> {
        self.0.synchronize()?;
        Ok(self.0.free(address)?)
    }

    fn release_cached(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }

    fn free_waits(&self) -> bool {
        true
    }
}
