//! Memory that goes from hand to hand between devices of one process.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use millpond::device::{
    Device, HandleId, HandleProperties, HostDevice, Pattern, ShareKind, Shareable, Status, StreamId,
};
use rustix::fs::{MemfdFlags, SealFlags};

use super::{GRANULE, device, map, status, wrong_bytes};

const FD: ShareKind = ShareKind::PosixFd;
const SENT: Pattern = Pattern(0x1111_2222_3333_4444);

fn shareable(device: &HostDevice, size: u64) -> HandleId {
    let properties = HandleProperties {
        share: Some(FD),
        ..HandleProperties::default()
    };
    device.create(size, properties).unwrap()
}

fn exported(device: &HostDevice, handle: HandleId) -> OwnedFd {
    match device.export(handle, FD).unwrap() {
        Shareable::PosixFd(descriptor) => descriptor,
        other => panic!("{other:?} was not asked for"),
    }
}

fn mapped(device: &HostDevice, size: u64, handle: HandleId) -> u64 {
    let base = device.reserve(size, 0).unwrap();
    map(device, base, size, handle);
    base
}

#[test]
fn another_device_sees_the_same_bytes_after_the_first_is_gone() {
    let (giver, taker) = (device(), device());
    let handle = shareable(&giver, GRANULE);
    let address = mapped(&giver, GRANULE, handle);
    giver
        .fill(StreamId::DEFAULT, address, GRANULE, SENT)
        .unwrap();
    giver.synchronize().unwrap();
    let import = taker
        .import(Shareable::PosixFd(exported(&giver, handle)), GRANULE)
        .unwrap();
    drop(giver);
    let address = mapped(&taker, GRANULE, import);
    assert_eq!(wrong_bytes(&taker, address, GRANULE, SENT), 0);
}

#[test]
fn an_import_of_own_memory_is_the_same_memory_and_counts_once() {
    let device = device();
    let handle = shareable(&device, GRANULE);
    let free = device.memory_info().unwrap().free;
    let import = device
        .import(Shareable::PosixFd(exported(&device, handle)), GRANULE)
        .unwrap();
    assert_eq!(device.memory_info().unwrap().free, free);
    device.release(handle).unwrap();
    let address = mapped(&device, GRANULE, import);
    assert_eq!(wrong_bytes(&device, address, GRANULE, Pattern(0)), 0);
    device.unmap(address, GRANULE).unwrap();
    device.release(import).unwrap();
    assert_eq!(device.memory_info().unwrap().free, free + GRANULE);
}

#[test]
fn memory_not_made_for_sharing_is_not_shared() {
    let device = device();
    let handle = super::handle(&device, GRANULE);
    assert_eq!(status(device.export(handle, FD)), Status::NOT_SUPPORTED);
    let handle = shareable(&device, GRANULE);
    assert_eq!(
        status(device.export(handle, ShareKind::Fabric)),
        Status::NOT_SUPPORTED
    );
    let fabric = Shareable::Fabric(Box::new([0; 64]));
    assert_eq!(
        status(device.import(fabric, GRANULE)),
        Status::NOT_SUPPORTED
    );
}

#[test]
fn a_descriptor_that_could_harm_is_refused() {
    let device = device();
    let refused = |descriptor: OwnedFd, size: u64, reason: &str| {
        let error = device
            .import(Shareable::PosixFd(descriptor), size)
            .unwrap_err();
        assert_eq!(error.status, Status::INVALID_VALUE);
        assert!(error.detail.contains(reason), "{error}");
    };
    let memory = |size: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("foreign", flags).unwrap();
        rustix::fs::ftruncate(&file, size).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    };
    refused(
        memory(GRANULE, SealFlags::SHRINK),
        2 * GRANULE,
        "bytes long",
    );
    refused(memory(GRANULE, SealFlags::GROW), GRANULE, "not sealed");
    refused(
        memory(GRANULE, SealFlags::SHRINK | SealFlags::WRITE),
        GRANULE,
        "against writing",
    );
    refused(
        File::open("/dev/zero").unwrap().into(),
        GRANULE,
        "not memory",
    );
    refused(tempfile::tempfile().unwrap().into(), GRANULE, "");
    let (socket, _other) = UnixStream::pair().unwrap();
    refused(socket.into(), GRANULE, "not memory");
    let own = exported(&device, shareable(&device, GRANULE));
    assert!(
        rustix::fs::ftruncate(&own, 0).is_err(),
        "whoever is given memory cannot cut it off"
    );
    let good = memory(GRANULE, SealFlags::SHRINK);
    device.import(Shareable::PosixFd(good), GRANULE).unwrap();
}
