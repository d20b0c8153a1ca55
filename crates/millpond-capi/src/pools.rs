//! The pools of a device: the default and the current one, and which of them an address belongs to.

use std::ffi::c_void;

use engine::Request;
use engine::pool::{PointerState, Reaper, reap, reap_waiting};

use crate::attributes::location;
use crate::boundary::{Out, address, call, copy_versioned, pointer, required};
use crate::device::{millpond_device, versioned_size};
use crate::pool::millpond_pool;
use crate::status::{Failure, millpond_status};
use crate::stream::{event, stream};

/// The address lies in a live block.
pub const MILLPOND_POINTER_LIVE: u32 = 1;
/// The address lies in a live block in the memory of a graph.
pub const MILLPOND_POINTER_GRAPH: u32 = 2;

/// What an address belongs to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_pointer_info {
    /// Set by the caller: `sizeof(millpond_pointer_info)`.
    pub size: usize,
    /// The number of the pool: see `millpond_pool_get_id`.
    pub pool_id: u64,
    /// Where the block starts.
    pub block: *mut c_void,
    /// Bytes that were asked for the block.
    pub block_bytes: u64,
    /// Bytes from the block's start to the address.
    pub offset: u64,
    /// The stream that owns the block.
    pub stream: *mut c_void,
    /// The handle (`CUmemGenericAllocationHandle`) that the address lies in; 0 for plain memory.
    pub handle: u64,
    /// Bytes from the handle's start to the address.
    pub handle_offset: u64,
    /// Bytes of the handle.
    pub handle_bytes: u64,
    /// The ordinal of the pool's device.
    pub device: u32,
    /// A `MILLPOND_POINTER_...`.
    pub state: u32,
    /// A `MILLPOND_LOCATION_...`: where the memory lies.
    pub location_type: u32,
    /// The ordinal of the device, or the number of the NUMA node, where it lies.
    pub location_id: u32,
}

/// The default pool of a location (`MILLPOND_LOCATION_...` and its id), as device `device` uses it:
/// made when it is first asked for, without a limit. It cannot be destroyed; what is given is let go
/// with `millpond_pool_release`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no such type of location),
/// `MILLPOND_NO_DEVICE` (another device's ordinal), `MILLPOND_NOT_SUPPORTED` (the device cannot use
/// memory there).
///
/// # Safety
///
/// `device` is null or open; `pool` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_default_pool(
    device: *const millpond_device,
    location_type: u32,
    location_id: u32,
    pool: *mut *mut millpond_pool,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(pool, "pool") }?;
        let pool = device
            .pools
            .default_pool(location(location_type, location_id)?)?;
        out.set(millpond_pool::boxed(pool));
        Ok(())
    })
}

/// The current pool of a location: the one that was set last, or the default pool if none was, or
/// if that one was destroyed. What is given is let go with `millpond_pool_release`.
///
/// Errors: as `millpond_device_get_default_pool`.
///
/// # Safety
///
/// As `millpond_device_get_default_pool`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_pool(
    device: *const millpond_device,
    location_type: u32,
    location_id: u32,
    pool: *mut *mut millpond_pool,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(pool, "pool") }?;
        let pool = device
            .pools
            .current_pool(location(location_type, location_id)?)?;
        out.set(millpond_pool::boxed(pool));
        Ok(())
    })
}

/// Makes a pool the current one of its location: `millpond_device_alloc` takes from it from then on.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, a pool of another device, one that was
/// destroyed).
///
/// # Safety
///
/// `device` is null or open; `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_set_pool(
    device: *const millpond_device,
    pool: *const millpond_pool,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a live pool.
        let pool = &unsafe { required(pool, "pool") }?.pool;
        Ok(device.pools.set_current_pool(pool.location(), pool)?)
    })
}

/// Allocates from the device's current pool, as `millpond_pool_alloc` does (`cudaMallocAsync`).
///
/// Errors: as `millpond_pool_alloc`; `MILLPOND_INVALID_ARGUMENT` also if the device does not know
/// the stream.
///
/// # Safety
///
/// `device` is null or open; `stream` is a stream of it; `result` is null, or a pointer can be
/// written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_alloc(
    device: *const millpond_device,
    size: u64,
    stream: *mut c_void,
    result: *mut *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(result, "result") }?;
        let ordinal = device.opened.device.capabilities().ordinal;
        let location = engine::pool::PoolLocation::Device(ordinal);
        let request = Request::new(size, self::stream(stream));
        let block = device.pools.allocate_with(location, request)?;
        out.set(pointer(block.into_raw()));
        Ok(())
    })
}

/// Frees the block that starts at `block`, in whichever pool of the device, destroyed ones included
/// (`cudaFreeAsync`), in the order of the streams that used it. Null does nothing.
///
/// Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null device).
///
/// # Safety
///
/// `device` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_free(
    device: *const millpond_device,
    block: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        if block.is_null() {
            return Ok(());
        }
        Ok(device.pools.free(address(block))?)
    })
}

