//! What can go wrong with a pool, and what to do about it.

use std::fmt;

use super::properties::{HandleTypes, PoolLocation};
use crate::device::{DeviceError, EventId, StreamId};

/// Why a pool could not be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The limit is smaller than the smallest piece of memory that the device hands out.
    #[error(
        "a limit of {limit} bytes is less than one handle of this device ({granularity} bytes); \
         set a larger limit"
    )]
    LimitTooSmall {
        /// The limit asked for, in bytes.
        limit: u64,
        /// The device's granularity, in bytes.
        granularity: u64,
    },
    /// The pool's memory was to lie on a device other than the one that the pool is built on.
    #[error(
        "a pool in the memory of device {asked} was asked for on device {device}; build it on \
         device {asked}"
    )]
    WrongDevice {
        /// The ordinal asked for.
        asked: u32,
        /// The ordinal of the device that the pool was to be built on.
        device: u32,
    },
    /// The device cannot have memory there (not supported, 801).
    #[error(
        "this device cannot use mapped memory that lies at {location:?}; its capabilities say \
         where it can (`host`, `host_numa`)"
    )]
    LocationNotOffered {
        /// Where.
        location: PoolLocation,
    },
    /// A device's default pool cannot be destroyed.
    #[error("a device's default pool cannot be destroyed; trim it to give its memory back")]
    DefaultPool,
    /// The memory cannot be exported in this way.
    #[error(
        "memory at {location:?} cannot be exported as {handle_types:?} on this device; its \
         capabilities say how it can (`share_posix_fd`, `share_fabric`), and pools of the host at \
         large have no handle types"
    )]
    HandleTypesNotOffered {
        /// How.
        handle_types: HandleTypes,
        /// Where the memory was to lie.
        location: PoolLocation,
    },
}

/// Why an allocation failed. The pool is as it was before; a smaller request may succeed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The alignment is not a power of two.
    #[error("an alignment of {alignment} bytes was asked for; it must be a power of two")]
    BadAlignment {
        /// The alignment asked for, in bytes.
        alignment: u64,
    },
    /// The pool was destroyed.
    #[error(
        "{requested} bytes were asked for of a pool that was destroyed; ask another pool, or the \
         device's default pool"
    )]
    Destroyed {
        /// Bytes asked for.
        requested: u64,
    },
    /// There is no memory for the request, after everything was tried.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The device failed in a way that is not a lack of memory.
    #[error("allocating {requested} bytes: {error}")]
    Device {
        /// Bytes asked for.
        requested: u64,
        /// What the device said.
        error: DeviceError,
    },
}

/// Which wall an allocation ran into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wall {
    /// The request is larger than the limit, or than the device: it can never succeed.
    NeverFits,
    /// The pool's limit leaves no room, and what is free cannot be put together for it.
    LimitReached,
    /// The budget that the pool shares with others leaves no room.
    BudgetReached,
    /// The device has no memory left to give.
    DeviceFull,
    /// Enough is free, but in pieces that cannot be put together now.
    InPieces,
    /// The address space is used up.
    AddressSpace,
}

