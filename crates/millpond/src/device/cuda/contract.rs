//! The device contract, call by call.
//!
//! Invariants: every call that reaches the driver does so with the device's context current; every
//! result code becomes a result; "not ready" from a query is no completion, and neither is a
//! failure.

use std::cell::Cell;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use super::device::{CudaDevice, access_descriptor, allocation_properties, handle_type};
use super::jobs;
use super::kernels::Split;
use super::types::{
    CUevent, CUmemAllocationProp, CUmemFabricHandle, CUresult, CUstream, EVENT_DISABLE_TIMING,
    HANDLE_TYPE_FABRIC, HANDLE_TYPE_POSIX_FD, STREAM_DEFAULT, STREAM_NON_BLOCKING, SUCCESS,
};
use crate::device::{
    AccessGrant, Call, Capabilities, Device, DeviceError, EventId, Findings, HandleId,
    HandleProperties, HostFunction, MemoryInfo, Pattern, ShareKind, Shareable, Status, StreamId,
    StreamOrder,
};

/// The start of the process's device clock.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Device for CudaDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        let entered = self.context.enter(Call::MemoryInfo)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; the results outlive the call.
        let code =
            unsafe { (entered.driver.functions.mem_get_info)(&raw mut free, &raw mut total) };
        self.check(Call::MemoryInfo, code, || {
            "asked for the free memory".into()
        })?;
        Ok(MemoryInfo {
            free: free as u64,
            total: total as u64,
        })
    }

    fn can_be_accessed_by(&self, ordinal: u32) -> bool {
        // A device that cannot be asked can be given nothing.
        ordinal == self.capabilities.ordinal || self.can_peer_access(ordinal).unwrap_or(false)
    }

    fn now(&self) -> u64 {
        u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn capturing(&self, begins: bool) {
        self.context.capturing(begins);
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DeviceError> {
        let entered = self.context.enter(Call::Reserve)?;
        let reserve = self.optional(entered.driver.functions.mem_address_reserve, Call::Reserve)?;
        let mut base = 0;
        // SAFETY: `base` outlives the call; the driver checks the numbers.
        let code = unsafe { reserve(&raw mut base, size as usize, alignment as usize, 0, 0) };
        self.check(Call::Reserve, code, || {
            format!("asked for {size} bytes of address space, aligned to {alignment}")
        })?;
        Ok(base)
    }

    fn free_reservation(&self, base: u64, size: u64) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::FreeReservation)?;
        let free = self.optional(
            entered.driver.functions.mem_address_free,
            Call::FreeReservation,
        )?;
        // SAFETY: the driver checks that this is a reservation, with nothing mapped in it.
        let code = unsafe { free(base, size as usize) };
        self.check(Call::FreeReservation, code, || {
            format!("asked to free the reservation of {size} bytes at {base:#x}")
        })
    }

    fn create(&self, size: u64, properties: HandleProperties) -> Result<HandleId, DeviceError> {
        let entered = self.context.enter(Call::Create)?;
        let create = self.optional(entered.driver.functions.mem_create, Call::Create)?;
        let asked = || format!("asked for a handle of {size} bytes with {properties:?}");
        if properties.rdma && !self.capabilities.rdma {
            return Err(DeviceError::new(
                Call::Create,
                Status::NOT_SUPPORTED,
                format!("{}; this device has no memory for network cards", asked()),
            ));
        }
        let properties = allocation_properties(self.context.device, properties)
            .ok_or_else(|| DeviceError::new(Call::Create, Status::INVALID_VALUE, asked()))?;
        let mut handle = 0;
        // SAFETY: the properties and `handle` outlive the call; the driver checks the size.
        let code = unsafe { create(&raw mut handle, size as usize, &raw const properties, 0) };
        self.check(Call::Create, code, asked)?;
        Ok(HandleId(handle))
    }

    fn release(&self, handle: HandleId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Release)?;
        let release = self.optional(entered.driver.functions.mem_release, Call::Release)?;
        // SAFETY: the caller has this handle from the device and gives it up here.
        let code = unsafe { release(handle.0) };
        self.check(Call::Release, code, || {
            format!("asked to release handle {:#x}", handle.0)
        })
    }

    fn export(&self, handle: HandleId, kind: ShareKind) -> Result<Shareable, DeviceError> {
        let entered = self.context.enter(Call::Export)?;
        let functions = &entered.driver.functions;
        let export = self.optional(functions.mem_export, Call::Export)?;
        let asked = || format!("asked to export handle {:#x} as {kind:?}", handle.0);
        if let Some(get) = functions.mem_get_allocation_properties {
            let mut properties = allocation_properties(0, HandleProperties::default())
                .ok_or_else(|| DeviceError::new(Call::Export, Status::UNKNOWN, asked()))?;
            let into: *mut CUmemAllocationProp = &raw mut properties;
            // SAFETY: the caller has this handle from the device; `properties` outlives the call.
            let code = unsafe { get(into, handle.0) };
            self.check(Call::Export, code, asked)?;
            if properties.requested_handle_types & handle_type(kind) == 0 {
                return Err(DeviceError::new(
                    Call::Export,
                    Status::NOT_SUPPORTED,
                    format!("{}; it was not created for that", asked()),
                ));
            }
        }
        match kind {
            ShareKind::PosixFd => {
                let mut fd = -1_i32;
                let into = (&raw mut fd).cast::<c_void>();
                // SAFETY: the caller has this handle from the device; for this type the driver
                // writes an `int`, and `fd` outlives the call.
                let code = unsafe { export(into, handle.0, HANDLE_TYPE_POSIX_FD, 0) };
                self.check(Call::Export, code, asked)?;
                if fd < 0 {
                    return Err(DeviceError::new(Call::Export, Status::UNKNOWN, asked()));
                }
                // SAFETY: the driver made this descriptor for the caller, who closes it.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                // A program that is started later must not keep the memory. If this fails the
                // descriptor is as the driver made it.
                let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
                Ok(Shareable::PosixFd(fd))
            }
            ShareKind::Fabric => {
                let mut fabric = CUmemFabricHandle { data: [0; 64] };
                let into = (&raw mut fabric).cast::<c_void>();
                // SAFETY: the caller has this handle from the device; for this type the driver
                // writes a `CUmemFabricHandle`, and `fabric` outlives the call.
                let code = unsafe { export(into, handle.0, HANDLE_TYPE_FABRIC, 0) };
                self.check(Call::Export, code, asked)?;
                Ok(Shareable::Fabric(Box::new(fabric.data)))
            }
        }
    }

    fn import(&self, shareable: Shareable, size: u64) -> Result<HandleId, DeviceError> {
        let entered = self.context.enter(Call::Import)?;
        let import = self.optional(entered.driver.functions.mem_import, Call::Import)?;
        let mut handle = 0;
        let code = match &shareable {
            Shareable::PosixFd(fd) => {
                // The driver takes the descriptor's number in the place of a pointer.
                let number = ptr::without_provenance_mut(fd.as_raw_fd().unsigned_abs() as usize);
                // SAFETY: the descriptor is open, and stays so during the call; `handle` outlives
                // the call.
                unsafe { import(&raw mut handle, number, HANDLE_TYPE_POSIX_FD) }
            }
            Shareable::Fabric(data) => {
                let mut fabric = CUmemFabricHandle { data: **data };
                let from = (&raw mut fabric).cast::<c_void>();
                // SAFETY: for this type the driver reads a `CUmemFabricHandle`; it and `handle`
                // outlive the call.
                unsafe { import(&raw mut handle, from, HANDLE_TYPE_FABRIC) }
            }
        };
        self.check(Call::Import, code, || {
            format!("asked to import a handle of {size} bytes from {shareable:?}")
        })?;
        Ok(HandleId(handle))
    }

    fn map(&self, address: u64, size: u64, handle: HandleId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Map)?;
        let map = self.optional(entered.driver.functions.mem_map, Call::Map)?;
        // SAFETY: the caller has this handle from the device; the driver checks the range.
        let code = unsafe { map(address, size as usize, 0, handle.0, 0) };
        self.check(Call::Map, code, || {
            format!(
                "asked to map {size} bytes of handle {:#x} at {address:#x}",
                handle.0
            )
        })
    }

    fn set_access(
        &self,
        address: u64,
        size: u64,
        grants: &[AccessGrant],
    ) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::SetAccess)?;
        let set = self.optional(entered.driver.functions.mem_set_access, Call::SetAccess)?;
        let asked = || format!("asked to set {grants:?} on {size} bytes at {address:#x}");
        let descriptors: Option<smallvec::SmallVec<[_; 8]>> =
            grants.iter().map(access_descriptor).collect();
        let descriptors = descriptors
            .ok_or_else(|| DeviceError::new(Call::SetAccess, Status::INVALID_DEVICE, asked()))?;
        // SAFETY: the descriptors outlive the call and are as many as said; the driver checks the
        // range.
        let code = unsafe {
            set(
                address,
                size as usize,
                descriptors.as_ptr(),
                descriptors.len(),
            )
        };
        self.check(Call::SetAccess, code, asked)
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Unmap)?;
        let unmap = self.optional(entered.driver.functions.mem_unmap, Call::Unmap)?;
        // SAFETY: the caller knows that nothing uses the range (rule 5); the driver checks that it
        // is whole mappings.
        let code = unsafe { unmap(address, size as usize) };
        self.check(Call::Unmap, code, || {
            format!("asked to unmap {size} bytes at {address:#x}")
        })
    }

    fn allocate(&self, size: u64) -> Result<u64, DeviceError> {
        let entered = self.context.enter(Call::Allocate)?;
        let mut address = 0;
        // SAFETY: a context is current; `address` outlives the call.
        let code = unsafe { (entered.driver.functions.mem_alloc)(&raw mut address, size as usize) };
        self.check(Call::Allocate, code, || format!("asked for {size} bytes"))?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Free)?;
        // SAFETY: a context is current; the driver checks that this was allocated.
        let code = unsafe { (entered.driver.functions.mem_free)(address) };
        self.check(Call::Free, code, || format!("asked to free {address:#x}"))
    }

    fn create_stream(&self, order: StreamOrder) -> Result<StreamId, DeviceError> {
        let entered = self.context.enter(Call::CreateStream)?;
        let flags = match order {
            StreamOrder::Independent => STREAM_NON_BLOCKING,
            StreamOrder::WithLegacy => STREAM_DEFAULT,
        };
        let mut stream = 0;
        // SAFETY: a context is current; `stream` outlives the call.
        let code = unsafe { (entered.driver.functions.stream_create)(&raw mut stream, flags) };
        self.check(Call::CreateStream, code, || {
            format!("asked for a stream, {order:?}")
        })?;
        Ok(StreamId(stream as u64))
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::DestroyStream)?;
        let asked = || format!("asked to destroy stream {stream}");
        if matches!(
            stream,
            StreamId::DEFAULT | StreamId::LEGACY | StreamId::PER_THREAD
        ) {
            return Err(DeviceError::new(
                Call::DestroyStream,
                Status::INVALID_HANDLE,
                format!("{}; a default stream cannot be destroyed", asked()),
            ));
        }
        // SAFETY: the caller has this stream from the driver and gives it up here.
        let code = unsafe { (entered.driver.functions.stream_destroy)(raw_stream(stream)) };
        self.check(Call::DestroyStream, code, asked)
    }

    /// On a driver older than CUDA 12.0, which has no `cuStreamGetId`, the number is made of the
    /// handle's value, or, for the per-thread stream, of a number of the thread. It then does not
    /// tell a stream from an earlier one whose value it was given.
    fn stream_identity(&self, stream: StreamId) -> Result<u64, DeviceError> {
        let entered = self.context.enter(Call::StreamIdentity)?;
        let Some(get_id) = entered.driver.functions.stream_get_id else {
            return Ok(identity_without_driver(self.context.device, stream));
        };
        let mut id = 0;
        // SAFETY: the caller has this stream from the driver; a context is current, and `id`
        // outlives the call.
        let code = unsafe { get_id(raw_stream(stream), &raw mut id) };
        self.check(Call::StreamIdentity, code, || {
            format!("asked for the identity of stream {stream}")
        })?;
        Ok(id)
    }

    fn stream_order(&self, stream: StreamId) -> Option<StreamOrder> {
        self.order_of(stream)
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::SynchronizeStream)?;
        // SAFETY: the caller has this stream from the driver; a context is current.
        let code = unsafe { (entered.driver.functions.stream_synchronize)(raw_stream(stream)) };
        self.check(Call::SynchronizeStream, code, || {
            format!("asked to wait for stream {stream}")
        })
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Synchronize)?;
        // SAFETY: a context is current.
        let code = unsafe { (entered.driver.functions.ctx_synchronize)() };
        self.check(Call::Synchronize, code, || {
            "asked to wait for all work".into()
        })
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        let entered = self.context.enter(Call::CreateEvent)?;
        let mut event = 0;
        // SAFETY: a context is current; `event` outlives the call.
        let code = unsafe {
            (entered.driver.functions.event_create)(&raw mut event, EVENT_DISABLE_TIMING)
        };
        self.check(Call::CreateEvent, code, || "asked for an event".into())?;
        Ok(EventId(event as u64))
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::DestroyEvent)?;
        // SAFETY: the caller has this event from the driver and gives it up here.
        let code = unsafe { (entered.driver.functions.event_destroy)(raw_event(event)) };
        self.check(Call::DestroyEvent, code, || {
            format!("asked to destroy event {:#x}", event.0)
        })
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::RecordEvent)?;
        // SAFETY: the caller has both from the driver; a context is current.
        let code = unsafe {
            (entered.driver.functions.event_record)(raw_event(event), raw_stream(stream))
        };
        self.check(Call::RecordEvent, code, || {
            format!("asked to record event {:#x} on stream {stream}", event.0)
        })
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        let entered = self.context.enter(Call::QueryEvent)?;
        // SAFETY: the caller has this event from the driver.
        let code = unsafe { (entered.driver.functions.event_query)(raw_event(event)) };
        if Status(code) == Status::NOT_READY {
            return Ok(false);
        }
        self.check(Call::QueryEvent, code, || {
            format!("asked whether event {:#x} is completed", event.0)
        })?;
        Ok(true)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::WaitEvent)?;
        // SAFETY: the caller has both from the driver; a context is current; the flags must be
        // zero, and are.
        let code = unsafe {
            (entered.driver.functions.stream_wait_event)(raw_stream(stream), raw_event(event), 0)
        };
        self.check(Call::WaitEvent, code, || {
            format!("asked to let stream {stream} wait for event {:#x}", event.0)
        })
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::SynchronizeEvent)?;
        // SAFETY: the caller has this event from the driver.
        let code = unsafe { (entered.driver.functions.event_synchronize)(raw_event(event)) };
        self.check(Call::SynchronizeEvent, code, || {
            format!("asked to wait for event {:#x}", event.0)
        })
    }

    fn fill(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
    ) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Fill)?;
        let Some(split) = split(Call::Fill, address, size, pattern)? else {
            return Ok(());
        };
        self.kernels(&entered, Call::Fill)?
            .fill(&entered, raw_stream(stream), split)
    }

    fn verify(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
        findings: &Arc<Findings>,
    ) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Verify)?;
        let Some(split) = split(Call::Verify, address, size, pattern)? else {
            return Ok(());
        };
        let kernels = self.kernels(&entered, Call::Verify)?;
        let slot = self.slots.take(&entered)?;
        // From here on the slot is given back only by the function below, when the kernel is done:
        // a launch that answers with an error may be telling of earlier work.
        kernels.verify(&entered, raw_stream(stream), split, slot.device)?;
        let (slots, findings) = (Arc::clone(&self.slots), Arc::clone(findings));
        let code = self.launch_host_function(
            &entered.driver.functions,
            stream,
            Box::new(move || {
                let verdict = slot.read();
                findings.report(verdict.wrong_bytes, verdict.found_word);
                slots.give_back(slot);
            }),
        );
        self.check(Call::Verify, code, || {
            format!("asked to report what was found on stream {stream}")
        })
    }

    fn copy(
        &self,
        stream: StreamId,
        destination: u64,
        source: u64,
        size: u64,
    ) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::Copy)?;
        // SAFETY: a context is current; what the copy may do to others is for the caller to answer.
        let code = unsafe {
            (entered.driver.functions.memcpy_dtod_async)(
                destination,
                source,
                size as usize,
                raw_stream(stream),
            )
        };
        self.check(Call::Copy, code, || {
            format!(
                "asked to copy {size} bytes from {source:#x} to {destination:#x} on stream {stream}"
            )
        })
    }

    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), DeviceError> {
        let entered = self.context.enter(Call::HostFunction)?;
        let code = self.launch_host_function(&entered.driver.functions, stream, function);
        self.check(Call::HostFunction, code, || {
            format!("asked to call a host function on stream {stream}")
        })
    }
}

