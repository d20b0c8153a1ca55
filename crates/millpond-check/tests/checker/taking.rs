//! Rule 4.

use crate::log::{A, B, BASE, E, F, Log, PAGE, call_of, freed_on_a, in_time, only};
use millpond::device::{Call, CallRecord, HandleId, Outcome};
use millpond_check::{Rule, Violation};

#[test]
fn unmapping_under_a_live_block() {
    let log = Log::new();
    log.block(BASE + PAGE, 16, A);
    log.synchronize();
    log.unmap(BASE, 4 * PAGE);
    let violation = only(&log.checker.violations(), Rule::NotInUse);
    assert_eq!(call_of(&violation), Some(Call::Unmap));
    assert!(matches!(violation, Violation::TakenFromLive { .. }));
}

#[test]
fn unmapping_the_other_address_of_a_live_block() {
    let log = Log::new();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    log.block(BASE + PAGE, 16, A);
    log.unmap(BASE + 8 * PAGE, 4 * PAGE);
    log.clean();
}

#[test]
fn unmapping_before_the_use_is_complete() {
    let log = freed_on_a();
    log.unmap(BASE, 4 * PAGE);
    let violation = only(&log.checker.violations(), Rule::NotInUse);
    let Violation::TakenInUse {
        earlier, used_on, ..
    } = violation
    else {
        panic!("{violation}");
    };
    assert_eq!((earlier.address, used_on), (BASE, A));
}

#[test]
fn order_is_not_completion() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    in_time(&log, B);
    log.freed(BASE);
    log.query(E, true);
    log.unmap(BASE, 4 * PAGE);
    // A's use is complete, B's is not.
    let violation = only(&log.checker.violations(), Rule::NotInUse);
    assert!(matches!(
        violation,
        Violation::TakenInUse { used_on: B, .. }
    ));
}

#[test]
fn unmapping_after_completion() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    in_time(&log, B);
    log.freed(BASE);
    log.record(F, B);
    log.query(F, true);
    log.unmap(BASE, 4 * PAGE);
    log.clean();
}

#[test]
fn a_failed_query_is_not_a_completion() {
    let log = freed_on_a();
    log.record(E, A);
    log.failed(&CallRecord::QueryEvent { event: E });
    log.unmap(BASE, 4 * PAGE);
    only(&log.checker.violations(), Rule::NotInUse);
}

#[test]
fn every_use_on_every_stream_counts() {
    let log = Log::new();
    log.block(BASE, 16, A);
    log.checker.used(BASE, B);
    log.freed(BASE);
    log.synchronize_stream(A);
    log.unmap(BASE, 4 * PAGE);
    let violation = only(&log.checker.violations(), Rule::NotInUse);
    assert!(matches!(
        violation,
        Violation::TakenInUse { used_on: B, .. }
    ));
}

#[test]
fn uses_count_through_their_own_address() {
    // The bytes are used again through a second address; the first one's use is complete, the
    // second one's is not.
    let log = freed_on_a();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    log.synchronize_stream(A);
    assert_eq!(log.block(BASE + 8 * PAGE, 4096, B), []);
    log.freed(BASE + 8 * PAGE);
    log.unmap(BASE, 4 * PAGE);
    log.clean();
    log.unmap(BASE + 8 * PAGE, 4 * PAGE);
    only(&log.checker.violations(), Rule::NotInUse);
}

#[test]
fn a_later_block_at_another_address_does_not_end_the_first_ones_use() {
    // A's use through the first address is ordered before B's through the second, but the host
    // has seen neither complete.
    let log = freed_on_a();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    log.record(E, A);
    log.wait(B, E);
    assert_eq!(log.block(BASE + 8 * PAGE, 4096, B), []);
    log.clean();
    log.unmap(BASE, 4 * PAGE);
    only(&log.checker.violations(), Rule::NotInUse);
}

#[test]
fn a_mapping_remembers_the_uses_of_all_its_blocks() {
    let log = Log::new();
    log.block(BASE, 16, A);
    log.block(BASE + PAGE, 16, B);
    log.freed(BASE);
    log.freed(BASE + PAGE);
    log.block(BASE, 16, A);
    log.freed(BASE);
    log.unmap(BASE, 4 * PAGE);
    let violations = log.checker.violations();
    assert_eq!(violations.len(), 2, "{violations:?}");
}

#[test]
fn a_mapping_remembers_the_last_use_of_a_stream() {
    let log = freed_on_a();
    log.synchronize();
    log.block(BASE, 16, A);
    log.freed(BASE);
    log.unmap(BASE, 4 * PAGE);
    let violation = only(&log.checker.violations(), Rule::NotInUse);
    let Violation::TakenInUse { earlier, .. } = violation else {
        panic!("{violation}");
    };
    assert_eq!(earlier.size, 16);
}

#[test]
fn a_block_whose_memory_was_taken_leaves_the_next_mapping_alone() {
    let log = Log::new();
    log.block(BASE, 16, A);
    log.unmap(BASE, 4 * PAGE);
    log.create(2, PAGE);
    log.map(BASE, PAGE, 2);
    log.block(BASE + 16, 16, A);
    // The first block is no part of the second mapping.
    log.freed(BASE);
    log.unmap(BASE, PAGE);
    let violations = log.checker.violations();
    let owners: Vec<u64> = violations
        .iter()
        .filter_map(|violation| match violation {
            Violation::TakenFromLive { owner, .. } => Some(owner.address),
            _ => None,
        })
        .collect();
    assert_eq!(owners, [BASE, BASE + 16]);
    assert_eq!(violations.len(), 2, "{violations:?}");
}

#[test]
fn an_address_that_recurs_has_no_past() {
    let log = freed_on_a();
    log.synchronize();
    log.unmap(BASE, 4 * PAGE);
    log.map(BASE + 4 * PAGE, 4 * PAGE, 1);
    log.block(BASE + 4 * PAGE, 16, A);
    log.create(2, PAGE);
    log.map(BASE, PAGE, 2);
    log.unmap(BASE, PAGE);
    log.clean();
}

#[test]
fn releasing_under_a_live_block() {
    let log = Log::new();
    log.block(BASE, 16, A);
    log.release(1);
    let violation = only(&log.checker.violations(), Rule::NotInUse);
    assert!(matches!(
        violation,
        Violation::ReleasedUnderLive {
            handle: HandleId(1),
            ..
        }
    ));
}

#[test]
fn releasing_a_handle_that_is_still_mapped() {
    let log = freed_on_a();
    log.release(1);
    log.clean();
    log.synchronize();
    log.unmap(BASE, 4 * PAGE);
    log.clean();
}

#[test]
fn freeing_memory_in_use() {
    let log = Log::empty();
    log.made(&CallRecord::Allocate { size: 1000 }, Outcome::Value(0x7000));
    log.block(0x7000, 1000, A);
    log.freed(0x7000);
    log.done(&CallRecord::Free { address: 0x7000 });
    let violation = only(&log.checker.violations(), Rule::NotInUse);
    assert_eq!(call_of(&violation), Some(Call::Free));
}