/// What an address belongs to, in whichever pool of the device: any address inside a live block
/// will do. `info->size` must be set to `sizeof(millpond_pointer_info)`.
///
/// Errors: `MILLPOND_NOT_A_BLOCK` (no live block is there: it was freed, or it is no pool's),
/// `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
///
/// # Safety
///
/// `device` is null or open; `info` is null, or points to a struct of `info->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_get_pointer_info(
    device: *const millpond_device,
    at: *const c_void,
    info: *mut millpond_pointer_info,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a struct of the caller's that begins with its size.
        let size = unsafe { versioned_size(info.cast_const().cast(), "info") }?;
        let told = device.pools.pointer(address(at))?;
        let filled = millpond_pointer_info {
            size,
            pool_id: told.pool.id(),
            block: pointer(told.start),
            block_bytes: told.size,
            offset: told.offset,
            stream: pointer(told.stream.0),
            handle: told.handle.map_or(0, |handle| handle.0),
            handle_offset: told.handle_offset,
            handle_bytes: told.handle_size,
            device: told.device,
            state: match told.state {
                PointerState::Live => MILLPOND_POINTER_LIVE,
                PointerState::Graph => MILLPOND_POINTER_GRAPH,
            },
            // Both fit: they are the driver's numbers.
            location_type: told.location.kind() as u32,
            location_id: told.location.id(),
        };
        // SAFETY: the caller's struct is `size` bytes long and begins with its size.
        unsafe { copy_versioned(&filled, info, size) };
        Ok(())
    })
}

/// A number that no other pool of the process ever has.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer).
///
/// # Safety
///
/// `pool` is null or a live pool; `id` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_id(
    pool: *const millpond_pool,
    id: *mut u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        // SAFETY: null, or a place for a number.
        unsafe { Out::new(id, "id") }?.set(pool.pool.id());
        Ok(())
    })
}

/// Lets go of a pool without destroying it: of one that was asked for as a default or current pool.
/// The last one to let go of any other pool ends it: its blocks that were not freed go with it, as
/// soon as the device is done with them. Null does nothing.
///
/// # Safety
///
/// `pool` is null or a live pool; nobody uses this pointer any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_release(pool: *mut millpond_pool) {
    call(|| {
        if !pool.is_null() {
            // SAFETY: made by this library, and the caller gives it up.
            drop(unsafe { Box::from_raw(pool) });
        }
        Ok(())
    });
}

/// Waits until all work queued on a stream of the device is done, and tells all pools of the device:
/// what they have above their release thresholds goes back.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null device, no such stream), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `device` is null or open; `stream` is a stream of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_synchronize_stream(
    device: *const millpond_device,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        let ordinal = device.opened.device.capabilities().ordinal;
        let stream = self::stream(stream);
        Ok(device.pools.synchronize_stream(ordinal, stream)?)
    })
}

/// Waits until an event has happened; the pool then knows that what it stands for is done, if it
/// was recorded with `millpond_pool_record_event`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such event), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `event` is of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_synchronize_event(
    pool: *const millpond_pool,
    event: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.synchronize_event(self::event(event))?)
    })
}

/// Gives back what pools of the device that were destroyed have left, as far as the device is done
/// with it; if `wait` is not 0, after waiting for the device. `left`, if not null, gets how many
/// such pools still have memory. (The next call of another pool that calls the device does the
/// same, without waiting.)
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null device), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `device` is null or open; `left` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_device_reap(
    device: *const millpond_device,
    wait: u32,
    left: *mut u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = &unsafe { required(device, "device") }?.opened.device;
        let still = match wait {
            0 => reap(device),
            _ => reap_waiting(device)?,
        };
        // SAFETY: null, or a place for a number.
        if let Ok(out) = unsafe { Out::new(left, "left") } {
            out.set(still as u64);
        }
        Ok(())
    })
}

/// A thread that gives back the memory of pools that were destroyed.
pub struct millpond_reaper {
    _reaper: Reaper,
}

/// Starts a thread that gives back the memory of pools that were destroyed, on all devices, as soon
/// as the device is done with it. To be ended with `millpond_reaper_stop`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null result), `MILLPOND_DEVICE_FAILED` (the system gives
/// no thread).
///
/// # Safety
///
/// `reaper` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_reaper_start(
    reaper: *mut *mut millpond_reaper,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(reaper, "reaper") }?;
        let started = Reaper::start().map_err(|error| {
            let message = format!("a thread was asked for, and not given: {error}");
            Failure::new(millpond_status::MILLPOND_DEVICE_FAILED, message)
        })?;
        out.set(Box::into_raw(Box::new(millpond_reaper {
            _reaper: started,
        })));
        Ok(())
    })
}

/// Ends the thread. Null does nothing.
///
/// # Safety
///
/// `reaper` is null, or was given by `millpond_reaper_start` and not stopped yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_reaper_stop(reaper: *mut millpond_reaper) {
    call(|| {
        if !reaper.is_null() {
            // SAFETY: made by `millpond_reaper_start`, and the caller gives it up.
            drop(unsafe { Box::from_raw(reaper) });
        }
        Ok(())
    });
}
