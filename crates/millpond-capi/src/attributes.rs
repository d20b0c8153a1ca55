//! Attributes of pools, trims that tell, and access for other devices.

use engine::device::{AccessGrant, Accessor, Protection};
use engine::pool::{HandleTypes, PoolAttribute, PoolLocation};

use crate::boundary::{Out, call, copy_versioned, required};
use crate::device::versioned_size;
use crate::pool::millpond_pool;
use crate::status::{Failure, millpond_status};

/// Whether memory whose uses are ordered before a request by events is used again: 0 or 1. The
/// attributes have the numbers of `CUmemPool_attribute`.
pub const MILLPOND_POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
/// Whether memory whose uses turn out to be completed is used again: 0 or 1.
pub const MILLPOND_POOL_REUSE_ALLOW_OPPORTUNISTIC: u32 = 2;
/// Whether the pool may insert a wait to use memory again: 0 or 1.
pub const MILLPOND_POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 3;
/// Bytes above which memory is given back at synchronisations; at first UINT64_MAX: never.
pub const MILLPOND_POOL_RELEASE_THRESHOLD: u32 = 4;
/// Bytes of the device that the pool has. Read only.
pub const MILLPOND_POOL_RESERVED_MEM_CURRENT: u32 = 5;
/// The most it had; only 0 can be set, which begins the mark again at the current value.
pub const MILLPOND_POOL_RESERVED_MEM_HIGH: u32 = 6;
/// Bytes in blocks that are not freed, as they were asked for. Read only.
pub const MILLPOND_POOL_USED_MEM_CURRENT: u32 = 7;
/// The most there were; only 0 can be set, which begins the mark again at the current value.
pub const MILLPOND_POOL_USED_MEM_HIGH: u32 = 8;
/// 1: pinned. Read only.
pub const MILLPOND_POOL_ALLOCATION_TYPE: u32 = 9;
/// 0 none, 1 POSIX descriptors, 8 fabric handles. Read only.
pub const MILLPOND_POOL_EXPORT_HANDLE_TYPES: u32 = 10;
/// The ordinal of the pool's device, or the number of its NUMA node. Read only.
pub const MILLPOND_POOL_LOCATION_ID: u32 = 11;
/// A `MILLPOND_LOCATION_...`. Read only.
pub const MILLPOND_POOL_LOCATION_TYPE: u32 = 12;
/// The most bytes that the pool takes; 0: no limit. Read only: see `millpond_pool_set_limit`.
pub const MILLPOND_POOL_MAX_POOL_SIZE: u32 = 13;

/// The memory of a device; the numbers are those of `CUmemLocationType`.
pub const MILLPOND_LOCATION_DEVICE: u32 = 1;
/// The host's memory, wherever that is; the id is not looked at.
pub const MILLPOND_LOCATION_HOST: u32 = 2;
/// The memory of a NUMA node of the host.
pub const MILLPOND_LOCATION_HOST_NUMA: u32 = 3;

/// No access; the numbers are those of `CUmemAccess_flags`.
pub const MILLPOND_ACCESS_NONE: u32 = 0;
/// Reading.
pub const MILLPOND_ACCESS_READ: u32 = 1;
/// Reading and writing.
pub const MILLPOND_ACCESS_READ_WRITE: u32 = 3;

// The numbers are the engine's, which are the driver's.
const _: () = {
    use PoolAttribute as A;
    assert!(
        MILLPOND_POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES == A::ReuseFollowEventDependencies as u32
    );
    assert!(MILLPOND_POOL_REUSE_ALLOW_OPPORTUNISTIC == A::ReuseAllowOpportunistic as u32);
    assert!(
        MILLPOND_POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES == A::ReuseAllowInternalDependencies as u32
    );
    assert!(MILLPOND_POOL_RELEASE_THRESHOLD == A::ReleaseThreshold as u32);
    assert!(MILLPOND_POOL_RESERVED_MEM_CURRENT == A::ReservedMemCurrent as u32);
    assert!(MILLPOND_POOL_RESERVED_MEM_HIGH == A::ReservedMemHigh as u32);
    assert!(MILLPOND_POOL_USED_MEM_CURRENT == A::UsedMemCurrent as u32);
    assert!(MILLPOND_POOL_USED_MEM_HIGH == A::UsedMemHigh as u32);
    assert!(MILLPOND_POOL_ALLOCATION_TYPE == A::AllocationType as u32);
    assert!(MILLPOND_POOL_EXPORT_HANDLE_TYPES == A::ExportHandleTypes as u32);
    assert!(MILLPOND_POOL_LOCATION_ID == A::LocationId as u32);
    assert!(MILLPOND_POOL_LOCATION_TYPE == A::LocationType as u32);
    assert!(MILLPOND_POOL_MAX_POOL_SIZE == A::MaxPoolSize as u32);
};

