//! Memory that others see too: over a fabric, network cards, the host.

use millpond::device::{
    AccessGrant, Accessor, Device, HandleProperties, Location, Protection, ShareKind, Status,
    StreamId,
};

use crate::{Mapped, PATTERN, mapping_device, status};

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
