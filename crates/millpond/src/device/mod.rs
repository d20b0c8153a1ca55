//! What the pool needs of a device, and the rules that every device keeps.
//!
//! [`Device`] is the contract. Three implementations stand behind it: [`cuda`] (the NVIDIA
//! driver), [`host`] (real bytes in mapped pages of this machine) and [`sim`] (no
//! bytes, virtual time). The emulations refuse whatever the driver refuses, with the driver's
//! codes, so that a pool that works on them works on a GPU.
//!
//! # Rules of the contract
//!
//! Each rule names its source: *DRV* is the CUDA driver API's documentation of the call, *GUIDE*
//! the CUDA programming guide (4.2.5 virtual memory, 4.3 stream-ordered allocation), *MEASURED*
//! was found by measurement on an H200 with driver 580.
//!
//! 1. **Granularity.** The size of a handle, and the address and size of a mapping, are multiples
//!    of [`Capabilities::granularity`] (2 MiB on every known NVIDIA device; DRV `cuMemCreate`,
//!    `cuMemMap`). Otherwise: invalid value (1).
//! 2. **A handle is mapped whole**, from its first byte to its last (DRV `cuMemMap`: "offset
//!    currently must be zero"; MEASURED: an offset, or another size, gives not supported, 801).
//! 3. **A mapping lies inside one reservation** and over no other mapping (DRV `cuMemMap`:
//!    invalid value, 1). The driver does not check all of it (MEASURED: it maps beyond the end
//!    of a reservation, and into one that was freed before); the emulations do.
//! 4. **Access is needed before use.** A fresh mapping can be touched by nobody;
//!    [`Device::set_access`] covers one or more whole mappings, without holes between them (DRV
//!    `cuMemSetAccess`; MEASURED: the driver also takes a part of a mapping, the emulations do
//!    not). After a new mapping at the same address it is needed again. A stream that
//!    touches memory without access faults, and the fault is sticky: every later call on the
//!    device fails with illegal address (700).
//! 5. **Unmapping takes whole mappings**, one or more adjacent ones (DRV `cuMemUnmap`; MEASURED:
//!    half of a mapping gives invalid value, 1), **and does not wait** for work that uses them
//!    (MEASURED: 27 us while a kernel of 100 ms ran). Whoever unmaps must know that all use
//!    through that mapping is over.
//! 6. **A handle may stand under several addresses**; they are one memory. Between operations
//!    that are ordered, all addresses show the same bytes; within one kernel, mixing them is
//!    undefined (GUIDE, virtual aliasing).
//! 7. **A released handle lives on** while it is mapped or shared; its memory goes with the last
//!    of these (DRV `cuMemRelease`).
//! 8. **A reservation is freed as it was made**: same base, same size, nothing mapped in it (DRV
//!    `cuMemAddressFree`: invalid value, 1).
//! 9. **A stream runs its operations in order**; different streams run in any order but for the
//!    waits. An event stands for the work that was queued on its stream when it was last recorded;
//!    one that was never recorded counts as completed (DRV `cuEventQuery`, `cuStreamWaitEvent`).
//!    A wait binds to the record that was last made when the wait is queued, whatever is recorded
//!    afterwards.
//! 10. **A failed query is not a completion** (DRV `cuEventQuery`: it may return errors of earlier
//!     asynchronous work).
//! 11. **Destroying a stream or an event does not wait**; what was queued still runs, and what
//!     waits on the event still waits (DRV `cuStreamDestroy`, `cuEventDestroy`). The driver may
//!     give the same handle value to a stream created later.
//!
//! Calls may be made from any thread, with any current context or none.

pub mod cuda;
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        unused_imports,
        reason = "its users are the devices, each uses a part"
    )
)]
mod emulation;
mod error;
mod faults;
pub mod host;
mod observe;
pub mod sim;
mod topology;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use cuda::CudaDevice;
pub use error::{Call, DeviceError, Status};
pub use faults::Faults;
pub use host::HostDevice;
pub use observe::{CallRecord, Observed, Observer, Outcome};
pub use sim::SimDevice;
pub use topology::Topology;

