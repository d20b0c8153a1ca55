//! Fills, verifications and copies, to the byte.

use millpond::device::{Device, Findings, Pattern, StreamOrder};

use crate::{OTHER, PATTERN, device, wrong};

#[test]
fn every_alignment_and_length_is_filled_and_verified() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let stream = device.create_stream(StreamOrder::Independent).unwrap();
    let address = device.allocate(8192).unwrap();
    let clean = Findings::new();
    for start in 0..17 {
        for size in [
            0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 100, 4097, 8000,
        ] {
            device.fill(stream, address, 8192, OTHER).unwrap();
            device.fill(stream, address + start, size, PATTERN).unwrap();
            device
                .verify(stream, address + start, size, PATTERN, &clean)
                .unwrap();
            // Around it nothing was touched. What follows goes on in the middle of the word.
            let end = start + size;
            let after = Pattern(OTHER.0.rotate_right((end % 8 * 8) as u32));
            device
                .verify(stream, address, start, OTHER, &clean)
                .unwrap();
            device
                .verify(stream, address + end, 8192 - end, after, &clean)
                .unwrap();
            if size == 0 {
                continue;
            }
            for at in [0, size / 2, size - 1] {
                let findings = Findings::new();
                device
                    .fill(stream, address + start + at, 1, Pattern(0xee))
                    .unwrap();
                device
                    .verify(stream, address + start, size, PATTERN, &findings)
                    .unwrap();
                device.fill(stream, address + start, size, PATTERN).unwrap();
                device.synchronize_stream(stream).unwrap();
                let mut word = PATTERN.0.to_le_bytes();
                word[at as usize % 8] = 0xee;
                assert_eq!(findings.wrong_bytes(), 1, "{start} {size} {at}");
                assert_eq!(findings.found_word(), Some(u64::from_le_bytes(word)));
            }
        }
    }
    device.synchronize_stream(stream).unwrap();
    assert_eq!(clean.wrong_bytes(), 0);
    device.free(address).unwrap();
    device.destroy_stream(stream).unwrap();
}

#[test]
fn large_ranges_are_covered_to_the_last_byte() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let stream = device.create_stream(StreamOrder::Independent).unwrap();
    let size = (256 << 20) + 5;
    let address = device.allocate(size + 3).unwrap();
    device.fill(stream, address + 3, size, PATTERN).unwrap();
    assert_eq!(wrong(device, stream, address + 3, size, PATTERN), 0);
    // All bytes differ from those of the inverted pattern.
    let inverted = Pattern(!PATTERN.0);
    assert_eq!(wrong(device, stream, address + 3, size, inverted), size);
    let half = size / 2;
    device
        .fill(stream, address + 3 + half, size - half, Pattern(0))
        .unwrap();
    assert_eq!(
        wrong(device, stream, address + 3, size, PATTERN),
        size - half
    );
    device.free(address).unwrap();
    device.destroy_stream(stream).unwrap();
}

#[test]
fn copies_go_in_stream_order() {
    let Some(turn) = device() else { return };
    let device = &*turn.device;
    let stream = device.create_stream(StreamOrder::Independent).unwrap();
    let address = device.allocate(8192).unwrap();
    device.fill(stream, address, 4096, PATTERN).unwrap();
    device.copy(stream, address + 4096, address, 4096).unwrap();
    device.fill(stream, address, 4096, OTHER).unwrap();
    assert_eq!(wrong(device, stream, address + 4096, 4096, PATTERN), 0);
    device.free(address).unwrap();
    device.destroy_stream(stream).unwrap();
}

#[test]
fn many_verifications_on_many_streams_report_each_their_own() {
    let Some(turn) = device() else { return };
    let device = &turn.device;
    let address = device.allocate(1 << 20).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let stream = device.create_stream(StreamOrder::Independent).unwrap();
                let at = address + thread * 4096;
                device.fill(stream, at, 4096, Pattern(thread)).unwrap();
                let (right, wrong) = (Findings::new(), Findings::new());
                for _ in 0..5000 {
                    device
                        .verify(stream, at, 4096, Pattern(thread), &right)
                        .unwrap();
                    device
                        .verify(stream, at, 16, Pattern(!thread), &wrong)
                        .unwrap();
                }
                device.synchronize_stream(stream).unwrap();
                assert_eq!((right.wrong_bytes(), wrong.wrong_bytes()), (0, 80_000));
                assert_eq!(wrong.found_word(), Some(thread));
                device.destroy_stream(stream).unwrap();
            });
        }
    });
    device.free(address).unwrap();
}
