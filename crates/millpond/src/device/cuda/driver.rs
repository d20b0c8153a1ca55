//! The driver's library, found and loaded at run time.
//!
//! Invariants: a [`Driver`] exists only when the library is a real driver, new enough, initialised
//! and complete; the library is never unloaded (threads of the driver's run in it); no call reaches
//! it from a process forked off the one that loaded it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::table::{Functions, Wanted};
use super::types::{CUdevice, CUresult, PROC_ADDRESS_LEGACY_STREAM, SUCCESS};
use crate::device::{Call, DeviceError, Status};

/// Where the library is looked for, in this order. The versioned name comes first because the plain
/// one may be the toolkit's link-time stub; the last is where WSL keeps it.
const CANDIDATES: [&str; 3] = [
    "libcuda.so.1",
    "libcuda.so",
    "/usr/lib/wsl/lib/libcuda.so.1",
];

/// The oldest CUDA version (1000 × major + 10 × minor) whose driver has all required functions.
const OLDEST_VERSION: c_int = 10_000;

type GetProcAddress = unsafe extern "C" fn(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CUresult;

/// The NVIDIA driver, loaded into this process.
pub struct Driver {
    pub(super) functions: Functions,
    version: c_int,
    name: String,
    missing: Vec<&'static str>,
    process: u32,
    _library: ManuallyDrop<Library>,
}

impl Driver {
    /// Loads and initialises the driver; one that is loaded already is given again. A failure is
    /// not remembered: a later call tries again.
    ///
    /// # Errors
    ///
    /// All are of [`Call::Open`]. Not found (500): there is no library, or it lacks a required
    /// function. Stub library (34): only the toolkit's stub was found. Not supported (801): the
    /// driver is too old. Not initialized (3): this process was forked off one that had loaded the
    /// driver. Otherwise what `cuInit` said, above all no device (100). The detail says what to do.
    pub fn load() -> Result<Arc<Driver>, DeviceError> {
        static LOADED: Mutex<Option<Arc<Driver>>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*loaded {
            driver.check_process(Call::Open)?;
            return Ok(Arc::clone(driver));
        }
        let driver = Arc::new(Driver::find()?);
        *loaded = Some(Arc::clone(&driver));
        Ok(driver)
    }

    /// Loads the driver from a library that the caller names, apart from [`Driver::load`].
    ///
    /// # Errors
    ///
    /// As [`Driver::load`].
    pub fn load_from(path: &Path) -> Result<Arc<Driver>, DeviceError> {
        let name = path.display().to_string();
        let library = open_library(&name).map_err(|reason| not_found(&[reason]))?;
        Driver::new(library, name).map(Arc::new)
    }

    fn find() -> Result<Driver, DeviceError> {
        let mut reasons = Vec::new();
        let mut stub = None;
        for name in CANDIDATES {
            match open_library(name) {
                Ok(library) => match Driver::new(library, name.to_owned()) {
                    Err(error) if error.status == Status::STUB_LIBRARY => stub = Some(error),
                    decided => return decided,
                },
                Err(reason) => reasons.push(reason),
            }
        }
        Err(stub.unwrap_or_else(|| not_found(&reasons)))
    }

    fn new(library: Library, name: String) -> Result<Driver, DeviceError> {
        let library = ManuallyDrop::new(library);
        let version = read_version(&library, &name)?;
        if version < OLDEST_VERSION {
            return Err(open_error(
                Status::NOT_SUPPORTED,
                format!(
                    "the NVIDIA driver in {name} is for CUDA {}, and CUDA {} is needed; install a \
                     newer driver",
                    Version(version),
                    Version(OLDEST_VERSION)
                ),
            ));
        }
        let get_proc_address = symbol(&library, "cuGetProcAddress_v2").map(|address| {
            // SAFETY: this is the C declaration of `cuGetProcAddress_v2` (CUDA 12.0).
            unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(address.as_ptr()) }
        });
        let find = |wanted: &Wanted| {
            get_proc_address
                .and_then(|get| ask(get, wanted))
                .or_else(|| {
                    wanted
                        .symbols
                        .iter()
                        .find_map(|name| symbol(&library, name))
                })
        };
        // SAFETY: `cuGetProcAddress` gives the form of the version it is asked for, and the
        // exported names are those of that form; the library is never unloaded.
        let (functions, missing) = unsafe { Functions::fill(find) }.map_err(|function| {
            open_error(
                Status::NOT_FOUND,
                format!(
                    "the NVIDIA driver in {name}, for CUDA {}, has no function {function}; install \
                     the complete driver, or a newer one, and if a tool put its own library in \
                     front of the driver's, run without it",
                    Version(version)
                ),
            )
        })?;
        let driver = Driver {
            functions,
            version,
            name,
            missing,
            process: std::process::id(),
            _library: library,
        };
        // SAFETY: a call without preconditions; the flags must be zero, and are.
        let code = unsafe { (driver.functions.init)(0) };
        driver.check(Call::Open, code, || {
            format!(
                "asked the driver in {}, for CUDA {}, to start",
                driver.name,
                Version(version)
            )
        })?;
        Ok(driver)
    }

    /// The CUDA version the driver is for: 1000 × major + 10 × minor.
    pub fn version(&self) -> u32 {
        self.version.unsigned_abs()
    }

    /// The name under which the library was found.
    pub fn library(&self) -> &str {
        &self.name
    }

    /// The driver functions that millpond can use and this driver does not have.
    pub fn missing_functions(&self) -> &[&'static str] {
        &self.missing
    }

    /// How many devices this process sees (`CUDA_VISIBLE_DEVICES` chooses them; a MIG instance
    /// counts as one).
    ///
    /// # Errors
    ///
    /// What `cuDeviceGetCount` said, as of [`Call::Open`].
    pub fn device_count(&self) -> Result<u32, DeviceError> {
        self.check_process(Call::Open)?;
        let mut count = 0;
        // SAFETY: the driver is initialised; `count` outlives the call.
        let code = unsafe { (self.functions.device_get_count)(&raw mut count) };
        self.check(Call::Open, code, || {
            "asked for the number of devices".into()
        })?;
        Ok(count.unsigned_abs())
    }

    /// A device attribute; one that this driver does not know counts as zero.
    pub(super) fn attribute(&self, device: CUdevice, attribute: c_int) -> i32 {
        let mut value = 0;
        // SAFETY: the driver is initialised and `device` came from it; `value` outlives the call.
        let code =
            unsafe { (self.functions.device_get_attribute)(&raw mut value, attribute, device) };
        if code == SUCCESS { value } else { 0 }
    }

    /// Whether this is the process that loaded the driver, and not one forked off it.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Refuses to call the driver from a forked process.
    pub(super) fn check_process(&self, call: Call) -> Result<(), DeviceError> {
        if self.is_own_process() {
            return Ok(());
        }
        Err(DeviceError::new(
            call,
            Status::NOT_INITIALIZED,
            format!(
                "the driver was opened before fork, by process {}, and does not work in its child \
                 {}; open the device after forking, or start the child with exec or spawn",
                self.process,
                std::process::id()
            ),
        ))
    }

    /// An optional function, or the error that says that it is missing.
    pub(super) fn optional<F: Copy>(
        &self,
        function: Option<F>,
        call: Call,
    ) -> Result<F, DeviceError> {
        function.ok_or_else(|| {
            DeviceError::new(
                call,
                Status::NOT_SUPPORTED,
                format!(
                    "the NVIDIA driver in {}, for CUDA {}, does not have this function; install a \
                     newer driver",
                    self.name,
                    Version(self.version)
                ),
            )
        })
    }

    /// Turns a result code into a result; `asked` says what was asked of the driver.
    pub(super) fn check(
        &self,
        call: Call,
        code: CUresult,
        asked: impl FnOnce() -> String,
    ) -> Result<(), DeviceError> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut detail = asked();
        let texts = [
            self.functions.get_error_name,
            self.functions.get_error_string,
        ];
        if let [Some(name), Some(text)] = texts.map(|function| text_of(function?, code)) {
            detail = format!("{detail}: {name}, {text}");
        }
        if let Some(advice) = advice(code) {
            detail = format!("{detail}; {advice}");
        }
        Err(DeviceError::new(call, Status(code), detail))
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("library", &self.name)
            .field("version", &self.version)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

/// A CUDA version as people write it.
struct Version(c_int);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

fn open_error(status: Status, detail: String) -> DeviceError {
    DeviceError::new(Call::Open, status, detail)
}

fn not_found(reasons: &[String]) -> DeviceError {
    open_error(
        Status::NOT_FOUND,
        format!(
            "the NVIDIA driver's library was not found ({}); install the NVIDIA driver of this \
             machine, or, in a container, let the NVIDIA container toolkit mount the host's driver \
             (`--gpus all`); a CUDA toolkit is not needed",
            reasons.join("; ")
        ),
    )
}

fn stub(name: &str) -> DeviceError {
    open_error(
        Status::STUB_LIBRARY,
        format!(
            "{name} is the CUDA toolkit's link-time stub and no driver; take the toolkit's `stubs` \
             directory out of LD_LIBRARY_PATH, and install the NVIDIA driver if it is not there"
        ),
    )
}

fn open_library(name: &str) -> Result<Library, String> {
    // SAFETY: loading runs the library's initialisers; by its name this is the NVIDIA driver,
    // which any CUDA program loads in this way.
    let opened = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
    opened.map_err(|error| match std::error::Error::source(&error) {
        // The loader's own words, which name the file.
        Some(source) => source.to_string(),
        None => format!("{name}: {error}"),
    })
}

/// The address of an exported function.
fn symbol(library: &Library, name: &str) -> Option<NonNull<c_void>> {
    // SAFETY: the symbol is only turned into an address here; whoever makes a function of it
    // answers for its type.
    let symbol = unsafe { library.get::<*mut c_void>(name) }.ok()?;
    NonNull::new(symbol.into_raw())
}

/// Asks the driver for a function of a given version.
fn ask(get_proc_address: GetProcAddress, wanted: &Wanted) -> Option<NonNull<c_void>> {
    let name = std::ffi::CString::new(wanted.name).ok()?;
    let mut function = ptr::null_mut();
    let mut status = 0;
    // SAFETY: the name ends with a zero, and it and both results outlive the call.
    let code = unsafe {
        get_proc_address(
            name.as_ptr(),
            &raw mut function,
            wanted.version,
            PROC_ADDRESS_LEGACY_STREAM,
            &raw mut status,
        )
    };
    NonNull::new(function).filter(|_| code == SUCCESS && status == 0)
}

/// The CUDA version of the driver; works before it is initialised.
fn read_version(library: &Library, name: &str) -> Result<c_int, DeviceError> {
    let address = symbol(library, "cuDriverGetVersion").ok_or_else(|| {
        open_error(
            Status::NOT_FOUND,
            format!(
                "{name} has no function cuDriverGetVersion, so it is no NVIDIA driver; install the \
                 NVIDIA driver"
            ),
        )
    })?;
    // SAFETY: this is the C declaration of `cuDriverGetVersion` (CUDA 2.2).
    let get_version = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> CUresult>(
            address.as_ptr(),
        )
    };
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    let code = unsafe { get_version(&raw mut version) };
    match Status(code) {
        Status(SUCCESS) => Ok(version),
        Status::STUB_LIBRARY => Err(stub(name)),
        status => Err(open_error(
            status,
            format!("{name} does not tell its version; install the NVIDIA driver anew"),
        )),
    }
}

