//! PyTorch's pluggable allocator: the pair and its hooks, with PyTorch's signatures.
//!
//! PyTorch (2.3 to 2.15) calls these through `std::function`s made of bare addresses, so what
//! counts is the C++ calling convention: a pair of two 64-bit numbers comes by value in two
//! registers, a `std::function` by invisible reference ([`filter`]).
//!
//! One pool a device serves everything but captures of CUDA graphs; each graph pool of PyTorch's
//! has one of its own ([`captures`]). What must not reach the driver while a stream is captured
//! does not ([`rules`]).

mod budget;
mod capture_mode;
mod captures;
mod filter;
mod pools;
mod registry;
mod rules;
mod settings;
#[cfg(test)]
mod tests;
mod underway;

use std::ffi::{c_char, c_int, c_void};
use std::os::raw::c_uint;

use crate::boundary::{address, call, copy_versioned, pointer, value};
use crate::device::versioned_size;
use crate::statistics::millpond_statistics;
use crate::status::{Failure, millpond_last_error, millpond_status};
use crate::stream::stream;
use filter::Filter;
use registry::Registry;
use settings::Settings;

/// PyTorch's number of a graph's memory pool (`c10::cuda::MempoolId_t`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct millpond_torch_pool_id {
    /// First of the pair.
    pub first: u64,
    /// Second of the pair.
    pub second: u64,
}

/// How the pools behind PyTorch's pair are to be. Set `size`, and leave what is not needed zero:
/// then the environment decides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_torch_options {
    /// `sizeof(millpond_torch_options)`. Fields beyond it are taken as zero.
    pub size: usize,
    /// Which devices: "cuda", or "host:BYTES" for tests without a GPU. Null: `MILLPOND_DEVICE`,
    /// and without that "cuda".
    pub device: *const c_char,
    /// Bytes that each device's pools may take at most. 0: `MILLPOND_LIMIT`, and without that all
    /// that the device has.
    pub limit_bytes: u64,
}

/// Says how the pools behind PyTorch's pair are to be, before the first of them is made. A later
/// call replaces an earlier one.
///
/// Errors: `MILLPOND_TOO_LATE` (a pool exists), `MILLPOND_INVALID_ARGUMENT` (no size; a device or
/// an environment variable that cannot be understood).
///
/// # Safety
///
/// `options` is null, or points to a struct of `options->size` bytes, whose `device` is null or
/// text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_torch_configure(
    options: *const millpond_torch_options,
) -> millpond_status {
    call(|| {
        crate::boundary::watch_panics();
        // SAFETY: null, or a struct of the caller's that begins with its size.
        let size = unsafe { versioned_size(options.cast(), "options") }?;
        let mut wanted = millpond_torch_options {
            size,
            device: std::ptr::null(),
            limit_bytes: 0,
        };
        let bytes = size.min(size_of::<millpond_torch_options>());
        // SAFETY: both are at least `bytes` long; every pattern of bits is a valid value.
        unsafe {
            std::ptr::copy_nonoverlapping(
                options.cast::<u8>(),
                (&raw mut wanted).cast::<u8>(),
                bytes,
            );
        }
        let mut settings = Settings::from_environment()?;
        if !wanted.device.is_null() {
            // SAFETY: not null, so text that ends with a zero.
            let text = unsafe { std::ffi::CStr::from_ptr(wanted.device) };
            settings.set_device("device", &text.to_string_lossy())?;
        }
        if wanted.limit_bytes > 0 {
            settings.limit = Some(wanted.limit_bytes);
        }
        Registry::get().configure(settings)
    })
}

/// PyTorch's allocation function: `size` bytes on CUDA device number `device`, for `stream`,
/// aligned to 256.
///
/// Null if there is no memory or the device failed, with the reason in `millpond_last_error()`;
/// null as well for a size of zero, which is no failure. PyTorch takes a null pointer for memory:
/// give it `millpond_torch_alloc_or_throw`, or the shim of the Python package.
///
/// # Safety
///
/// `stream` is a stream of that device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_torch_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    allocate(size, device, stream).unwrap_or(std::ptr::null_mut())
}

