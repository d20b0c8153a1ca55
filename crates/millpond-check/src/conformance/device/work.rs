//! Fills, verifications and copies, to the byte.

use std::sync::Arc;
use std::thread;

use millpond::device::{Findings, Pattern, Status, StreamId};

use super::{MIB, OTHER, PATTERN, refused};
use crate::conformance::{Fixture, Outcome};

/// [`Device::fill`](millpond::device::Device::fill): the pattern begins at the range's first byte,
/// the last repetition is cut; [`Device::verify`](millpond::device::Device::verify): each wrong
/// byte counts once.
pub(super) fn every_alignment_and_length_is_filled_and_verified(fixture: &Fixture) -> Outcome {
    fixture.needs_bytes()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let address = device.allocate(8192).unwrap();
    let clean = Findings::new();
    for start in 0..17 {
        for size in [
            0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 100, 4097, 8000,
        ] {
            device.fill(stream, address, 8192, OTHER).unwrap();
            device.fill(stream, address + start, size, PATTERN).unwrap();
            let verify = |from: u64, length: u64, pattern: Pattern, findings: &Arc<Findings>| {
                device
                    .verify(stream, address + from, length, pattern, findings)
                    .unwrap();
            };
            verify(start, size, PATTERN, &clean);
            // Around it nothing was touched. What follows goes on in the middle of the word.
            let end = start + size;
            let after = Pattern(OTHER.0.rotate_right((end % 8 * 8) as u32));
            verify(0, start, OTHER, &clean);
            verify(end, 8192 - end, after, &clean);
            if size == 0 {
                continue;
            }
            for at in [0, size / 2, size - 1] {
                let findings = Findings::new();
                device
                    .fill(stream, address + start + at, 1, Pattern(0xee))
                    .unwrap();
                verify(start, size, PATTERN, &findings);
                device.fill(stream, address + start, size, PATTERN).unwrap();
                device.synchronize_stream(stream).unwrap();
                assert_eq!(findings.wrong_bytes(), 1, "{start} {size} {at}");
                // Of a word that is cut, only the wrong byte must be from memory.
                let word = findings.found_word().unwrap().to_le_bytes();
                assert_eq!(word[at as usize % 8], 0xee);
            }
        }
    }
    device.synchronize_stream(stream).unwrap();
    assert_eq!(clean.wrong_bytes(), 0);
    device.free(address).unwrap();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// The same for ranges larger than anything an implementation cuts its work into.
pub(super) fn large_ranges_are_covered_to_the_last_byte(fixture: &Fixture) -> Outcome {
    fixture.needs_bytes()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let size = 64 * MIB + 5;
    let address = device.allocate(size + 3).unwrap();
    let start = address + 3;
    device.fill(stream, start, size, PATTERN).unwrap();
    assert_eq!(fixture.wrong(stream, start, size, PATTERN), 0);
    // All bytes differ from those of the inverted pattern.
    let inverted = Pattern(!PATTERN.0);
    assert_eq!(fixture.wrong(stream, start, size, inverted), size);
    let half = size / 2;
    device
        .fill(stream, start + half, size - half, Pattern(0))
        .unwrap();
    assert_eq!(fixture.wrong(stream, start, size, PATTERN), size - half);
    device.free(address).unwrap();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// DRV `cuMemcpyDtoDAsync`: in stream order; over handles that lie next to each other.
pub(super) fn copies_move_bytes_across_handles(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let range = fixture.mapped(&[unit, unit, unit, unit]);
    let (source, target) = (
        range.base + unit / 2 + 3,
        range.base + 2 * unit + unit / 2 + 5,
    );
    let size = unit + 17;
    device.fill(stream, range.base, range.size, OTHER).unwrap();
    device.fill(stream, source, size, PATTERN).unwrap();
    device.copy(stream, target, source, size).unwrap();
    device.fill(stream, source, size, OTHER).unwrap();
    assert_eq!(fixture.wrong(stream, target, size, PATTERN), 0);
    if fixture.has_bytes() {
        let first = fixture.wrong(stream, target - 1, 1, Pattern(PATTERN.0 >> 56));
        let last = fixture.wrong(stream, target + size, 1, Pattern(PATTERN.0 >> 8));
        assert_eq!((first, last), (1, 1), "nothing around it");
    }
    range.take_down();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Many verifications at once, on streams of several threads.
pub(super) fn many_verifications_report_each_their_own(fixture: &Fixture) -> Outcome {
    fixture.needs_bytes()?;
    let device = fixture.device();
    let address = device.allocate(MIB).unwrap();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let stream = fixture.stream();
                let at = address + thread * 4096;
                device.fill(stream, at, 4096, Pattern(thread)).unwrap();
                let (right, wrong) = (Findings::new(), Findings::new());
                for _ in 0..2000 {
                    device
                        .verify(stream, at, 4096, Pattern(thread), &right)
                        .unwrap();
                    device
                        .verify(stream, at, 16, Pattern(!thread), &wrong)
                        .unwrap();
                }
                device.synchronize_stream(stream).unwrap();
                assert_eq!((right.wrong_bytes(), wrong.wrong_bytes()), (0, 32_000));
                assert_eq!(wrong.found_word(), Some(thread));
                device.destroy_stream(stream).unwrap();
            });
        }
    });
    device.free(address).unwrap();
    Ok(())
}

/// A range must end within the address space: invalid value (1), and nothing is lost.
pub(super) fn ranges_beyond_the_address_space_are_invalid(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let (stream, last) = (StreamId::DEFAULT, u64::MAX - 7);
    let filled = device.fill(stream, last, 16, PATTERN);
    assert_eq!(refused(filled), Status::INVALID_VALUE);
    let verified = device.verify(stream, last, 16, PATTERN, &Findings::new());
    assert_eq!(refused(verified), Status::INVALID_VALUE);
    device.synchronize().unwrap();
    Ok(())
}

/// Work on no bytes touches nothing, wherever it points.
pub(super) fn no_bytes_are_no_access(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let stream = StreamId::DEFAULT;
    for address in [0, 0x1000, u64::MAX] {
        device.fill(stream, address, 0, PATTERN).unwrap();
        let findings = Findings::new();
        device
            .verify(stream, address, 0, PATTERN, &findings)
            .unwrap();
    }
    device.synchronize().unwrap();
    Ok(())
}