/// A physical handle (`CUmemGenericAllocationHandle`): memory without an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HandleId(pub u64);

/// A stream, by the value of its handle (`CUstream`).
///
/// The value belongs to whoever created the stream: any stream of the program can be named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The default stream as a null handle: the legacy stream.
    pub const DEFAULT: StreamId = StreamId(0);
    /// `CU_STREAM_LEGACY`: the legacy default stream, under its explicit name.
    pub const LEGACY: StreamId = StreamId(1);
    /// `CU_STREAM_PER_THREAD`: one handle value, but a stream of its own in every thread.
    pub const PER_THREAD: StreamId = StreamId(2);
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// An event (`CUevent`), created without timing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventId(pub u64);

/// Which implementation of the contract a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// A real GPU, through the driver.
    Cuda,
    /// Real bytes in this machine's memory.
    Host,
    /// No bytes; virtual time.
    Sim,
}

/// Ways to hand a handle to another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareKind {
    /// A POSIX file descriptor, to be sent over a Unix socket.
    PosixFd,
    /// A 64-byte fabric handle, valid within one IMEX domain.
    Fabric,
}

/// A handle on its way to another process.
#[derive(Debug)]
pub enum Shareable {
    /// The descriptor; closing it does not release the memory while it is held elsewhere.
    PosixFd(OwnedFd),
    /// The bytes of a `CUmemFabricHandle`.
    Fabric(Box<[u8; 64]>),
}

/// Where physical memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Location {
    /// In the device's own memory.
    #[default]
    Device,
    /// In host memory, wherever that is (`CU_MEM_LOCATION_TYPE_HOST`).
    Host,
    /// In host memory of this NUMA node (`CU_MEM_LOCATION_TYPE_HOST_NUMA`).
    HostNuma(u32),
}

/// What a handle is to be able to do. Fixed when it is created (DRV `cuMemCreate`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandleProperties {
    /// Where its memory lies.
    pub location: Location,
    /// How it can be exported; `None`: not at all.
    pub share: Option<ShareKind>,
    /// Whether network cards may reach it (`gpuDirectRDMACapable`).
    pub rdma: bool,
}

/// Who may touch a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accessor {
    /// The device with this ordinal.
    Device(u32),
    /// All CPUs; only for memory that lies in host memory.
    Host,
    /// The CPUs of this NUMA node; only for memory that lies in host memory.
    HostNuma(u32),
}

/// What an accessor may do (`CUmemAccess_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Nothing.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

/// One entry of [`Device::set_access`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessGrant {
    /// Who.
    pub accessor: Accessor,
    /// What.
    pub protection: Protection,
}

/// What a device is and can do. Does not change while the device lives.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Which implementation this is.
    pub kind: DeviceKind,
    /// The device's name, for people.
    pub name: String,
    /// The device's ordinal, as access grants name it.
    pub ordinal: u32,
    /// Bytes of memory the device has.
    pub total_memory: u64,
    /// Bytes; every handle's size and every mapping's address and size is a multiple of it.
    pub granularity: u64,
    /// Whether physical memory can be mapped (reserve, create, map). Without it the pool falls
    /// back to [`Device::allocate`].
    pub mapping: bool,
    /// Handles can be exported as POSIX file descriptors.
    pub share_posix_fd: bool,
    /// Handles can be exported as fabric handles.
    pub share_fabric: bool,
    /// Handles can be made reachable for network cards.
    pub rdma: bool,
    /// Handles can lie in host memory.
    pub host: bool,
    /// Handles can lie in host memory of a chosen NUMA node.
    pub host_numa: bool,
    /// A destroyed stream's handle value may be given to a new stream, so that the value alone
    /// does not tell which stream it is (see [`Device::stream_identity`]).
    pub stream_values_recur: bool,
}

/// Bytes free and in all, as the device sees them now (all processes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes that could be created now.
    pub free: u64,
    /// Bytes the device has.
    pub total: u64,
}

