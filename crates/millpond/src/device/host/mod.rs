//! The host device: real bytes in this machine's memory.
//!
//! Reservations are address ranges without access, handles are pages of memory files that are
//! really mapped there, so that aliases, stitched ranges and shared memory are what they are on a
//! GPU. A stream is a thread with a queue (started at its first work), and its fills, checks and
//! copies are real work on those bytes. Work that touches what it may not fails the device, never
//! the process.
//!
//! - `space`: what lies where; with `os` the only room with unsafe code.
//! - `touched`: what of it is ready to be written.
//! - `limits`: what the machine can give.
//! - `streams`, `queue`: who waits for whom; `worker`, `work`: what the streams do.
//! - `delays`: operations held back by a seed.
//!
//! It differs from a GPU in this: access is looked up when streams and [`HostDevice::read`] touch
//! memory, not enforced against the program's own pointers; a thread's
//! [`StreamId::PER_THREAD`] stream lives as long as the device; memory imported from another
//! process counts as used.

mod delays;
mod limits;
mod os;
mod queue;
mod space;
mod streams;
#[cfg(test)]
mod tests;
mod touched;
mod work;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::delays::Delays;
use self::queue::Operation;
use self::space::AddressSpace;
use self::streams::Streams;
use self::worker::Worker;
use super::{
    AccessGrant, Call, Capabilities, Device, DeviceError, DeviceKind, EventId, Findings, HandleId,
    HandleProperties, HostFunction, MemoryInfo, Pattern, ShareKind, Shareable, Status, StreamId,
    StreamOrder, Topology,
};

/// That of NVIDIA devices.
const GRANULARITY: u64 = 2 << 20;

/// Where the machine does not say what memory it has.
const FALLBACK_MEMORY: u64 = 1 << 30;

/// A device made of this machine's memory. See the [module](self).
///
/// Dropping it waits for the work queued on it, then gives all memory back. (Dropped by one of its
/// own host functions it does not wait; its memory goes when its work is done.)
pub struct HostDevice {
    capabilities: Capabilities,
    created: Instant,
    // Its drop ends the work, and comes before that of the memory worked on.
    streams: Streams,
    worker: Arc<Worker>,
}

/// How a [`HostDevice`] is to be. Created by [`HostDevice::builder`].
#[derive(Clone, Debug)]
pub struct HostDeviceBuilder {
    total_memory: Option<u64>,
    delays: Option<Delays>,
    stream_values_recur: bool,
    host_memory: bool,
    place: Option<(Topology, u32)>,
}

impl HostDeviceBuilder {
    /// The device's memory in bytes; by default [`HostDevice::default_memory`]. It may be more
    /// than the machine has: pages are taken when they are first written, and a handle is refused
    /// when the machine is found to have too little left for it.
    #[must_use]
    pub fn total_memory(mut self, bytes: u64) -> HostDeviceBuilder {
        self.total_memory = Some(bytes);
        self
    }

    /// Holds the streams' operations back by up to `longest` each, so that streams overtake each
    /// other. How long depends on the seed, the stream (in order of creation) and the operation
    /// (in order of queueing, waits and records not counted) alone.
    #[must_use]
    pub fn delays(mut self, seed: u64, longest: Duration) -> HostDeviceBuilder {
        self.delays = Some(Delays::new(seed, longest));
        self
    }

    /// Whether the handle value of the stream destroyed last is given to the next one created, as
    /// drivers do. By default no value ever comes again.
    #[must_use]
    pub fn stream_values_recur(mut self, recur: bool) -> HostDeviceBuilder {
        self.stream_values_recur = recur;
        self
    }

    /// Whether handles can lie in host memory: NUMA node 0, or the host at large. Such handles take
    /// none of the device's memory. By default they cannot.
    #[must_use]
    pub fn host_memory(mut self, offered: bool) -> HostDeviceBuilder {
        self.host_memory = offered;
        self
    }

    /// Puts the device among others, under this ordinal. By default it stands alone, as device 0.
    #[must_use]
    pub fn in_topology(mut self, topology: &Topology, ordinal: u32) -> HostDeviceBuilder {
        self.place = Some((topology.clone(), ordinal));
        self
    }