/// An allocation that failed for want of memory: what was asked, and where the memory is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// The alignment asked for, in bytes.
    pub alignment: u64,
    /// The stream that asked.
    pub stream: StreamId,
    /// Which wall it ran into.
    pub wall: Wall,
    /// The pool's limit, in bytes.
    pub limit: u64,
    /// Bytes the pool has from the device.
    pub reserved: u64,
    /// Of these, bytes in the memory of graphs.
    pub graphs: u64,
    /// Bytes in live blocks, as asked for.
    pub live: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Bytes free in the pool, of which some may still be in use by the device.
    pub free: u64,
    /// The largest free range, in bytes.
    pub largest_free: u64,
    /// Bytes freed by the host of which the device is not known to be done.
    pub pending: u64,
    /// Bytes the device has free for all, if it could be asked.
    pub device_free: Option<u64>,
    /// Bytes the device has.
    pub device_total: u64,
    /// What the device said last, if it refused something.
    pub refusal: Option<DeviceError>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory {
            requested,
            limit,
            reserved,
            ..
        } = *self;
        write!(f, "out of memory: {} asked for", Bytes(requested))?;
        if self.alignment > crate::space::GRAIN {
            write!(f, " (aligned to {})", Bytes(self.alignment))?;
        }
        write!(f, " on stream {}: ", self.stream)?;
        match self.wall {
            Wall::NeverFits => {
                write!(f, "more than the limit of {} ever allows", Bytes(limit))?;
            }
            Wall::LimitReached => write!(f, "the limit of {} is reached", Bytes(limit))?,
            Wall::BudgetReached => {
                f.write_str("the budget that the pool shares with others is used up")?;
            }
            Wall::DeviceFull => f.write_str("the device has no more to give")?,
            Wall::InPieces => f.write_str("enough is free, but not together")?,
            Wall::AddressSpace => f.write_str("the address space is used up")?,
        }
        write!(
            f,
            "; the pool has {}, of which {} live in {} blocks and {} free (largest {}, {} still \
             in use by the device)",
            Bytes(reserved),
            Bytes(self.live),
            self.blocks,
            Bytes(self.free),
            Bytes(self.largest_free),
            Bytes(self.pending),
        )?;
        if self.graphs > 0 {
            write!(f, "; graphs have {} of it", Bytes(self.graphs))?;
        }
        match self.device_free {
            Some(free) => write!(
                f,
                "; the device has {} free of {}",
                Bytes(free),
                Bytes(self.device_total)
            )?,
            None => write!(f, "; the device has {}", Bytes(self.device_total))?,
        }
        f.write_str(match self.wall {
            Wall::NeverFits => "; ask for less, or raise the limit",
            Wall::LimitReached => "; free blocks, or raise the limit",
            Wall::BudgetReached => {
                "; free blocks of any pool under the budget, or raise the budget's limit"
            }
            Wall::DeviceFull => "; free blocks, or memory that others hold on the device",
            Wall::InPieces => "; synchronise the streams that still use freed blocks, and retry",
            Wall::AddressSpace => "; raise `ulimit -v`, or drop pools that are not needed",
        })?;
        match &self.refusal {
            Some(refusal) => write!(f, " ({refusal})"),
            None => Ok(()),
        }
    }
}

/// Why a block's use could not be declared or ended, or the block not be freed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The address is not one of this pool.
    #[error("{address:#x} does not belong to this pool; free it where it was allocated")]
    Foreign {
        /// The address given.
        address: u64,
    },
    /// The address lies inside a live block.
    #[error(
        "{address:#x} lies inside the block that starts at {start:#x}, {size} bytes long; \
         give the block's start"
    )]
    Interior {
        /// The address given.
        address: u64,
        /// Where the block starts.
        start: u64,
        /// Bytes that were asked for it.
        size: u64,
    },
    /// The address is the pool's, but no live block is there: it was freed before.
    #[error("no live block is at {address:#x}: it was freed already (a double free?)")]
    NotLive {
        /// The address given.
        address: u64,
    },
    /// The stream does not use the block, or its use ended already.
    #[error(
        "stream {stream} does not use the block at {address:#x} (any more); name a stream that it \
         was allocated for or declared to be used on"
    )]
    NotUsed {
        /// The block.
        address: u64,
        /// The stream given.
        stream: StreamId,
    },
    /// The event was not recorded through the pool, or was forgotten since.
    #[error(
        "event {:#x} was not recorded through this pool, so what it stands for is not known; \
         record it with `Pool::record_event`", .event.0
    )]
    UnknownEvent {
        /// The event given.
        event: EventId,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Bytes for people: with the unit that leaves few digits.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        if self.0 == u64::MAX {
            return f.write_str("unlimited");
        }
        let unit = (self.0.max(1).ilog2() / 10).min(4);
        if unit == 0 {
            return write!(f, "{} B", self.0);
        }
        let value = self.0 as f64 / f64::from(unit * 10).exp2();
        write!(f, "{value:.1} {}", UNITS[unit as usize])
    }
}
