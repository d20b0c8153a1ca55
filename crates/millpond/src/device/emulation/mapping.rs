//! Mappings: what lies under which address, who may touch it, and what a range is made of.

use smallvec::SmallVec;

use super::{Gone, Mapping, MemoryId, MemoryRules, invalid, unsupported};
use crate::device::{
    AccessGrant, Accessor, Call, DeviceError, HandleId, Location, Protection, Status,
};

/// A mapping that was found to be allowed, for [`MemoryRules::add_mapping`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedMapping {
    /// Where.
    pub(crate) address: u64,
    /// How long; all of the memory.
    pub(crate) size: u64,
    /// What.
    pub(crate) memory: MemoryId,
}

/// How many mappings got access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Granted {
    /// Mappings of memory that could be touched through no other mapping.
    pub(crate) first: u64,
    /// Mappings of memory that could already be touched through another one.
    pub(crate) further: u64,
}

/// A mapping that was taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Removed {
    /// Where it was.
    pub(crate) address: u64,
    /// How long it was.
    pub(crate) size: u64,
    /// Whether its memory had a further mapping, and has it still.
    pub(crate) one_of_several: bool,
    /// Its memory, if that went with it.
    pub(crate) gone: Option<Gone>,
}

/// What lies under an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// Mapped physical memory.
    Memory(MemoryId),
    /// A plain allocation.
    Allocation,
}

/// A part of a range that lies in one mapping or one plain allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Where the mapping or the allocation begins.
    pub(crate) base: u64,
    /// What is there.
    pub(crate) backing: Backing,
    /// Where in it the piece begins.
    pub(crate) offset: u64,
    /// Bytes of the piece.
    pub(crate) size: u64,
}

impl MemoryRules {
    /// Rules 1 to 3: whether a handle may be mapped here.
    pub(crate) fn check_map(
        &self,
        address: u64,
        size: u64,
        handle: HandleId,
    ) -> Result<PlannedMapping, DeviceError> {
        let call = Call::Map;
        self.check_granularity(call, "address", address)?;
        self.check_granularity(call, "size", size)?;
        let (memory, whole) = self.memory(call, handle)?;
        let end = end_of(call, address, size)?;
        let reservation = self
            .reservations
            .range(..=address)
            .next_back()
            .map(|(&base, &reserved)| (base, base.saturating_add(reserved)))
            .filter(|&(_, reservation_end)| end <= reservation_end);
        if reservation.is_none() {
            return Err(invalid(
                call,
                format!("{address:#x}..{end:#x} does not lie inside one reservation"),
            ));
        }
        if size != whole {
            return Err(unsupported(
                call,
                format!(
                    "handle {} has {whole:#x} bytes, and {size:#x} were to be mapped; a handle is \
                     mapped whole",
                    handle.0
                ),
            ));
        }
        if let Some((taken, mapping)) = self.last_mapping_before(end)
            && taken.saturating_add(mapping.size) > address
        {
            return Err(invalid(
                call,
                format!(
                    "{address:#x}..{end:#x} meets the mapping of {:#x} bytes at {taken:#x}; unmap \
                     it first",
                    mapping.size
                ),
            ));
        }
        Ok(PlannedMapping {
            address,
            size,
            memory,
        })
    }

    /// The mapping is made. Nobody can touch it yet.
    pub(crate) fn add_mapping(&mut self, planned: PlannedMapping) {
        if let Some(memory) = self.memories.get_mut(&planned.memory) {
            memory.mappings += 1;
            self.mappings.insert(
                planned.address,
                Mapping {
                    size: planned.size,
                    memory: planned.memory,
                    protection: Protection::None,
                },
            );
        }
    }

    /// Rule 4: whether access may be set for the range. Gives what this device itself is to be
    /// able to do; `None` if no grant names it.
    pub(crate) fn check_set_access(
        &self,
        address: u64,
        size: u64,
        grants: &[AccessGrant],
    ) -> Result<Option<Protection>, DeviceError> {
        let call = Call::SetAccess;
        if grants.is_empty() {
            return Err(invalid(call, "nobody was named who is to have access"));
        }
        self.check_whole_mappings(call, address, size)?;
        let mut own = None;
        for grant in grants {
            match grant.accessor {
                Accessor::Device(ordinal) if ordinal == self.capabilities.ordinal => {
                    own = Some(grant.protection);
                }
                Accessor::Device(ordinal) if self.can_be_accessed_by(ordinal) => {}
                Accessor::Device(ordinal) => {
                    return Err(DeviceError::new(
                        call,
                        Status::INVALID_DEVICE,
                        format!(
                            "device {ordinal} cannot reach memory of this device, which is device \
                             {}: there is none, or no link between them",
                            self.capabilities.ordinal
                        ),
                    ));
                }
                Accessor::Host | Accessor::HostNuma(_) => {
                    self.check_host_memory(address, size, grant.accessor)?;
                }
            }
        }
        Ok(own)
    }