impl CudaDevice {
    pub(super) fn check(
        &self,
        call: Call,
        code: CUresult,
        asked: impl FnOnce() -> String,
    ) -> Result<(), DeviceError> {
        self.context.driver.check(call, code, asked)
    }

    fn optional<F: Copy>(&self, function: Option<F>, call: Call) -> Result<F, DeviceError> {
        self.context.driver.optional(function, call)
    }

    /// Queues a host function; one that the driver does not take is dropped.
    fn launch_host_function(
        &self,
        functions: &super::table::Functions,
        stream: StreamId,
        function: HostFunction,
    ) -> CUresult {
        let ticket = self.jobs.add(function);
        // SAFETY: the caller has this stream from the driver, and a context is current; `run`
        // takes any number, at any time.
        let code = unsafe {
            (functions.launch_host_func)(raw_stream(stream), jobs::run, ticket.user_data())
        };
        if code != SUCCESS {
            self.jobs.cancel(ticket);
        }
        code
    }
}

pub(super) fn raw_stream(stream: StreamId) -> CUstream {
    stream.0 as CUstream
}

fn raw_event(event: EventId) -> CUevent {
    event.0 as CUevent
}

/// A range cut for the kernels; none if it is empty.
fn split(
    call: Call,
    address: u64,
    size: u64,
    pattern: Pattern,
) -> Result<Option<Split>, DeviceError> {
    if address.checked_add(size).is_none() {
        return Err(DeviceError::new(
            call,
            Status::INVALID_VALUE,
            format!("{size} bytes at {address:#x} reach beyond the end of the address space"),
        ));
    }
    Ok((size > 0).then(|| Split::new(address, size, pattern)))
}

