//! The device contract on the sim: check, pay, take effect.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SimDevice;
use super::costs::Speed;
use super::state::State;
use crate::device::{
    AccessGrant, Call, Capabilities, Device, DeviceError, EventId, Findings, HandleId,
    HandleProperties, HostFunction, MemoryInfo, Pattern, Protection, ShareKind, Shareable, Status,
    StreamId, StreamOrder,
};

/// Where plain allocations lie.
const ALLOCATIONS: Range<u64> = 1 << 33..1 << 40;
/// Where reservations lie. Room for one of 64 TiB, as on an H200 (MEASURED), but not for two.
const RESERVATIONS: Range<u64> = 1 << 40..1 << 47;
/// Devices that share an address space, as those of one topology do, each have a part of it.
const PARTS: u32 = 16;

/// Where a device's plain allocations and reservations lie: all its own, or its part.
pub(super) fn address_space(part: Option<u32>) -> (Range<u64>, Range<u64>) {
    let Some(part) = part else {
        return (ALLOCATIONS, RESERVATIONS);
    };
    let cut = |whole: Range<u64>, granularity: u64| {
        let step = (whole.end - whole.start) / u64::from(PARTS);
        let step = step - step % granularity;
        let start = whole.start + step * u64::from(part % PARTS);
        start..start + step
    };
    (cut(ALLOCATIONS, 1 << 21), cut(RESERVATIONS, 1 << 21))
}
/// What plain allocations are aligned to: no more than the contract promises.
const ALLOCATION_ALIGNMENT: u64 = 256;

impl State {
    /// Queues work on ranges; faults when it begins if one of them may not be touched.
    fn work(
        &mut self,
        call: Call,
        stream: StreamId,
        ranges: &[(u64, Protection)],
        size: u64,
        speed: fn(&super::CostTable) -> Speed,
    ) -> Result<(), DeviceError> {
        let slot = self.streams.find(call, stream)?;
        for &(address, _) in ranges {
            if address.checked_add(size).is_none() {
                let detail =
                    format!("{size:#x} bytes at {address:#x} end beyond the address space");
                return Err(DeviceError::new(call, Status::INVALID_VALUE, detail));
            }
        }
        self.pay(self.costs.launch);
        let duration = speed(&self.costs).time_for(size);
        let (start, end) = self.streams.enqueue(slot, self.now, duration);
        for &(address, needed) in ranges {
            match self.memory.translate(call, address, size, needed) {
                Ok(pieces) => {
                    for piece in pieces {
                        self.note_use(piece.base, end);
                    }
                }
                Err(_) if self.memory.allowed_elsewhere(address, size, needed) => {}
                Err(error) => self.fault(start, error),
            }
        }
        Ok(())
    }
}

