//! Rule 3, and that complete uses are forgotten.

use crate::log::{A, B, BASE, C, E, F, Log, PAGE, freed_on_a, in_time, only, too_early};
use millpond::device::{CallRecord, Observer, Outcome, StreamId, StreamOrder};
use millpond_check::{Rule, Violation};

#[test]
fn the_same_stream_may_reuse_at_once() {
    in_time(&freed_on_a(), A);
}

#[test]
fn another_stream_may_not() {
    let violation = too_early(&freed_on_a(), B);
    let Violation::Unordered {
        given,
        earlier,
        used_on,
        ordered,
        completed,
        ..
    } = violation
    else {
        panic!("{violation}");
    };
    assert_eq!((given.stream, earlier.stream, used_on), (B, A, A));
    assert_eq!((ordered, completed), (0, 0));
}

#[test]
fn nor_through_an_alias() {
    let log = freed_on_a();
    log.map(BASE + 8 * PAGE, 4 * PAGE, 1);
    let found = log.block(BASE + 8 * PAGE + 4095, 1, B);
    only(&found, Rule::StreamOrder);
    assert_eq!(log.block(BASE + 8 * PAGE + 4096, 1, B), []);
}

#[test]
fn a_wait_orders() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    in_time(&log, B);
}

#[test]
fn a_wait_of_another_stream_does_not() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(C, E);
    too_early(&log, B);
}

#[test]
fn a_record_before_the_free_does_not() {
    let log = Log::new();
    log.create_event(E);
    log.block(BASE, 4096, A);
    log.record(E, A);
    log.freed(BASE);
    log.wait(B, E);
    too_early(&log, B);
}

#[test]
fn a_failed_record_or_wait_does_not() {
    let log = freed_on_a();
    log.failed(&CallRecord::RecordEvent {
        event: E,
        stream: A,
    });
    log.wait(B, E);
    log.record(F, A);
    log.failed(&CallRecord::WaitEvent {
        stream: B,
        event: F,
    });
    too_early(&log, B);
}

#[test]
fn waits_order_transitively() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    log.record(F, B);
    log.wait(C, F);
    in_time(&log, C);
}

#[test]
fn a_record_before_the_wait_passes_nothing_on() {
    let log = freed_on_a();
    log.record(E, A);
    log.record(F, B);
    log.wait(B, E);
    log.wait(C, F);
    too_early(&log, C);
}

#[test]
fn a_wait_binds_to_the_record_before_it() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    // What is recorded later changes nothing for B.
    log.record(E, C);
    in_time(&log, B);
}

#[test]
fn a_rerecorded_event_stands_for_its_last_record_only() {
    let log = freed_on_a();
    log.record(E, A);
    log.record(E, C);
    log.wait(B, E);
    too_early(&log, B);
}

#[test]
fn an_event_that_was_never_recorded_orders_nothing_and_completes_nothing() {
    let log = freed_on_a();
    log.wait(B, E);
    log.query(E, true);
    too_early(&log, B);
}

#[test]
fn an_event_value_that_recurs_is_another_event() {
    let log = freed_on_a();
    log.record(E, A);
    log.destroy_event(E);
    log.create_event(E);
    log.wait(B, E);
    too_early(&log, B);
}

#[test]
fn a_wait_outlives_its_event() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    log.destroy_event(E);
    in_time(&log, B);
}

#[test]
fn a_query_completes_only_if_it_says_so() {
    let log = freed_on_a();
    log.record(E, A);
    log.query(E, false);
    log.failed(&CallRecord::QueryEvent { event: E });
    too_early(&log, B);

    let log = freed_on_a();
    log.record(E, A);
    log.query(E, true);
    in_time(&log, B);
}

#[test]
fn what_the_host_saw_complete_serves_every_stream() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    log.record(F, B);
    log.query(F, true);
    in_time(&log, C);
}

#[test]
fn synchronisation_completes() {
    for stream in [A, B] {
        let log = freed_on_a();
        log.synchronize_stream(stream);
        if stream == A {
            in_time(&log, B);
        } else {
            too_early(&log, B);
        }
    }
    let log = freed_on_a();
    log.synchronize();
    in_time(&log, B);

    let log = freed_on_a();
    log.record(E, A);
    log.done(&CallRecord::SynchronizeEvent { event: E });
    in_time(&log, B);

    let log = freed_on_a();
    log.failed(&CallRecord::Synchronize);
    too_early(&log, B);
}

#[test]
fn synchronisation_does_not_cover_what_comes_after() {
    let log = Log::new();
    log.block(BASE, 4096, A);
    log.synchronize();
    log.freed(BASE);
    too_early(&log, B);
}

