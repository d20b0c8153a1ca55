//! What a device call can answer when it fails: the call, the driver's code, and what to do.

use std::fmt;

/// A call of the device contract, named after the driver function it stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(
    missing_docs,
    reason = "each is the method of the same name of `Device`"
)]
pub enum Call {
    Open,
    MemoryInfo,
    Reserve,
    FreeReservation,
    Create,
    Release,
    Export,
    Import,
    Map,
    SetAccess,
    Unmap,
    Allocate,
    Free,
    CreateStream,
    DestroyStream,
    StreamIdentity,
    SynchronizeStream,
    Synchronize,
    CreateEvent,
    DestroyEvent,
    RecordEvent,
    QueryEvent,
    WaitEvent,
    SynchronizeEvent,
    Fill,
    Verify,
    Copy,
    HostFunction,
}

impl Call {
    /// Every call, in the order of the contract.
    pub const ALL: [Call; 28] = [
        Call::Open,
        Call::MemoryInfo,
        Call::Reserve,
        Call::FreeReservation,
        Call::Create,
        Call::Release,
        Call::Export,
        Call::Import,
        Call::Map,
        Call::SetAccess,
        Call::Unmap,
        Call::Allocate,
        Call::Free,
        Call::CreateStream,
        Call::DestroyStream,
        Call::StreamIdentity,
        Call::SynchronizeStream,
        Call::Synchronize,
        Call::CreateEvent,
        Call::DestroyEvent,
        Call::RecordEvent,
        Call::QueryEvent,
        Call::WaitEvent,
        Call::SynchronizeEvent,
        Call::Fill,
        Call::Verify,
        Call::Copy,
        Call::HostFunction,
    ];

    /// The driver function that the call stands for.
    pub fn driver_name(self) -> &'static str {
        match self {
            Call::Open => "cuInit",
            Call::MemoryInfo => "cuMemGetInfo",
            Call::Reserve => "cuMemAddressReserve",
            Call::FreeReservation => "cuMemAddressFree",
            Call::Create => "cuMemCreate",
            Call::Release => "cuMemRelease",
            Call::Export => "cuMemExportToShareableHandle",
            Call::Import => "cuMemImportFromShareableHandle",
            Call::Map => "cuMemMap",
            Call::SetAccess => "cuMemSetAccess",
            Call::Unmap => "cuMemUnmap",
            Call::Allocate => "cuMemAlloc",
            Call::Free => "cuMemFree",
            Call::CreateStream => "cuStreamCreate",
            Call::DestroyStream => "cuStreamDestroy",
            Call::StreamIdentity => "cuStreamGetId",
            Call::SynchronizeStream => "cuStreamSynchronize",
            Call::Synchronize => "cuCtxSynchronize",
            Call::CreateEvent => "cuEventCreate",
            Call::DestroyEvent => "cuEventDestroy",
            Call::RecordEvent => "cuEventRecord",
            Call::QueryEvent => "cuEventQuery",
            Call::WaitEvent => "cuStreamWaitEvent",
            Call::SynchronizeEvent => "cuEventSynchronize",
            Call::Fill => "cuMemsetD32Async",
            Call::Verify => "cuLaunchKernel",
            Call::Copy => "cuMemcpyDtoDAsync",
            Call::HostFunction => "cuLaunchHostFunc",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.driver_name())
    }
}

/// A result code of the driver (`CUresult`); the emulations answer with the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// An argument breaks a rule of the call.
    pub const INVALID_VALUE: Status = Status(1);
    /// No memory, or no address space, is left for this.
    pub const OUT_OF_MEMORY: Status = Status(2);
    /// The driver is not initialised, or cannot be.
    pub const NOT_INITIALIZED: Status = Status(3);
    /// The driver is shutting down with the process.
    pub const DEINITIALIZED: Status = Status(4);
    /// The library found is a stub, not a driver.
    pub const STUB_LIBRARY: Status = Status(34);
    /// There is no device.
    pub const NO_DEVICE: Status = Status(100);
    /// There is no device of this ordinal.
    pub const INVALID_DEVICE: Status = Status(101);
    /// The context is not valid.
    pub const INVALID_CONTEXT: Status = Status(201);
    /// The operating system refused what the driver asked of it.
    pub const OPERATING_SYSTEM: Status = Status(304);
    /// A handle, stream or event is not (or no longer) one.
    pub const INVALID_HANDLE: Status = Status(400);
    /// A named thing, or the driver library, is not there.
    pub const NOT_FOUND: Status = Status(500);
    /// The work is not done yet.
    pub const NOT_READY: Status = Status(600);
    /// A kernel touched memory that is not mapped for it. Sticky.
    pub const ILLEGAL_ADDRESS: Status = Status(700);
    /// A kernel failed. Sticky.
    pub const LAUNCH_FAILED: Status = Status(719);
    /// The process may not do this.
    pub const NOT_PERMITTED: Status = Status(800);
    /// The device or the driver cannot do this.
    pub const NOT_SUPPORTED: Status = Status(801);
    /// The call is not allowed while a stream is being captured.
    pub const CAPTURE_UNSUPPORTED: Status = Status(900);
    /// Something the driver has no name for.
    pub const UNKNOWN: Status = Status(999);

    /// The driver's name of the code.
    pub fn name(self) -> &'static str {
        match self {
            Status::INVALID_VALUE => "invalid value",
            Status::OUT_OF_MEMORY => "out of memory",
            Status::NOT_INITIALIZED => "not initialized",
            Status::DEINITIALIZED => "driver shutting down",
            Status::STUB_LIBRARY => "stub library",
            Status::NO_DEVICE => "no device",
            Status::INVALID_DEVICE => "invalid device",
            Status::INVALID_CONTEXT => "invalid context",
            Status::OPERATING_SYSTEM => "operating system",
            Status::INVALID_HANDLE => "invalid handle",
            Status::NOT_FOUND => "not found",
            Status::NOT_READY => "not ready",
            Status::ILLEGAL_ADDRESS => "illegal address",
            Status::LAUNCH_FAILED => "launch failed",
            Status::NOT_PERMITTED => "not permitted",
            Status::NOT_SUPPORTED => "not supported",
            Status::CAPTURE_UNSUPPORTED => "not permitted in a capture",
            _ => "error",
        }
    }

    /// Whether the device is lost for this process: every later call fails too.
    pub fn is_sticky(self) -> bool {
        matches!(self.0, 700 | 702 | 710 | 714..=719) || self == Status::DEINITIALIZED
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A device call that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} failed: {status}: {detail}")]
pub struct DeviceError {
    /// The call.
    pub call: Call,
    /// The driver's code.
    pub status: Status,
    /// What was asked, what was there, and what to do, in words.
    pub detail: String,
}

impl DeviceError {
    /// Creates an error.
    pub fn new(call: Call, status: Status, detail: impl Into<String>) -> DeviceError {
        DeviceError {
            call,
            status,
            detail: detail.into(),
        }
    }
}