impl Device for SimDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.call(Call::MemoryInfo, |state| {
            state.pay(state.costs.memory_info);
            Ok(state.memory.memory_info())
        })
    }

    fn can_be_accessed_by(&self, ordinal: u32) -> bool {
        self.lock().memory.can_be_accessed_by(ordinal)
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    // --- Address space -----------------------------------------------------------------------

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DeviceError> {
        self.call(Call::Reserve, |state| {
            state.memory.check_reserve(size, alignment)?;
            let alignment = alignment.max(self.capabilities.granularity);
            let base = state
                .memory
                .free_address(state.reservations.clone(), size, alignment)
                .ok_or_else(|| no_address_space(Call::Reserve, size))?;
            state.pay(state.costs.reserve);
            state.memory.add_reservation(base, size);
            Ok(base)
        })
    }

    fn free_reservation(&self, base: u64, size: u64) -> Result<(), DeviceError> {
        self.call(Call::FreeReservation, |state| {
            state.memory.check_free_reservation(base, size)?;
            state.pay(state.costs.free_reservation);
            state.memory.remove_reservation(base);
            Ok(())
        })
    }

    // --- Physical memory ---------------------------------------------------------------------

    fn create(&self, size: u64, properties: HandleProperties) -> Result<HandleId, DeviceError> {
        self.call(Call::Create, |state| {
            state.memory.check_create(size, properties)?;
            state.pay(state.costs.create);
            let handle = state.new_handle();
            state.memory.add_handle(handle, size, properties);
            Ok(handle)
        })
    }

    fn release(&self, handle: HandleId) -> Result<(), DeviceError> {
        self.call(Call::Release, |state| {
            let (_, size) = state.memory.memory(Call::Release, handle)?;
            state.advance(state.costs.release_of(size));
            state.memory.release_handle(handle)?;
            Ok(())
        })
    }

    fn export(&self, handle: HandleId, kind: ShareKind) -> Result<Shareable, DeviceError> {
        self.call(Call::Export, |state| {
            state.memory.check_export(handle, kind)?;
            Err(no_sharing(Call::Export))
        })
    }

    fn import(&self, _: Shareable, _: u64) -> Result<HandleId, DeviceError> {
        self.call(Call::Import, |_| Err(no_sharing(Call::Import)))
    }

    // --- Mapping -----------------------------------------------------------------------------

    fn map(&self, address: u64, size: u64, handle: HandleId) -> Result<(), DeviceError> {
        self.call(Call::Map, |state| {
            let planned = state.memory.check_map(address, size, handle)?;
            state.pay(state.costs.map);
            state.memory.add_mapping(planned);
            Ok(())
        })
    }

    fn set_access(
        &self,
        address: u64,
        size: u64,
        grants: &[AccessGrant],
    ) -> Result<(), DeviceError> {
        self.call(Call::SetAccess, |state| {
            let own = state.memory.check_set_access(address, size, grants)?;
            if let Some(protection) = own {
                let granted = state.memory.grant_access(address, size, protection);
                state.advance(granted.first * state.costs.set_access.0);
                state.advance(granted.further * state.costs.set_access_further.0);
            }
            let others = state.memory.grant_peers(address, size, grants);
            state.advance(others * state.costs.set_access_further.0);
            Ok(())
        })
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DeviceError> {
        self.call(Call::Unmap, |state| {
            state.memory.check_unmap(address, size)?;
            // Only what was over when the call was made can have been known to be over.
            let called = state.now;
            for removed in state.memory.remove_mappings(address, size) {
                state.pay(if removed.one_of_several {
                    state.costs.unmap_one_of_several
                } else {
                    state.costs.unmap
                });
                let last_use_end = state.take_last_use_end(removed.address);
                if last_use_end > called {
                    state.fault(
                        called,
                        DeviceError::new(
                            Call::Unmap,
                            Status::ILLEGAL_ADDRESS,
                            format!(
                                "{:#x} bytes at {:#x} were unmapped at {called} ns, and work that \
                                 uses them runs until {last_use_end} ns; wait for it first",
                                removed.size, removed.address
                            ),
                        ),
                    );
                }
            }
            Ok(())
        })
    }

    // --- Memory where mapping is not supported -----------------------------------------------

    fn allocate(&self, size: u64) -> Result<u64, DeviceError> {
        self.call(Call::Allocate, |state| {
            state.memory.check_allocate(size)?;
            let address = state
                .memory
                .free_address(state.allocations.clone(), size, ALLOCATION_ALIGNMENT)
                .ok_or_else(|| no_address_space(Call::Allocate, size))?;
            state.pay(state.costs.allocate);
            state.memory.add_allocation(address, size);
            Ok(address)
        })
    }

    /// Waits for all work of the device (MEASURED: as long as a kernel ran).
    fn free(&self, address: u64) -> Result<(), DeviceError> {
        self.call(Call::Free, |state| {
            state.memory.check_free(address)?;
            state.pay(state.costs.free);
            state.wait_until(Call::Free, state.streams.device_until())?;
            state.memory.remove_allocation(address);
            state.take_last_use_end(address);
            Ok(())
        })
    }

    // --- Streams and events ------------------------------------------------------------------

    fn create_stream(&self, order: StreamOrder) -> Result<StreamId, DeviceError> {
        self.call(Call::CreateStream, |state| {
            state.pay(state.costs.create_stream);
            Ok(state.streams.create(order))
        })
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.call(Call::DestroyStream, |state| {
            state.streams.destroy(stream)?;
            state.pay(state.costs.destroy_stream);
            Ok(())
        })
    }

    fn stream_identity(&self, stream: StreamId) -> Result<u64, DeviceError> {
        self.call(Call::StreamIdentity, |state| {
            let slot = state.streams.find(Call::StreamIdentity, stream)?;
            state.pay(state.costs.stream_identity);
            Ok(state.streams.identity(slot))
        })
    }

    fn stream_order(&self, stream: StreamId) -> Option<StreamOrder> {
        let mut state = self.lock();
        let slot = state.streams.find(Call::StreamIdentity, stream).ok()?;
        Some(state.streams.order(slot))
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.call(Call::SynchronizeStream, |state| {
            let slot = state.streams.find(Call::SynchronizeStream, stream)?;
            state.pay(state.costs.synchronize);
            state.wait_until(Call::SynchronizeStream, state.streams.ready_at(slot))
        })
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.call(Call::Synchronize, |state| {
            state.pay(state.costs.synchronize);
            state.wait_until(Call::Synchronize, state.streams.device_until())
        })
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.call(Call::CreateEvent, |state| {
            state.pay(state.costs.create_event);
            Ok(state.create_event())
        })
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.call(Call::DestroyEvent, |state| {
            state.destroy_event(event)?;
            state.pay(state.costs.destroy_event);
            Ok(())
        })
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.call(Call::RecordEvent, |state| {
            let slot = state.streams.find(Call::RecordEvent, stream)?;
            state.record(event, slot)
        })
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        self.call(Call::QueryEvent, |state| {
            let completes = state.completes(Call::QueryEvent, event)?;
            state.pay(state.costs.query_event);
            state.check_fault(Call::QueryEvent)?;
            Ok(completes.is_none_or(|completes| completes <= state.now))
        })
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.call(Call::WaitEvent, |state| {
            let slot = state.streams.find(Call::WaitEvent, stream)?;
            let completes = state.completes(Call::WaitEvent, event)?;
            state.pay(state.costs.wait_event);
            if let Some(completes) = completes {
                state.streams.wait(slot, completes);
            }
            Ok(())
        })
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.call(Call::SynchronizeEvent, |state| {
            let completes = state.completes(Call::SynchronizeEvent, event)?;
            state.pay(state.costs.synchronize);
            state.wait_until(Call::SynchronizeEvent, completes.unwrap_or(0))
        })
    }

    // --- Work on a stream --------------------------------------------------------------------

    fn fill(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        _: Pattern,
    ) -> Result<(), DeviceError> {
        self.call(Call::Fill, |state| {
            let ranges = [(address, Protection::ReadWrite)];
            state.work(Call::Fill, stream, &ranges, size, |costs| {
                costs.fill_gb_per_s
            })
        })
    }

    fn verify(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        _: Pattern,
        _: &Arc<Findings>,
    ) -> Result<(), DeviceError> {
        self.call(Call::Verify, |state| {
            let ranges = [(address, Protection::Read)];
            state.work(Call::Verify, stream, &ranges, size, |costs| {
                costs.verify_gb_per_s
            })
        })
    }

    fn copy(
        &self,
        stream: StreamId,
        destination: u64,
        source: u64,
        size: u64,
    ) -> Result<(), DeviceError> {
        self.call(Call::Copy, |state| {
            if destination.abs_diff(source) < size {
                return Err(DeviceError::new(
                    Call::Copy,
                    Status::INVALID_VALUE,
                    format!("{size:#x} bytes at {source:#x} and at {destination:#x} overlap"),
                ));
            }
            let ranges = [
                (source, Protection::Read),
                (destination, Protection::ReadWrite),
            ];
            state.work(Call::Copy, stream, &ranges, size, |costs| {
                costs.copy_gb_per_s
            })
        })
    }

    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), DeviceError> {
        self.call(Call::HostFunction, |state| {
            let slot = state.streams.find(Call::HostFunction, stream)?;
            state.pay(state.costs.host_function);
            state.add_function(slot, function);
            Ok(())
        })
    }
}

fn no_address_space(call: Call, size: u64) -> DeviceError {
    DeviceError::new(
        call,
        Status::OUT_OF_MEMORY,
        format!("no gap of {size:#x} bytes is left in the address space; free reservations"),
    )
}

fn no_sharing(call: Call) -> DeviceError {
    DeviceError::new(
        call,
        Status::NOT_SUPPORTED,
        "a sim shares nothing with other processes; use the host device",
    )
}