/// Numbers for streams where the driver has none. Addresses of handles stay below 2⁵⁶.
fn identity_without_driver(device: i32, stream: StreamId) -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static THREAD: Cell<u64> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    let of_device = u64::from(device.unsigned_abs()) << 32;
    match stream {
        StreamId::DEFAULT | StreamId::LEGACY => 1 << 62 | of_device,
        StreamId::PER_THREAD => 1 << 63 | of_device | THREAD.get(),
        StreamId(value) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_without_driver_numbers_are_told_apart() {
        let own = |device, stream| identity_without_driver(device, stream);
        assert_eq!(own(0, StreamId::DEFAULT), own(0, StreamId::LEGACY));
        let other_thread = std::thread::spawn(|| identity_without_driver(0, StreamId::PER_THREAD))
            .join()
            .unwrap();
        let mut all = vec![
            own(0, StreamId::LEGACY),
            own(1, StreamId::LEGACY),
            own(0, StreamId::PER_THREAD),
            own(1, StreamId::PER_THREAD),
            other_thread,
            own(0, StreamId(0x7f00_1234_5678)),
            own(0, StreamId(0x7f00_1234_5680)),
        ];
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 7);
        assert_eq!(own(0, StreamId::PER_THREAD), own(0, StreamId::PER_THREAD));
    }

    #[test]
    fn a_range_beyond_the_address_space_is_refused() {
        let error = split(Call::Fill, u64::MAX - 3, 8, Pattern(0)).unwrap_err();
        assert_eq!(error.status, Status::INVALID_VALUE);
        assert_eq!(split(Call::Fill, u64::MAX, 0, Pattern(0)), Ok(None));
    }
}