    /// Whether the device with this ordinal can be given access.
    pub(crate) fn can_be_accessed_by(&self, ordinal: u32) -> bool {
        let own = self.capabilities.ordinal;
        let topology = self.topology.as_ref();
        ordinal == own || topology.is_some_and(|topology| topology.linked(own, ordinal))
    }

    /// Other devices may from now on do this with the range's mappings. Gives how many there are,
    /// if any other device is named.
    pub(crate) fn grant_peers(&self, address: u64, size: u64, grants: &[AccessGrant]) -> u64 {
        let own = self.capabilities.ordinal;
        let Some(topology) = &self.topology else {
            return 0;
        };
        let mut granted = 0;
        for (&base, mapping) in self.mappings.range(address..address.saturating_add(size)) {
            let mut named = false;
            for grant in grants {
                if let Accessor::Device(peer) = grant.accessor
                    && peer != own
                {
                    topology.grant(own, base, mapping.size, peer, grant.protection);
                    named = true;
                }
            }
            granted += u64::from(named);
        }
        granted
    }

    /// This device may from now on do this with the range's mappings.
    pub(crate) fn grant_access(
        &mut self,
        address: u64,
        size: u64,
        protection: Protection,
    ) -> Granted {
        let mut granted = Granted::default();
        let range = address..address.saturating_add(size);
        for (_, mapping) in self.mappings.range_mut(range) {
            let Some(memory) = self.memories.get_mut(&mapping.memory) else {
                continue;
            };
            if mapping.protection != Protection::None {
                memory.accessible -= 1;
            }
            if memory.accessible > 0 {
                granted.further += 1;
            } else {
                granted.first += 1;
            }
            mapping.protection = protection;
            if protection != Protection::None {
                memory.accessible += 1;
            }
        }
        granted
    }

    /// Rule 5: whether the range is one or more whole mappings, without holes.
    pub(crate) fn check_unmap(&self, address: u64, size: u64) -> Result<(), DeviceError> {
        self.check_whole_mappings(Call::Unmap, address, size)
    }

    /// The mappings of the range are gone, and with them the memory that nothing else keeps.
    pub(crate) fn remove_mappings(&mut self, address: u64, size: u64) -> SmallVec<[Removed; 1]> {
        let end = address.saturating_add(size);
        let mut removed = SmallVec::new();
        while let Some((&at, _)) = self.mappings.range(address..end).next()
            && let Some(mapping) = self.mappings.remove(&at)
        {
            if let Some(topology) = &self.topology {
                topology.forget(at);
            }
            let mut one_of_several = false;
            if let Some(memory) = self.memories.get_mut(&mapping.memory) {
                memory.mappings -= 1;
                if mapping.protection != Protection::None {
                    memory.accessible -= 1;
                }
                one_of_several = memory.mappings > 0;
            }
            removed.push(Removed {
                address: at,
                size: mapping.size,
                one_of_several,
                gone: self.drop_if_unkept(mapping.memory),
            });
        }
        removed
    }

    /// What a range is made of, if the device may touch all of it in this way; else illegal
    /// address (700), the answer to work that touches what it may not. A range lies in mappings
    /// without holes between them, or in one plain allocation. An empty one touches nothing.
    pub(crate) fn translate(
        &self,
        call: Call,
        address: u64,
        size: u64,
        needed: Protection,
    ) -> Result<SmallVec<[Piece; 1]>, DeviceError> {
        self.translate_for(None, call, address, size, needed)
    }

    /// The same for another device that is to touch this one's memory.
    pub(crate) fn translate_for(
        &self,
        peer: Option<u32>,
        call: Call,
        address: u64,
        size: u64,
        needed: Protection,
    ) -> Result<SmallVec<[Piece; 1]>, DeviceError> {
        let end = address
            .checked_add(size)
            .ok_or_else(|| illegal(call, address, "the range ends beyond the address space"))?;
        let mut pieces = SmallVec::new();
        if size == 0 {
            return Ok(pieces);
        }
        let Some((first, _)) = self.mapping_at(address) else {
            if peer.is_some() {
                return Err(illegal(call, address, "nothing is mapped there for others"));
            }
            pieces.push(self.piece_of_allocation(call, address, size)?);
            return Ok(pieces);
        };
        let mut at = address;
        for (&base, mapping) in self.mappings.range(first..end) {
            if base > at {
                break;
            }
            let given = match peer {
                None => mapping.protection,
                Some(peer) => {
                    let topology = self.topology.as_ref();
                    topology.map_or(Protection::None, |t| t.protection(base, peer))
                }
            };
            check_protection(call, at, given, needed)?;
            let piece_end = end.min(base.saturating_add(mapping.size));
            pieces.push(Piece {
                base,
                backing: Backing::Memory(mapping.memory),
                offset: at - base,
                size: piece_end - at,
            });
            at = piece_end;
        }
        if at < end {
            return Err(illegal(call, at, "nothing is mapped there"));
        }
        Ok(pieces)
    }