/// How a stream stands to the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamOrder {
    /// No implicit order (`CU_STREAM_NON_BLOCKING`).
    Independent,
    /// Ordered with the legacy stream's work in both directions (`CU_STREAM_DEFAULT`).
    WithLegacy,
}

/// A word that fills a range, for [`Device::fill`] and [`Device::verify`].
///
/// Ranges are filled with the word's little-endian bytes, repeated, beginning with its first byte
/// at the range's first byte; the last repetition may be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern(pub u64);

/// What [`Device::verify`] found; shared with the stream that does the verifying.
#[derive(Debug, Default)]
pub struct Findings {
    /// Bytes that were not as expected, over all verifications that report here.
    wrong_bytes: AtomicU64,
    /// One of the wrong words, as found in memory. Meaningful if any byte was wrong.
    found_word: AtomicU64,
}

impl Findings {
    /// Creates an empty record.
    pub fn new() -> Arc<Findings> {
        Arc::default()
    }

    /// Adds wrong bytes, and one word as it was found. Called by devices.
    pub fn report(&self, wrong_bytes: u64, found_word: u64) {
        if wrong_bytes > 0 {
            self.found_word.store(found_word, Ordering::Relaxed);
            self.wrong_bytes.fetch_add(wrong_bytes, Ordering::Release);
        }
    }

    /// Bytes found wrong so far. Final once the verifying streams are synchronised.
    pub fn wrong_bytes(&self) -> u64 {
        self.wrong_bytes.load(Ordering::Acquire)
    }

    /// One of the words that were found instead, if any byte was wrong. Where the range begins or
    /// ends inside a 16-byte unit, only the wrong byte of that word may be from memory.
    pub fn found_word(&self) -> Option<u64> {
        (self.wrong_bytes() > 0).then(|| self.found_word.load(Ordering::Relaxed))
    }
}

/// Work for the host, run in stream order ([`Device::host_function`]).
pub type HostFunction = Box<dyn FnOnce() + Send>;

