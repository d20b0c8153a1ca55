//! Status codes, their texts, and the last error of each thread.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};

use engine::device::{Call, DeviceError, Status};
use engine::pool::{AccessError, AttributeError};
use engine::pools::PoolsError;
use engine::{AllocError, BlockError, PoolError};

/// How a call ended. `millpond_last_error()` has the full story of the one that failed last.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum millpond_status {
    /// It succeeded.
    MILLPOND_OK = 0,
    /// An argument breaks a rule of the call: a null pointer, an alignment that is no power of two.
    MILLPOND_INVALID_ARGUMENT = 1,
    /// There is no memory for the request, after everything was tried; nothing has changed, and a
    /// smaller request may succeed. The message says where the memory is.
    MILLPOND_OUT_OF_MEMORY = 2,
    /// The address is not the start of a live block of this pool: it was freed before, lies inside
    /// a block, or is somebody else's.
    MILLPOND_NOT_A_BLOCK = 3,
    /// There is no such device, or no driver for it.
    MILLPOND_NO_DEVICE = 4,
    /// The device cannot do this.
    MILLPOND_NOT_SUPPORTED = 5,
    /// The device refused a call. Later calls may succeed.
    MILLPOND_DEVICE_FAILED = 6,
    /// The device is lost for this process: a kernel has failed, or the driver is gone. Every
    /// later call fails as well.
    MILLPOND_DEVICE_LOST = 7,
    /// The call comes too late: what it would set is in use already.
    MILLPOND_TOO_LATE = 8,
    /// A bug in millpond. The process can go on; please report the message.
    MILLPOND_INTERNAL = 9,
}

use millpond_status::*;

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) status: millpond_status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: millpond_status, message: impl Into<String>) -> Failure {
        Failure {
            status,
            message: message.into(),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(MILLPOND_INVALID_ARGUMENT, message)
    }
}

fn device_status(error: &DeviceError) -> millpond_status {
    match error.status {
        status if status.is_sticky() => MILLPOND_DEVICE_LOST,
        Status::OUT_OF_MEMORY => MILLPOND_OUT_OF_MEMORY,
        Status::INVALID_VALUE | Status::INVALID_HANDLE => MILLPOND_INVALID_ARGUMENT,
        Status::NO_DEVICE | Status::INVALID_DEVICE | Status::STUB_LIBRARY => MILLPOND_NO_DEVICE,
        _ if error.call == Call::Open => MILLPOND_NO_DEVICE,
        Status::NOT_SUPPORTED => MILLPOND_NOT_SUPPORTED,
        _ => MILLPOND_DEVICE_FAILED,
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        Failure::new(device_status(&error), error.to_string())
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Failure {
        let status = match &error {
            AllocError::BadAlignment { .. } | AllocError::Destroyed { .. } => {
                MILLPOND_INVALID_ARGUMENT
            }
            AllocError::OutOfMemory(_) => MILLPOND_OUT_OF_MEMORY,
            AllocError::Device { error, .. } => device_status(error),
            _ => MILLPOND_DEVICE_FAILED,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Failure {
        let status = match &error {
            BlockError::Device(error) => device_status(error),
            BlockError::NotUsed { .. } | BlockError::UnknownEvent { .. } => {
                MILLPOND_INVALID_ARGUMENT
            }
            _ => MILLPOND_NOT_A_BLOCK,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        let status = match &error {
            PoolError::LocationNotOffered { .. } | PoolError::HandleTypesNotOffered { .. } => {
                MILLPOND_NOT_SUPPORTED
            }
            PoolError::WrongDevice { .. } => MILLPOND_NO_DEVICE,
            _ => MILLPOND_INVALID_ARGUMENT,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<PoolsError> for Failure {
    fn from(error: PoolsError) -> Failure {
        match error {
            PoolsError::NoSuchDevice { .. } => Failure::new(MILLPOND_NO_DEVICE, error.to_string()),
            PoolsError::NoSuchLocation { .. } => {
                Failure::new(MILLPOND_NOT_SUPPORTED, error.to_string())
            }
            PoolsError::Pool(error) => error.into(),
            PoolsError::Alloc(error) => error.into(),
            PoolsError::Block(error) => error.into(),
            PoolsError::Device(error) => error.into(),
            _ => Failure::invalid(error.to_string()),
        }
    }
}

impl From<AttributeError> for Failure {
    fn from(error: AttributeError) -> Failure {
        Failure::invalid(error.to_string())
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Failure {
        let status = match &error {
            AccessError::NoPeerAccess { .. } => MILLPOND_NO_DEVICE,
            AccessError::NotSupported | AccessError::HostCannot { .. } => MILLPOND_NOT_SUPPORTED,
            AccessError::Device(error) => device_status(error),
            _ => MILLPOND_INVALID_ARGUMENT,
        };
        Failure::new(status, error.to_string())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static LAST_STATUS: Cell<millpond_status> = const { Cell::new(MILLPOND_OK) };
}

/// Keeps a failure for the calling thread.
pub(crate) fn remember(failure: &Failure) {
    let message = failure.message.bytes();
    let printable: Vec<u8> = message.filter(|&byte| byte != 0).collect();
    let _ = LAST_STATUS.try_with(|last| last.set(failure.status));
    let text = CString::new(printable).unwrap_or_default();
    // At the end of a thread its storage may be gone; then nobody can ask any more either.
    let _ = LAST_ERROR.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = text;
        }
    });
}

/// The message of the last call that failed on this thread: what was asked, what was there, and
/// what to do. An empty string if none has failed.
///
/// Never null. Valid until the next millpond call on this thread fails; copy it to keep it.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr()))
        .unwrap_or(c"".as_ptr())
}

/// The status of the last call that failed on this thread: for functions that have no other way to
/// tell, such as PyTorch's pair. `MILLPOND_OK` if none has failed.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_last_status() -> millpond_status {
    LAST_STATUS
        .try_with(Cell::get)
        .unwrap_or(millpond_status::MILLPOND_OK)
}

/// A few words for a status, such as "out of memory". Never null; valid for ever. A number that is
/// no status gives "unknown status".
#[unsafe(no_mangle)]
pub extern "C" fn millpond_status_text(status: c_int) -> *const c_char {
    const TEXTS: [&std::ffi::CStr; 10] = [
        c"success",
        c"invalid argument",
        c"out of memory",
        c"not the start of a live block",
        c"no such device",
        c"not supported by the device",
        c"the device refused the call",
        c"the device is lost",
        c"too late",
        c"internal error",
    ];
    let text = usize::try_from(status).ok().and_then(|i| TEXTS.get(i));
    text.copied().unwrap_or(c"unknown status").as_ptr()
}

/// The library's version, such as "0.1.0". Never null; valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_version() -> *const c_char {
    const VERSION: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
        concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes(),
    ) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