    /// Whether a range that is not this device's is another one's, which has let this device touch
    /// it in this way.
    pub(crate) fn allowed_elsewhere(&self, address: u64, size: u64, needed: Protection) -> bool {
        let own = self.capabilities.ordinal;
        let topology = self.topology.as_ref();
        topology.is_some_and(|topology| topology.allows(own, address, size, needed))
    }

    /// On how many of its two sides a range meets a mapping.
    pub(crate) fn mapped_neighbours(&self, address: u64, size: u64) -> u64 {
        let before = address.checked_sub(1);
        let after = address.checked_add(size);
        [before, after]
            .into_iter()
            .flatten()
            .filter(|&side| self.mapping_at(side).is_some())
            .count() as u64
    }

    fn piece_of_allocation(
        &self,
        call: Call,
        address: u64,
        size: u64,
    ) -> Result<Piece, DeviceError> {
        match self.allocations.range(..=address).next_back() {
            Some((&base, &whole)) if address - base < whole => {
                let offset = address - base;
                if size > whole - offset {
                    let detail = format!("the allocation of {whole:#x} bytes at {base:#x} ends");
                    return Err(illegal(call, base.saturating_add(whole), detail));
                }
                Ok(Piece {
                    base,
                    backing: Backing::Allocation,
                    offset,
                    size,
                })
            }
            _ => Err(illegal(call, address, "nothing is mapped there")),
        }
    }

    fn mapping_at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&base, mapping) = self.mappings.range(..=address).next_back()?;
        (address - base < mapping.size).then_some((base, mapping))
    }

    fn last_mapping_before(&self, end: u64) -> Option<(u64, &Mapping)> {
        let (&base, mapping) = self.mappings.range(..end).next_back()?;
        Some((base, mapping))
    }

    /// Whether the range is exactly covered by whole mappings, at least one.
    fn check_whole_mappings(&self, call: Call, address: u64, size: u64) -> Result<(), DeviceError> {
        self.check_granularity(call, "size", size)?;
        let end = end_of(call, address, size)?;
        let mut covered = address;
        for (&base, mapping) in self.mappings.range(address..end) {
            if base != covered {
                break;
            }
            covered = base.saturating_add(mapping.size);
        }
        if covered == end {
            return Ok(());
        }
        let reason = if covered > end {
            let (base, whole) = self
                .last_mapping_before(end)
                .map_or((address, 0), |(base, mapping)| (base, mapping.size));
            format!("it ends inside the mapping of {whole:#x} bytes at {base:#x}")
        } else if let Some((base, mapping)) = self.mapping_at(covered) {
            format!(
                "it begins inside the mapping of {:#x} bytes at {base:#x}",
                mapping.size
            )
        } else {
            format!("nothing is mapped at {covered:#x}")
        };
        Err(invalid(
            call,
            format!("{address:#x}..{end:#x} is not one or more whole adjacent mappings: {reason}"),
        ))
    }

    fn check_host_memory(
        &self,
        address: u64,
        size: u64,
        accessor: Accessor,
    ) -> Result<(), DeviceError> {
        let in_device = self
            .mappings
            .range(address..address.saturating_add(size))
            .find(|(_, mapping)| {
                self.memories
                    .get(&mapping.memory)
                    .is_some_and(|memory| memory.properties.location == Location::Device)
            });
        match in_device {
            None => Ok(()),
            Some((base, _)) => Err(unsupported(
                Call::SetAccess,
                format!(
                    "the memory at {base:#x} is the device's own, and {accessor:?} cannot touch it"
                ),
            )),
        }
    }
}

fn end_of(call: Call, address: u64, size: u64) -> Result<u64, DeviceError> {
    address.checked_add(size).ok_or_else(|| {
        invalid(
            call,
            format!("{size:#x} bytes at {address:#x} end beyond the address space"),
        )
    })
}

fn check_protection(
    call: Call,
    address: u64,
    given: Protection,
    needed: Protection,
) -> Result<(), DeviceError> {
    let may = match needed {
        Protection::None => true,
        Protection::Read => given != Protection::None,
        Protection::ReadWrite => given == Protection::ReadWrite,
    };
    if may {
        return Ok(());
    }
    Err(illegal(
        call,
        address,
        format!(
            "its mapping has access {given:?}, and {needed:?} is needed; set access after every \
             mapping"
        ),
    ))
}

fn illegal(call: Call, address: u64, detail: impl Into<String>) -> DeviceError {
    DeviceError::new(
        call,
        Status::ILLEGAL_ADDRESS,
        format!("work touches {address:#x}: {}", detail.into()),
    )
}
