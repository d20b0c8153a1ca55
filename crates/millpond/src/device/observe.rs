//! Looking at every device call, and failing some: [`Observed`] stands in front of any device.
//!
//! An [`Observer`] sees each call before it is made, and may fail it; and after it was made, with
//! what it gave. Counters, fault injectors ([`Faults`](super::Faults)) and the checker are
//! observers. A call that an observer fails never reaches the device.

use std::fmt;
use std::sync::Arc;

use super::{
    AccessGrant, Call, Capabilities, Device, DeviceError, EventId, Findings, HandleId,
    HandleProperties, HostFunction, MemoryInfo, Pattern, ShareKind, Shareable, StreamId,
    StreamOrder,
};

/// One device call with its arguments, as an [`Observer`] sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    missing_docs,
    reason = "each is a method of `Device` with its arguments"
)]
pub enum CallRecord {
    MemoryInfo,
    Reserve {
        size: u64,
        alignment: u64,
    },
    FreeReservation {
        base: u64,
        size: u64,
    },
    Create {
        size: u64,
        properties: HandleProperties,
    },
    Release {
        handle: HandleId,
    },
    Export {
        handle: HandleId,
        kind: ShareKind,
    },
    Import {
        size: u64,
    },
    Map {
        address: u64,
        size: u64,
        handle: HandleId,
    },
    SetAccess {
        address: u64,
        size: u64,
        grants: Vec<AccessGrant>,
    },
    Unmap {
        address: u64,
        size: u64,
    },
    Allocate {
        size: u64,
    },
    Free {
        address: u64,
    },
    CreateStream {
        order: StreamOrder,
    },
    DestroyStream {
        stream: StreamId,
    },
    StreamIdentity {
        stream: StreamId,
    },
    SynchronizeStream {
        stream: StreamId,
    },
    Synchronize,
    CreateEvent,
    DestroyEvent {
        event: EventId,
    },
    RecordEvent {
        event: EventId,
        stream: StreamId,
    },
    QueryEvent {
        event: EventId,
    },
    WaitEvent {
        stream: StreamId,
        event: EventId,
    },
    SynchronizeEvent {
        event: EventId,
    },
    Fill {
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
    },
    Verify {
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
    },
    Copy {
        stream: StreamId,
        destination: u64,
        source: u64,
        size: u64,
    },
    HostFunction {
        stream: StreamId,
    },
}

impl CallRecord {
    /// Which call it is.
    pub fn call(&self) -> Call {
        match self {
            CallRecord::MemoryInfo => Call::MemoryInfo,
            CallRecord::Reserve { .. } => Call::Reserve,
            CallRecord::FreeReservation { .. } => Call::FreeReservation,
            CallRecord::Create { .. } => Call::Create,
            CallRecord::Release { .. } => Call::Release,
            CallRecord::Export { .. } => Call::Export,
            CallRecord::Import { .. } => Call::Import,
            CallRecord::Map { .. } => Call::Map,
            CallRecord::SetAccess { .. } => Call::SetAccess,
            CallRecord::Unmap { .. } => Call::Unmap,
            CallRecord::Allocate { .. } => Call::Allocate,
            CallRecord::Free { .. } => Call::Free,
            CallRecord::CreateStream { .. } => Call::CreateStream,
            CallRecord::DestroyStream { .. } => Call::DestroyStream,
            CallRecord::StreamIdentity { .. } => Call::StreamIdentity,
            CallRecord::SynchronizeStream { .. } => Call::SynchronizeStream,
            CallRecord::Synchronize => Call::Synchronize,
            CallRecord::CreateEvent => Call::CreateEvent,
            CallRecord::DestroyEvent { .. } => Call::DestroyEvent,
            CallRecord::RecordEvent { .. } => Call::RecordEvent,
            CallRecord::QueryEvent { .. } => Call::QueryEvent,
            CallRecord::WaitEvent { .. } => Call::WaitEvent,
            CallRecord::SynchronizeEvent { .. } => Call::SynchronizeEvent,
            CallRecord::Fill { .. } => Call::Fill,
            CallRecord::Verify { .. } => Call::Verify,
            CallRecord::Copy { .. } => Call::Copy,
            CallRecord::HostFunction { .. } => Call::HostFunction,
        }
    }
}