#[test]
fn a_block_used_on_several_streams_waits_for_all() {
    let used = || {
        let log = Log::new();
        log.create_event(E);
        log.block(BASE, 4096, A);
        assert!(log.checker.used(BASE, B));
        assert!(log.checker.used(BASE, C));
        log.freed(BASE);
        log
    };
    // A itself is not ordered after the uses on B and C.
    let log = used();
    assert_eq!(log.block(BASE, 4096, A).len(), 2);

    let log = used();
    log.synchronize_stream(B);
    too_early(&log, A);

    let log = used();
    log.synchronize_stream(B);
    log.record(E, C);
    log.wait(A, E);
    in_time(&log, A);
}

#[test]
fn a_use_of_no_block_is_told() {
    let log = Log::new();
    log.block(BASE, 4096, A);
    assert!(!log.checker.used(BASE + 1, B));
    assert!(log.checker.freeing(BASE + 1).is_none());
}

#[test]
fn a_stream_value_that_recurs_is_another_stream() {
    let log = Log::new();
    log.create_stream(A);
    log.block(BASE, 4096, A);
    log.freed(BASE);
    log.destroy_stream(A);
    log.create_stream(A);
    // The old stream's work may still run.
    too_early(&log, A);
}

#[test]
fn a_stream_that_failed_to_go_is_the_same_stream() {
    let log = Log::new();
    log.create_stream(A);
    log.block(BASE, 4096, A);
    log.freed(BASE);
    log.failed(&CallRecord::DestroyStream { stream: A });
    in_time(&log, A);
}

#[test]
fn an_event_recorded_before_the_stream_goes_covers_its_uses() {
    let log = Log::new();
    log.create_stream(A);
    log.create_event(E);
    log.block(BASE, 4096, A);
    log.record(E, A);
    log.destroy_stream(A);
    // The block is freed when its stream is gone: its uses were launched before.
    log.freed(BASE);
    log.wait(B, E);
    in_time(&log, B);
}

#[test]
fn a_stream_that_ends_needs_no_event_after_the_frees() {
    for ends in [true, false] {
        let log = Log::new();
        log.create_stream(A);
        log.create_event(E);
        log.block(BASE, 4096, A);
        if ends {
            log.checker.stream_ends(A);
        }
        log.record(E, A);
        log.freed(BASE);
        log.destroy_stream(A);
        log.query(E, true);
        if ends {
            in_time(&log, B);
        } else {
            too_early(&log, B);
        }
    }
}

#[test]
fn uses_of_a_destroyed_stream_complete_with_the_device() {
    let log = Log::new();
    log.create_stream(A);
    log.block(BASE, 4096, A);
    log.destroy_stream(A);
    log.freed(BASE);
    log.synchronize();
    in_time(&log, B);
}

#[test]
fn a_block_outlives_its_stream_and_the_next_one_of_that_value() {
    let log = Log::new();
    log.create_stream(A);
    log.block(BASE, 4096, A);
    log.destroy_stream(A);
    log.synchronize();
    // All of the old stream is complete, so its place may be taken; the new stream's order is not
    // the old block's.
    log.create_stream(B);
    log.freed(BASE);
    in_time(&log, C);
}

#[test]
fn a_new_stream_inherits_no_order() {
    let log = Log::new();
    log.create_stream(A);
    log.create_event(E);
    log.synchronize();
    log.destroy_stream(A);
    log.create_stream(B);
    log.block(BASE, 4096, B);
    log.freed(BASE);
    too_early(&log, C);
}

#[test]
fn a_new_stream_inherits_no_wait() {
    let log = freed_on_a();
    log.record(E, A);
    log.create_stream(B);
    log.synchronize_stream(B);
    log.wait(B, E);
    log.destroy_stream(B);
    log.create_stream(B);
    too_early(&log, B);
}

#[test]
fn a_query_that_another_record_overtakes_completes_what_both_cover() {
    let query = CallRecord::QueryEvent { event: E };
    // Whether the query met the record on C or that on A, nobody knows.
    for (first, then) in [(C, A), (A, C)] {
        let log = freed_on_a();
        log.record(E, first);
        log.checker
            .before(&query)
            .expect("the checker fails no call");
        std::thread::scope(|scope| {
            scope.spawn(|| log.record(E, then));
        });
        log.checker.after(&query, Outcome::Completed(true), 0, 0);
        too_early(&log, B);
    }
    let log = freed_on_a();
    log.record(E, A);
    log.checker
        .before(&query)
        .expect("the checker fails no call");
    std::thread::scope(|scope| {
        scope.spawn(|| log.record(E, A));
    });
    log.checker.after(&query, Outcome::Completed(true), 0, 0);
    in_time(&log, B);
}

