//! Rules 1 and 2, and what is left at the end.

use crate::log::{A, B, BASE, Log, MIB, PAGE, only};
use millpond::device::{AccessGrant, Accessor, CallRecord, EventId, HandleId, Outcome, Protection};
use millpond_check::{Gap, Remaining, Rule, Violation};

#[test]
fn two_blocks_share_a_byte() {
    let log = Log::new();
    assert_eq!(log.block(BASE, 4096, A), []);
    let found = log.block(BASE + 4095, 4096, A);
    let Violation::SharedByte {
        given,
        owner,
        handle,
        offset,
        ..
    } = only(&found, Rule::OneOwner)
    else {
        panic!("{found:?}");
    };
    assert_eq!((given.address, owner.address), (BASE + 4095, BASE));
    assert_eq!((handle, offset), (HandleId(1), 4095));
    assert_eq!(log.checker.violations(), found);
}

#[test]
fn neighbours_share_nothing() {
    let log = Log::new();
    log.block(BASE, 4096, A);
    log.block(BASE + 4096, 4096, B);
    log.block(BASE + 8192, 1, A);
    log.clean();
}

#[test]
fn two_blocks_share_a_byte_through_an_alias() {
    let log = Log::new();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    log.block(BASE + PAGE, 4096, A);
    let found = log.block(BASE + 9 * PAGE + 1024, 16, A);
    let Violation::SharedByte {
        owner,
        offset,
        length,
        ..
    } = only(&found, Rule::OneOwner)
    else {
        panic!("{found:?}");
    };
    assert_eq!(owner.address, BASE + PAGE);
    assert_eq!((offset, length), (PAGE + 1024, 16));
}

#[test]
fn aliases_of_different_bytes_share_nothing() {
    let log = Log::new();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    log.block(BASE + PAGE, 4096, A);
    log.block(BASE + 9 * PAGE + 4096, 16, B);
    log.clean();
}

#[test]
fn an_address_that_moved_to_another_handle_is_other_memory() {
    let log = Log::new();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    log.block(BASE + 8 * PAGE, PAGE, A);
    // The first address gives up handle 1 and gets handle 2.
    log.unmap(BASE, 4 * PAGE);
    log.create(2, 4 * PAGE);
    log.map(BASE, 4 * PAGE, 2);
    log.block(BASE, PAGE, A);
    log.clean();
}

#[test]
fn a_handle_value_that_recurs_is_other_memory() {
    let log = Log::new();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    log.block(BASE, PAGE, A);
    log.freed(BASE);
    log.synchronize();
    log.release(1);
    // Handle 1 is still mapped twice; a new handle has its value.
    log.create(1, PAGE);
    log.map(BASE + 16 * PAGE, PAGE, 1);
    log.block(BASE, PAGE, A);
    log.block(BASE + 16 * PAGE, PAGE, A);
    log.clean();
    let found = log.block(BASE + 8 * PAGE, PAGE, A);
    only(&found, Rule::OneOwner);
}

#[test]
fn a_block_over_several_handles_owns_all_of_them() {
    let log = Log::new();
    log.create(2, PAGE);
    log.map(BASE + 4 * PAGE, PAGE, 2);
    log.map(BASE + 9 * PAGE, PAGE, 2);
    assert_eq!(log.block(BASE + 3 * PAGE, 2 * PAGE, A), []);
    let found = log.block(BASE + 10 * PAGE - 1, 1, A);
    only(&found, Rule::OneOwner);
}

#[test]
fn a_freed_block_owns_nothing_and_a_failed_free_all() {
    let log = Log::new();
    log.block(BASE, 4096, A);
    log.freed(BASE);
    log.block(BASE, 4096, A);
    let freeing = log.freed(BASE);
    assert_eq!(log.checker.free_failed(freeing), []);
    assert_eq!(log.checker.totals().live_bytes, 4096);
    only(&log.block(BASE, 8, A), Rule::OneOwner);
}

#[test]
fn a_failed_free_that_was_overtaken_is_found() {
    let log = Log::new();
    log.block(BASE, 4096, A);
    let freeing = log.freed(BASE);
    log.block(BASE, 4096, A);
    only(&log.checker.free_failed(freeing), Rule::OneOwner);
}

