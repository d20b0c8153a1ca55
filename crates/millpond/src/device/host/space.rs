//! The device's memory: reservations, pages, and what lies where.
//!
//! # Invariants
//!
//! - What [`MemoryRules`] holds to be mapped, or plainly allocated, is really placed there, for
//!   reading and writing; all the rest of the reservations is without access.
//! - Placing and taking away needs the state's lock for writing, touching bytes needs it for
//!   reading. So bytes are touched only where something lies, however the program's operations and
//!   its unmapping race: at worst they find nothing there.
//! - All memory that cannot be shared lies in one file, each at an offset never used before or
//!   after; memory that can be shared has a file of its own. A part of the file takes memory from
//!   its first write until nothing keeps it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::limits::{self, MappingCount};
use super::os::{self, FileIdentity};
use super::touched::Touched;
use crate::device::emulation::{Gone, MemoryId, MemoryRules, Piece};
use crate::device::{
    AccessGrant, Call, Capabilities, DeviceError, HandleId, HandleProperties, MemoryInfo,
    Protection, ShareKind, Shareable, Status, Topology,
};

/// The size of the file that holds the memory that cannot be shared: more than is ever used.
const FILE_SIZE: u64 = 1 << 62;

/// How many bytes are created before the system is asked again whether it has them.
const LOOK_EVERY: u64 = 64 << 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct AddressSpace {
    granularity: u64,
    file: OwnedFd,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    rules: MemoryRules,
    stores: FxHashMap<MemoryId, Store>,
    /// The memory that came with each file that can be shared, or was.
    shared: FxHashMap<FileIdentity, MemoryId>,
    /// Where each plain allocation lies in the file, by its address.
    allocations: FxHashMap<u64, u64>,
    mappings: MappingCount,
    touched: Touched,
    next_handle: u64,
    next_offset: u64,
    /// Bytes of the file that are in use, written or not.
    promised: u64,
    /// Bytes created since the system was last asked whether it has them.
    unlooked: u64,
}

/// Where memory is kept.
#[derive(Debug)]
enum Store {
    /// In the device's file, at this offset.
    Part(u64),
    /// In a file of its own.
    Own(OwnedFd, FileIdentity),
}

impl AddressSpace {
    pub(super) fn new(
        capabilities: &Capabilities,
        topology: Option<&Topology>,
    ) -> Result<AddressSpace, DeviceError> {
        let file =
            os::memory_file(FILE_SIZE).map_err(|error| limits::refusal(Call::Open, 0, &error))?;
        Ok(AddressSpace {
            granularity: capabilities.granularity,
            file,
            state: RwLock::new(State {
                rules: MemoryRules::new(capabilities).in_topology(topology),
                stores: FxHashMap::default(),
                shared: FxHashMap::default(),
                allocations: FxHashMap::default(),
                mappings: MappingCount::new(),
                touched: Touched::default(),
                next_handle: 1,
                next_offset: 0,
                promised: 0,
                unlooked: 0,
            }),
        })
    }

