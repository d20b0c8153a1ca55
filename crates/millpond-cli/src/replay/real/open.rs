//! Opening a device that has bytes.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::{CudaDevice, Device, DeviceError, HostDevice};

use crate::device::DeviceName;

/// The longest that an operation on the host device is held back, with a seed.
const LONGEST_DELAY: Duration = Duration::from_micros(200);

/// A device with bytes, to be replayed on.
#[derive(Debug)]
pub(in crate::replay) struct RealDevice {
    pub(super) device: Arc<dyn Device>,
    pub(super) name: DeviceName,
    /// Bytes filled or verified that end a window (see [`bytes`](super::bytes)).
    pub(super) window_bytes: u64,
}

impl RealDevice {
    /// A host device with this much memory; with a seed, its streams are held back at random.
    pub(in crate::replay) fn host(
        memory: u64,
        seed: Option<u64>,
    ) -> Result<RealDevice, DeviceError> {
        let mut builder = HostDevice::builder().total_memory(memory);
        if let Some(seed) = seed {
            builder = builder.delays(seed, LONGEST_DELAY);
        }
        Ok(RealDevice {
            device: Arc::new(builder.build()?),
            name: DeviceName::Host,
            // About a second of this machine's time.
            window_bytes: 1 << 30,
        })
    }

    /// The GPU with this ordinal.
    pub(in crate::replay) fn cuda(ordinal: u32) -> Result<RealDevice, DeviceError> {
        Ok(RealDevice {
            device: Arc::new(CudaDevice::open(ordinal)?),
            name: DeviceName::Cuda(ordinal),
            // Tens of milliseconds of a GPU's time, so that the host is ahead of it as far as
            // real jobs are.
            window_bytes: 64 << 30,
        })
    }

    /// Bytes of the device's memory that are free now.
    pub(in crate::replay) fn free_memory(&self) -> Result<u64, DeviceError> {
        Ok(self.device.memory_info()?.free)
    }

    /// Bytes of the device's memory.
    pub(in crate::replay) fn total_memory(&self) -> u64 {
        self.device.capabilities().total_memory
    }
}