/// What a call gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<'a> {
    /// It succeeded, and gives nothing.
    Done,
    /// It succeeded and gave an address, a handle, a stream, an event or an identity.
    Value(u64),
    /// A query: whether the work is completed.
    Completed(bool),
    /// It failed.
    Failed(&'a DeviceError),
}

/// Somebody who looks at device calls.
pub trait Observer: Send + Sync {
    /// Before the call; an error fails it before it reaches the device.
    fn before(&self, call: &CallRecord) -> Result<(), DeviceError> {
        let _ = call;
        Ok(())
    }

    /// After the call, with the device's clock (ns) before and after it.
    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, started: u64, ended: u64);
}

/// A device with observers in front of it.
pub struct Observed {
    device: Arc<dyn Device>,
    observers: Vec<Arc<dyn Observer>>,
}

impl Observed {
    /// Puts observers in front of a device. They are asked in order; the first that fails a call
    /// decides.
    pub fn new(device: Arc<dyn Device>, observers: Vec<Arc<dyn Observer>>) -> Observed {
        Observed { device, observers }
    }

    fn call<T>(
        &self,
        record: &CallRecord,
        make: impl FnOnce(&dyn Device) -> Result<T, DeviceError>,
        outcome: impl FnOnce(&T) -> Outcome<'static>,
    ) -> Result<T, DeviceError> {
        let started = self.device.now();
        let result = self
            .observers
            .iter()
            .try_for_each(|observer| observer.before(record))
            .and_then(|()| make(&*self.device));
        let ended = self.device.now();
        let seen = match &result {
            Ok(value) => outcome(value),
            Err(error) => Outcome::Failed(error),
        };
        for observer in &self.observers {
            observer.after(record, seen, started, ended);
        }
        result
    }

    fn plain(
        &self,
        record: &CallRecord,
        make: impl FnOnce(&dyn Device) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.call(record, make, |()| Outcome::Done)
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed")
            .field("device", &self.device)
            .field("observers", &self.observers.len())
            .finish()
    }
}

