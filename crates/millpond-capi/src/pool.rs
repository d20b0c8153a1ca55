//! Pools: allocate, use, free; order, statistics, limits.

use std::ffi::c_void;
use std::sync::Arc;

use engine::Pool;
use engine::pool::Request;

use crate::attributes::{handle_types, location};
use crate::boundary::{Out, address, call, copy_versioned, pointer, required};
use crate::budget::millpond_budget;
use crate::device::{millpond_device, versioned_size};
use crate::statistics::millpond_statistics;
use crate::status::millpond_status;
use crate::stream::{event, stream};

/// A pool of one device's memory. May be used from any thread.
pub struct millpond_pool {
    pub(crate) pool: Pool,
}

impl millpond_pool {
    pub(crate) fn boxed(pool: Pool) -> *mut millpond_pool {
        Box::into_raw(Box::new(millpond_pool { pool }))
    }
}

/// How a pool is to be. Set `size`, and leave what is not needed zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_pool_options {
    /// `sizeof(millpond_pool_options)`. Fields beyond it are taken as zero.
    pub size: usize,
    /// Bytes that the pool may take from the device at most; 0: all that the device has.
    pub limit_bytes: u64,
    /// Not 0: promises that every stream is announced to `millpond_pool_stream_destroyed` before
    /// it is destroyed, or is never destroyed. The pool then does not ask the driver at each call
    /// which stream a handle stands for, which saves some 60 ns.
    pub streams_declared: u32,
    /// Unused, 0.
    pub reserved: u32,
    /// A `MILLPOND_LOCATION_...`: where the memory is to lie; 0: in the device's own.
    pub location_type: u32,
    /// The ordinal of the device (its own), or the number of the NUMA node.
    pub location_id: u32,
    /// How the memory can be handed to other processes: 0 not at all, 1 as POSIX descriptors, 8 as
    /// fabric handles.
    pub handle_types: u32,
    /// Unused, 0.
    pub reserved_2: u32,
    /// A budget that the pool shares with others, besides its own limit; null: none.
    pub budget: *const millpond_budget,
}

impl Default for millpond_pool_options {
    fn default() -> millpond_pool_options {
        millpond_pool_options {
            size: 0,
            limit_bytes: 0,
            streams_declared: 0,
            reserved: 0,
            location_type: 0,
            location_id: 0,
            handle_types: 0,
            reserved_2: 0,
            budget: std::ptr::null(),
        }
    }
}

/// Makes a pool on a device. It takes no memory until something is allocated. `options` may be
/// null: then all is as with zeros.
///
/// To be destroyed with `millpond_pool_destroy`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null device or result, options without a size, a limit
/// of less than one piece of the device's memory, 2 MiB).
///
/// # Safety
///
/// `device` is null or open; `options` is null, or points to a struct of `options->size` bytes, with
/// a budget that is null or live;
/// `pool` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_create(
    device: *const millpond_device,
    options: *const millpond_pool_options,
    pool: *mut *mut millpond_pool,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or an open device.
        let device = unsafe { required(device, "device") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(pool, "pool") }?;
        let mut wanted = millpond_pool_options::default();
        if !options.is_null() {
            // SAFETY: not null, so a struct of the caller's that begins with its size.
            let size = unsafe { versioned_size(options.cast(), "options") }?;
            let bytes = size.min(size_of::<millpond_pool_options>());
            // SAFETY: both are at least `bytes` long; every pattern of bits is a valid value.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    options.cast::<u8>(),
                    (&raw mut wanted).cast::<u8>(),
                    bytes,
                );
            }
        }
        let mut builder = Pool::builder(Arc::clone(&device.opened.device));
        if wanted.location_type != 0 {
            builder = builder.location(location(wanted.location_type, wanted.location_id)?);
        }
        builder = builder.handle_types(handle_types(wanted.handle_types)?);
        // SAFETY: null, or a live budget.
        if let Some(budget) = unsafe { wanted.budget.as_ref() } {
            builder = builder.budget(&budget.budget);
        }
        if wanted.limit_bytes > 0 {
            builder = builder.limit(wanted.limit_bytes);
        }
        if wanted.streams_declared != 0 {
            builder = builder.streams_declared();
        }
        out.set(millpond_pool::boxed(device.pools.create(builder)?));
        Ok(())
    })
}

/// Destroys a pool (`cuMemPoolDestroy`). Waits for nothing: what the device may still use goes back
/// later, by the next call of another pool of the device, by `millpond_device_reap`, or by a thread
/// (`millpond_reaper_start`). Blocks that were not freed stay as they are, can be used, and are freed
/// with `millpond_device_free`; the memory stays until they are. Null does nothing. A device's
/// default pool cannot be destroyed.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a default pool; the pointer stays good).
///
/// # Safety
///
/// `pool` is null, or was made by `millpond_pool_create` and not destroyed yet; nobody uses this
/// pointer any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_destroy(pool: *mut millpond_pool) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let Some(live) = (unsafe { pool.as_ref() }) else {
            return Ok(());
        };
        live.pool.destroy()?;
        // SAFETY: made by this library, and the caller gives it up.
        drop(unsafe { Box::from_raw(pool) });
        Ok(())
    })
}