fn allocate(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> Result<*mut c_void, millpond_status> {
    value(|| {
        let size = u64::try_from(size)
            .map_err(|_| Failure::invalid(format!("{size} bytes were asked for")))?;
        if size == 0 {
            return Ok(std::ptr::null_mut());
        }
        let pools = Registry::get().pools(device)?;
        Ok(pointer(pools.allocate(size, self::stream(stream))?))
    })
}

/// `c10::detail::torchCheckFail(const char* func, const char* file, uint32_t line, const char*)`.
type CheckFail =
    unsafe extern "C-unwind" fn(*const c_char, *const c_char, c_uint, *const c_char) -> *mut c_void;

/// As `millpond_torch_alloc`, but where that gives null for want of memory this throws PyTorch's
/// own C++ error (`c10::Error`, a `RuntimeError` in Python), whose text begins with "CUDA out of
/// memory.". Where PyTorch is not loaded in this process it gives null.
///
/// This is for PyTorch where no C++ compiler is there to build the package's shim, which throws
/// `torch.OutOfMemoryError`.
///
/// # Safety
///
/// As `millpond_torch_alloc`; the caller is C++, or else PyTorch is not loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_torch_alloc_or_throw(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let status = match allocate(size, device, stream) {
        Ok(block) => return block,
        Err(status) => status,
    };
    let Ok(Some(check_fail)) = value(|| Ok(torch_check_fail())) else {
        return std::ptr::null_mut();
    };
    let kept = THROWN.with(|thrown| {
        // SAFETY: never null, and ends with a zero.
        let message = unsafe { std::ffi::CStr::from_ptr(millpond_last_error()) };
        let introduction = match status {
            millpond_status::MILLPOND_OUT_OF_MEMORY => "CUDA out of memory. ",
            _ => "",
        };
        let text = [introduction.as_bytes(), message.to_bytes()].concat();
        let text = std::ffi::CString::new(text).unwrap_or_default();
        let start = text.as_ptr();
        thrown.replace(text);
        start
    });
    // SAFETY: the function's C++ declaration is the one above; all texts end with a zero and
    // outlive the call (PyTorch copies them); nothing of this frame needs to be dropped when it
    // unwinds.
    unsafe { check_fail(c"millpond".as_ptr(), c"millpond".as_ptr(), 0, kept) }
}

thread_local! {
    /// The text that is being thrown: an exception that unwinds from here drops nothing.
    static THROWN: std::cell::RefCell<std::ffi::CString> = std::cell::RefCell::default();
}

/// PyTorch's own way to throw, if PyTorch is loaded in this process.
fn torch_check_fail() -> Option<CheckFail> {
    use libloading::os::unix::{Library, RTLD_NOW};
    /// Only a library that is loaded already.
    const RTLD_NOLOAD: c_int = 4;
    static FOUND: std::sync::OnceLock<Option<CheckFail>> = std::sync::OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: loads nothing, so no foreign code runs.
        let library = unsafe { Library::open(Some("libc10.so"), RTLD_NOW | RTLD_NOLOAD) }.ok()?;
        // SAFETY: the mangled name is that of the declaration of `CheckFail`.
        let found =
            unsafe { library.get::<CheckFail>(b"_ZN3c106detail14torchCheckFailEPKcS2_jS2_\0") };
        let function = found.ok().map(|symbol| *symbol);
        // The function must not outlive its library.
        std::mem::forget(library);
        function
    })
}

/// PyTorch's free function. The block is free in the order of the stream that it was allocated
/// for and of all that were recorded for it. Null does nothing. `size`, `device` and `stream` are
/// those of the allocation.
///
/// A block that is not one of the device's pools is reported on standard error, and in
/// `millpond_last_error()`.
///
/// # Safety
///
/// Nobody gives the block's memory any further work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_torch_free(
    block: *mut c_void,
    size: isize,
    device: c_int,
    stream: *mut c_void,
) {
    let _ = (size, stream);
    hook(|| {
        if block.is_null() {
            return Ok(());
        }
        let pools = Registry::get().pools(device)?;
        pools.free(address(block))
    });
}