#[test]
fn the_legacy_stream_has_two_names_and_per_thread_streams_one() {
    let log = Log::new();
    log.block(BASE, 4096, StreamId::DEFAULT);
    log.freed(BASE);
    in_time(&log, StreamId::LEGACY);

    let log = Log::new();
    log.block(BASE, 4096, StreamId::PER_THREAD);
    log.freed(BASE);
    std::thread::scope(|scope| {
        scope.spawn(|| too_early(&log, StreamId::PER_THREAD));
    });
}

#[test]
fn the_legacy_stream_comes_after_the_streams_ordered_with_it() {
    let freed_on = |order| {
        let log = Log::new();
        log.create_event(E);
        log.made(&CallRecord::CreateStream { order }, Outcome::Value(A.0));
        log.block(BASE, 4096, A);
        log.freed(BASE);
        // The legacy stream must have been seen to be known.
        log.record(E, StreamId::DEFAULT);
        log
    };
    in_time(&freed_on(StreamOrder::WithLegacy), StreamId::DEFAULT);
    too_early(&freed_on(StreamOrder::Independent), StreamId::DEFAULT);
    // The record stands for the stream's work as well.
    let log = freed_on(StreamOrder::WithLegacy);
    log.query(E, true);
    in_time(&log, B);
}

#[test]
fn the_streams_ordered_with_the_legacy_stream_come_after_it() {
    for (order, ordered) in [
        (StreamOrder::WithLegacy, true),
        (StreamOrder::Independent, false),
    ] {
        let log = Log::new();
        log.made(&CallRecord::CreateStream { order }, Outcome::Value(A.0));
        log.block(BASE, 4096, StreamId::DEFAULT);
        log.freed(BASE);
        if ordered {
            in_time(&log, A);
        } else {
            too_early(&log, A);
        }
    }
}

#[test]
fn reuse_hides_no_earlier_use() {
    let log = freed_on_a();
    log.record(E, A);
    log.wait(B, E);
    in_time(&log, B);
    log.freed(BASE);
    // C waits for B's use, and with it for A's.
    log.record(F, B);
    log.wait(C, F);
    in_time(&log, C);
}

#[test]
fn each_part_of_a_block_keeps_its_own_past() {
    let log = Log::new();
    log.block(BASE, 4096, A);
    log.block(BASE + 4096, 4096, B);
    log.freed(BASE);
    log.freed(BASE + 4096);
    // One block over both: A is ordered after its own half only.
    let found = log.block(BASE + 1024, 6144, A);
    let violation = only(&found, Rule::StreamOrder);
    let Violation::Unordered {
        used_on,
        offset,
        length,
        ..
    } = violation
    else {
        panic!("{violation}");
    };
    assert_eq!((used_on, offset, length), (B, 4096, 3072));
    // What the block left over is still A's and B's.
    only(&log.block(BASE, 1024, B), Rule::StreamOrder);
    assert_eq!(log.block(BASE + 7168, 1024, B), []);
}

#[test]
fn complete_uses_are_forgotten() {
    let log = Log::empty();
    log.reserve(BASE, 1 << 40);
    log.create(1, 1 << 36);
    log.map(BASE, 1 << 36, 1);
    log.block(BASE, 4096, A);
    for round in 0..100_000_u64 {
        // Never the same bytes again.
        let address = BASE + (round + 1) * 4096;
        log.block(address, 16, if round % 2 == 0 { A } else { B });
        log.freed(address);
        if round % 100 == 0 {
            log.synchronize();
        }
    }
    log.clean();
    assert!(log.checker.totals().records_kept < 10_000);
    // What is live, or not complete, is not.
    only(&log.block(BASE, 1, A), Rule::OneOwner);
    only(&log.block(BASE + 100_000 * 4096, 1, A), Rule::StreamOrder);
}

#[test]
fn dead_streams_are_forgotten() {
    // Each round makes, uses and destroys a stream; were their clocks kept, this would take
    // minutes, and the memory would grow with the square of the rounds.
    let log = Log::new();
    log.create_event(E);
    for round in 0..20_000_u64 {
        let stream = StreamId(0x1000 + round);
        log.create_stream(stream);
        assert_eq!(log.block(BASE, 4096, stream), []);
        log.freed(BASE);
        log.record(E, stream);
        log.destroy_stream(stream);
        log.query(E, true);
    }
    log.clean();
}
