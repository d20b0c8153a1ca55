//! What happens to those who touch what they may not. On a GPU such a fault ends the process's
//! use of the device, so each case has a process of its own there.

use millpond::device::{Device, Protection, Status, StreamId};

use super::{OTHER, PATTERN, refused};
use crate::conformance::{Fixture, Kind, Outcome, Skipped};

/// Rule 4. DRV `cuMemMap`: "the caller must also update access permissions ... with
/// cuMemSetAccess". Rule 10. DRV `cuEventQuery`: may return errors of earlier asynchronous work.
pub(super) fn access_is_needed(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let base = device.reserve(unit, 0).unwrap();
    device.map(base, unit, fixture.handle(unit)).unwrap();
    touch(fixture, stream, base);
    Ok(())
}

/// Rule 4: access goes with the mapping, and a new mapping at the same address has none.
pub(super) fn access_is_needed_again_after_a_new_mapping(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let range = fixture.mapped(&[unit]);
    device.fill(stream, range.base, unit, PATTERN).unwrap();
    device.synchronize_stream(stream).unwrap();
    device.unmap(range.base, unit).unwrap();
    device.map(range.base, unit, range.handles[0].0).unwrap();
    touch(fixture, stream, range.base);
    Ok(())
}

/// Rule 4. DRV `CU_MEM_ACCESS_FLAGS_PROT_READ`: "make the address range read accessible".
pub(super) fn what_may_only_be_read_is_not_written(fixture: &Fixture) -> Outcome {
    let unit = fixture.needs_mapping()?;
    let device = fixture.device();
    let stream = fixture.stream();
    let range = fixture.mapped(&[unit]);
    device.fill(stream, range.base, unit, PATTERN).unwrap();
    device.synchronize_stream(stream).unwrap();
    match fixture.grant(range.base, unit, Protection::Read) {
        Err(error) if fixture.kind() == Kind::Cuda => {
            let reason = format!("the driver does not make it read-only: {error}");
            return Err(Skipped(reason));
        }
        granted => granted.unwrap(),
    }
    assert_eq!(fixture.wrong(stream, range.base, unit, PATTERN), 0);
    touch(fixture, stream, range.base);
    Ok(())
}

/// DRV `CUDA_ERROR_ILLEGAL_ADDRESS`: "this leaves the process in an inconsistent state and any
/// further CUDA work will return the same error".
pub(super) fn a_fault_loses_the_device(fixture: &Fixture) -> Outcome {
    let device = fixture.device();
    let (stream, other) = (fixture.stream(), fixture.stream());
    // Nothing was ever there.
    touch(fixture, stream, 0x1000);
    for result in [
        device.fill(other, 0x1000, 8, OTHER),
        device.synchronize_stream(other),
        device.synchronize(),
        device.memory_info().map(drop),
        device.allocate(256).map(drop),
        device.create_event().map(drop),
    ] {
        assert_eq!(refused(result), Status::ILLEGAL_ADDRESS);
    }
    Ok(())
}

/// Lets a stream write where it may not, and hears of it.
fn touch(fixture: &Fixture, stream: StreamId, address: u64) {
    let device: &dyn Device = &**fixture.device();
    let event = device.create_event().unwrap();
    let hold = fixture.hold(stream);
    // Queued behind other work, it is not found out yet.
    device.fill(stream, address, 64, OTHER).unwrap();
    device.record_event(event, stream).unwrap();
    assert!(!device.query_event(event).unwrap());
    drop(hold);
    let synchronized = refused(device.synchronize_stream(stream));
    assert_eq!(synchronized, Status::ILLEGAL_ADDRESS);
    assert!(synchronized.is_sticky());
    // Rule 10: what a query says now is no completion.
    assert!(refused(device.query_event(event)).is_sticky());
}
