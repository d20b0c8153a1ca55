//! Uses that end before their block is freed.

use crate::log::{A, B, BASE, C, E, F, Log, in_time, too_early};

/// A live block of A's.
fn live() -> Log {
    let log = Log::new();
    log.create_event(E);
    log.create_event(F);
    log.block(BASE, 4096, A);
    log
}

#[test]
fn a_use_ends_at_an_event_that_was_recorded_before_the_free() {
    let log = live();
    log.record(E, A);
    assert!(log.checker.use_ends_at(BASE, A, E));
    log.freed(BASE);
    log.wait(B, E);
    in_time(&log, B);
}

#[test]
fn without_that_word_such_an_event_orders_nothing() {
    let log = live();
    log.record(E, A);
    log.freed(BASE);
    log.wait(B, E);
    too_early(&log, B);
}

#[test]
fn the_record_that_counts_is_the_last_before_the_word() {
    let log = live();
    log.record(E, A);
    assert!(log.checker.use_ends_at(BASE, A, E));
    log.record(E, C);
    log.freed(BASE);
    log.wait(B, E);
    too_early(&log, B);
}

#[test]
fn an_event_of_another_stream_ends_a_use_that_comes_before_it() {
    let log = live();
    log.record(E, A);
    log.wait(C, E);
    log.record(F, C);
    assert!(log.checker.use_ends_at(BASE, A, F));
    log.freed(BASE);
    log.wait(B, F);
    in_time(&log, B);
}

#[test]
fn a_use_that_ends_now_is_covered_by_what_is_recorded_from_now_on() {
    let log = live();
    log.record(F, A);
    assert!(log.checker.use_ended(BASE, A));
    log.record(E, A);
    log.freed(BASE);
    log.wait(B, F);
    log.wait(C, E);
    in_time(&log, C);

    let log = live();
    log.record(F, A);
    assert!(log.checker.use_ended(BASE, A));
    log.freed(BASE);
    log.wait(B, F);
    too_early(&log, B);
}

#[test]
fn a_use_ends_once_and_may_begin_again() {
    let log = live();
    assert!(!log.checker.use_ended(BASE, B));
    assert!(log.checker.use_ended(BASE, A));
    assert!(!log.checker.use_ended(BASE, A));
    assert!(log.checker.used(BASE, A));
    log.record(E, A);
    log.freed(BASE);
    log.wait(B, E);
    too_early(&log, B);
}

#[test]
fn a_block_that_was_handed_over_waits_for_both() {
    let handed_over = || {
        let log = live();
        assert!(log.checker.handed_over(BASE, B));
        log.record(E, A);
        log.freed(BASE);
        log.record(F, B);
        log
    };
    let log = handed_over();
    log.wait(C, F);
    too_early(&log, C);
    let log = handed_over();
    log.wait(C, E);
    too_early(&log, C);
    let log = handed_over();
    log.wait(C, E);
    log.wait(C, F);
    in_time(&log, C);
    // The new owner's memory, where it came after the old one.
    let log = handed_over();
    log.wait(B, E);
    in_time(&log, B);
}

#[test]
fn an_early_end_does_not_hide_a_later_use_through_the_mapping() {
    let log = live();
    log.block(BASE + 4096, 4096, A);
    log.record(E, A);
    assert!(log.checker.use_ends_at(BASE, A, E));
    log.freed(BASE + 4096);
    log.freed(BASE);
    log.query(E, true);
    log.unmap(BASE, 4 * crate::log::PAGE);
    assert_eq!(log.checker.violations().len(), 1);
}
