//! Devices to be measured on.

use std::sync::Arc;

use millpond::device::{CudaDevice, Device, DeviceError, HostDevice, Observed, SimDevice};

use super::clock::{Clock, DriverStopwatch};
use crate::device::DeviceName;

/// Memory of the emulated devices, in bytes: an H200's. That of the host is never written, and so
/// never taken from the machine.
const MEMORY: u64 = 141_000_000_000;

/// A device by name, that can be had anew for each row where it is an emulated one.
pub(crate) struct Target {
    name: DeviceName,
    /// A GPU, whose context lives on.
    open: Option<Arc<dyn Device>>,
}

impl Target {
    /// Opens it, where it is a GPU.
    pub(crate) fn open(name: DeviceName) -> Result<Target, DeviceError> {
        let open: Option<Arc<dyn Device>> = match name {
            DeviceName::Cuda(ordinal) => Some(Arc::new(CudaDevice::open(ordinal)?)),
            DeviceName::Host | DeviceName::Sim => None,
        };
        Ok(Target { name, open })
    }

    pub(super) fn name(&self) -> DeviceName {
        self.name
    }

    /// The device. Driver calls are watched on the sim alone, where they are not to count: to
    /// watch them takes time that elsewhere would count.
    pub(super) fn device(&self, clock: &Clock) -> Result<Arc<dyn Device>, DeviceError> {
        if let Some(device) = &self.open {
            return Ok(Arc::clone(device));
        }
        Ok(match self.name {
            DeviceName::Host => Arc::new(HostDevice::builder().total_memory(MEMORY).build()?),
            DeviceName::Sim | DeviceName::Cuda(_) => {
                let sim = SimDevice::builder().total_memory(MEMORY).build();
                let stopwatch = DriverStopwatch(clock.clone());
                Arc::new(Observed::new(Arc::new(sim), vec![Arc::new(stopwatch)]))
            }
        })
    }
}