#[test]
fn blocks_of_no_bytes_have_addresses_of_their_own() {
    let log = Log::new();
    assert_eq!(log.block(0, 0, A), []);
    assert_eq!(log.block(0, 0, A), []);
    assert_eq!(log.block(BASE, 0, A), []);
    only(&log.block(BASE, 0, B), Rule::OneOwner);
}

#[test]
fn a_block_is_not_aligned() {
    let log = Log::new();
    let found = log.checker.allocated(BASE + 256, 16, 512, A);
    only(&found, Rule::AsAsked);
}

#[test]
fn a_block_may_be_aligned_better_than_asked() {
    let log = Log::new();
    assert_eq!(log.checker.allocated(BASE + 512, 16, 256, A), []);
    assert_eq!(log.checker.allocated(BASE + 2 * PAGE, 16, 4 * MIB, A), []);
}

#[test]
fn a_block_reaches_past_the_mapping() {
    let log = Log::new();
    assert_eq!(log.block(BASE, 4 * PAGE, A), []);
    log.freed(BASE);
    let found = log.block(BASE + PAGE, 3 * PAGE + 1, A);
    let Violation::Unusable { address, gap, .. } = only(&found, Rule::AsAsked) else {
        panic!("{found:?}");
    };
    assert_eq!((address, gap), (BASE + 4 * PAGE, Gap::Unmapped));
}

#[test]
fn a_block_has_a_hole() {
    let log = Log::new();
    log.create(2, PAGE);
    log.map(BASE + 5 * PAGE, PAGE, 2);
    let found = log.block(BASE + 3 * PAGE, 3 * PAGE, A);
    let Violation::Unusable { address, .. } = only(&found, Rule::AsAsked) else {
        panic!("{found:?}");
    };
    assert_eq!(address, BASE + 4 * PAGE);
    // The next mapping closes it.
    log.freed(BASE + 3 * PAGE);
    log.create(3, PAGE);
    log.map(BASE + 4 * PAGE, PAGE, 3);
    assert_eq!(log.block(BASE + 3 * PAGE, 3 * PAGE, A), []);
}

#[test]
fn a_mapping_needs_the_devices_own_access() {
    let log = Log::new();
    log.create(2, PAGE);
    let (address, size, handle) = (BASE + 8 * PAGE, PAGE, HandleId(2));
    log.done(&CallRecord::Map {
        address,
        size,
        handle,
    });
    let missing = |found: &[Violation]| {
        let violation = only(found, Rule::AsAsked);
        assert!(matches!(
            violation,
            Violation::Unusable {
                gap: Gap::NoAccess,
                ..
            }
        ));
    };
    missing(&log.block(address, 16, A));
    let grants = vec![AccessGrant {
        accessor: Accessor::Device(1),
        protection: Protection::ReadWrite,
    }];
    log.done(&CallRecord::SetAccess {
        address,
        size,
        grants,
    });
    missing(&log.block(address + 16, 16, A));
    log.access(address, size, Protection::Read);
    missing(&log.block(address + 32, 16, A));
    log.access(address, size, Protection::ReadWrite);
    assert_eq!(log.block(address + 48, 16, A), []);
}

#[test]
fn access_goes_with_the_mapping() {
    let log = Log::new();
    log.unmap(BASE, 4 * PAGE);
    let (address, size, handle) = (BASE, 4 * PAGE, HandleId(1));
    log.done(&CallRecord::Map {
        address,
        size,
        handle,
    });
    only(&log.block(BASE, 16, A), Rule::AsAsked);
}

#[test]
fn a_block_crosses_reservations() {
    let log = Log::new();
    log.reserve(BASE + 64 * PAGE, 64 * PAGE);
    log.create(2, PAGE);
    log.create(3, PAGE);
    log.map(BASE + 63 * PAGE, PAGE, 2);
    log.map(BASE + 64 * PAGE, PAGE, 3);
    assert_eq!(log.block(BASE + 63 * PAGE, PAGE, A), []);
    log.freed(BASE + 63 * PAGE);
    let found = log.block(BASE + 63 * PAGE, PAGE + 1, A);
    let violation = only(&found, Rule::AsAsked);
    assert!(matches!(
        violation,
        Violation::Unusable {
            gap: Gap::OutsideReservation,
            ..
        }
    ));
}