    /// Nothing panics half way through a change, so a poisoned lock is as good as any.
    fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps everything where it is while the result lives.
    pub(super) fn hold(&self) -> Held<'_> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        Held(state, None)
    }

    /// The same on behalf of another device.
    pub(super) fn hold_for(&self, peer: u32) -> Held<'_> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        Held(state, Some(peer))
    }

    /// Whether the device with this ordinal can be given access.
    pub(super) fn can_be_accessed_by(&self, ordinal: u32) -> bool {
        self.hold().0.rules.can_be_accessed_by(ordinal)
    }

    /// Bytes that the memory which cannot be shared takes of the system now.
    pub(super) fn memory_taken(&self) -> u64 {
        os::memory_taken(&self.file).unwrap_or(0)
    }

    /// Mappings that the device is taken to have.
    #[cfg(test)]
    pub(super) fn mappings_counted(&self) -> u64 {
        self.hold().0.mappings.used()
    }

    pub(super) fn memory_info(&self) -> MemoryInfo {
        self.hold().0.rules.memory_info()
    }

    // --- Reservations ------------------------------------------------------------------------

    pub(super) fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DeviceError> {
        let mut state = self.change();
        state.rules.check_reserve(size, alignment)?;
        state.mappings.take(Call::Reserve, 1)?;
        let alignment = alignment.max(self.granularity);
        match os::reserve(size, alignment) {
            Ok(base) => {
                state.rules.add_reservation(base, size);
                Ok(base)
            }
            Err(error) => {
                state.mappings.give(1);
                Err(limits::refusal(Call::Reserve, size, &error))
            }
        }
    }

    pub(super) fn free_reservation(&self, base: u64, size: u64) -> Result<(), DeviceError> {
        let mut state = self.change();
        state.rules.check_free_reservation(base, size)?;
        // SAFETY: the rules know the range as a reservation, whole and with nothing mapped, so no
        // bytes of it are touched; the lock keeps it so until it is forgotten.
        unsafe { os::give_back(base, size) }
            .map_err(|error| limits::refusal(Call::FreeReservation, size, &error))?;
        state.rules.remove_reservation(base);
        state.mappings.give(1);
        Ok(())
    }

    // --- Physical memory ---------------------------------------------------------------------

    pub(super) fn create(
        &self,
        size: u64,
        properties: HandleProperties,
    ) -> Result<HandleId, DeviceError> {
        let mut state = self.change();
        state.rules.check_create(size, properties)?;
        state.look_for_memory(Call::Create, size, || self.memory_taken())?;
        let own = match properties.share {
            None => None,
            Some(_) => {
                let refused = |error: io::Error| limits::refusal(Call::Create, size, &error);
                let file = os::memory_file(size).map_err(refused)?;
                let identity = os::identity(&file).map_err(refused)?;
                Some((file, identity))
            }
        };
        let handle = state.new_handle();
        state.rules.add_handle(handle, size, properties);
        let (memory, _) = state.rules.memory(Call::Create, handle)?;
        let store = match own {
            Some((file, identity)) => {
                state.shared.insert(identity, memory);
                Store::Own(file, identity)
            }
            None => Store::Part(state.promise(size, self.granularity)),
        };
        state.stores.insert(memory, store);
        Ok(handle)
    }

    pub(super) fn release(&self, handle: HandleId) -> Result<(), DeviceError> {
        let mut state = self.change();
        let gone = state.rules.release_handle(handle)?;
        let discarded = gone.and_then(|gone| state.forget(gone));
        drop(state);
        self.discard(discarded);
        Ok(())
    }

    pub(super) fn export(
        &self,
        handle: HandleId,
        kind: ShareKind,
    ) -> Result<Shareable, DeviceError> {
        let Held(state, _) = self.hold();
        let memory = state.rules.check_export(handle, kind)?;
        match state.stores.get(&memory) {
            Some(Store::Own(file, _)) => file
                .try_clone()
                .map(Shareable::PosixFd)
                .map_err(|error| limits::refusal(Call::Export, 0, &error)),
            _ => Err(DeviceError::new(
                Call::Export,
                Status::NOT_SUPPORTED,
                format!("handle {} has no file of its own to share", handle.0),
            )),
        }
    }

    pub(super) fn import(&self, shareable: Shareable, size: u64) -> Result<HandleId, DeviceError> {
        let mut state = self.change();
        let file = match shareable {
            Shareable::PosixFd(file) => {
                state.rules.check_import(ShareKind::PosixFd, size)?;
                file
            }
            Shareable::Fabric(_) => {
                state.rules.check_import(ShareKind::Fabric, size)?;
                return Err(DeviceError::new(
                    Call::Import,
                    Status::NOT_SUPPORTED,
                    "memory of this machine has no fabric handles; share it as a descriptor",
                ));
            }
        };
        let identity = os::check_foreign(&file, size).map_err(|reason| {
            let detail = format!("the descriptor does not stand for {size} bytes: {reason}");
            DeviceError::new(Call::Import, Status::INVALID_VALUE, detail)
        })?;
        let known = state.shared.get(&identity).copied();
        let handle = state.new_handle();
        let properties = HandleProperties {
            share: Some(ShareKind::PosixFd),
            ..HandleProperties::default()
        };
        state.rules.add_import(handle, known, size, properties);
        if known.is_none() {
            let (memory, _) = state.rules.memory(Call::Import, handle)?;
            state.shared.insert(identity, memory);
            state.stores.insert(memory, Store::Own(file, identity));
        }
        Ok(handle)
    }

    // --- Mapping -----------------------------------------------------------------------------

    pub(super) fn map(&self, address: u64, size: u64, handle: HandleId) -> Result<(), DeviceError> {
        let mut state = self.change();
        let planned = state.rules.check_map(address, size, handle)?;
        let more = 2 - state.rules.mapped_neighbours(address, size);
        state.mappings.take(Call::Map, more)?;
        let (file, offset) = match state.stores.get(&planned.memory) {
            Some(Store::Own(file, _)) => (file.as_fd(), 0),
            Some(&Store::Part(offset)) => (self.file.as_fd(), offset),
            None => {
                state.mappings.give(more);
                let detail = format!("handle {} has no memory", handle.0);
                return Err(DeviceError::new(Call::Map, Status::UNKNOWN, detail));
            }
        };
        // SAFETY: the rules found the range inside a reservation with nothing mapped in it, so no
        // bytes of it are touched, and the handle, which is as long as its store, of this size.
        let placed = unsafe { os::place(address, size, file, offset) };
        if let Err(error) = placed {
            state.mappings.give(more);
            return Err(limits::refusal(Call::Map, size, &error));
        }
        state.rules.add_mapping(planned);
        state.touched.add(address, size);
        Ok(())
    }

    pub(super) fn set_access(
        &self,
        address: u64,
        size: u64,
        grants: &[AccessGrant],
    ) -> Result<(), DeviceError> {
        let mut state = self.change();
        if let Some(protection) = state.rules.check_set_access(address, size, grants)? {
            state.rules.grant_access(address, size, protection);
        }
        state.rules.grant_peers(address, size, grants);
        Ok(())
    }

    pub(super) fn unmap(&self, address: u64, size: u64) -> Result<(), DeviceError> {
        let mut state = self.change();
        state.rules.check_unmap(address, size)?;
        // SAFETY: the rules found the range to be whole mappings, which lie in reservations; with
        // the lock held for writing, nobody touches bytes.
        unsafe { os::take_away(address, size) }
            .map_err(|error| limits::refusal(Call::Unmap, size, &error))?;
        let neighbours = state.rules.mapped_neighbours(address, size);
        let removed = state.rules.remove_mappings(address, size);
        state.mappings.give(removed.len() as u64 + 1 - neighbours);
        let mut discarded = Vec::new();
        for removed in removed {
            state.touched.remove(removed.address);
            discarded.extend(removed.gone.and_then(|gone| state.forget(gone)));
        }
        drop(state);
        self.discard(discarded);
        Ok(())
    }

    // --- Plain allocations -------------------------------------------------------------------

    pub(super) fn allocate(&self, size: u64) -> Result<u64, DeviceError> {
        let call = Call::Allocate;
        let mut state = self.change();
        state.rules.check_allocate(size)?;
        let whole = size.next_multiple_of(self.granularity);
        state.look_for_memory(call, size, || self.memory_taken())?;
        state.mappings.take(call, 1)?;
        let offset = state.promise(whole, self.granularity);
        match self.place_anywhere(whole, self.file.as_fd(), offset) {
            Ok(address) => {
                state.rules.add_allocation(address, size);
                state.touched.add(address, whole);
                state.allocations.insert(address, offset);
                Ok(address)
            }
            Err(error) => {
                state.promised -= whole;
                state.mappings.give(1);
                Err(limits::refusal(call, whole, &error))
            }
        }
    }

    fn place_anywhere(&self, size: u64, file: BorrowedFd<'_>, offset: u64) -> io::Result<u64> {
        let address = os::reserve(size, self.granularity)?;
        // SAFETY: the range was just made and nobody else knows of it; the file is longer than
        // any offset ever promised.
        let placed = unsafe { os::place(address, size, file, offset) };
        if let Err(error) = placed {
            // SAFETY: as above.
            let _ = unsafe { os::give_back(address, size) };
            return Err(error);
        }
        Ok(address)
    }

    pub(super) fn free(&self, address: u64) -> Result<(), DeviceError> {
        let mut state = self.change();
        let size = state.rules.check_free(address)?;
        let whole = size.next_multiple_of(self.granularity);
        // SAFETY: the rules know the range as an allocation, which was placed in a range of its
        // own; with the lock held for writing, nobody touches bytes.
        unsafe { os::give_back(address, whole) }
            .map_err(|error| limits::refusal(Call::Free, whole, &error))?;
        state.rules.remove_allocation(address);
        state.touched.remove(address);
        state.mappings.give(1);
        let offset = state.allocations.remove(&address);
        state.promised -= whole;
        drop(state);
        self.discard(offset.map(|offset| (offset, whole)));
        Ok(())
    }

    /// Gives memory back to the system. It is nobody's any more, and its place in the file is
    /// never used again, so no lock is needed.
    fn discard(&self, parts: impl IntoIterator<Item = (u64, u64)>) {
        for (offset, size) in parts {
            if let Err(error) = os::discard(&self.file, offset, size) {
                tracing::warn!(%error, size, "memory stays taken until the host device is dropped");
            }
        }
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let reservations = state.rules.reservations();
        let allocations = state
            .rules
            .allocations()
            .map(|(address, size)| (address, size.next_multiple_of(self.granularity)));
        for (base, size) in reservations.chain(allocations) {
            // SAFETY: these ranges were given by `os::reserve`, and the space is used by nobody,
            // since it is being dropped.
            if let Err(error) = unsafe { os::give_back(base, size) } {
                tracing::warn!(%error, size, "address space of a dropped host device is not returned");
            }
        }
    }
}

