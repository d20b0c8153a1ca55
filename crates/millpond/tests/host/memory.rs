//! What lies where, and who may touch it.

use millpond::device::{
    AccessGrant, Call, Device, Findings, Pattern, Protection, Status, StreamId, StreamOrder,
};

use super::{ACCESS, GRANULE, MIB, device, gate, handle, mapped, status, wrong_bytes};

const A: Pattern = Pattern(0x0123_4567_89ab_cdef);
const B: Pattern = Pattern(0xfedc_ba98_7654_3210);

#[test]
fn memory_without_access_fails_the_device_and_not_the_process() {
    let device = device();
    let stream = device.create_stream(StreamOrder::Independent).unwrap();
    let base = device.reserve(GRANULE, 0).unwrap();
    device.map(base, GRANULE, handle(&device, GRANULE)).unwrap();
    assert_eq!(
        status(device.read(base, &mut [0; 8])),
        Status::INVALID_VALUE
    );
    device
        .memory_info()
        .expect("a host's read is refused, and nothing more");

    let event = device.create_event().unwrap();
    let open = gate(&device, stream);
    device.fill(stream, base + 16, 32, A).unwrap();
    device.record_event(event, stream).unwrap();
    drop(open);
    let error = device.synchronize_stream(stream).unwrap_err();
    assert_eq!(error.call, Call::SynchronizeStream);
    assert_eq!(error.status, Status::ILLEGAL_ADDRESS);
    for part in [stream.to_string(), format!("{:#x}", base + 16)] {
        assert!(error.detail.contains(&part), "{error}");
    }
    // Every later call, queries too.
    assert_eq!(status(device.query_event(event)), Status::ILLEGAL_ADDRESS);
    assert_eq!(
        status(device.set_access(base, GRANULE, &ACCESS)),
        Status::ILLEGAL_ADDRESS
    );
    assert_eq!(status(device.synchronize()), Status::ILLEGAL_ADDRESS);
    assert_eq!(
        status(device.fill(stream, base, 8, A)),
        Status::ILLEGAL_ADDRESS
    );
    assert_eq!(
        status(device.destroy_stream(stream)),
        Status::ILLEGAL_ADDRESS
    );
}