/// What the driver says about a code.
fn text_of(
    function: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult,
    code: CUresult,
) -> Option<String> {
    let mut text = ptr::null();
    // SAFETY: `text` outlives the call.
    let found = unsafe { function(code, &raw mut text) };
    if found != SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver gave a constant text of its own that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// What a person can do about a code.
fn advice(code: CUresult) -> Option<&'static str> {
    Some(match Status(code) {
        Status::STUB_LIBRARY => {
            "this is the CUDA toolkit's link-time stub: take the toolkit's `stubs` directory out of \
             LD_LIBRARY_PATH, and install the NVIDIA driver if it is not there"
        }
        Status::NO_DEVICE => {
            "no GPU is visible: see whether `nvidia-smi` lists one, whether CUDA_VISIBLE_DEVICES \
             hides it, and, in a container, whether it was started with `--gpus`"
        }
        // CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        // CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        Status(802) => "start the machine's fabric manager and wait until it is ready",
        Status(803) => {
            "the driver's library and the kernel's module are of different versions: reboot, or \
             load the module again"
        }
        Status(804) => "remove the forward-compatibility library, or update the driver itself",
        Status::OUT_OF_MEMORY => {
            "free memory, here or in other processes on the device, or ask for less"
        }
        Status::DEINITIALIZED => "the process is ending; do not use the device from here on",
        Status::NOT_INITIALIZED => {
            "the driver cannot start here: see whether the kernel's nvidia and nvidia_uvm modules \
             are loaded and /dev/nvidia* may be opened"
        }
        status if status.is_sticky() => {
            "the device is lost for this process: an earlier kernel failed; end the process and \
             find that kernel, for instance with compute-sanitizer"
        }
        _ => return None,
    })
}