impl State {
    fn new_handle(&mut self) -> HandleId {
        let handle = HandleId(self.next_handle);
        self.next_handle += 1;
        handle
    }

    /// A place of so many bytes in the device's file.
    fn promise(&mut self, size: u64, granularity: u64) -> u64 {
        let offset = self.next_offset;
        self.next_offset += size.next_multiple_of(granularity);
        self.promised += size;
        offset
    }

    /// Forgets where memory is kept. Gives the part of the device's file to discard, if it was
    /// there; a file of its own goes with its last descriptor and mapping, in any process.
    fn forget(&mut self, gone: Gone) -> Option<(u64, u64)> {
        match self.stores.remove(&gone.memory)? {
            Store::Part(offset) => {
                self.promised -= gone.size;
                Some((offset, gone.size))
            }
            Store::Own(_, identity) => {
                self.shared.remove(&identity);
                None
            }
        }
    }

    /// Whether the system can keep the promise of `size` more bytes, as far as it can be told.
    fn look_for_memory(
        &mut self,
        call: Call,
        size: u64,
        taken: impl FnOnce() -> u64,
    ) -> Result<(), DeviceError> {
        let unlooked = self.unlooked.saturating_add(size);
        if unlooked < LOOK_EVERY {
            self.unlooked = unlooked;
            return Ok(());
        }
        let unwritten = self.promised.saturating_sub(taken());
        if let Some(available) = limits::available_memory()
            && available < unwritten.saturating_add(size)
        {
            return Err(DeviceError::new(
                call,
                Status::OUT_OF_MEMORY,
                format!(
                    "{size} bytes were asked for; this machine has {available} available, of which \
                     {unwritten} are promised already; release memory, or use a smaller device"
                ),
            ));
        }
        self.unlooked = 0;
        Ok(())
    }
}

