//! Opening a device, what it can do, and closing it.
//!
//! Invariants: capabilities are what the driver said at opening and do not change; a device that is
//! dropped leaves nothing of its own behind in the driver, unless the driver can no longer be
//! called; dropping never fails and says nothing about a driver that is gone.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::context::{Context, Entered};
use super::driver::Driver;
use super::jobs::{Jobs, inside_host_function};
use super::kernels::Kernels;
use super::slots::Slots;
use super::types::{
    ACCESS_NONE, ACCESS_READ, ACCESS_READ_WRITE, ALLOCATION_PINNED, ATTRIBUTE_FABRIC,
    ATTRIBUTE_HOST_MAPPING, ATTRIBUTE_HOST_NUMA_MAPPING, ATTRIBUTE_MAPPING,
    ATTRIBUTE_MULTIPROCESSORS, ATTRIBUTE_POSIX_FD, ATTRIBUTE_RDMA_WITH_MAPPING, CUmemAccessDesc,
    CUmemAllocationFlags, CUmemAllocationProp, CUmemLocation, CUstream, GRANULARITY_MINIMUM,
    HANDLE_TYPE_FABRIC, HANDLE_TYPE_NONE, HANDLE_TYPE_POSIX_FD, LOCATION_DEVICE, LOCATION_HOST,
    LOCATION_HOST_NUMA, STREAM_NON_BLOCKING, SUCCESS,
};
use crate::device::{
    AccessGrant, Accessor, Call, Capabilities, DeviceError, DeviceKind, HandleProperties, Location,
    Protection, ShareKind, Status, StreamId, StreamOrder,
};

/// Bytes; the granularity told for a device that cannot map, so that sizes stay comparable.
const USUAL_GRANULARITY: u64 = 2 << 20;

/// A GPU, or a MIG instance of one, through the NVIDIA driver.
///
/// The rules are those of [`Device`](crate::device::Device); the surroundings are described in the
/// [module](crate::device::cuda)'s documentation. Dropping it waits for the context's work if host functions,
/// fills or verifications may be under way, so that nothing runs on memory that is gone.
pub struct CudaDevice {
    pub(super) context: Context,
    pub(super) capabilities: Capabilities,
    pub(super) jobs: Jobs,
    pub(super) slots: Arc<Slots>,
    kernels: OnceLock<Kernels>,
    loading: Mutex<()>,
    multiprocessors: u32,
}

impl CudaDevice {
    /// Opens the device with this ordinal, in its primary context.
    ///
    /// # Errors
    ///
    /// All are of [`Call::Open`]: those of [`Driver::load`], invalid device (101) if there is no
    /// device of this ordinal, and what the driver said when it made the context.
    pub fn open(ordinal: u32) -> Result<CudaDevice, DeviceError> {
        CudaDevice::open_with(Driver::load()?, ordinal)
    }

    /// As [`CudaDevice::open`], with a driver that is loaded already.
    ///
    /// # Errors
    ///
    /// As [`CudaDevice::open`].
    pub fn open_with(driver: Arc<Driver>, ordinal: u32) -> Result<CudaDevice, DeviceError> {
        driver.check_process(Call::Open)?;
        CudaDevice::on(Context::primary(driver, ordinal)?)
    }

    /// Opens the device of the calling thread's current context, in that context. Unless it is the
    /// device's primary context, it must outlive what is returned.
    ///
    /// # Errors
    ///
    /// All are of [`Call::Open`]: those of [`Driver::load`], and invalid context (201) if no
    /// context is current.
    pub fn from_current_context() -> Result<CudaDevice, DeviceError> {
        CudaDevice::on(Context::current(Driver::load()?)?)
    }

    fn on(mut context: Context) -> Result<CudaDevice, DeviceError> {
        match capabilities(&context) {
            Ok(capabilities) => {
                let multiprocessors = context
                    .driver
                    .attribute(context.device, ATTRIBUTE_MULTIPROCESSORS);
                Ok(CudaDevice {
                    context,
                    capabilities,
                    jobs: Jobs::new(),
                    slots: Arc::default(),
                    kernels: OnceLock::new(),
                    loading: Mutex::new(()),
                    multiprocessors: multiprocessors.unsigned_abs(),
                })
            }
            Err(error) => {
                context.release();
                Err(error)
            }
        }
    }

