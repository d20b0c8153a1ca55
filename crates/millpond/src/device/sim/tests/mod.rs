//! The sim keeps the contract's rules in virtual time, and charges what its table says.

mod functions;
mod memory;
mod time;

use super::*;
use crate::device::{AccessGrant, Accessor, HandleId, HandleProperties, Protection, StreamOrder};

const PAGE: u64 = GRANULARITY;
/// Longer than all calls of a test together.
const LONG: u64 = 1_000_000_000;

fn status<T>(result: Result<T, DeviceError>) -> Option<Status> {
    result.err().map(|error| error.status)
}

fn own_access() -> [AccessGrant; 1] {
    [AccessGrant {
        accessor: Accessor::Device(0),
        protection: Protection::ReadWrite,
    }]
}

/// Reserves and maps so many pages as one handle, with access.
fn mapped(device: &SimDevice, pages: u64) -> (u64, HandleId) {
    let size = pages * PAGE;
    let base = device.reserve(size, 0).unwrap();
    let handle = device.create(size, HandleProperties::default()).unwrap();
    device.map(base, size, handle).unwrap();
    device.set_access(base, size, &own_access()).unwrap();
    (base, handle)
}

fn stream(device: &SimDevice) -> StreamId {
    device.create_stream(StreamOrder::Independent).unwrap()
}

/// Records a new event.
fn recorded(device: &SimDevice, stream: StreamId) -> EventId {
    let event = device.create_event().unwrap();
    device.record_event(event, stream).unwrap();
    event
}