/// The device's memory, kept as it is; and which other device it is looked at for, if any.
pub(super) struct Held<'a>(RwLockReadGuard<'a, State>, Option<u32>);

impl Held<'_> {
    /// The bytes of a range, if a stream may touch all of them in this way; else illegal address.
    pub(super) fn bytes(
        &self,
        call: Call,
        address: u64,
        size: u64,
        needed: Protection,
    ) -> Result<Bytes<'_>, DeviceError> {
        Ok(Bytes {
            pieces: self
                .0
                .rules
                .translate_for(self.1, call, address, size, needed)?,
            address,
            size,
            writable: needed == Protection::ReadWrite,
            held: self,
        })
    }
}

/// A range of bytes that is placed, for as long as this lives.
pub(super) struct Bytes<'a> {
    address: u64,
    size: u64,
    writable: bool,
    pieces: SmallVec<[Piece; 1]>,
    held: &'a Held<'a>,
}

impl Bytes<'_> {
    fn at(&self, offset: u64, size: usize) -> u64 {
        let end = offset.checked_add(size as u64);
        assert!(end.is_some_and(|end| end <= self.size), "outside the range");
        self.address + offset
    }

    /// Makes ready for all of the range to be written.
    pub(super) fn prepare(&self) {
        for piece in &self.pieces {
            let touched = &self.held.0.touched;
            for (address, size) in touched.newly(piece.base, piece.offset, piece.size) {
                // SAFETY: parts lie in the mapping they are parts of, which is placed, and the lock
                // keeps it there.
                unsafe { os::prepare(address, size) };
            }
        }
    }

    /// Reads from `offset` on. The bytes lie inside the range.
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) {
        let address = self.at(offset, bytes.len());
        // SAFETY: the range was found to be mapped, so it is placed, and the lock keeps it there.
        unsafe { os::load(address, bytes) };
    }

    /// Writes from `offset` on. The bytes lie inside the range, which was asked for to be written.
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) {
        assert!(self.writable, "the range was asked for to be read only");
        let address = self.at(offset, bytes.len());
        // SAFETY: as in `load`; placed ranges can be written.
        unsafe { os::store(address, bytes) };
    }
}