/// Allocates `size` bytes, aligned to 256, for use on `stream`.
///
/// The memory may be used by whatever the stream is given from now on; by other streams once they
/// are ordered after that, and once `millpond_pool_use` says so. Its content is undefined. Zero
/// bytes give a block of its own address, of which nothing may be touched.
///
/// `stream` is the stream's raw handle: a `CUstream` or `cudaStream_t`, null for the legacy stream.
///
/// Errors: `MILLPOND_OUT_OF_MEMORY`, `MILLPOND_INVALID_ARGUMENT` (a null pool or result),
/// `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `stream` is a stream of its device; `result` is null, or a
/// pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc(
    pool: *const millpond_pool,
    size: u64,
    stream: *mut c_void,
    result: *mut *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(result, "result") }?;
        let request = Request::new(size, self::stream(stream));
        out.set(pointer(pool.pool.allocate_raw(request)?));
        Ok(())
    })
}

/// Allocates as `millpond_pool_alloc`, aligned to `alignment` bytes: a power of two. Less than 256
/// gives 256.
///
/// Errors: as `millpond_pool_alloc`; `MILLPOND_INVALID_ARGUMENT` if the alignment is no power of
/// two.
///
/// # Safety
///
/// As `millpond_pool_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_alloc_aligned(
    pool: *const millpond_pool,
    size: u64,
    alignment: u64,
    stream: *mut c_void,
    result: *mut *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(result, "result") }?;
        let request = Request::new(size, self::stream(stream)).alignment(alignment);
        out.set(pointer(pool.pool.allocate_raw(request)?));
        Ok(())
    })
}

/// Frees the block that starts at `block`, in the order of the streams that used it; waits for
/// nothing. Null does nothing.
///
/// Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null pool).
///
/// # Safety
///
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_free(
    pool: *const millpond_pool,
    block: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        if block.is_null() {
            return Ok(());
        }
        Ok(pool.pool.free(address(block))?)
    })
}

/// Says that the block that starts at `block` is used on a further stream from now on, until it is
/// freed. Whether that stream's work comes after the allocation is the caller's business; the pool
/// sees to it that nobody gets the memory before the stream is done with it.
///
/// Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null pool),
/// `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `stream` is a stream of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_use(
    pool: *const millpond_pool,
    block: *mut c_void,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.use_on(address(block), self::stream(stream))?)
    })
}

/// Says that `stream` was given all that it is ever to do with the block: its use ends with what is
/// queued on it now, and what it is given later holds the memory no longer. The block stays live.
///
/// Safe if no work that touches the block is queued on `stream` after this call, unless
/// `millpond_pool_use` declares a new use before.
///
/// Errors: `MILLPOND_NOT_A_BLOCK`, `MILLPOND_INVALID_ARGUMENT` (a null pool, or the stream does not
/// use the block), `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `stream` is a stream of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_use_ended(
    pool: *const millpond_pool,
    block: *mut c_void,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.use_ended(address(block), self::stream(stream))?)
    })
}

/// Says that the use on `stream` ended where the event was last recorded with
/// `millpond_pool_record_event`.
///
/// Safe if all work of `stream` that touches the block was queued before that record began, and the
/// event was recorded on `stream`, or on a stream that was made to wait for that work before.
///
/// Errors: as `millpond_pool_use_ended`; `MILLPOND_INVALID_ARGUMENT` also if the event was not
/// recorded through the pool.
///
/// # Safety
///
/// As `millpond_pool_use_ended`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_use_ends_at(
    pool: *const millpond_pool,
    block: *mut c_void,
    stream: *mut c_void,
    event: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        let (stream, event) = (self::stream(stream), self::event(event));
        Ok(pool.pool.use_ends_at(address(block), stream, event)?)
    })
}

/// Hands the block over to another stream: the stream it was allocated for, or last handed over to,
/// is done with it, and `stream` owns it from now on. The same as `millpond_pool_use` the new owner
/// and `millpond_pool_use_ended` on the old one.
///
/// Errors: as `millpond_pool_use`.
///
/// # Safety
///
/// As `millpond_pool_use_ended`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_hand_over(
    pool: *const millpond_pool,
    block: *mut c_void,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.hand_over(address(block), self::stream(stream))?)
    })
}

