//! What is the host device's own. The contract's rules are tested by the conformance suites of
//! `millpond-check`.

mod memory;
mod sharing;
mod streams;

use std::sync::mpsc::{self, Sender};

use millpond::device::{
    AccessGrant, Accessor, Device, Findings, HandleId, HandleProperties, HostDevice, Pattern,
    Protection, Status, StreamId,
};

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 2 * MIB;

const ACCESS: [AccessGrant; 1] = [AccessGrant {
    accessor: Accessor::Device(0),
    protection: Protection::ReadWrite,
}];

fn device() -> HostDevice {
    HostDevice::new(256 * MIB).unwrap()
}

fn handle(device: &HostDevice, size: u64) -> HandleId {
    device.create(size, HandleProperties::default()).unwrap()
}

/// Maps a handle, with access.
fn map(device: &HostDevice, address: u64, size: u64, handle: HandleId) {
    device.map(address, size, handle).unwrap();
    device.set_access(address, size, &ACCESS).unwrap();
}

/// A reservation filled by one handle, with access.
fn mapped(device: &HostDevice, size: u64) -> u64 {
    let base = device.reserve(size, 0).unwrap();
    map(device, base, size, handle(device, size));
    base
}

/// Wrong bytes that a stream finds in a range.
fn wrong_bytes(device: &HostDevice, address: u64, size: u64, pattern: Pattern) -> u64 {
    let findings = Findings::new();
    let stream = StreamId::DEFAULT;
    device
        .verify(stream, address, size, pattern, &findings)
        .unwrap();
    device.synchronize_stream(stream).unwrap();
    findings.wrong_bytes()
}

/// Holds a stream up until something is sent, or the sender is dropped.
fn gate(device: &HostDevice, stream: StreamId) -> Sender<()> {
    let (open, opened) = mpsc::channel();
    let wait = move || {
        let _ = opened.recv();
    };
    device.host_function(stream, Box::new(wait)).unwrap();
    open
}

fn status<T>(result: Result<T, millpond::device::DeviceError>) -> Status {
    match result {
        Ok(_) => panic!("the call was to fail"),
        Err(error) => error.status,
    }
}
