//! The one keeper of the driver's memory rules, for the devices that are emulated.
//!
//! [`MemoryRules`] is the state of a device's address space and physical memory. It refuses
//! whatever rules 1 to 8 of the [contract](super) refuse, with the driver's codes. It touches no
//! memory and makes no system call: a device asks it first (`check_…`), does its own work, and
//! then tells it what was done (`add_…`, `grant_access`, `remove_…`). The device holds one lock
//! around the three.
//!
//! # Invariants
//!
//! - Every key of `handles` names an entry of `memories`; [`Memory::handles`] counts them.
//! - [`Memory::mappings`] counts the mappings of that memory, [`Memory::accessible`] those of them
//!   that the device may touch. Memory with neither handle nor mapping does not exist.
//! - Every mapping lies inside one reservation. Mappings do not overlap, nor do reservations and
//!   plain allocations.
//! - `used` is the sum of the sizes of all device memory and all plain allocations.
#![forbid(unsafe_code)]

mod mapping;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::{
    Call, Capabilities, DeviceError, HandleId, HandleProperties, Location, MemoryInfo, Protection,
    ShareKind, Status, Topology,
};

pub(crate) use mapping::{Backing, Granted, Piece, Removed};

/// The first size of a reservation that an H200 refuses (128 TiB; MEASURED: 64 TiB is given).
const ADDRESS_SPACE: u64 = 1 << 47;

/// Physical memory, under whatever handles it is known by.
///
/// It has the number of the handle that it was created or first imported as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct MemoryId(pub(crate) u64);

/// Physical memory that exists no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gone {
    /// Which.
    pub(crate) memory: MemoryId,
    /// Its bytes.
    pub(crate) size: u64,
}

/// Physical memory and who keeps it.
#[derive(Debug)]
struct Memory {
    size: u64,
    properties: HandleProperties,
    handles: u64,
    mappings: u64,
    accessible: u64,
}

/// One mapping; the address is its key.
#[derive(Debug)]
struct Mapping {
    size: u64,
    memory: MemoryId,
    protection: Protection,
}

/// The state of an emulated device's memory. See the [module](self).
#[derive(Debug)]
pub(crate) struct MemoryRules {
    capabilities: Capabilities,
    used: u64,
    /// Base to size.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    /// Address to size.
    allocations: BTreeMap<u64, u64>,
    handles: FxHashMap<HandleId, MemoryId>,
    memories: FxHashMap<MemoryId, Memory>,
    /// The other devices, if there are any.
    topology: Option<Topology>,
}

impl MemoryRules {
    /// An empty device with these capabilities. The granularity must not be zero.
    pub(crate) fn new(capabilities: &Capabilities) -> MemoryRules {
        MemoryRules {
            capabilities: capabilities.clone(),
            used: 0,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            allocations: BTreeMap::new(),
            handles: FxHashMap::default(),
            memories: FxHashMap::default(),
            topology: None,
        }
    }

    /// The same among other devices.
    pub(crate) fn in_topology(mut self, topology: Option<&Topology>) -> MemoryRules {
        self.topology = topology.cloned();
        self
    }

    /// Bytes free and in all. Memory imported from elsewhere counts as used.
    pub(crate) fn memory_info(&self) -> MemoryInfo {
        let total = self.capabilities.total_memory;
        MemoryInfo {
            free: total.saturating_sub(self.used),
            total,
        }
    }

    // --- Reservations ------------------------------------------------------------------------

