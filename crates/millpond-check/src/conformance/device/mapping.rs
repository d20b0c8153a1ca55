//! Rules 1 to 8: reservations, handles and mappings.

use millpond::device::{HandleProperties, Protection, Status, StreamId};

use super::{MIB, OTHER, PATTERN, refused};
use crate::conformance::{Fixture, Outcome, Skipped};

const INVALID: Status = Status::INVALID_VALUE;

/// Rule 1. DRV `cuMemCreate`: the size "must be a multiple of" the granularity; `cuMemMap`: the
/// same for the address and the size.
pub(super) fn sizes_and_places_are_multiples_of_the_granularity(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    for size in [0, 1, 64 << 10, unit - 1, unit + 4096] {
        assert_eq!(
            refused(device.create(size, HandleProperties::default())),
            INVALID,
            "{size}"
        );
    }
    let base = device.reserve(2 * unit, 0).unwrap();
    let handle = fixture.handle(unit);
    assert_eq!(refused(device.map(base + 4096, unit, handle)), INVALID);
    device.map(base, unit, handle).unwrap();
    device.unmap(base, unit).unwrap();
    device.release(handle).unwrap();
    device.free_reservation(base, 2 * unit).unwrap();
    Ok(())
}

/// Rule 2. DRV `cuMemMap`: "offset ... currently must be zero". MEASURED: another size than the
/// handle's gives not supported (801).
pub(super) fn a_handle_is_mapped_whole(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let base = device.reserve(3 * unit, 0).unwrap();
    let handle = fixture.handle(2 * unit);
    assert_eq!(
        refused(device.map(base, unit, handle)),
        Status::NOT_SUPPORTED
    );
    assert_eq!(
        refused(device.map(base, 3 * unit, handle)),
        Status::NOT_SUPPORTED
    );
    device.map(base, 2 * unit, handle).unwrap();
    device.unmap(base, 2 * unit).unwrap();
    device.release(handle).unwrap();
    device.free_reservation(base, 3 * unit).unwrap();
    Ok(())
}

/// Rule 3. DRV `cuMemMap`: invalid value (1) if the range is not inside one reservation. MEASURED:
/// the driver (580.159) does not refuse one that reaches beyond it, nor one that was freed before.
pub(super) fn a_mapping_lies_inside_one_reservation(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let base = device.reserve(2 * unit, 0).unwrap();
    let handle = fixture.handle(2 * unit);
    let beyond = device.map(base + unit, 2 * unit, handle);
    if fixture.strict("a mapping beyond its reservation", beyond, INVALID) {
        device.unmap(base + unit, 2 * unit).unwrap();
    }
    device.free_reservation(base, 2 * unit).unwrap();
    let freed = device.map(base, 2 * unit, handle);
    if fixture.strict("a mapping into a freed reservation", freed, INVALID) {
        device.unmap(base, 2 * unit).unwrap();
    }
    device.release(handle).unwrap();
    Ok(())
}

/// Rule 3. DRV `cuMemMap`: invalid value (1) if something is mapped there.
pub(super) fn a_mapping_lies_over_no_other(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let base = device.reserve(3 * unit, 0).unwrap();
    let (one, two) = (fixture.handle(unit), fixture.handle(2 * unit));
    device.map(base + unit, unit, one).unwrap();
    for (address, size, handle) in [
        (base + unit, unit, one),
        (base, 2 * unit, two),
        (base + unit, 2 * unit, two),
    ] {
        assert_eq!(refused(device.map(address, size, handle)), INVALID);
    }
    device.map(base, unit, one).unwrap();
    device.map(base + 2 * unit, unit, one).unwrap();
    device.unmap(base, 3 * unit).unwrap();
    device.free_reservation(base, 3 * unit).unwrap();
    device.release(one).unwrap();
    device.release(two).unwrap();
    Ok(())
}

/// Rule 4. DRV `cuMemSetAccess`: the range must be whole mappings, and mapped all over.
pub(super) fn access_covers_whole_mappings_without_holes(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let base = device.reserve(5 * unit, 0).unwrap();
    let (one, two) = (fixture.handle(unit), fixture.handle(2 * unit));
    device.map(base, 2 * unit, two).unwrap();
    device.map(base + 2 * unit, unit, one).unwrap();
    device.map(base + 4 * unit, unit, one).unwrap();
    for (page, pages) in [(0, 1), (1, 1), (1, 2), (0, 4), (0, 5), (3, 1)] {
        let range = fixture.grant(base + page * unit, pages * unit, Protection::ReadWrite);
        let what = format!("access to {pages} pages from page {page}");
        fixture.strict(&what, range, INVALID);
    }
    fixture
        .grant(base, 3 * unit, Protection::ReadWrite)
        .unwrap();
    device
        .fill(StreamId::DEFAULT, base, 3 * unit, PATTERN)
        .unwrap();
    device.synchronize().unwrap();
    device.unmap(base, 3 * unit).unwrap();
    device.unmap(base + 4 * unit, unit).unwrap();
    device.free_reservation(base, 5 * unit).unwrap();
    device.release(one).unwrap();
    device.release(two).unwrap();
    Ok(())
}