    /// The driver that the device is used through.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.context.driver
    }

    /// A device attribute by its number (`CUdevice_attribute`); zero if the driver does not know
    /// it. Zero, too, in a process forked off the one that opened the device.
    pub fn attribute(&self, attribute: i32) -> i32 {
        if self.context.driver.is_own_process() {
            self.context
                .driver
                .attribute(self.context.device, attribute)
        } else {
            0
        }
    }

    /// Whether this device can reach memory of the device with that ordinal
    /// (`cuDeviceCanAccessPeer`).
    ///
    /// # Errors
    ///
    /// Invalid device (101) if there is no device of that ordinal.
    pub fn can_access_peer(&self, peer: u32) -> Result<bool, DeviceError> {
        self.can_access(peer, |own, peer| (own, peer))
    }

    /// Whether the device with that ordinal can reach memory of this one, so that
    /// [`set_access`](crate::device::Device::set_access) may grant it.
    pub(super) fn can_peer_access(&self, peer: u32) -> Result<bool, DeviceError> {
        self.can_access(peer, |own, peer| (peer, own))
    }

    /// Asks for one direction: who accesses, and whose memory.
    fn can_access(
        &self,
        peer: u32,
        direction: impl FnOnce(i32, i32) -> (i32, i32),
    ) -> Result<bool, DeviceError> {
        let driver = &self.context.driver;
        let count = driver.device_count()?;
        let asked = || format!("asked whether the device can access device {peer} of {count}");
        if peer >= count {
            let status = Status::INVALID_DEVICE;
            return Err(DeviceError::new(Call::Open, status, asked()));
        }
        let mut can = 0;
        let (who, whose) = direction(self.context.device, peer.cast_signed());
        // SAFETY: the driver is initialised; both devices are below its count, and a device is its
        // ordinal; `can` outlives the call.
        let code = unsafe { (driver.functions.device_can_access_peer)(&raw mut can, who, whose) };
        driver.check(Call::Open, code, asked)?;
        Ok(can != 0)
    }

    /// The kernels, loaded when they are first needed.
    pub(super) fn kernels(
        &self,
        entered: &Entered<'_>,
        call: Call,
    ) -> Result<&Kernels, DeviceError> {
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let kernels = Kernels::load(entered, call, self.multiprocessors)?;
        Ok(self.kernels.get_or_init(|| kernels))
    }

    /// How a stream stands to the legacy one, if the driver tells.
    pub(super) fn order_of(&self, stream: StreamId) -> Option<StreamOrder> {
        let entered = self.context.enter(Call::StreamIdentity).ok()?;
        let get_flags = entered.driver.functions.stream_get_flags?;
        let mut flags = 0;
        // SAFETY: the caller has this stream from the driver; a context is current, and `flags`
        // outlives the call.
        let code = unsafe { get_flags(stream.0 as CUstream, &raw mut flags) };
        let independent = flags & STREAM_NON_BLOCKING != 0;
        (code == SUCCESS).then_some(match independent {
            true => StreamOrder::Independent,
            false => StreamOrder::WithLegacy,
        })
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("ordinal", &self.capabilities.ordinal)
            .field("name", &self.capabilities.name)
            .field("driver", &self.context.driver)
            .finish_non_exhaustive()
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if !self.context.driver.is_own_process() {
            return;
        }
        let entered = match self.context.enter(Call::Open) {
            Ok(entered) => entered,
            Err(_) if inside_host_function() => {
                // Other functions may still be queued and will be called: all stays as it is.
                tracing::warn!(
                    device = self.capabilities.ordinal,
                    "a device was dropped inside a host function, where the driver must not be \
                     called; its context stays retained"
                );
                return;
            }
            Err(_) => {
                self.jobs.abandon();
                return;
            }
        };
        let functions = &self.context.driver.functions;
        let may_be_busy = self.kernels.get().is_some() || self.jobs.unfinished() > 0;
        // SAFETY: a context is current.
        let quiet = !may_be_busy || unsafe { (functions.ctx_synchronize)() } == SUCCESS;
        if quiet {
            if let Some(kernels) = self.kernels.get() {
                kernels.unload(&entered);
            }
            self.slots.free(&entered);
        } else {
            // The context is lost, and its memory with it. Nobody will call what is still queued.
            self.jobs.abandon();
        }
        drop(entered);
        self.context.release();
    }
}

/// The driver's form of a handle's properties.
pub(super) fn allocation_properties(
    device: i32,
    properties: HandleProperties,
) -> Option<CUmemAllocationProp> {
    let location = match properties.location {
        Location::Device => CUmemLocation {
            kind: LOCATION_DEVICE,
            id: device,
        },
        Location::Host => CUmemLocation {
            kind: LOCATION_HOST,
            id: 0,
        },
        Location::HostNuma(node) => CUmemLocation {
            kind: LOCATION_HOST_NUMA,
            id: i32::try_from(node).ok()?,
        },
    };
    Some(CUmemAllocationProp {
        kind: ALLOCATION_PINNED,
        requested_handle_types: properties.share.map_or(HANDLE_TYPE_NONE, handle_type),
        location,
        win32_handle_meta_data: std::ptr::null_mut(),
        alloc_flags: CUmemAllocationFlags {
            compression_type: 0,
            gpu_direct_rdma_capable: properties.rdma.into(),
            usage: 0,
            reserved: [0; 4],
        },
    })
}

