//! Which device: the one place where a device of the engine is opened.

use std::sync::Arc;

use engine::device::cuda::CudaDevice;
use engine::device::{Device, DeviceError, HostDevice};

/// A device that can be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// The CUDA device with this ordinal.
    Cuda(u32),
    /// This machine's memory, so many bytes of it; 0: as many as are sensible.
    Host(u64),
}

/// An open device.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) device: Arc<dyn Device>,
    /// The same device, if it is the host device: its bytes can be read and written.
    pub(crate) host: Option<Arc<HostDevice>>,
}

impl Choice {
    pub(crate) fn open(self) -> Result<Opened, DeviceError> {
        match self {
            Choice::Cuda(ordinal) => {
                let device: Arc<dyn Device> = Arc::new(CudaDevice::open(ordinal)?);
                Ok(Opened { device, host: None })
            }
            Choice::Host(bytes) => {
                let builder = HostDevice::builder();
                let builder = match bytes {
                    0 => builder,
                    bytes => builder.total_memory(bytes),
                };
                let host = Arc::new(builder.build()?);
                let device: Arc<dyn Device> = Arc::clone(&host) as Arc<dyn Device>;
                let host = Some(host);
                Ok(Opened { device, host })
            }
        }
    }
}
