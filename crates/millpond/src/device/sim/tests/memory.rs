//! Memory: what is there, what it costs, and what faults.

use super::*;
use crate::device::{Findings, Pattern, ShareKind};

#[test]
fn a_device_of_141_gb_costs_nothing() {
    let device = SimDevice::new();
    let total = device.capabilities().total_memory;
    assert!(total <= 141_000_000_000 && total > 141_000_000_000 - PAGE);
    let handle = device.create(total, HandleProperties::default()).unwrap();
    assert_eq!(device.memory_info().unwrap().free, 0);
    let more = device.create(PAGE, HandleProperties::default());
    assert_eq!(status(more), Some(Status::OUT_OF_MEMORY));
    device.release(handle).unwrap();
    assert_eq!(device.memory_info().unwrap().free, total);
}

#[test]
fn the_address_space_holds_one_huge_reservation_and_is_used_again() {
    let device = SimDevice::new();
    let huge = 1 << 46;
    let base = device.reserve(huge, 1 << 30).unwrap();
    assert!(base.is_multiple_of(1 << 30));
    assert_eq!(status(device.reserve(huge, 0)), Some(Status::OUT_OF_MEMORY));
    let small = device.reserve(PAGE, 0).unwrap();
    assert!(small + PAGE <= base || small >= base + huge);
    device.free_reservation(base, huge).unwrap();
    assert_eq!(device.reserve(huge, 1 << 30), Ok(base));
}

#[test]
fn mapping_costs_what_the_table_says() {
    let device = SimDevice::new();
    let mut expected = 0;
    let mut charged = |ns: u64| {
        expected += ns;
        assert_eq!(device.now(), expected);
    };
    let base = device.reserve(1 << 40, 0).unwrap();
    charged(5_000);
    let first = device
        .create(8 * PAGE, HandleProperties::default())
        .unwrap();
    charged(15_000);
    let second = device.create(PAGE, HandleProperties::default()).unwrap();
    charged(15_000);
    device.map(base, 8 * PAGE, first).unwrap();
    charged(1_000);
    device.map(base + 8 * PAGE, PAGE, second).unwrap();
    charged(1_000);
    device.set_access(base, 9 * PAGE, &own_access()).unwrap();
    charged(2 * 47_000);

    let further = base + 100 * PAGE;
    device.map(further, 8 * PAGE, first).unwrap();
    charged(1_000);
    device.set_access(further, 8 * PAGE, &own_access()).unwrap();
    charged(24_000);
    device.unmap(further, 8 * PAGE).unwrap();
    charged(14_000);
    device.unmap(base, 9 * PAGE).unwrap();
    charged(2 * 27_000);
    device.release(first).unwrap();
    charged(14_000 + 16 * 550);
    device.release(second).unwrap();
    charged(14_000 + 2 * 550);
    device.free_reservation(base, 1 << 40).unwrap();
    charged(5_000);
}

#[test]
fn a_refused_call_costs_nothing_and_changes_nothing() {
    let device = SimDevice::new();
    let (base, handle) = mapped(&device, 2);
    let free = device.memory_info().unwrap().free;
    let before = device.now();
    let invalid = Some(Status::INVALID_VALUE);
    let properties = HandleProperties::default();
    assert_eq!(status(device.create(PAGE + 1, properties)), invalid);
    assert_eq!(status(device.map(base, 2 * PAGE, handle)), invalid);
    assert_eq!(status(device.unmap(base, PAGE)), invalid);
    assert_eq!(
        status(device.set_access(base, PAGE, &own_access())),
        invalid
    );
    assert_eq!(status(device.free_reservation(base, 2 * PAGE)), invalid);
    assert_eq!(status(device.release(HandleId(77))), invalid);
    assert_eq!(status(device.free(base)), invalid);
    let unsupported = Some(Status::NOT_SUPPORTED);
    assert_eq!(
        status(device.export(handle, ShareKind::PosixFd)),
        unsupported
    );
    assert_eq!(device.now(), before);
    assert_eq!(device.memory_info().unwrap().free, free);
}

#[test]
fn work_takes_its_bytes_time_after_its_launch() {
    let device = SimDevice::new();
    let (base, _) = mapped(&device, 1050);
    let stream = stream(&device);
    let called = device.now();
    let size = 1_050_000_000;
    device.copy(stream, base, base + size, size).unwrap();
    assert_eq!(device.now(), called + 4_100);
    // 2100 bytes a nanosecond.
    let end = called + 4_100 + 500_000;
    assert_eq!(device.stream_ready_at(stream), Some(end));
    device.fill(stream, base, 4_550_000, Pattern(0)).unwrap();
    assert_eq!(device.stream_ready_at(stream), Some(end + 1_000));
    let findings = Findings::new();
    device
        .verify(stream, base, 9_100_000, Pattern(1), &findings)
        .unwrap();
    assert_eq!(device.stream_ready_at(stream), Some(end + 3_000));
    device.synchronize_stream(stream).unwrap();
    assert_eq!(device.now(), end + 3_000);
    assert_eq!(findings.wrong_bytes(), 0, "a device without bytes");
    let overlap = device.copy(stream, base, base + 1, 2);
    assert_eq!(status(overlap), Some(Status::INVALID_VALUE));
}