    /// Whether a reservation of this size and alignment may be asked for.
    pub(crate) fn check_reserve(&self, size: u64, alignment: u64) -> Result<(), DeviceError> {
        self.check_mapping_supported(Call::Reserve)?;
        self.check_granularity(Call::Reserve, "size", size)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(invalid(
                Call::Reserve,
                format!("alignment {alignment:#x} is not a power of two; give one, or 0"),
            ));
        }
        if size >= ADDRESS_SPACE || alignment >= ADDRESS_SPACE {
            return Err(DeviceError::new(
                Call::Reserve,
                Status::OUT_OF_MEMORY,
                format!(
                    "{size:#x} bytes aligned to {alignment:#x} do not fit the address space; \
                     stay under {ADDRESS_SPACE:#x}"
                ),
            ));
        }
        Ok(())
    }

    /// The lowest address in `within` where `size` bytes, so aligned, meet no reservation and no
    /// plain allocation. The alignment is zero or a power of two.
    ///
    /// For devices that choose addresses themselves. Takes time by the number of those.
    pub(crate) fn free_address(
        &self,
        within: Range<u64>,
        size: u64,
        alignment: u64,
    ) -> Option<u64> {
        let align = |address: u64| address.checked_next_multiple_of(alignment.max(1));
        let mut candidate = align(within.start)?;
        let taken = self.reservations.range(within.clone());
        let taken = taken.chain(self.allocations.range(within.clone()));
        for (&base, &length) in taken {
            if candidate.checked_add(size)? <= base {
                break;
            }
            candidate = align(candidate.max(base.checked_add(length)?))?;
        }
        (candidate.checked_add(size)? <= within.end).then_some(candidate)
    }

    /// The address range now is a reservation.
    pub(crate) fn add_reservation(&mut self, base: u64, size: u64) {
        self.reservations.insert(base, size);
    }

    /// Rule 8: whether this is a reservation, whole and with nothing mapped in it.
    pub(crate) fn check_free_reservation(&self, base: u64, size: u64) -> Result<(), DeviceError> {
        let call = Call::FreeReservation;
        match self.reservations.get(&base) {
            None => {
                return Err(invalid(
                    call,
                    format!("no reservation begins at {base:#x}; give the base it was made with"),
                ));
            }
            Some(&made) if made != size => {
                return Err(invalid(
                    call,
                    format!(
                        "the reservation at {base:#x} has {made:#x} bytes, not {size:#x}; \
                         it is freed as it was made"
                    ),
                ));
            }
            Some(_) => {}
        }
        let mapped = self.mappings.range(base..base.saturating_add(size)).next();
        match mapped {
            None => Ok(()),
            Some((address, mapping)) => Err(invalid(
                call,
                format!(
                    "{:#x} bytes at {address:#x} are still mapped in the reservation at \
                     {base:#x}; unmap them first",
                    mapping.size
                ),
            )),
        }
    }

    /// The reservation is gone.
    pub(crate) fn remove_reservation(&mut self, base: u64) {
        self.reservations.remove(&base);
    }

    /// Every reservation: base and size.
    pub(crate) fn reservations(&self) -> impl Iterator<Item = (u64, u64)> {
        self.reservations.iter().map(|(&base, &size)| (base, size))
    }

    // --- Physical memory ---------------------------------------------------------------------

    /// Rule 1, the memory left, and what the device can do at all.
    pub(crate) fn check_create(
        &self,
        size: u64,
        properties: HandleProperties,
    ) -> Result<(), DeviceError> {
        let call = Call::Create;
        self.check_mapping_supported(call)?;
        self.check_granularity(call, "size", size)?;
        self.check_share(call, properties.share)?;
        if properties.rdma && !self.capabilities.rdma {
            return Err(unsupported(
                call,
                "this device's memory cannot be made reachable for network cards",
            ));
        }
        match properties.location {
            Location::Device => self.check_memory_left(call, size),
            Location::Host if self.capabilities.host => Ok(()),
            Location::Host => Err(unsupported(call, "this device has no mapped host memory")),
            // An emulated host is one node.
            Location::HostNuma(0) if self.capabilities.host_numa => Ok(()),
            Location::HostNuma(node) if self.capabilities.host_numa => Err(invalid(
                call,
                format!("there is no NUMA node {node}; this host has node 0"),
            )),
            Location::HostNuma(node) => Err(unsupported(
                call,
                format!("this device has no mapped host memory (NUMA node {node} asked for)"),
            )),
        }
    }

    /// A new handle to new memory. The number must not have been given before.
    pub(crate) fn add_handle(&mut self, handle: HandleId, size: u64, properties: HandleProperties) {
        let memory = MemoryId(handle.0);
        if properties.location == Location::Device {
            self.used = self.used.saturating_add(size);
        }
        self.handles.insert(handle, memory);
        self.memories.insert(
            memory,
            Memory {
                size,
                properties,
                handles: 1,
                mappings: 0,
                accessible: 0,
            },
        );
    }

    /// Whether the handle may be exported in this way, and the memory it stands for.
    pub(crate) fn check_export(
        &self,
        handle: HandleId,
        kind: ShareKind,
    ) -> Result<MemoryId, DeviceError> {
        let call = Call::Export;
        self.check_share(call, Some(kind))?;
        let (id, memory) = self.memory_of(call, handle)?;
        if memory.properties.share == Some(kind) {
            return Ok(id);
        }
        Err(unsupported(
            call,
            format!(
                "handle {} was created for {}, not for {kind:?}; name it at creation",
                handle.0,
                match memory.properties.share {
                    None => "no export".to_owned(),
                    Some(made) => format!("{made:?}"),
                }
            ),
        ))
    }

    /// Whether memory of this size, shared in this way, may be imported.
    pub(crate) fn check_import(&self, kind: ShareKind, size: u64) -> Result<(), DeviceError> {
        self.check_share(Call::Import, Some(kind))?;
        self.check_granularity(Call::Import, "size", size)
    }

    /// A new handle to memory that was shared: to `known`, where that is memory which this device
    /// has already, else to new memory. The number must not have been given before.
    pub(crate) fn add_import(
        &mut self,
        handle: HandleId,
        known: Option<MemoryId>,
        size: u64,
        properties: HandleProperties,
    ) {
        if let Some(id) = known
            && let Some(memory) = self.memories.get_mut(&id)
        {
            memory.handles += 1;
            self.handles.insert(handle, id);
        } else {
            self.add_handle(handle, size, properties);
        }
    }

    /// Gives up a handle. Rule 7: the memory is gone if nothing else keeps it.
    ///
    /// A handle that is not one is undefined behaviour in the driver; here it is an invalid value.
    pub(crate) fn release_handle(&mut self, handle: HandleId) -> Result<Option<Gone>, DeviceError> {
        let (id, _) = self.memory_of(Call::Release, handle)?;
        self.handles.remove(&handle);
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.handles -= 1;
        }
        Ok(self.drop_if_unkept(id))
    }

    /// The memory a handle stands for and its size.
    pub(crate) fn memory(
        &self,
        call: Call,
        handle: HandleId,
    ) -> Result<(MemoryId, u64), DeviceError> {
        let (id, memory) = self.memory_of(call, handle)?;
        Ok((id, memory.size))
    }

    // --- Plain allocations -------------------------------------------------------------------

    /// Whether a plain allocation of this size fits.
    pub(crate) fn check_allocate(&self, size: u64) -> Result<(), DeviceError> {
        if size == 0 {
            return Err(invalid(Call::Allocate, "0 bytes were asked for"));
        }
        self.check_memory_left(Call::Allocate, size)
    }

    /// A plain allocation now lives at this address; it may be touched at once.
    pub(crate) fn add_allocation(&mut self, address: u64, size: u64) {
        self.used = self.used.saturating_add(size);
        self.allocations.insert(address, size);
    }

    /// Whether a plain allocation begins here, and its size.
    pub(crate) fn check_free(&self, address: u64) -> Result<u64, DeviceError> {
        self.allocations.get(&address).copied().ok_or_else(|| {
            invalid(
                Call::Free,
                format!("no allocation begins at {address:#x}; it may have been freed already"),
            )
        })
    }

    /// The plain allocation is gone.
    pub(crate) fn remove_allocation(&mut self, address: u64) {
        if let Some(size) = self.allocations.remove(&address) {
            self.used = self.used.saturating_sub(size);
        }
    }

    /// Every plain allocation: address and size.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u64, u64)> {
        self.allocations
            .iter()
            .map(|(&address, &size)| (address, size))
    }

    // --- What several of them need -----------------------------------------------------------

    fn check_mapping_supported(&self, call: Call) -> Result<(), DeviceError> {
        if self.capabilities.mapping {
            return Ok(());
        }
        Err(unsupported(
            call,
            "this device has no mapped memory; allocate plain memory instead",
        ))
    }

    fn check_granularity(&self, call: Call, what: &str, value: u64) -> Result<(), DeviceError> {
        let granularity = self.capabilities.granularity;
        if value != 0 && value.is_multiple_of(granularity) {
            return Ok(());
        }
        Err(invalid(
            call,
            format!(
                "{what} {value:#x} is not a positive multiple of the granularity {granularity:#x}"
            ),
        ))
    }

    fn check_memory_left(&self, call: Call, size: u64) -> Result<(), DeviceError> {
        let MemoryInfo { free, total } = self.memory_info();
        if size <= free {
            return Ok(());
        }
        Err(DeviceError::new(
            call,
            Status::OUT_OF_MEMORY,
            format!(
                "{size} bytes were asked for, {free} of {total} are free; release memory, or ask \
                 for less"
            ),
        ))
    }

    fn check_share(&self, call: Call, share: Option<ShareKind>) -> Result<(), DeviceError> {
        let able = match share {
            None => true,
            Some(ShareKind::PosixFd) => self.capabilities.share_posix_fd,
            Some(ShareKind::Fabric) => self.capabilities.share_fabric,
        };
        match share {
            Some(kind) if !able => Err(unsupported(
                call,
                format!(
                    "this device cannot share memory as {kind:?}; its capabilities say what it can"
                ),
            )),
            _ => Ok(()),
        }
    }

    fn memory_of(&self, call: Call, handle: HandleId) -> Result<(MemoryId, &Memory), DeviceError> {
        self.handles
            .get(&handle)
            .and_then(|&id| Some((id, self.memories.get(&id)?)))
            .ok_or_else(|| {
                invalid(
                    call,
                    format!(
                        "{} is not a handle of this device, or was released already",
                        handle.0
                    ),
                )
            })
    }

    fn drop_if_unkept(&mut self, id: MemoryId) -> Option<Gone> {
        let memory = self.memories.get(&id)?;
        if memory.handles > 0 || memory.mappings > 0 {
            return None;
        }
        let size = memory.size;
        if memory.properties.location == Location::Device {
            self.used = self.used.saturating_sub(size);
        }
        self.memories.remove(&id);
        Some(Gone { memory: id, size })
    }
}

impl Drop for MemoryRules {
    fn drop(&mut self) {
        if let Some(topology) = &self.topology {
            for &address in self.mappings.keys() {
                topology.forget(address);
            }
        }
    }
}

fn invalid(call: Call, detail: impl Into<String>) -> DeviceError {
    DeviceError::new(call, Status::INVALID_VALUE, detail)
}

fn unsupported(call: Call, detail: impl Into<String>) -> DeviceError {
    DeviceError::new(call, Status::NOT_SUPPORTED, detail)
}
