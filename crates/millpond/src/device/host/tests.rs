//! What cannot be seen through the contract.

use std::fs;

use super::*;
use crate::device::{Accessor, Protection};

#[test]
fn memory_goes_back_to_the_system_with_its_last_use() {
    let device = HostDevice::new(16 * GRANULARITY).unwrap();
    let taken = || device.worker.space.memory_taken();
    let size = 2 * GRANULARITY;
    let base = device.reserve(size, 0).unwrap();
    let handle = device.create(size, HandleProperties::default()).unwrap();
    assert_eq!(taken(), 0, "nothing was written");
    device.map(base, size, handle).unwrap();
    let grant = AccessGrant {
        accessor: Accessor::Device(0),
        protection: Protection::ReadWrite,
    };
    device.set_access(base, size, &[grant]).unwrap();
    device
        .fill(StreamId::DEFAULT, base, size, Pattern(1))
        .unwrap();
    device.synchronize().unwrap();
    assert_eq!(taken(), size);
    device.release(handle).unwrap();
    assert_eq!(taken(), size, "it is mapped");
    device.unmap(base, size).unwrap();
    assert_eq!(taken(), 0);

    let address = device.allocate(size).unwrap();
    device
        .fill(StreamId::DEFAULT, address, size, Pattern(1))
        .unwrap();
    device.free(address).unwrap();
    assert_eq!(taken(), 0);
}

#[test]
fn the_kernel_never_has_more_mappings_than_are_counted() {
    // Adjacent places, of memory that is adjacent in its file and of one piece of memory that is
    // not, mapped and unmapped in an order without order: the kernel joins and splits.
    const PLACES: usize = 24;
    let device = HostDevice::new(64 * GRANULARITY).unwrap();
    let size = PLACES as u64 * GRANULARITY;
    let base = device.reserve(size, 0).unwrap();
    let create = || {
        device
            .create(GRANULARITY, HandleProperties::default())
            .unwrap()
    };
    let adjacent = [(); PLACES].map(|()| create());
    let other = create();
    let mut mapped = [false; PLACES];
    let mut random = 1_u64;
    let mut joined = false;
    for _ in 0..2000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let place = (random >> 33) as usize % PLACES;
        let address = base + place as u64 * GRANULARITY;
        let before = device.worker.space.mappings_counted();
        if mapped[place] {
            device.unmap(address, GRANULARITY).unwrap();
            assert!(device.worker.space.mappings_counted() <= before);
        } else {
            let handle = if random >> 63 == 0 {
                adjacent[place]
            } else {
                other
            };
            device.map(address, GRANULARITY, handle).unwrap();
        }
        mapped[place] = !mapped[place];
        let counted = device.worker.space.mappings_counted();
        let kernel = mappings_over(base, base + size);
        assert!(kernel <= counted, "{kernel} of {counted}: {mapped:?}");
        joined |= kernel < counted;
    }
    assert!(joined);
    for place in (0..PLACES).filter(|&place| mapped[place]) {
        device
            .unmap(base + place as u64 * GRANULARITY, GRANULARITY)
            .unwrap();
    }
    assert_eq!(device.worker.space.mappings_counted(), 1);
}

/// Mappings of the process that meet a range.
fn mappings_over(from: u64, to: u64) -> u64 {
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            address(start) < to && address(end) > from
        })
        .count() as u64
}