/// The driver's form of a grant; none if its number is beyond what the driver counts to.
pub(super) fn access_descriptor(grant: &AccessGrant) -> Option<CUmemAccessDesc> {
    let (kind, id) = match grant.accessor {
        Accessor::Device(ordinal) => (LOCATION_DEVICE, ordinal),
        Accessor::Host => (LOCATION_HOST, 0),
        Accessor::HostNuma(node) => (LOCATION_HOST_NUMA, node),
    };
    Some(CUmemAccessDesc {
        location: CUmemLocation {
            kind,
            id: i32::try_from(id).ok()?,
        },
        flags: match grant.protection {
            Protection::None => ACCESS_NONE,
            Protection::Read => ACCESS_READ,
            Protection::ReadWrite => ACCESS_READ_WRITE,
        },
    })
}

/// The driver's name of a way to share.
pub(super) fn handle_type(kind: ShareKind) -> u32 {
    match kind {
        ShareKind::PosixFd => HANDLE_TYPE_POSIX_FD,
        ShareKind::Fabric => HANDLE_TYPE_FABRIC,
    }
}

fn capabilities(context: &Context) -> Result<Capabilities, DeviceError> {
    let driver = &context.driver;
    let device = context.device;
    let functions = &driver.functions;
    let can = |attribute| driver.attribute(device, attribute) != 0;

    let mut name = [0_u8; 256];
    // SAFETY: the driver is initialised, `device` came from it, and the buffer is as long as said.
    let code =
        unsafe { (functions.device_get_name)(name.as_mut_ptr().cast(), name.len() as i32, device) };
    driver.check(Call::Open, code, || {
        format!("asked for the name of device {device}")
    })?;
    let length = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());

    let mut total_memory = 0;
    // SAFETY: as above; `total_memory` outlives the call.
    let code = unsafe { (functions.device_total_mem)(&raw mut total_memory, device) };
    driver.check(Call::Open, code, || {
        format!("asked for the memory size of device {device}")
    })?;

    let mapping = can(ATTRIBUTE_MAPPING)
        && functions.mem_address_reserve.is_some()
        && functions.mem_address_free.is_some()
        && functions.mem_create.is_some()
        && functions.mem_release.is_some()
        && functions.mem_map.is_some()
        && functions.mem_set_access.is_some()
        && functions.mem_unmap.is_some()
        && functions.mem_get_allocation_granularity.is_some();
    let sharing = mapping && functions.mem_export.is_some() && functions.mem_import.is_some();
    let mut capabilities = Capabilities {
        kind: DeviceKind::Cuda,
        name: String::from_utf8_lossy(&name[..length]).into_owned(),
        ordinal: device.unsigned_abs(),
        total_memory: total_memory as u64,
        granularity: USUAL_GRANULARITY,
        mapping,
        share_posix_fd: sharing && can(ATTRIBUTE_POSIX_FD),
        share_fabric: sharing && can(ATTRIBUTE_FABRIC),
        rdma: mapping && can(ATTRIBUTE_RDMA_WITH_MAPPING),
        host: mapping && can(ATTRIBUTE_HOST_MAPPING),
        host_numa: mapping && can(ATTRIBUTE_HOST_NUMA_MAPPING),
        stream_values_recur: true,
    };
    if mapping {
        capabilities.granularity = granularity(context, &capabilities)?;
    }
    Ok(capabilities)
}

/// The granularity that suits every kind of handle the device can create. Plain handles must have
/// one; kinds that the driver will not tell it for have no say.
fn granularity(context: &Context, capabilities: &Capabilities) -> Result<u64, DeviceError> {
    let driver = &context.driver;
    let get = driver.optional(driver.functions.mem_get_allocation_granularity, Call::Open)?;
    let minimum = |properties| {
        let asked = || {
            format!(
                "asked for the mapping granularity of device {}",
                context.device
            )
        };
        let properties = allocation_properties(context.device, properties)
            .ok_or_else(|| DeviceError::new(Call::Open, Status::INVALID_VALUE, asked()))?;
        let mut bytes = 0;
        // SAFETY: the driver is initialised; the properties and `bytes` outlive the call.
        let code = unsafe { get(&raw mut bytes, &raw const properties, GRANULARITY_MINIMUM) };
        driver.check(Call::Open, code, asked)?;
        Ok(bytes as u64)
    };
    let plain = HandleProperties::default();
    let others = [
        (
            capabilities.share_posix_fd,
            HandleProperties {
                share: Some(ShareKind::PosixFd),
                ..plain
            },
        ),
        (
            capabilities.share_fabric,
            HandleProperties {
                share: Some(ShareKind::Fabric),
                ..plain
            },
        ),
        (
            capabilities.rdma,
            HandleProperties {
                rdma: true,
                ..plain
            },
        ),
        (
            capabilities.host_numa,
            HandleProperties {
                location: Location::HostNuma(0),
                ..plain
            },
        ),
    ];
    // All are powers of two: the largest is a multiple of each.
    let largest = others
        .into_iter()
        .filter(|(possible, _)| *possible)
        .filter_map(|(_, properties)| minimum(properties).ok())
        .fold(minimum(plain)?, u64::max);
    if largest.is_power_of_two() {
        Ok(largest)
    } else {
        Err(DeviceError::new(
            Call::Open,
            Status::UNKNOWN,
            format!("the driver says the mapping granularity is {largest} bytes, no power of two"),
        ))
    }
}