/// Rule 5. DRV `cuMemUnmap`: the range must be one or more whole mappings, with no gap. MEASURED:
/// half of one gives invalid value (1).
pub(super) fn unmapping_takes_whole_mappings(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let range = fixture.mapped(&[2 * unit, unit, unit]);
    for (page, pages) in [(0, 1), (1, 1), (1, 2)] {
        let part = device.unmap(range.base + page * unit, pages * unit);
        assert_eq!(refused(part), INVALID, "{pages} pages from page {page}");
    }
    // All are still whole, and several go at once.
    range.take_down();
    Ok(())
}

/// Rule 5. MEASURED: unmapping takes 27 us while a kernel of 100 ms runs. One address goes while
/// work through another of the same handle has not begun, which it does not disturb.
pub(super) fn unmapping_does_not_wait(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let first = fixture.mapped(&[unit]);
    let second = fixture.mapped_of(first.handles.clone());
    device.fill(stream, second.base, unit, OTHER).unwrap();
    device.synchronize_stream(stream).unwrap();

    let hold = fixture.hold(stream);
    device.fill(stream, first.base, unit, PATTERN).unwrap();
    let end = fixture.recorded(stream);
    // Would hang if it waited for the stream.
    second.unmap();
    assert!(!device.query_event(end).unwrap());
    drop(hold);
    assert_eq!(fixture.wrong(stream, first.base, unit, PATTERN), 0);
    first.take_down();
    device.destroy_event(end).unwrap();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Rule 6. GUIDE, virtual aliasing: between ordered operations, all addresses show the same bytes.
pub(super) fn addresses_of_one_handle_are_one_memory(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let (writer, reader) = (fixture.stream(), fixture.stream());
    let first = fixture.mapped(&[unit]);
    let second = fixture.mapped_of(first.handles.clone());
    device.fill(writer, first.base, unit, PATTERN).unwrap();
    assert_eq!(fixture.wrong(writer, second.base, unit, PATTERN), 0);
    if fixture.has_bytes() {
        assert_eq!(fixture.wrong(writer, second.base, unit, OTHER), unit);
    }
    // Across streams, ordered by an event.
    device.fill(writer, second.base, unit, OTHER).unwrap();
    let written = fixture.recorded(writer);
    device.wait_event(reader, written).unwrap();
    assert_eq!(fixture.wrong(reader, first.base, unit, OTHER), 0);
    device.destroy_event(written).unwrap();
    second.unmap();
    first.take_down();
    device.destroy_stream(writer).unwrap();
    device.destroy_stream(reader).unwrap();
    Ok(())
}

/// Rule 6, within one range.
pub(super) fn one_handle_stands_twice_in_one_reservation(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let handle = fixture.handle(unit);
    let range = fixture.mapped_of(vec![(handle, unit), (handle, unit)]);
    let stream = StreamId::DEFAULT;
    device.fill(stream, range.base, unit, PATTERN).unwrap();
    assert_eq!(fixture.wrong(stream, range.base, 2 * unit, PATTERN), 0);
    range.unmap();
    device.release(handle).unwrap();
    Ok(())
}

/// Rule 6. MEASURED: 20,000 addresses of one handle stand at once.
pub(super) fn many_addresses_of_one_handle_come_and_go(fixture: &Fixture) -> Outcome {
    const ADDRESSES: u64 = 200;
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let handle = fixture.handle(unit);
    let base = device.reserve(ADDRESSES * unit, 0).unwrap();
    let free = device.memory_info().unwrap().free;
    let patterns = [PATTERN, OTHER];
    for number in 0..ADDRESSES {
        let address = base + number * unit;
        device.map(address, unit, handle).unwrap();
        fixture.grant(address, unit, Protection::ReadWrite).unwrap();
        let pattern = patterns[number as usize % 2];
        device.fill(stream, address, 4096, pattern).unwrap();
        assert_eq!(fixture.wrong(stream, base, 4096, pattern), 0);
    }
    // The memory counts once; page tables take some on a GPU.
    assert!(device.memory_info().unwrap().free + 64 * MIB >= free);
    for number in (0..ADDRESSES).rev() {
        device.unmap(base + number * unit, unit).unwrap();
    }
    device.free_reservation(base, ADDRESSES * unit).unwrap();
    device.release(handle).unwrap();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Rule 7. DRV `cuMemRelease`: the memory lives until its last mapping is gone.
pub(super) fn a_released_handle_lives_on_while_mapped(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let mut range = fixture.mapped(&[unit, 2 * unit]);
    device
        .fill(stream, range.base, range.size, PATTERN)
        .unwrap();
    device.synchronize_stream(stream).unwrap();
    range.release_handles();
    assert_eq!(fixture.wrong(stream, range.base, range.size, PATTERN), 0);
    device.fill(stream, range.base, range.size, OTHER).unwrap();
    assert_eq!(fixture.wrong(stream, range.base, range.size, OTHER), 0);
    range.take_down();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Rule 8. DRV `cuMemAddressFree`: the address and size "from a previous" reserve; invalid value
/// (1) otherwise, and while something is mapped there.
pub(super) fn a_reservation_is_freed_as_it_was_made(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let base = device.reserve(4 * unit, 0).unwrap();
    for (address, size) in [(base, unit), (base + unit, 3 * unit), (base, 8 * unit)] {
        assert_eq!(refused(device.free_reservation(address, size)), INVALID);
    }
    let handle = fixture.handle(unit);
    device.map(base + 3 * unit, unit, handle).unwrap();
    assert_eq!(refused(device.free_reservation(base, 4 * unit)), INVALID);
    device.unmap(base + 3 * unit, unit).unwrap();
    device.release(handle).unwrap();
    device.free_reservation(base, 4 * unit).unwrap();
    assert_eq!(refused(device.free_reservation(base, 4 * unit)), INVALID);
    Ok(())
}

/// DRV `cuMemAddressReserve`: "alignment of the reserved virtual address range".
pub(super) fn reservations_are_aligned_as_asked(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    for alignment in [0, 1, unit, 32 * unit, 1 << 30] {
        let base = device.reserve(unit, alignment).unwrap();
        assert!(base.is_multiple_of(alignment.max(unit)), "{base:#x}");
        device.free_reservation(base, unit).unwrap();
    }
    Ok(())
}

/// Rule 4. DRV `cuMemSetAccess`: one call covers several mappings; what lies next to each other is
/// one range for every operation.
pub(super) fn a_stitched_range_is_one_range(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let range = fixture.mapped(&[unit, 3 * unit, unit]);
    let (start, size) = (range.base + 1, range.size - 2);
    device.fill(stream, start, size, PATTERN).unwrap();
    assert_eq!(fixture.wrong(stream, start, size, PATTERN), 0);
    range.take_down();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Rule 6: bytes belong to handles, not to addresses.
pub(super) fn bytes_follow_their_handles(fixture: &Fixture) -> Outcome {
    fixture.needs_bytes()?;
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = StreamId::DEFAULT;
    let range = fixture.mapped(&[unit, 3 * unit, 2 * unit]);
    let total = range.size;
    device.fill(stream, range.base, total, PATTERN).unwrap();
    device.fill(stream, range.base, unit, OTHER).unwrap();
    assert_eq!(fixture.wrong(stream, range.base, total, PATTERN), unit);
    // The handle that was first comes last.
    let mut handles = range.unmap();
    handles.rotate_left(1);
    let range = fixture.mapped_of(handles);
    let last = range.base + total - unit;
    assert_eq!(fixture.wrong(stream, range.base, total - unit, PATTERN), 0);
    assert_eq!(fixture.wrong(stream, last, unit, OTHER), 0);
    range.take_down();
    Ok(())
}

/// DRV: not supported (801) from every call of virtual memory management where the device lacks
/// it.
pub(super) fn without_mapping_each_call_says_so(fixture: &Fixture) -> Outcome {
    if fixture.needs_mapping().is_ok() {
        return Err(Skipped("the device can map".into()));
    }
    let device = fixture.device();
    let unit = device.capabilities().granularity;
    assert_eq!(refused(device.reserve(unit, 0)), Status::NOT_SUPPORTED);
    let created = device.create(unit, HandleProperties::default());
    assert_eq!(refused(created), Status::NOT_SUPPORTED);
    Ok(())
}