    /// Creates the device.
    ///
    /// # Errors
    ///
    /// Operating system (304) if no memory file can be had.
    pub fn build(self) -> Result<HostDevice, DeviceError> {
        let capabilities = Capabilities {
            kind: DeviceKind::Host,
            name: "host memory".to_owned(),
            ordinal: self.place.as_ref().map_or(0, |(_, ordinal)| *ordinal),
            total_memory: self.total_memory.unwrap_or_else(HostDevice::default_memory),
            granularity: GRANULARITY,
            mapping: true,
            share_posix_fd: true,
            share_fabric: false,
            rdma: false,
            host: self.host_memory,
            host_numa: self.host_memory,
            stream_values_recur: self.stream_values_recur,
        };
        let topology = self.place.as_ref().map(|(topology, _)| topology);
        let space = AddressSpace::new(&capabilities, topology)?;
        let ordinal = capabilities.ordinal;
        let worker = Arc::new(Worker::new(space, self.delays, self.place));
        worker.join_topology();
        let first_value = u64::from(ordinal) << 32;
        Ok(HostDevice {
            capabilities,
            created: Instant::now(),
            streams: Streams::new(Arc::clone(&worker), self.stream_values_recur, first_value),
            worker,
        })
    }
}

impl HostDevice {
    /// Creates a device with so many bytes of memory.
    ///
    /// # Errors
    ///
    /// As [`HostDeviceBuilder::build`].
    pub fn new(total_memory: u64) -> Result<HostDevice, DeviceError> {
        HostDevice::builder().total_memory(total_memory).build()
    }

    /// Says how the device is to be, then creates it.
    pub fn builder() -> HostDeviceBuilder {
        HostDeviceBuilder {
            total_memory: None,
            delays: None,
            stream_values_recur: false,
            host_memory: false,
            place: None,
        }
    }

    /// Half of the memory that this machine, and the control groups around this process, could
    /// give now, in bytes; a multiple of 2 MiB.
    pub fn default_memory() -> u64 {
        let available = limits::available_memory().unwrap_or(2 * FALLBACK_MEMORY);
        (available / 2 / GRANULARITY).max(1) * GRANULARITY
    }

    /// Reads memory from the host, at once: it does not wait for streams.
    ///
    /// # Errors
    ///
    /// Invalid value (1) unless the device may read the whole range.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.worker.check(Call::Copy)?;
        work::read(&self.worker.space, address, into).map_err(not_fatal)
    }

    /// Writes memory from the host, at once: it does not wait for streams.
    ///
    /// # Errors
    ///
    /// Invalid value (1) unless the device may read and write the whole range.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.worker.check(Call::Copy)?;
        work::write(&self.worker.space, address, from).map_err(not_fatal)
    }

    fn healthy(&self, call: Call) -> Result<&AddressSpace, DeviceError> {
        self.worker.check(call)?;
        Ok(&self.worker.space)
    }

    fn push(&self, call: Call, stream: StreamId, operation: Operation) -> Result<(), DeviceError> {
        self.worker.check(call)?;
        self.streams.push(call, stream, operation)
    }
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDevice")
            .field("total_memory", &self.capabilities.total_memory)
            .finish_non_exhaustive()
    }
}

/// The host may be told no where a stream would have failed the device.
fn not_fatal(error: DeviceError) -> DeviceError {
    DeviceError {
        status: Status::INVALID_VALUE,
        ..error
    }
}

fn check_range(call: Call, address: u64, size: u64) -> Result<(), DeviceError> {
    if address.checked_add(size).is_some() {
        return Ok(());
    }
    let detail = format!("{size:#x} bytes at {address:#x} end beyond the address space");
    Err(DeviceError::new(call, Status::INVALID_VALUE, detail))
}