/// What somebody may do with a pool's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct millpond_access {
    /// A `MILLPOND_LOCATION_...`: whose access.
    pub location_type: u32,
    /// The ordinal of the device, or the number of the NUMA node.
    pub location_id: u32,
    /// A `MILLPOND_ACCESS_...`.
    pub protection: u32,
}

/// What a trim gave back, and where the rest is: all in bytes. `reserved_bytes` is the sum of the
/// six that come after it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct millpond_trim_report {
    /// Set by the caller: `sizeof(millpond_trim_report)`.
    pub size: usize,
    /// Given back to the device.
    pub released_bytes: u64,
    /// What the pool still has.
    pub reserved_bytes: u64,
    /// Stays because live blocks stand in it.
    pub in_live_blocks: u64,
    /// Stays because it is in one handle with live blocks.
    pub beside_live_blocks: u64,
    /// Stays because its last use is not known to be completed.
    pub pending: u64,
    /// Could have gone, and stays so that no less is reserved than was to be kept.
    pub kept_as_asked: u64,
    /// Stays because it is the memory of graphs.
    pub in_graphs: u64,
    /// On its way in another call, or withheld because the device refused to take it back.
    pub withheld: u64,
}

pub(crate) fn location(kind: u32, id: u32) -> Result<PoolLocation, Failure> {
    match kind {
        MILLPOND_LOCATION_DEVICE => Ok(PoolLocation::Device(id)),
        MILLPOND_LOCATION_HOST => Ok(PoolLocation::Host),
        MILLPOND_LOCATION_HOST_NUMA => Ok(PoolLocation::HostNuma(id)),
        _ => Err(Failure::invalid(format!(
            "{kind} is no type of location; give a MILLPOND_LOCATION_..."
        ))),
    }
}

pub(crate) fn handle_types(bits: u32) -> Result<HandleTypes, Failure> {
    HandleTypes::from_bits(bits.into()).ok_or_else(|| {
        Failure::invalid(format!(
            "{bits} are no handle types offered here; give 0 (none), 1 (POSIX descriptors) or 8 \
             (fabric handles)"
        ))
    })
}

fn accessor(kind: u32, id: u32) -> Result<Accessor, Failure> {
    Ok(match location(kind, id)? {
        PoolLocation::Device(ordinal) => Accessor::Device(ordinal),
        PoolLocation::Host => Accessor::Host,
        PoolLocation::HostNuma(node) => Accessor::HostNuma(node),
    })
}

fn grant(access: &millpond_access) -> Result<AccessGrant, Failure> {
    let protection = match access.protection {
        MILLPOND_ACCESS_NONE => Protection::None,
        MILLPOND_ACCESS_READ => Protection::Read,
        MILLPOND_ACCESS_READ_WRITE => Protection::ReadWrite,
        other => {
            return Err(Failure::invalid(format!(
                "{other} is no protection; give a MILLPOND_ACCESS_..."
            )));
        }
    };
    Ok(AccessGrant {
        accessor: accessor(access.location_type, access.location_id)?,
        protection,
    })
}

/// The value of an attribute of a pool: a `MILLPOND_POOL_...`. Looks at no block.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no such attribute).
///
/// # Safety
///
/// `pool` is null or a live pool; `value` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_attribute(
    pool: *const millpond_pool,
    attribute: u32,
    value: *mut u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        // SAFETY: null, or a place for a number.
        let out = unsafe { Out::new(value, "value") }?;
        out.set(pool.pool.attribute(PoolAttribute::from_number(attribute)?));
        Ok(())
    })
}

