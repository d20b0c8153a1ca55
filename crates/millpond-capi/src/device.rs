//! Devices: opening and closing them, what they are, and their bytes.

use std::ffi::{c_char, c_void};

use std::sync::Arc;

use engine::Pools;
use engine::device::DeviceKind;

use crate::boundary::{Out, address, call, copy_versioned, required, watch_panics};
use crate::choice::{Choice, Opened};
use crate::status::{Failure, millpond_status};

/// A device whose memory pools hand out. May be used from any thread.
pub struct millpond_device {
    pub(crate) opened: Opened,
    pub(crate) pools: Pools,
}

/// The device is a GPU, used through the NVIDIA driver.
pub const MILLPOND_DEVICE_CUDA: u32 = 1;
/// The device is made of this machine's memory.
pub const MILLPOND_DEVICE_HOST: u32 = 2;

/// Bytes of `name` in `millpond_device_info`, its terminating zero included.
pub const MILLPOND_DEVICE_NAME_SIZE: usize = 256;

/// What a device is and can do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_device_info {
    /// Set by the caller: `sizeof(millpond_device_info)`.
    pub size: usize,
    /// Bytes of memory that the device has.
    pub total_memory_bytes: u64,
    /// Bytes of the smallest piece of memory that it hands out.
    pub granularity_bytes: u64,
    /// `MILLPOND_DEVICE_CUDA` or `MILLPOND_DEVICE_HOST`.
    pub kind: u32,
    /// The CUDA ordinal; 0 for the host device.
    pub ordinal: u32,
    /// 1 if physical memory can be mapped; 0 if the pool must fall back to plain allocations.
    pub mapping: u32,
    /// Unused, 0.
    pub reserved: u32,
    /// The device's name, for people; cut if it is longer.
    pub name: [c_char; MILLPOND_DEVICE_NAME_SIZE],
}

fn open(choice: Choice, device: *mut *mut millpond_device) -> millpond_status {
    call(|| {
        watch_panics();
        // SAFETY: null, or where the caller wants the device.
        let out = unsafe { Out::new(device, "device") }?;
        let opened = choice.open()?;
        let pools = Pools::new([Arc::clone(&opened.device)])?;
        out.set(Box::into_raw(Box::new(millpond_device { opened, pools })));
        Ok(())
    })
}

/// Opens the CUDA device with this ordinal (0 is the first), in its primary context, which the
/// CUDA runtime uses too. Needs an NVIDIA driver, but no CUDA toolkit.
///
/// To be closed with `millpond_device_close`.
///
/// Errors: `MILLPOND_NO_DEVICE` (no driver, or no device of this ordinal), `MILLPOND_DEVICE_LOST`,
/// `MILLPOND_INVALID_ARGUMENT` (`device` is null).
///
/// # Safety
///
/// `device` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_open_cuda(
    ordinal: u32,
    device: *mut *mut millpond_device,
) -> millpond_status {
    open(Choice::Cuda(ordinal), device)
}

/// Opens a device made of this machine's memory, so that everything works as on a GPU, on any
/// Linux machine. Streams are threads that really fill and copy.
///
/// `memory_bytes` is how much memory the device has; 0 gives half of what the machine could give
/// now. Pages are taken when they are first written.
///
/// To be closed with `millpond_device_close`.
///
/// Errors: `MILLPOND_NO_DEVICE` (the system gives no memory file), `MILLPOND_INVALID_ARGUMENT`
/// (`device` is null).
///
/// # Safety
///
/// `device` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_open_host(
    memory_bytes: u64,
    device: *mut *mut millpond_device,
) -> millpond_status {
    open(Choice::Host(memory_bytes), device)
}

/// Closes a device. Pools made on it keep what they need of it and stay usable. Null does nothing.
///
/// # Safety
///
/// `device` is null, or was opened by this library and not closed yet; nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_close(device: *mut millpond_device) {
    call(|| {
        if !device.is_null() {
            // SAFETY: made by `open`, and the caller gives it up.
            drop(unsafe { Box::from_raw(device) });
        }
        Ok(())
    });
}