/// What the pool needs of a device. The rules are in the [module's documentation](self).
///
/// Addresses and sizes are in bytes. Every method may be called from any thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// What the device is and can do.
    fn capabilities(&self) -> &Capabilities;

    /// Bytes free and in all (`cuMemGetInfo`). An emulated device counts its own handles.
    fn memory_info(&self) -> Result<MemoryInfo, DeviceError>;

    /// Whether the device with this ordinal can be given access to this one's memory
    /// (`cuDeviceCanAccessPeer`). It can itself. Not a call that costs, or that an observer sees.
    fn can_be_accessed_by(&self, ordinal: u32) -> bool {
        ordinal == self.capabilities().ordinal
    }

    /// Nanoseconds on the device's host clock: real time, or the sim's virtual time.
    fn now(&self) -> u64;

    /// Says that one more stream, or one less, is being captured into a graph. While any is, calls
    /// that the driver would refuse for a capture's mode alone must pass
    /// (`cuThreadExchangeStreamCaptureMode`): mapping, queries, and whatever else touches no captured
    /// stream. A device without captures has nothing to do.
    fn capturing(&self, _begins: bool) {}

    // --- Address space -----------------------------------------------------------------------

    /// Reserves `size` bytes of address space, aligned to `alignment` (`cuMemAddressReserve`).
    ///
    /// `size` is a multiple of the granularity, `alignment` zero or a power of two. Takes no
    /// memory. Out of memory (2) if the address space is short.
    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DeviceError>;

    /// Gives a reservation back (`cuMemAddressFree`): rule 8.
    fn free_reservation(&self, base: u64, size: u64) -> Result<(), DeviceError>;

    // --- Physical memory ---------------------------------------------------------------------

    /// Creates a handle of `size` bytes (`cuMemCreate`): rule 1. The memory's content is
    /// undefined (the driver clears it).
    fn create(&self, size: u64, properties: HandleProperties) -> Result<HandleId, DeviceError>;

    /// Gives up a handle (`cuMemRelease`): rule 7.
    fn release(&self, handle: HandleId) -> Result<(), DeviceError>;

    /// Makes a handle that another process can import (`cuMemExportToShareableHandle`).
    /// Not supported (801) unless the handle was created for `kind`.
    fn export(&self, handle: HandleId, kind: ShareKind) -> Result<Shareable, DeviceError>;

    /// Takes a handle that another process exported (`cuMemImportFromShareableHandle`). It is
    /// `size` bytes long. The import is released like any handle.
    fn import(&self, shareable: Shareable, size: u64) -> Result<HandleId, DeviceError>;

    // --- Mapping -----------------------------------------------------------------------------

    /// Puts the whole of a handle, `size` bytes, under `address` (`cuMemMap`): rules 1 to 3, 6.
    fn map(&self, address: u64, size: u64, handle: HandleId) -> Result<(), DeviceError>;

    /// Says who may touch one or more whole mappings (`cuMemSetAccess`): rule 4.
    fn set_access(
        &self,
        address: u64,
        size: u64,
        grants: &[AccessGrant],
    ) -> Result<(), DeviceError>;

    /// Takes one or more whole mappings away (`cuMemUnmap`): rule 5. Does not wait.
    fn unmap(&self, address: u64, size: u64) -> Result<(), DeviceError>;

    // --- Memory where mapping is not supported -----------------------------------------------

    /// Allocates `size` bytes at an address that the device chooses (`cuMemAlloc`); at least
    /// 256-byte aligned.
    fn allocate(&self, size: u64) -> Result<u64, DeviceError>;

    /// Frees what [`Device::allocate`] gave (`cuMemFree`). May wait for the device's work.
    fn free(&self, address: u64) -> Result<(), DeviceError>;

    // --- Streams and events ------------------------------------------------------------------

    /// Creates a stream.
    fn create_stream(&self, order: StreamOrder) -> Result<StreamId, DeviceError>;

    /// Destroys a stream: rule 11.
    fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError>;

    /// A number that no other stream of the process ever has (`cuStreamGetId`). For
    /// [`StreamId::PER_THREAD`], that of the calling thread's stream.
    fn stream_identity(&self, stream: StreamId) -> Result<u64, DeviceError>;

    /// How a stream stands to the legacy stream (`cuStreamGetFlags`); `None` if there is no such
    /// stream, or the driver does not tell. Not a call that costs, or that an observer sees.
    fn stream_order(&self, _stream: StreamId) -> Option<StreamOrder> {
        None
    }

    /// Waits on the host until all work queued on the stream is done (`cuStreamSynchronize`).
    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError>;

    /// Waits on the host until all work queued on the device is done (`cuCtxSynchronize`).
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Creates an event, without timing.
    fn create_event(&self) -> Result<EventId, DeviceError>;

    /// Destroys an event: rule 11.
    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError>;

    /// Records an event on a stream (`cuEventRecord`): rule 9.
    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError>;

    /// Whether the event's last record is completed (`cuEventQuery`): rules 9 and 10.
    fn query_event(&self, event: EventId) -> Result<bool, DeviceError>;

    /// Lets a stream wait for an event's last record (`cuStreamWaitEvent`): rule 9.
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;

    /// Waits on the host for an event's last record (`cuEventSynchronize`).
    fn synchronize_event(&self, event: EventId) -> Result<(), DeviceError>;

    // --- Work on a stream --------------------------------------------------------------------

    /// Queues: fill `size` bytes at `address` with a pattern.
    fn fill(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
    ) -> Result<(), DeviceError>;

    /// Queues: compare `size` bytes at `address` with a pattern, and report what differs.
    /// A device without bytes reports nothing.
    fn verify(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
        findings: &Arc<Findings>,
    ) -> Result<(), DeviceError>;

    /// Queues: copy `size` bytes between two ranges of the device that do not overlap
    /// (`cuMemcpyDtoDAsync`).
    fn copy(
        &self,
        stream: StreamId,
        destination: u64,
        source: u64,
        size: u64,
    ) -> Result<(), DeviceError>;

    /// Queues: call `function` on a thread of the device's when all earlier work of the stream is
    /// done (`cuLaunchHostFunc`). The function must not call the device.
    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), DeviceError>;
}