/// Sets an attribute of a pool: the reuse policies (0 or 1), the release threshold (bytes), and the
/// two high marks (0 alone, which begins them again at the current value).
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, no such attribute, one that can only be read,
/// another value).
///
/// # Safety
///
/// `pool` is null or a live pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_set_attribute(
    pool: *const millpond_pool,
    attribute: u32,
    value: u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        let attribute = PoolAttribute::from_number(attribute)?;
        Ok(pool.pool.set_attribute(attribute, value)?)
    })
}

/// Gives memory back to the device that nothing uses, until no more than `min_bytes_to_keep` bytes
/// are reserved, or nothing can be given back without going below that. `report`, if not null, says
/// what went, and where the rest is; `report->size` must be set to `sizeof(millpond_trim_report)`.
///
/// Waits for nothing: memory whose last use is not seen to be completed stays.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pool, a report without a size),
/// `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST` (nothing was given back).
///
/// # Safety
///
/// `pool` is null or a live pool; `report` is null, or points to a struct of `report->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_trim_to(
    pool: *const millpond_pool,
    min_bytes_to_keep: u64,
    report: *mut millpond_trim_report,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        let size = match report.is_null() {
            true => 0,
            // SAFETY: a struct of the caller's that begins with its size.
            false => unsafe { versioned_size(report.cast_const().cast(), "report") }?,
        };
        let told = pool.pool.trim_to(min_bytes_to_keep)?;
        if size > 0 {
            let filled = millpond_trim_report {
                size,
                released_bytes: told.released_bytes,
                reserved_bytes: told.reserved_bytes,
                in_live_blocks: told.in_live_blocks,
                beside_live_blocks: told.beside_live_blocks,
                pending: told.pending,
                kept_as_asked: told.kept_as_asked,
                in_graphs: told.in_graphs,
                withheld: told.withheld,
            };
            // SAFETY: the caller's struct is `size` bytes long and begins with its size.
            unsafe { copy_versioned(&filled, report, size) };
        }
        Ok(())
    })
}

/// Says what others may do with a pool's memory: all of it, what is allocated already and what will
/// be. Those who are not named keep what they have; `MILLPOND_ACCESS_NONE` takes it away again.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, somebody named twice, the pool's own place
/// without full access), `MILLPOND_NO_DEVICE` (a device that cannot reach the memory),
/// `MILLPOND_NOT_SUPPORTED`, `MILLPOND_DEVICE_FAILED`, `MILLPOND_DEVICE_LOST`.
///
/// # Safety
///
/// `pool` is null or a live pool; `accesses` is null, or points to `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_set_access(
    pool: *const millpond_pool,
    accesses: *const millpond_access,
    count: usize,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: null, or the first of them.
        let first = std::ptr::from_ref(unsafe { required(accesses, "accesses") }?);
        // SAFETY: not null, and the caller says that there are so many.
        let accesses = unsafe { std::slice::from_raw_parts(first, count) };
        let grants: Vec<AccessGrant> = accesses.iter().map(grant).collect::<Result<_, _>>()?;
        Ok(pool.pool.set_access(&grants)?)
    })
}

/// What somebody may do with a pool's memory: a `MILLPOND_ACCESS_...`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, no such type of location).
///
/// # Safety
///
/// `pool` is null or a live pool; `protection` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_pool_get_access(
    pool: *const millpond_pool,
    location_type: u32,
    location_id: u32,
    protection: *mut u32,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live pool.
        let pool = unsafe { required(pool, "pool") }?;
        // SAFETY: null, or a place for a number.
        let out = unsafe { Out::new(protection, "protection") }?;
        out.set(
            match pool.pool.access_of(accessor(location_type, location_id)?) {
                Protection::None => MILLPOND_ACCESS_NONE,
                Protection::Read => MILLPOND_ACCESS_READ,
                Protection::ReadWrite => MILLPOND_ACCESS_READ_WRITE,
            },
        );
        Ok(())
    })
}