/// PyTorch's `record_stream` hook: the block is used on `stream` as well, until it is freed. A
/// block that is not of these pools (one that was imported, say) is none of their business.
///
/// # Safety
///
/// `stream` is a stream of the block's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_torch_record_stream(block: *mut c_void, stream: *mut c_void) {
    hook(|| {
        for pools in Registry::get().all() {
            if pools.use_on(address(block), self::stream(stream))? {
                break;
            }
        }
        Ok(())
    });
}

/// PyTorch's `empty_cache` hook: waits for each device's work, and gives back all memory that
/// nothing uses. While a stream is being captured it waits for nothing, and gives back what is
/// known to be unused.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_empty_cache() {
    hook(|| {
        let results = Registry::get().all().map(|pools| pools.empty_cache());
        results.fold(Ok(()), Result::and)
    });
}

/// PyTorch's memory fraction hook: the device's pools may take this part of its memory at most,
/// from 0 to 1; no more than the limit that was configured.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_memory_fraction(fraction: f64, device: c_int) {
    hook(|| Registry::get().pools(device)?.set_fraction(fraction));
}

/// PyTorch's hook at the beginning of a capture: allocations on streams for which `filter` says
/// yes come from the graph pool `pool` until `millpond_torch_end_allocate_to_pool`. `filter` is a
/// `std::function<bool(cudaStream_t)>` of libstdc++, passed by value as C++ does, by reference.
///
/// # Safety
///
/// `filter` is null, or points to such a function, which stays callable until the end hook.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_torch_begin_allocate_to_pool(
    device: c_int,
    pool: millpond_torch_pool_id,
    filter: *const c_void,
) {
    hook(|| {
        // SAFETY: null, or what the caller says.
        let filter = unsafe { Filter::copied(filter) }?;
        Registry::get().pools(device)?.begin_capture(pool, filter)
    });
}

/// PyTorch's hook at the end of a capture.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_end_allocate_to_pool(device: c_int, pool: millpond_torch_pool_id) {
    hook(|| Registry::get().pools(device)?.end_capture(pool));
}

/// PyTorch's hook when a graph is gone: once for each beginning. The graph pool's memory goes back
/// when its last graph and its last block are gone.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_release_pool(device: c_int, pool: millpond_torch_pool_id) {
    hook(|| Registry::get().pools(device)?.release_capture(pool));
}

/// What the pools of CUDA device number `device` hold together, graph pools included (whose peaks
/// are added, though they need not have been reached together). All zero if nothing was allocated
/// there yet. `statistics->size` must be set to `sizeof(millpond_statistics)`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no size, or a device that cannot be).
///
/// # Safety
///
/// `statistics` is null, or points to a struct of `statistics->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_torch_get_statistics(
    device: c_int,
    statistics: *mut millpond_statistics,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a struct of the caller's that begins with its size.
        let size = unsafe { versioned_size(statistics.cast_const().cast(), "statistics") }?;
        let mut filled = match Registry::get().existing(device)? {
            Some(pools) => pools.statistics(),
            None => millpond_statistics::default(),
        };
        filled.size = size;
        // SAFETY: the caller's struct is `size` bytes long and begins with its size.
        unsafe { copy_versioned(&filled, statistics, size) };
        Ok(())
    })
}

/// Begins the high watermarks of the device's pools again at the current values.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a device that cannot be).
#[unsafe(no_mangle)]
pub extern "C" fn millpond_torch_reset_peaks(device: c_int) -> millpond_status {
    call(|| {
        if let Some(pools) = Registry::get().existing(device)? {
            pools.reset_peaks();
        }
        Ok(())
    })
}

/// Runs a hook that has no way to answer: what went wrong is told on standard error.
fn hook(body: impl FnOnce() -> Result<(), Failure>) {
    let Err(status) = value(body) else {
        return;
    };
    // At the process's end the driver goes before the last tensors do.
    if status != millpond_status::MILLPOND_DEVICE_LOST {
        // SAFETY: never null, and ends with a zero.
        let message = unsafe { std::ffi::CStr::from_ptr(millpond_last_error()) };
        eprintln!("millpond: {}", message.to_string_lossy());
    }
}