impl Device for HostDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        Ok(self.healthy(Call::MemoryInfo)?.memory_info())
    }

    fn can_be_accessed_by(&self, ordinal: u32) -> bool {
        self.worker.space.can_be_accessed_by(ordinal)
    }

    fn now(&self) -> u64 {
        // 584 years fit.
        self.created.elapsed().as_nanos() as u64
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DeviceError> {
        self.healthy(Call::Reserve)?.reserve(size, alignment)
    }

    fn free_reservation(&self, base: u64, size: u64) -> Result<(), DeviceError> {
        self.healthy(Call::FreeReservation)?
            .free_reservation(base, size)
    }

    fn create(&self, size: u64, properties: HandleProperties) -> Result<HandleId, DeviceError> {
        self.healthy(Call::Create)?.create(size, properties)
    }

    fn release(&self, handle: HandleId) -> Result<(), DeviceError> {
        self.healthy(Call::Release)?.release(handle)
    }

    fn export(&self, handle: HandleId, kind: ShareKind) -> Result<Shareable, DeviceError> {
        self.healthy(Call::Export)?.export(handle, kind)
    }

    fn import(&self, shareable: Shareable, size: u64) -> Result<HandleId, DeviceError> {
        self.healthy(Call::Import)?.import(shareable, size)
    }

    fn map(&self, address: u64, size: u64, handle: HandleId) -> Result<(), DeviceError> {
        self.healthy(Call::Map)?.map(address, size, handle)
    }

    fn set_access(
        &self,
        address: u64,
        size: u64,
        grants: &[AccessGrant],
    ) -> Result<(), DeviceError> {
        self.healthy(Call::SetAccess)?
            .set_access(address, size, grants)
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DeviceError> {
        self.healthy(Call::Unmap)?.unmap(address, size)
    }

    fn allocate(&self, size: u64) -> Result<u64, DeviceError> {
        self.healthy(Call::Allocate)?.allocate(size)
    }

    /// Waits for all work of the device first, as the driver does.
    fn free(&self, address: u64) -> Result<(), DeviceError> {
        self.healthy(Call::Free)?;
        for mark in self.streams.all_work() {
            mark.wait();
        }
        self.healthy(Call::Free)?.free(address)
    }

    fn create_stream(&self, order: StreamOrder) -> Result<StreamId, DeviceError> {
        self.healthy(Call::CreateStream)?;
        Ok(self.streams.create(order))
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.healthy(Call::DestroyStream)?;
        self.streams.destroy(stream)
    }

    fn stream_identity(&self, stream: StreamId) -> Result<u64, DeviceError> {
        self.healthy(Call::StreamIdentity)?;
        self.streams.identity(stream)
    }

    fn stream_order(&self, stream: StreamId) -> Option<StreamOrder> {
        self.streams.order(stream)
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.healthy(Call::SynchronizeStream)?;
        self.streams.work_of(stream)?.wait();
        self.worker.check(Call::SynchronizeStream)
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.healthy(Call::Synchronize)?;
        for mark in self.streams.all_work() {
            mark.wait();
        }
        self.worker.check(Call::Synchronize)
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.healthy(Call::CreateEvent)?;
        Ok(self.streams.create_event())
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.healthy(Call::DestroyEvent)?;
        self.streams.destroy_event(event)
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.healthy(Call::RecordEvent)?;
        self.streams.record(event, stream)
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        let recorded = self.streams.recorded(Call::QueryEvent, event);
        let completed = recorded.map(|mark| mark.is_none_or(|mark| mark.is_completed()));
        // Work that failed is over too: whether it failed is asked after whether it is over.
        self.worker.check(Call::QueryEvent)?;
        completed
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.healthy(Call::WaitEvent)?;
        self.streams.wait(stream, event)
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.healthy(Call::SynchronizeEvent)?;
        if let Some(mark) = self.streams.recorded(Call::SynchronizeEvent, event)? {
            mark.wait();
        }
        self.worker.check(Call::SynchronizeEvent)
    }

    fn fill(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
    ) -> Result<(), DeviceError> {
        check_range(Call::Fill, address, size)?;
        let operation = Operation::Fill {
            address,
            size,
            pattern,
        };
        self.push(Call::Fill, stream, operation)
    }

    fn verify(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
        findings: &Arc<Findings>,
    ) -> Result<(), DeviceError> {
        check_range(Call::Verify, address, size)?;
        let findings = Arc::clone(findings);
        let operation = Operation::Verify {
            address,
            size,
            pattern,
            findings,
        };
        self.push(Call::Verify, stream, operation)
    }

    fn copy(
        &self,
        stream: StreamId,
        destination: u64,
        source: u64,
        size: u64,
    ) -> Result<(), DeviceError> {
        check_range(Call::Copy, destination, size)?;
        check_range(Call::Copy, source, size)?;
        let operation = Operation::Copy {
            destination,
            source,
            size,
        };
        self.push(Call::Copy, stream, operation)
    }

    /// After a failure of the device the function is not called (as the driver says of
    /// `cuLaunchHostFunc`), but dropped. If it panics, the device fails: launch failed (719).
    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), DeviceError> {
        self.push(Call::HostFunction, stream, Operation::Function(function))
    }
}