#[test]
fn access_is_gone_with_the_mapping_and_reading_is_not_writing() {
    let device = device();
    let base = mapped(&device, GRANULE);
    device.write(base, &[1, 2, 3]).unwrap();
    let read_only = AccessGrant {
        protection: Protection::Read,
        ..ACCESS[0]
    };
    device.set_access(base, GRANULE, &[read_only]).unwrap();
    let mut bytes = [0; 3];
    device.read(base, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
    assert_eq!(status(device.write(base, &[0])), Status::INVALID_VALUE);
    assert_eq!(wrong_bytes(&device, base + 4, GRANULE - 4, Pattern(0)), 0);

    device.unmap(base, GRANULE).unwrap();
    device.map(base, GRANULE, handle(&device, GRANULE)).unwrap();
    assert_eq!(status(device.read(base, &mut bytes)), Status::INVALID_VALUE);
    device.fill(StreamId::DEFAULT, base, 1, A).unwrap();
    assert_eq!(status(device.synchronize()), Status::ILLEGAL_ADDRESS);
}

#[test]
fn unmapping_under_queued_work_does_not_wait_and_fails_the_device() {
    for far in [false, true] {
        let device = device();
        let base = mapped(&device, 4 * GRANULE);
        let other = mapped(&device, 4 * GRANULE);
        let stream = device.create_stream(StreamOrder::Independent).unwrap();
        let open = gate(&device, stream);
        if far {
            device.copy(stream, base, other, 4 * GRANULE).unwrap();
        } else {
            device.verify(stream, base, 8, A, &Findings::new()).unwrap();
        }
        // Would hang if it waited for the stream.
        device.unmap(base, 4 * GRANULE).unwrap();
        drop(open);
        let error = device.synchronize().unwrap_err();
        assert_eq!(error.status, Status::ILLEGAL_ADDRESS);
        assert!(error.detail.contains("nothing is mapped there"), "{error}");
    }
}

#[test]
fn unmapping_under_running_work_never_harms_the_process() {
    // Whether the fill is over before the unmapping is left to chance; both ends are defined.
    for _ in 0..20 {
        let device = device();
        let base = mapped(&device, 16 * GRANULE);
        let stream = device.create_stream(StreamOrder::Independent).unwrap();
        device.fill(stream, base, 16 * GRANULE, A).unwrap();
        device.unmap(base, 16 * GRANULE).unwrap();
        if let Err(error) = device.synchronize() {
            assert_eq!(error.status, Status::ILLEGAL_ADDRESS);
        }
    }
}

#[test]
fn patterns_begin_at_the_first_byte_of_any_range_and_are_cut_at_its_end() {
    let device = device();
    let base = mapped(&device, 2 * GRANULE);
    // Beyond the block and chunk sizes of the implementation, and not a multiple of anything.
    for (offset, size) in [(0, 1), (3, 7), (5, 8), (1, 0), (7, 16_385), (4095, MIB + 5)] {
        device
            .fill(StreamId::DEFAULT, base, 2 * GRANULE, B)
            .unwrap();
        device
            .fill(StreamId::DEFAULT, base + offset, size, A)
            .unwrap();
        assert_eq!(wrong_bytes(&device, base + offset, size, A), 0);

        let mut bytes = vec![0; size as usize + 2];
        let from = offset.saturating_sub(1);
        device.read(base + from, &mut bytes).unwrap();
        for (n, &byte) in bytes.iter().enumerate() {
            let position = from + n as u64;
            let (word, at) = if (offset..offset + size).contains(&position) {
                (A, position - offset)
            } else {
                (B, position)
            };
            assert_eq!(
                byte,
                word.0.to_le_bytes()[at as usize % 8],
                "{offset} {size} {n}"
            );
        }
    }
}

#[test]
fn verifying_counts_wrong_bytes_and_shows_a_wrong_word() {
    let device = device();
    let base = mapped(&device, GRANULE);
    device
        .fill(StreamId::DEFAULT, base + 1, MIB + 3, A)
        .unwrap();
    device.synchronize().unwrap();
    // Three bytes in the last whole word, one in the cut one.
    device.write(base + 1 + MIB - 8, &[0, 0, 0]).unwrap();
    assert_eq!(wrong_bytes(&device, base + 1, MIB + 3, A), 3);
    device.write(base + 1 + MIB + 2, &[0]).unwrap();
    let findings = Findings::new();
    device
        .verify(StreamId::DEFAULT, base + 1, MIB, A, &findings)
        .unwrap();
    device.synchronize().unwrap();
    assert_eq!(findings.wrong_bytes(), 3);
    assert_eq!(findings.found_word(), Some(A.0 & !0xff_ffff));
    assert_eq!(wrong_bytes(&device, base + 1, MIB + 3, A), 4);
}

#[test]
fn a_device_that_is_full_refuses_and_stays_usable() {
    let device = device();
    let all = handle(&device, 256 * MIB);
    let error = device.create(GRANULE, Default::default()).unwrap_err();
    assert_eq!(error.status, Status::OUT_OF_MEMORY);
    assert_eq!(status(device.allocate(1)), Status::OUT_OF_MEMORY);
    device.release(all).unwrap();
    mapped(&device, GRANULE);
}

#[test]
fn memory_the_machine_does_not_have_is_refused_by_name() {
    let device = millpond::device::HostDevice::new(1 << 60).unwrap();
    let error = device.create(1 << 50, Default::default()).unwrap_err();
    assert_eq!(error.status, Status::OUT_OF_MEMORY);
    assert!(error.detail.contains("this machine has"), "{error}");
    mapped(&device, GRANULE);
}

#[test]
fn plain_allocations_can_be_used_at_once_and_freed_once() {
    let device = device();
    let address = device.allocate(1000).unwrap();
    assert!(address.is_multiple_of(256));
    device.fill(StreamId::DEFAULT, address, 1000, A).unwrap();
    assert_eq!(wrong_bytes(&device, address, 1000, A), 0);
    assert_eq!(
        status(device.read(address + 999, &mut [0; 2])),
        Status::INVALID_VALUE
    );
    // Freeing waits for the work that is queued.
    device.fill(StreamId::DEFAULT, address, 1000, B).unwrap();
    device.free(address).unwrap();
    device.synchronize().unwrap();
    assert_eq!(status(device.free(address)), Status::INVALID_VALUE);
    let again = device.allocate(10).unwrap();
    device.fill(StreamId::DEFAULT, again, 10, A).unwrap();
    device.synchronize().unwrap();
}

#[test]
fn ranges_beyond_the_address_space_are_invalid() {
    let device = device();
    let last = u64::MAX - 7;
    let stream = StreamId::DEFAULT;
    assert_eq!(
        status(device.fill(stream, last, 16, A)),
        Status::INVALID_VALUE
    );
    assert_eq!(
        status(device.copy(stream, 0, last, 16)),
        Status::INVALID_VALUE
    );
    assert_eq!(
        status(device.read(last, &mut [0; 16])),
        Status::INVALID_VALUE
    );
    assert_eq!(
        status(device.reserve(!(GRANULE - 1), 0)),
        Status::OUT_OF_MEMORY
    );
    assert_eq!(
        status(device.map(0, GRANULE, handle(&device, GRANULE))),
        Status::INVALID_VALUE
    );
    device.synchronize().unwrap();
}
