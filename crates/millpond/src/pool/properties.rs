//! What a pool is, from the moment it is made: where its memory lies, and how it can be shared.

use crate::device::{Accessor, Capabilities, HandleProperties, Location, ShareKind};

use super::error::PoolError;

/// Where a pool's memory lies (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PoolLocation {
    /// In the memory of the device with this ordinal.
    Device(u32),
    /// In the host's memory, wherever that is, for the device to reach (pinned).
    Host,
    /// In the memory of this NUMA node of the host, for the device to reach (pinned).
    HostNuma(u32),
}

impl PoolLocation {
    /// The driver's number of this kind of location (`CUmemLocationType`).
    pub fn kind(self) -> u64 {
        match self {
            PoolLocation::Device(_) => 1,
            PoolLocation::Host => 2,
            PoolLocation::HostNuma(_) => 3,
        }
    }

    /// The ordinal or the node; 0 where there is none.
    pub fn id(self) -> u32 {
        match self {
            PoolLocation::Device(id) | PoolLocation::HostNuma(id) => id,
            PoolLocation::Host => 0,
        }
    }

    /// Where its handles lie.
    pub(super) fn of_handles(self) -> Location {
        match self {
            PoolLocation::Device(_) => Location::Device,
            PoolLocation::Host => Location::Host,
            PoolLocation::HostNuma(node) => Location::HostNuma(node),
        }
    }

    /// Who has access to its memory before anybody is given any (DRV `cuMemPoolCreate`: the
    /// location's own processor).
    pub(super) fn own_accessor(self) -> Accessor {
        match self {
            PoolLocation::Device(ordinal) => Accessor::Device(ordinal),
            PoolLocation::Host => Accessor::Host,
            PoolLocation::HostNuma(node) => Accessor::HostNuma(node),
        }
    }
}

/// The ways in which a pool's memory can be handed to other processes
/// (`CUmemAllocationHandleType`). A handle of the device contract has one at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandleTypes(Option<ShareKind>);

impl HandleTypes {
    /// Not at all.
    pub const NONE: HandleTypes = HandleTypes(None);
    /// As POSIX file descriptors.
    pub const POSIX_FD: HandleTypes = HandleTypes(Some(ShareKind::PosixFd));
    /// As fabric handles.
    pub const FABRIC: HandleTypes = HandleTypes(Some(ShareKind::Fabric));

    /// The driver's bits: 0 none, 1 POSIX file descriptors, 8 fabric handles.
    pub fn bits(self) -> u64 {
        match self.0 {
            None => 0,
            Some(ShareKind::PosixFd) => 1,
            Some(ShareKind::Fabric) => 8,
        }
    }

    /// The handle types that have these bits in the driver's enumeration; `None` for what is not
    /// offered: several at once, and those of Windows.
    pub fn from_bits(bits: u64) -> Option<HandleTypes> {
        let all = [
            HandleTypes::NONE,
            HandleTypes::POSIX_FD,
            HandleTypes::FABRIC,
        ];
        all.into_iter().find(|types| types.bits() == bits)
    }
}

/// What a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Properties {
    pub(super) location: PoolLocation,
    pub(super) handle_types: HandleTypes,
}

impl Properties {
    /// What its handles are to be able to do.
    pub(super) fn of_handles(self) -> HandleProperties {
        HandleProperties {
            location: self.location.of_handles(),
            share: self.handle_types.0,
            rdma: false,
        }
    }

    /// Whether a device can have such a pool (DRV `cuMemPoolCreate`).
    pub(super) fn check(self, capabilities: &Capabilities) -> Result<(), PoolError> {
        let Properties {
            location,
            handle_types,
        } = self;
        let offered = capabilities.mapping
            && match location {
                PoolLocation::Device(_) => true,
                PoolLocation::Host => capabilities.host,
                PoolLocation::HostNuma(_) => capabilities.host_numa,
            };
        match location {
            PoolLocation::Device(ordinal) if ordinal != capabilities.ordinal => {
                return Err(PoolError::WrongDevice {
                    asked: ordinal,
                    device: capabilities.ordinal,
                });
            }
            // A device that maps nothing has plain memory of its own.
            PoolLocation::Device(_) => {}
            _ if !offered => return Err(PoolError::LocationNotOffered { location }),
            _ => {}
        }
        let shared = match handle_types.0 {
            None => true,
            // DRV: a pool of the host at large has no handle types.
            Some(_) if location == PoolLocation::Host => false,
            Some(ShareKind::PosixFd) => capabilities.mapping && capabilities.share_posix_fd,
            Some(ShareKind::Fabric) => capabilities.mapping && capabilities.share_fabric,
        };
        if shared {
            return Ok(());
        }
        Err(PoolError::HandleTypesNotOffered {
            handle_types,
            location,
        })
    }
}