/// What the device is and can do. `info->size` must be set to `sizeof(millpond_device_info)`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
///
/// # Safety
///
/// `device` is null or open; `info` is null, or points to a struct of `info->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_info(
    device: *const millpond_device,
    info: *mut millpond_device_info,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a struct of the caller's.
        let size = unsafe { versioned_size(info.cast_const().cast(), "info") }?;
        let capabilities = device.opened.device.capabilities();
        let mut name = [0; MILLPOND_DEVICE_NAME_SIZE];
        let bytes = capabilities.name.bytes().filter(|&byte| byte != 0);
        for (to, from) in name
            .iter_mut()
            .take(MILLPOND_DEVICE_NAME_SIZE - 1)
            .zip(bytes)
        {
            *to = from as c_char;
        }
        let filled = millpond_device_info {
            size,
            total_memory_bytes: capabilities.total_memory,
            granularity_bytes: capabilities.granularity,
            kind: match capabilities.kind {
                DeviceKind::Cuda => MILLPOND_DEVICE_CUDA,
                _ => MILLPOND_DEVICE_HOST,
            },
            ordinal: capabilities.ordinal,
            mapping: u32::from(capabilities.mapping),
            reserved: 0,
            name,
        };
        // SAFETY: the caller's struct is `size` bytes long and begins with its size.
        unsafe { copy_versioned(&filled, info, size) };
        Ok(())
    })
}

/// Bytes that the device has free now, for all processes, and in all.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `device` is null or open; the others are null, or numbers can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_memory(
    device: *const millpond_device,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a place for a number.
        let free = unsafe { Out::new(free_bytes, "free_bytes") }?;
        // SAFETY: null, or a place for a number.
        let total = unsafe { Out::new(total_bytes, "total_bytes") }?;
        let memory = device.opened.device.memory_info()?;
        free.set(memory.free);
        total.set(memory.total);
        Ok(())
    })
}

/// Reads `size` bytes of the host device's memory at `from` into `to`, at once: it does not wait
/// for streams. For the host device alone.
///
/// Errors: `MILLPOND_NOT_SUPPORTED` (another device), `MILLPOND_INVALID_ARGUMENT` (a null pointer,
/// or memory that the device may not read).
///
/// # Safety
///
/// `device` is null or open; `to` is null, or `size` bytes can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_read(
    device: *const millpond_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        let (host, length) = host_range(device, to, size)?;
        // SAFETY: not null, and the caller says that `size` bytes are there.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
        Ok(host.read(address(from), to)?)
    })
}

/// Writes `size` bytes from `from` to the host device's memory at `to`, at once: it does not wait
/// for streams. For the host device alone.
///
/// Errors: `MILLPOND_NOT_SUPPORTED` (another device), `MILLPOND_INVALID_ARGUMENT` (a null pointer,
/// or memory that the device may not write).
///
/// # Safety
///
/// `device` is null or open; `from` is null, or `size` bytes can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_host_write(
    device: *const millpond_device,
    to: *mut c_void,
    from: *const c_void,
    size: u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        let (host, length) = host_range(device, from, size)?;
        // SAFETY: not null, and the caller says that `size` bytes are there.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
        Ok(host.write(address(to), from)?)
    })
}

fn host_range(
    device: &millpond_device,
    bytes: *const c_void,
    size: u64,
) -> Result<(&engine::device::HostDevice, usize), Failure> {
    let host = device.opened.host.as_deref().ok_or_else(|| {
        Failure::new(
            millpond_status::MILLPOND_NOT_SUPPORTED,
            "only the host device's bytes can be reached directly; copy with CUDA here",
        )
    })?;
    if bytes.is_null() {
        return Err(Failure::invalid("the host's bytes are at a null pointer"));
    }
    match isize::try_from(size) {
        Ok(length) => Ok((host, length.unsigned_abs())),
        Err(_) => Err(Failure::invalid(format!(
            "{size} bytes are more than there can be"
        ))),
    }
}

/// The size that the caller has set in the first word of a struct.
///
/// # Safety
///
/// `pointer` is null, or points to a struct that begins with its size.
pub(crate) unsafe fn versioned_size(pointer: *const usize, name: &str) -> Result<usize, Failure> {
    // SAFETY: null, or the caller's struct.
    let size = *unsafe { required(pointer, name) }?;
    if size < size_of::<usize>() {
        return Err(Failure::invalid(format!(
            "{name}->size is {size}; set it to the size of the struct before the call"
        )));
    }
    Ok(size)
}
