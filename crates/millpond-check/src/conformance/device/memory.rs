//! How much there is, and memory that is not mapped.

use millpond::device::{DeviceKind, HandleProperties, Status, StreamId};

use super::{MIB, PATTERN, refused};
use crate::conformance::{Fixture, Kind, Outcome};

/// What other uses of a GPU may take or give while a case looks: its own page tables, the driver's
/// caches.
const SLACK: u64 = 32 * MIB;

/// DRV `cuMemCreate`, `cuMemAlloc`, `cuMemAddressReserve`: out of memory (2).
pub(super) fn more_than_there_is_is_out_of_memory_and_harms_nothing(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let total = device.memory_info().unwrap().total;
    let twice = (2 * total).next_multiple_of(device.capabilities().granularity);
    assert_eq!(refused(device.allocate(twice)), Status::OUT_OF_MEMORY);
    let unit = fixture.needs_mapping()?;
    let properties = HandleProperties::default();
    assert_eq!(
        refused(device.create(twice, properties)),
        Status::OUT_OF_MEMORY
    );
    assert_eq!(refused(device.reserve(1 << 47, 0)), Status::OUT_OF_MEMORY);
    fixture.mapped(&[unit]).take_down();
    Ok(())
}

/// Rule 7. DRV `cuMemGetInfo`, `cuMemRelease`.
pub(super) fn memory_counts_while_a_handle_or_mapping_lives(fixture: &Fixture) -> Outcome {
    fixture.needs_mapping()?;
    let device = fixture.device();
    let size = 512 * MIB;
    let slack = match fixture.kind() {
        Kind::Cuda => SLACK,
        _ => 0,
    };
    let free = || device.memory_info().unwrap().free;
    let before = free();
    let mut range = fixture.mapped(&[size / 2, size / 2]);
    let taken = before - size;
    assert!(free() <= taken + slack && free() + slack >= taken);
    range.release_handles();
    assert!(free() <= taken + slack, "it lives while it is mapped");
    range.take_down();
    assert!(free() + slack >= before);
    Ok(())
}

/// DRV `cuMemAlloc`: "suitably aligned for any kind of variable", zero bytes are invalid (1);
/// `cuMemFree`: what no allocation begins at is invalid (1).
pub(super) fn plain_allocations_are_aligned_and_freed_once(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    assert_eq!(refused(device.allocate(0)), Status::INVALID_VALUE);
    let blocks = [1, 255, 1000, MIB].map(|size| (device.allocate(size).unwrap(), size));
    for (address, size) in blocks {
        assert!(address.is_multiple_of(256), "{address:#x}");
        let apart = |&(other, length): &(u64, u64)| {
            other == address || other + length <= address || address + size <= other
        };
        assert!(blocks.iter().all(apart));
    }
    assert_eq!(
        refused(device.free(blocks[3].0 + 4096)),
        Status::INVALID_VALUE
    );
    for (address, _) in blocks {
        device.free(address).unwrap();
    }
    Ok(())
}

/// Plain memory can be used at once by every stream, without access being given.
pub(super) fn plain_allocations_hold_their_bytes(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let address = device.allocate(1000).unwrap();
    for stream in [StreamId::DEFAULT, fixture.stream()] {
        device.fill(stream, address, 1000, PATTERN).unwrap();
        assert_eq!(fixture.wrong(stream, address, 1000, PATTERN), 0);
    }
    device.free(address).unwrap();
    Ok(())
}

/// What a device says of itself agrees with what it does.
pub(super) fn capabilities_are_plausible(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let capabilities = device.capabilities();
    println!("{capabilities:?}");
    assert!(!capabilities.name.is_empty());
    assert!(capabilities.granularity.is_power_of_two());
    let kind = match fixture.kind() {
        Kind::Host => DeviceKind::Host,
        Kind::Sim | Kind::Unmapped => DeviceKind::Sim,
        Kind::Cuda => DeviceKind::Cuda,
    };
    assert_eq!(capabilities.kind, kind);
    let info = device.memory_info().unwrap();
    assert!(info.free <= info.total && info.total <= capabilities.total_memory);
    let (before, after) = (device.now(), device.now());
    assert!(before <= after);
    Ok(())
}