impl Device for Observed {
    fn capabilities(&self) -> &Capabilities {
        self.device.capabilities()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DeviceError> {
        self.call(
            &CallRecord::MemoryInfo,
            |d| d.memory_info(),
            |info| Outcome::Value(info.free),
        )
    }

    fn can_be_accessed_by(&self, ordinal: u32) -> bool {
        self.device.can_be_accessed_by(ordinal)
    }

    fn now(&self) -> u64 {
        self.device.now()
    }

    fn capturing(&self, begins: bool) {
        self.device.capturing(begins);
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, DeviceError> {
        let record = CallRecord::Reserve { size, alignment };
        self.call(
            &record,
            |d| d.reserve(size, alignment),
            |&base| Outcome::Value(base),
        )
    }

    fn free_reservation(&self, base: u64, size: u64) -> Result<(), DeviceError> {
        let record = CallRecord::FreeReservation { base, size };
        self.plain(&record, |d| d.free_reservation(base, size))
    }

    fn create(&self, size: u64, properties: HandleProperties) -> Result<HandleId, DeviceError> {
        let record = CallRecord::Create { size, properties };
        self.call(
            &record,
            |d| d.create(size, properties),
            |handle| Outcome::Value(handle.0),
        )
    }

    fn release(&self, handle: HandleId) -> Result<(), DeviceError> {
        self.plain(&CallRecord::Release { handle }, |d| d.release(handle))
    }

    fn export(&self, handle: HandleId, kind: ShareKind) -> Result<Shareable, DeviceError> {
        let record = CallRecord::Export { handle, kind };
        self.call(&record, |d| d.export(handle, kind), |_| Outcome::Done)
    }

    fn import(&self, shareable: Shareable, size: u64) -> Result<HandleId, DeviceError> {
        let record = CallRecord::Import { size };
        self.call(
            &record,
            |d| d.import(shareable, size),
            |handle| Outcome::Value(handle.0),
        )
    }

    fn map(&self, address: u64, size: u64, handle: HandleId) -> Result<(), DeviceError> {
        let record = CallRecord::Map {
            address,
            size,
            handle,
        };
        self.plain(&record, |d| d.map(address, size, handle))
    }

    fn set_access(
        &self,
        address: u64,
        size: u64,
        grants: &[AccessGrant],
    ) -> Result<(), DeviceError> {
        let record = CallRecord::SetAccess {
            address,
            size,
            grants: grants.to_vec(),
        };
        self.plain(&record, |d| d.set_access(address, size, grants))
    }

    fn unmap(&self, address: u64, size: u64) -> Result<(), DeviceError> {
        self.plain(&CallRecord::Unmap { address, size }, |d| {
            d.unmap(address, size)
        })
    }

    fn allocate(&self, size: u64) -> Result<u64, DeviceError> {
        let record = CallRecord::Allocate { size };
        self.call(
            &record,
            |d| d.allocate(size),
            |&address| Outcome::Value(address),
        )
    }

    fn free(&self, address: u64) -> Result<(), DeviceError> {
        self.plain(&CallRecord::Free { address }, |d| d.free(address))
    }

    fn create_stream(&self, order: StreamOrder) -> Result<StreamId, DeviceError> {
        let record = CallRecord::CreateStream { order };
        self.call(
            &record,
            |d| d.create_stream(order),
            |stream| Outcome::Value(stream.0),
        )
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.plain(&CallRecord::DestroyStream { stream }, |d| {
            d.destroy_stream(stream)
        })
    }

    fn stream_identity(&self, stream: StreamId) -> Result<u64, DeviceError> {
        let record = CallRecord::StreamIdentity { stream };
        self.call(
            &record,
            |d| d.stream_identity(stream),
            |&identity| Outcome::Value(identity),
        )
    }

    fn stream_order(&self, stream: StreamId) -> Option<StreamOrder> {
        self.device.stream_order(stream)
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.plain(&CallRecord::SynchronizeStream { stream }, |d| {
            d.synchronize_stream(stream)
        })
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.plain(&CallRecord::Synchronize, |d| d.synchronize())
    }

    fn create_event(&self) -> Result<EventId, DeviceError> {
        self.call(
            &CallRecord::CreateEvent,
            |d| d.create_event(),
            |event| Outcome::Value(event.0),
        )
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.plain(&CallRecord::DestroyEvent { event }, |d| {
            d.destroy_event(event)
        })
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        let record = CallRecord::RecordEvent { event, stream };
        self.plain(&record, |d| d.record_event(event, stream))
    }

    fn query_event(&self, event: EventId) -> Result<bool, DeviceError> {
        let record = CallRecord::QueryEvent { event };
        self.call(
            &record,
            |d| d.query_event(event),
            |&done| Outcome::Completed(done),
        )
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        let record = CallRecord::WaitEvent { stream, event };
        self.plain(&record, |d| d.wait_event(stream, event))
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), DeviceError> {
        self.plain(&CallRecord::SynchronizeEvent { event }, |d| {
            d.synchronize_event(event)
        })
    }

    fn fill(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
    ) -> Result<(), DeviceError> {
        let record = CallRecord::Fill {
            stream,
            address,
            size,
            pattern,
        };
        self.plain(&record, |d| d.fill(stream, address, size, pattern))
    }

    fn verify(
        &self,
        stream: StreamId,
        address: u64,
        size: u64,
        pattern: Pattern,
        findings: &Arc<Findings>,
    ) -> Result<(), DeviceError> {
        let record = CallRecord::Verify {
            stream,
            address,
            size,
            pattern,
        };
        self.plain(&record, |d| {
            d.verify(stream, address, size, pattern, findings)
        })
    }

    fn copy(
        &self,
        stream: StreamId,
        destination: u64,
        source: u64,
        size: u64,
    ) -> Result<(), DeviceError> {
        let record = CallRecord::Copy {
            stream,
            destination,
            source,
            size,
        };
        self.plain(&record, |d| d.copy(stream, destination, source, size))
    }

    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), DeviceError> {
        let record = CallRecord::HostFunction { stream };
        self.plain(&record, |d| d.host_function(stream, function))
    }
}