/// Records an event on a stream, as `cuEventRecord` does, and remembers what it stands for, so
/// that memory can be used again at once across streams that the caller has ordered.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such event or stream),
/// `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `event` and `stream` are of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_record_event(
    pool: *const millpond_pool,
    event: *mut c_void,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool
            .pool
            .record_event(self::event(event), self::stream(stream))?)
    })
}

/// Lets a stream wait for an event, as `cuStreamWaitEvent` does. If it was recorded through the
/// pool, the pool knows from then on that the stream comes after it.
///
/// Errors: as `millpond_pool_record_event`.
///
/// # Safety
///
/// As `millpond_pool_record_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_wait_event(
    pool: *const millpond_pool,
    stream: *mut c_void,
    event: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool
            .pool
            .wait_event(self::stream(stream), self::event(event))?)
    })
}

/// Forgets an event: it is about to be destroyed, or recorded without telling the pool.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool).
///
/// # Safety
///
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_forget_event(
    pool: *const millpond_pool,
    event: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        pool.pool.forget_event(self::event(event));
        Ok(())
    })
}

/// Waits until all work queued on a stream is done; the pool then knows that it is.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such stream), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `stream` is a stream of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_synchronize_stream(
    pool: *const millpond_pool,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.synchronize_stream(self::stream(stream))?)
    })
}

/// Waits until the whole device has nothing left to do. Everything freed so far is then free for
/// all streams.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_synchronize(pool: *const millpond_pool) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.synchronize()?)
    })
}

/// Says that a stream is about to be destroyed; to be called before it is. What was freed on it is
/// not lost: others can use it once the stream's work is done.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `stream` is a stream of its device, not destroyed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_stream_destroyed(
    pool: *const millpond_pool,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.stream_destroyed(self::stream(stream))?)
    })
}

/// Forbids the pool to let this stream wait: no wait is ever inserted into it, until
/// `millpond_pool_may_wait` takes that back or the stream is destroyed. For streams whose later work
/// others wait for in ways that the pool knows nothing of: on words in memory, or inside
/// collectives; an inserted wait could close a circle with these.
///
/// A request on such a stream gets new memory where another would wait. If there is none, it still
/// waits on the host for memory to be completed, as the last thing before it fails.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `stream` is a stream of its device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_never_wait(
    pool: *const millpond_pool,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.never_wait(self::stream(stream))?)
    })
}

/// Takes `millpond_pool_never_wait` back.
///
/// Errors: as `millpond_pool_never_wait`.
///
/// # Safety
///
/// As `millpond_pool_never_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_may_wait(
    pool: *const millpond_pool,
    stream: *mut c_void,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        Ok(pool.pool.may_wait(self::stream(stream))?)
    })
}

/// What the pool holds. `statistics->size` must be set to `sizeof(millpond_statistics)`. Looks at
/// every free range: not for every allocation.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
///
/// # Safety
///
/// `pool` is null or a live pool; `statistics` is null, or points to a struct of
/// `statistics->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_statistics(
    pool: *const millpond_pool,
    statistics: *mut millpond_statistics,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        // SAFETY: null, or a struct of the caller's that begins with its size.
        let size = unsafe { versioned_size(statistics.cast_const().cast(), "statistics") }?;
        let mut filled = millpond_statistics::new(&pool.pool.statistics(), pool.pool.limit());
        filled.size = size;
        // SAFETY: the caller's struct is `size` bytes long and begins with its size.
        unsafe { copy_versioned(&filled, statistics, size) };
        Ok(())
    })
}

/// Begins the high watermarks (`peak_*`) again at the current values.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool).
///
/// # Safety
///
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_reset_peaks(pool: *const millpond_pool) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        unsafe { required(pool, "pool") }?.pool.reset_peaks();
        Ok(())
    })
}

/// Gives memory back to the device that nothing uses, until the pool has at most `keep_bytes`.
/// `released_bytes`, if not null, gets the bytes given back.
///
/// Waits for nothing: memory whose last use is not seen to be completed stays. Synchronise first
/// (`millpond_pool_synchronize`) to give back all that is free.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool), `MILLPOND_DEVICE_FAILED`,
/// `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `released_bytes` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_trim(
    pool: *const millpond_pool,
    keep_bytes: u64,
    released_bytes: *mut u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        let released = pool.pool.trim(keep_bytes)?;
        // SAFETY: null, or a place for a number.
        if let Ok(out) = unsafe { Out::new(released_bytes, "released_bytes") } {
            out.set(released);
        }
        Ok(())
    })
}

/// Changes the most bytes that the pool takes from the device; UINT64_MAX: all that it has. What
/// the pool has beyond it stays until it is freed and trimmed; until then the pool does not grow.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool).
///
/// # Safety
///
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_set_limit(
    pool: *const millpond_pool,
    limit_bytes: u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        unsafe { required(pool, "pool") }?
            .pool
            .set_limit(limit_bytes);
        Ok(())
    })
}
