//! Where the machine, or the process's limits, stop the host device: it says which limit and what
//! to do, and stays usable. Each test has a process of its own, because the limits are the
//! process's.

use std::fs;
use std::process::Command;

use millpond::device::{
    AccessGrant, Accessor, Device, DeviceError, HandleProperties, HostDevice, Pattern, Protection,
    Status, StreamId, StreamOrder,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: u64 = 1 << 20;
const GRANULE: u64 = 2 * MIB;

const ACCESS: [AccessGrant; 1] = [AccessGrant {
    accessor: Accessor::Device(0),
    protection: Protection::ReadWrite,
}];

/// Runs the ignored test of this name, in a process of its own.
fn in_its_own_process(name: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--test-threads=1", name])
        // Arenas come with threads that happen to run together, and take address space.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

fn limit_to(resource: Resource, most: u64) {
    let limit = Rlimit {
        current: Some(most),
        ..getrlimit(resource)
    };
    setrlimit(resource, limit).unwrap();
}

fn out_of_memory<T: std::fmt::Debug>(result: Result<T, DeviceError>, limit: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.status, Status::OUT_OF_MEMORY);
    assert!(error.detail.contains(limit), "{error}");
}

/// A fresh mapping can be used: the device is.
fn is_usable(device: &HostDevice) {
    let base = device.reserve(GRANULE, 0).unwrap();
    let handle = device.create(GRANULE, HandleProperties::default()).unwrap();
    device.map(base, GRANULE, handle).unwrap();
    device.set_access(base, GRANULE, &ACCESS).unwrap();
    device
        .fill(StreamId::DEFAULT, base, GRANULE, Pattern(7))
        .unwrap();
    device.synchronize().unwrap();
    device.unmap(base, GRANULE).unwrap();
    device.release(handle).unwrap();
    device.free_reservation(base, GRANULE).unwrap();
}

#[test]
fn address_space() {
    in_its_own_process("child_address_space");
}

#[test]
#[ignore = "run by address_space"]
fn child_address_space() {
    let device = HostDevice::new(64 * MIB).unwrap();
    let limit = 8 << 30;
    limit_to(Resource::As, limit);
    out_of_memory(device.reserve(limit, 0), "`ulimit -v`");
    out_of_memory(device.reserve(limit, 0), &limit.to_string());
    is_usable(&device);
}

#[test]
fn separate_mappings() {
    in_its_own_process("child_separate_mappings");
}

#[test]
#[ignore = "run by separate_mappings"]
fn child_separate_mappings() {
    let system_limit: u64 = fs::read_to_string("/proc/sys/vm/max_map_count")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // One page of memory in every other place: nothing that the kernel could join.
    let device = HostDevice::new(64 * MIB).unwrap();
    let handle = device.create(GRANULE, HandleProperties::default()).unwrap();
    let count = system_limit.min(1 << 20) * 2;
    let size = 2 * count * GRANULE;
    let base = device.reserve(size, 0).unwrap();
    let address = |n: u64| base + 2 * n * GRANULE;
    let mut mapped = 0;
    let refusal = loop {
        match device.map(address(mapped), GRANULE, handle) {
            Ok(()) => mapped += 1,
            Err(error) => break Err::<(), _>(error),
        }
        if mapped == count {
            // The limit is higher than can be reached in reasonable time.
            assert!(system_limit > 1 << 20);
            return;
        }
    };
    assert!(mapped > system_limit * 2 / 5, "{mapped} of {system_limit}");
    out_of_memory(refusal.clone(), "vm.max_map_count");
    out_of_memory(refusal, &system_limit.to_string());

    // Another device of the process is refused too; giving some back makes room for both.
    let other = HostDevice::new(64 * MIB).unwrap();
    let theirs = other.create(GRANULE, HandleProperties::default()).unwrap();
    device.unmap(address(1), GRANULE).unwrap();
    let range = other.reserve(GRANULE, 0).unwrap();
    out_of_memory(other.map(range, GRANULE, theirs), "vm.max_map_count");
    // Filling the gap between two mappings needs none.
    device.map(address(2) + GRANULE, GRANULE, handle).unwrap();
    for n in (2..mapped).step_by(2) {
        device.unmap(address(n), GRANULE).unwrap();
    }
    other.map(range, GRANULE, theirs).unwrap();
    is_usable(&other);
    is_usable(&device);
}

#[test]
fn descriptors() {
    in_its_own_process("child_descriptors");
}

#[test]
#[ignore = "run by descriptors"]
fn child_descriptors() {
    let device = HostDevice::new(64 * MIB).unwrap();
    limit_to(Resource::Nofile, 16);
    let properties = HandleProperties {
        share: Some(millpond::device::ShareKind::PosixFd),
        ..HandleProperties::default()
    };
    let error = (0..32)
        .map(|_| device.create(GRANULE, properties))
        .find_map(Result::err)
        .unwrap();
    assert_eq!(error.status, Status::OPERATING_SYSTEM);
    assert!(error.detail.contains("`ulimit -n`"), "{error}");
    let free = device.memory_info().unwrap().free;
    is_usable(&device);
    assert_eq!(device.memory_info().unwrap().free, free);
}

#[test]
fn nothing_is_left_of_dropped_devices() {
    in_its_own_process("child_nothing_is_left_of_dropped_devices");
}

#[test]
#[ignore = "run by nothing_is_left_of_dropped_devices"]
fn child_nothing_is_left_of_dropped_devices() {
    let use_one = || {
        let device = HostDevice::new(64 * MIB).unwrap();
        let base = device.reserve(8 * GRANULE, 64 * MIB).unwrap();
        let shared = HandleProperties {
            share: Some(millpond::device::ShareKind::PosixFd),
            ..HandleProperties::default()
        };
        for (n, properties) in [HandleProperties::default(), shared]
            .into_iter()
            .enumerate()
        {
            let address = base + n as u64 * 2 * GRANULE;
            let handle = device.create(GRANULE, properties).unwrap();
            device.map(address, GRANULE, handle).unwrap();
            device.set_access(address, GRANULE, &ACCESS).unwrap();
            for order in [StreamOrder::Independent, StreamOrder::WithLegacy] {
                let stream = device.create_stream(order).unwrap();
                device.fill(stream, address, 100, Pattern(1)).unwrap();
            }
        }
        device.allocate(100).unwrap();
        device
            .fill(StreamId::PER_THREAD, base, 100, Pattern(1))
            .unwrap();
    };
    let counts = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let of_memory = maps.lines().filter(|line| line.contains("memfd:")).count();
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
        let threads = fs::read_dir("/proc/self/task").unwrap().count();
        let addresses: u64 = fs::read_to_string("/proc/self/statm")
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        (
            maps.lines().count(),
            of_memory,
            descriptors,
            threads,
            addresses,
        )
    };
    // The first uses fill the process's caches (thread stacks, the allocator's arenas).
    (0..50).for_each(|_| use_one());
    let before = counts();
    (0..200).for_each(|_| use_one());
    let after = counts();
    assert_eq!((after.1, after.2), (0, before.2));
    // The system's lists may still show threads that have been joined, and their stacks.
    assert!(after.0 <= before.0 + 20, "{before:?} {after:?}");
    assert!(after.3 <= before.3 + 20, "{before:?} {after:?}");
    // Less than a reservation a hundred devices (pages of 4 KiB or more).
    assert!(after.4 <= before.4 + 16 * 1024, "{before:?} {after:?}");
}
