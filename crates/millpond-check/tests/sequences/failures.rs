//! Each device call of a scenario fails in turn: nothing is lost, and the same call succeeds
//! afterwards.

use std::sync::Arc;

use millpond::Pool;
use millpond::device::sim::SimDevice;
use millpond_check::{Driver, Operation, RealPool, Report, Sequence};

use super::MIB;

/// Grows, shares between streams, runs into the limit (so that it waits, moves handles and
/// refuses), trims, and destroys a stream.
fn scenario() -> Sequence {
    let allocate = |size, stream| Operation::Allocate {
        size,
        alignment: 256,
        stream,
    };
    let free = |block| Operation::Free { block };
    let share = |block, stream| Operation::Use {
        block,
        stream,
        told: true,
    };
    let operations = vec![
        allocate(40 * MIB, 0),
        allocate(1000, 1),
        allocate(3 * MIB, 1),
        share(0, 1),
        free(0),
        // Another stream, nothing ordered: waits, growth, handles moved.
        allocate(30 * MIB, 2),
        Operation::Record {
            event: 0,
            stream: 2,
        },
        Operation::Wait {
            event: 0,
            stream: 0,
        },
        share(2, 0),
        free(2),
        allocate(20 * MIB, 0),
        allocate(50 * MIB, 1),
        // Larger than what is left.
        allocate(60 * MIB, 2),
        Operation::SynchronizeStream { stream: 0 },
        free(1),
        Operation::Trim { keep: 8 * MIB },
        Operation::ReplaceStream {
            stream: 1,
            declared: true,
        },
        allocate(16 * MIB, 1),
        Operation::Synchronize,
        Operation::Trim { keep: 0 },
        allocate(48 * MIB, 0),
        // So that the end frees everything and asks for half the limit: not 3 modulo 4.
        Operation::Synchronize,
    ];
    Sequence {
        streams: 3,
        default_stream: false,
        per_thread: false,
        threads: vec![operations],
    }
}

fn run(mapping: bool, failing: Option<u64>) -> Report {
    let builder = SimDevice::builder().total_memory(512 * MIB);
    let device = builder.mapping(mapping).stream_values_recur(true).build();
    let driver = Driver::new(Arc::new(device));
    let pool = Pool::builder(driver.device()).limit(96 * MIB).build();
    if let Some(number) = failing {
        driver.fail_call(number);
    }
    match driver.run(RealPool::new(pool.expect("a pool")), &scenario()) {
        Ok(report) => report,
        Err(failed) => panic!("with call {failing:?} failing: {failed}"),
    }
}

fn every_call_fails_in_turn(mapping: bool) {
    let whole = run(mapping, None);
    assert_eq!(whole.failed_calls, 0);
    assert!(whole.calls > 40, "{whole:?}");
    let mut number = 0;
    loop {
        let report = run(mapping, Some(number));
        if report.failed_calls == 0 {
            // A failure changes what is called after it; this number is past all of them.
            break;
        }
        assert_eq!(report.failed_calls, 1);
        // What failed for that was asked again, and then had. Time has passed meanwhile, so that
        // it may be more than without the failure, never less.
        assert_eq!(
            report.allocated + report.refused,
            whole.allocated + whole.refused
        );
        assert!(
            report.allocated >= whole.allocated && report.used == whole.used,
            "with call {number} failing: {report:?}, without: {whole:?}"
        );
        number += 1;
    }
    assert!(number >= whole.calls / 2, "only {number} calls failed");
}

#[test]
fn with_mapping() {
    every_call_fails_in_turn(true);
}

#[test]
fn without_mapping() {
    every_call_fails_in_turn(false);
}