#[test]
fn a_size_that_wraps_around_is_outside() {
    let log = Log::new();
    only(&log.block(BASE, u64::MAX, A), Rule::AsAsked);
}

#[test]
fn a_failed_map_maps_nothing_and_a_failed_unmap_takes_nothing() {
    let log = Log::new();
    log.create(2, PAGE);
    let (address, size, handle) = (BASE + 8 * PAGE, PAGE, HandleId(2));
    log.failed(&CallRecord::Map {
        address,
        size,
        handle,
    });
    only(&log.block(address, 16, A), Rule::AsAsked);

    log.failed(&CallRecord::Unmap {
        address: BASE,
        size: 4 * PAGE,
    });
    assert_eq!(log.block(BASE, 4 * PAGE, A), []);
}

#[test]
fn a_call_failed_before_the_checker_saw_it_changes_nothing() {
    let log = Log::new();
    let call = CallRecord::Unmap {
        address: BASE,
        size: 4 * PAGE,
    };
    let status = millpond::device::Status::OUT_OF_MEMORY;
    let error = millpond::device::DeviceError::new(call.call(), status, String::new());
    millpond::device::Observer::after(&log.checker, &call, Outcome::Failed(&error), 0, 0);
    assert_eq!(log.block(BASE, 4 * PAGE, A), []);
}

#[test]
fn memory_without_mapping_is_followed() {
    let log = Log::empty();
    log.made(&CallRecord::Allocate { size: 1000 }, Outcome::Value(0x7000));
    assert_eq!(log.block(0x7000, 1000, A), []);
    only(&log.block(0x7000 + 999, 1, A), Rule::OneOwner);
    only(&log.block(0x7000 + 999, 2, A), Rule::AsAsked);
    assert_eq!(log.checker.totals().physical_bytes, 1000);
}

#[test]
fn what_is_left_behind_is_named() {
    let log = Log::new();
    log.create_event(EventId(7));
    log.made(&CallRecord::Allocate { size: 512 }, Outcome::Value(0x7000));
    let left = [
        Remaining::Handle(1),
        Remaining::Mapping(BASE),
        Remaining::Reservation(BASE),
        Remaining::Allocation(0x7000),
        Remaining::Event(7),
    ];
    assert_eq!(log.checker.finish(), left.map(Violation::LeftBehind));

    log.destroy_event(EventId(7));
    log.done(&CallRecord::Free { address: 0x7000 });
    log.release(1);
    assert_eq!(
        log.checker.totals().physical_bytes,
        4 * PAGE,
        "still mapped"
    );
    log.unmap(BASE, 4 * PAGE);
    let (base, size) = (BASE, 64 * PAGE);
    log.done(&CallRecord::FreeReservation { base, size });
    assert_eq!(log.checker.finish(), []);
    assert_eq!(log.checker.totals().physical_bytes, 0);
}

#[test]
fn what_failed_to_be_given_back_is_still_there() {
    let log = Log::new();
    log.create_event(EventId(7));
    log.made(&CallRecord::Allocate { size: 512 }, Outcome::Value(0x7000));
    let before = log.checker.finish();
    log.failed(&CallRecord::DestroyEvent { event: EventId(7) });
    log.failed(&CallRecord::Free { address: 0x7000 });
    log.failed(&CallRecord::Release {
        handle: HandleId(1),
    });
    log.failed(&CallRecord::Unmap {
        address: BASE,
        size: 4 * PAGE,
    });
    log.failed(&CallRecord::FreeReservation {
        base: BASE,
        size: 64 * PAGE,
    });
    assert_eq!(log.checker.finish(), before);
}

#[test]
fn a_device_that_breaks_its_contract_is_found() {
    let log = Log::new();
    let map = |address, size, handle| {
        let handle = HandleId(handle);
        log.done(&CallRecord::Map {
            address,
            size,
            handle,
        });
    };
    map(BASE + PAGE, 4 * PAGE, 1);
    map(BASE + 61 * PAGE, 4 * PAGE, 1);
    map(BASE + 8 * PAGE, 2 * PAGE, 1);
    map(BASE + 8 * PAGE, 4 * PAGE, 2);
    log.reserve(BASE + PAGE, PAGE);
    let violations = log.checker.violations();
    assert_eq!(violations.len(), 5);
    assert!(violations.iter().all(|v| v.rule() == Rule::Contract));
}