#[test]
fn work_on_memory_without_access_faults_when_it_begins_and_for_good() {
    let device = SimDevice::new();
    let (base, handle) = mapped(&device, 1);
    let stream = stream(&device);
    let before = device.create_event().unwrap();
    let lost = Some(Status::ILLEGAL_ADDRESS);

    device.enqueue_work(stream, LONG).unwrap();
    device.record_event(before, stream).unwrap();
    // One byte too many; it is queued behind other work, and so not found out yet.
    device.fill(stream, base, PAGE + 1, Pattern(0)).unwrap();
    let after = recorded(&device, stream);
    assert_eq!(device.query_event(before), Ok(false));
    device.memory_info().unwrap();

    assert_eq!(status(device.synchronize_stream(stream)), lost);
    // Rule 10: even an event that did complete is no longer told of.
    assert_eq!(status(device.query_event(before)), lost);
    assert_eq!(status(device.query_event(after)), lost);
    assert_eq!(status(device.release(handle)), lost);
    assert_eq!(status(device.reserve(PAGE, 0)), lost);
    assert_eq!(status(device.enqueue_work(stream, 1)), lost);
}

#[test]
fn a_query_that_comes_to_the_fault_fails() {
    let device = SimDevice::new();
    let stream = stream(&device);
    let event = recorded(&device, stream);
    device.enqueue_work(stream, 300).unwrap();
    device.fill(stream, 0, 1, Pattern(0)).unwrap();
    // The launch took longer than the work before it, so the fault comes with the launch's end.
    assert_eq!(
        status(device.query_event(event)),
        Some(Status::ILLEGAL_ADDRESS)
    );
}

#[test]
fn reading_needs_only_access_to_read() {
    let device = SimDevice::new();
    let (base, _) = mapped(&device, 1);
    let read_only = [AccessGrant {
        accessor: Accessor::Device(0),
        protection: Protection::Read,
    }];
    device.set_access(base, PAGE, &read_only).unwrap();
    let findings = Findings::new();
    let stream = stream(&device);
    device
        .verify(stream, base, PAGE, Pattern(0), &findings)
        .unwrap();
    device.synchronize().unwrap();
    device.fill(stream, base, 1, Pattern(0)).unwrap();
    assert_eq!(status(device.synchronize()), Some(Status::ILLEGAL_ADDRESS));
}

#[test]
fn unmapping_does_not_wait_and_faults_what_still_uses_the_range() {
    let device = SimDevice::new();
    let (base, _) = mapped(&device, 1);
    let stream = stream(&device);
    device.enqueue_work(stream, LONG).unwrap();
    device.fill(stream, base, 1, Pattern(0)).unwrap();
    let called = device.now();
    device.unmap(base, PAGE).unwrap();
    assert_eq!(device.now(), called + 27_000);
    let error = device.memory_info().unwrap_err();
    assert_eq!(error.status, Status::ILLEGAL_ADDRESS);
    assert_eq!(error.call, Call::MemoryInfo);
    assert!(error.detail.contains(&format!("{base:#x}")), "{error}");
}

#[test]
fn unmapping_is_safe_once_all_use_through_that_address_is_over() {
    let device = SimDevice::new();
    let (base, handle) = mapped(&device, 1);
    let alias = device.reserve(PAGE, 0).unwrap();
    device.map(alias, PAGE, handle).unwrap();
    device.set_access(alias, PAGE, &own_access()).unwrap();
    let stream = stream(&device);
    device.fill(stream, base, PAGE, Pattern(0)).unwrap();
    device.synchronize_stream(stream).unwrap();
    // The same memory is in use for long, but through its other address.
    device.enqueue_work(stream, LONG).unwrap();
    device.fill(stream, alias, PAGE, Pattern(0)).unwrap();
    device.unmap(base, PAGE).unwrap();
    device.memory_info().unwrap();
    // A new mapping at the old address begins without uses.
    device.map(base, PAGE, handle).unwrap();
    device.unmap(base, PAGE).unwrap();
    device.synchronize().unwrap();
    device.unmap(alias, PAGE).unwrap();
    device.memory_info().unwrap();
}

#[test]
fn without_mapping_there_is_plain_memory() {
    let device = SimDevice::builder().mapping(false).build();
    let unsupported = Some(Status::NOT_SUPPORTED);
    assert_eq!(status(device.reserve(PAGE, 0)), unsupported);
    let properties = HandleProperties::default();
    assert_eq!(status(device.create(PAGE, properties)), unsupported);
    let stream = stream(&device);
    let first = device.allocate(1000).unwrap();
    let second = device.allocate(1000).unwrap();
    assert!(first.is_multiple_of(256) && second.is_multiple_of(256));
    assert!(second >= first + 1000);
    device.fill(stream, first, 1000, Pattern(0)).unwrap();
    let end = device.enqueue_work(stream, LONG).unwrap();
    device.free(first).unwrap();
    assert!(device.now() >= end, "freeing waits for the device");
    assert_eq!(status(device.free(first)), Some(Status::INVALID_VALUE));
    assert_eq!(device.allocate(1000), Ok(first));
    assert_eq!(status(device.allocate(0)), Some(Status::INVALID_VALUE));
    let total = device.capabilities().total_memory;
    assert_eq!(status(device.allocate(total)), Some(Status::OUT_OF_MEMORY));
}
