//! Memory that others see too, or that is not mapped.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use millpond::device::{
    AccessGrant, Accessor, Device, HandleProperties, Location, Protection, ShareKind, Shareable,
    Status, StreamId, StreamOrder,
};

use crate::{Mapped, OTHER, PATTERN, device, in_own_process, mapping_device, status, wrong};

#[test]
fn a_descriptor_carries_a_handle_within_and_between_processes() {
    let Some(turn) = mapping_device() else { return };
    let (device, unit) = (&*turn.device, turn.granularity);
    if !device.capabilities().share_posix_fd {
        eprintln!("skipped: handles cannot be exported as descriptors");
        return;
    }
    let plain = device.create(unit, HandleProperties::default()).unwrap();
    assert_eq!(
        status(device.export(plain, ShareKind::PosixFd)),
        Status::NOT_SUPPORTED
    );
    device.release(plain).unwrap();

    let stream = device.create_stream(StreamOrder::Independent).unwrap();
    let properties = HandleProperties {
        share: Some(ShareKind::PosixFd),
        ..HandleProperties::default()
    };
    let range = Mapped::new(device, &[unit], properties);
    device.fill(stream, range.base, unit, PATTERN).unwrap();
    device.synchronize_stream(stream).unwrap();
    let Shareable::PosixFd(fd) = device
        .export(range.handles[0].0, ShareKind::PosixFd)
        .unwrap()
    else {
        panic!("a descriptor was asked for");
    };
    // The copy survives the start of another program, as the driver's own does not.
    let inherited = rustix::io::dup(&fd).unwrap();
    let import = device.import(Shareable::PosixFd(fd), unit).unwrap();
    let again = Mapped::of(device, vec![(import, unit)]);
    assert_eq!(wrong(device, stream, again.base, unit, PATTERN), 0);
    again.take_down();

    let number = inherited.as_raw_fd().to_string();
    let (status, said) = in_own_process(
        "sharing::an_imported_handle",
        &[("MILLPOND_TEST_FD", number)],
    );
    assert!(status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(wrong(device, stream, range.base, unit, OTHER), 0);
    range.take_down();
    device.destroy_stream(stream).unwrap();
}

#[test]
#[ignore = "run by a_descriptor_carries_a_handle_within_and_between_processes"]
fn an_imported_handle() {
    let number: c_int = std::env::var("MILLPOND_TEST_FD").unwrap().parse().unwrap();
    // SAFETY: the descriptor was inherited from the process that started this one, for this test.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    let turn = mapping_device().unwrap();
    let (device, unit) = (&*turn.device, turn.granularity);
    let import = device.import(Shareable::PosixFd(fd), unit).unwrap();
    let range = Mapped::of(device, vec![(import, unit)]);
    assert_eq!(
        wrong(device, StreamId::DEFAULT, range.base, unit, PATTERN),
        0
    );
    device
        .fill(StreamId::DEFAULT, range.base, unit, OTHER)
        .unwrap();
    device.synchronize().unwrap();
    range.take_down();
}

#[test]
fn fabric_handles_and_network_memory_work_or_say_why_not() {
    let Some(turn) = mapping_device() else { return };
    let (device, unit) = (&*turn.device, turn.granularity);
    let capabilities = device.capabilities();
    let rdma = HandleProperties {
        rdma: true,
        ..HandleProperties::default()
    };
    if capabilities.rdma {
        Mapped::new(device, &[unit], rdma).take_down();
    } else {
        assert_eq!(status(device.create(unit, rdma)), Status::NOT_SUPPORTED);
    }
    let fabric = HandleProperties {
        share: Some(ShareKind::Fabric),
        ..HandleProperties::default()
    };
    if !capabilities.share_fabric {
        eprintln!("skipped: no fabric handles");
        return;
    }
    match device.create(unit, fabric) {
        Ok(handle) => {
            let shareable = device.export(handle, ShareKind::Fabric).unwrap();
            let import = device.import(shareable, unit).unwrap();
            device.release(import).unwrap();
            device.release(handle).unwrap();
        }
        // DRV: without access to an IMEX channel.
        Err(error) => assert_eq!(error.status, Status::NOT_PERMITTED, "{error}"),
    }
}

#[test]
fn host_memory_of_a_numa_node_is_seen_by_both() {
    let Some(turn) = mapping_device() else { return };
    let (device, unit) = (&*turn.device, turn.granularity);
    if !device.capabilities().host_numa {
        eprintln!("skipped: no mapped host memory");
        return;
    }
    let properties = HandleProperties {
        location: Location::HostNuma(0),
        ..HandleProperties::default()
    };
    let range = Mapped::new(device, &[unit], properties);
    let host = AccessGrant {
        accessor: Accessor::HostNuma(0),
        protection: Protection::ReadWrite,
    };
    device.set_access(range.base, unit, &[host]).unwrap();
    device
        .fill(StreamId::DEFAULT, range.base, unit, PATTERN)
        .unwrap();
    device.synchronize().unwrap();
    let words = unit as usize / 8;
    // SAFETY: the range is mapped for the host, of this size, and the device is done with it.
    let seen = unsafe { std::slice::from_raw_parts(range.base as *const u64, words) };
    assert!(seen.iter().all(|&word| word == PATTERN.0));
    range.take_down();
}

#[test]
fn plain_allocations_work() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let address = device.allocate(1000).unwrap();
    assert_eq!(address % 256, 0);
    device
        .fill(StreamId::DEFAULT, address, 1000, PATTERN)
        .unwrap();
    assert_eq!(wrong(device, StreamId::DEFAULT, address, 1000, PATTERN), 0);
    device.free(address).unwrap();
    assert_eq!(status(device.free(address + 4096)), Status::INVALID_VALUE);
}
