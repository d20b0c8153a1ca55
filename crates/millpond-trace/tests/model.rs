//! `Trace::validate` finds every broken rule, and the sums are right.

use millpond_trace::{Format, Op, ReservedAction, ReservedStep, Step, Trace, TraceRule};

fn trace(ops: &[Op]) -> Trace {
    let allocs = ops
        .iter()
        .filter(|op| matches!(op, Op::Alloc { .. }))
        .count();
    Trace {
        name: "made".to_owned(),
        format: Format::OrderedCsv,
        ordered: true,
        streams: vec!["0".to_owned(), "1".to_owned()],
        block_count: allocs as u32,
        event_count: u32::from(ops.iter().any(|op| matches!(op, Op::Record { .. }))),
        steps: ops.iter().map(|&op| Step { host_ns: 0, op }).collect(),
        reserved: Vec::new(),
        failures: Vec::new(),
        addresses: Vec::new(),
        sites: Vec::new(),
        block_sites: Vec::new(),
        notes: Vec::new(),
    }
}

fn alloc(block: u32, size: u64) -> Op {
    Op::Alloc {
        block,
        size,
        stream: 0,
    }
}

fn free(block: u32) -> Op {
    Op::Free {
        block,
        stream: 0,
        device_ns: None,
    }
}

const USE: Op = Op::Use {
    block: 0,
    stream: 1,
};
const USE_END: Op = Op::UseEnd {
    block: 0,
    stream: 1,
    device_ns: None,
};
const WAIT: Op = Op::Wait {
    event: 0,
    stream: 1,
};

fn record(event: u32) -> Op {
    Op::Record {
        event,
        stream: 0,
        device_ns: None,
    }
}

#[test]
fn a_valid_trace_passes() {
    let ops = [
        alloc(0, 5),
        USE,
        USE,
        USE_END,
        record(0),
        WAIT,
        record(0),
        free(0),
        alloc(1, 0),
    ];
    assert_eq!(trace(&ops).validate(), Ok(()));
    assert_eq!(trace(&[]).validate(), Ok(()));
}

#[test]
fn every_broken_rule_is_found_at_its_step() {
    for (ops, step, rule) in [
        (&[alloc(1, 5)][..], 0, TraceRule::BlockNotNext(1)),
        (&[alloc(0, 5), alloc(0, 5)], 1, TraceRule::BlockNotNext(0)),
        (&[free(0)], 0, TraceRule::BlockNotLive(0)),
        (
            &[alloc(0, 5), free(0), free(0)],
            2,
            TraceRule::BlockNotLive(0),
        ),
        (&[alloc(0, 5), free(0), USE], 2, TraceRule::BlockNotLive(0)),
        (
            &[alloc(0, 5), free(0), USE_END],
            2,
            TraceRule::BlockNotLive(0),
        ),
        (&[alloc(0, 5), USE_END], 1, TraceRule::UseUnbalanced(0)),
        (
            &[alloc(0, 5), USE, USE, USE_END, USE_END],
            4,
            TraceRule::UseUnbalanced(0),
        ),
        (&[alloc(0, 5), USE, free(0)], 2, TraceRule::UseUnbalanced(0)),
        (&[record(1)], 0, TraceRule::EventNotNext(1)),
        (&[WAIT], 0, TraceRule::EventNotRecorded(0)),
        (
            &[Op::Alloc {
                block: 0,
                size: 5,
                stream: 2,
            }],
            0,
            TraceRule::StreamUnknown(2),
        ),
        (
            &[alloc(0, u64::MAX), alloc(1, 1)],
            1,
            TraceRule::LiveOverflow,
        ),
    ] {
        let broken = trace(ops).validate().unwrap_err();
        assert_eq!((broken.step, broken.rule), (step, rule));
    }
}

#[test]
fn rules_that_are_not_one_operations() {
    let valid = trace(&[alloc(0, 5), free(0)]);
    let rule = |change: &dyn Fn(&mut Trace)| {
        let mut changed = valid.clone();
        change(&mut changed);
        changed.validate().unwrap_err().rule
    };
    assert_eq!(rule(&|t| t.block_count = 2), TraceRule::WrongCount);
    assert_eq!(rule(&|t| t.event_count = 1), TraceRule::WrongCount);
    assert_eq!(rule(&|t| t.steps[0].host_ns = 1), TraceRule::TimeBackwards);
    let backwards = |t: &mut Trace| {
        t.steps[1].host_ns = 9;
        t.steps.push(Step {
            host_ns: 8,
            op: alloc(1, 1),
        });
    };
    assert_eq!(rule(&backwards), TraceRule::TimeBackwards);
    let at = |step| ReservedStep {
        step,
        action: ReservedAction::SegmentAlloc,
        bytes: 1,
        address: None,
    };
    assert_eq!(
        rule(&|t| t.reserved = vec![at(3)]),
        TraceRule::ReservedOutOfOrder
    );
    assert_eq!(
        rule(&|t| t.reserved = vec![at(2), at(1)]),
        TraceRule::ReservedOutOfOrder
    );
}

#[test]
fn peaks_are_those_of_what_is_held_at_one_time() {
    let mut sums = trace(&[
        alloc(0, 5),
        alloc(1, 7),
        free(0),
        alloc(2, 4),
        free(1),
        free(2),
    ]);
    assert_eq!(sums.peak_live_bytes(), 12);
    assert_eq!(sums.recorded_peak_reserved_bytes(), None);
    sums.reserved = [
        (ReservedAction::Initial, 10),
        (ReservedAction::SegmentAlloc, 5),
        (ReservedAction::SegmentFree, 10),
        (ReservedAction::SegmentMap, 9),
        (ReservedAction::SegmentUnmap, 14),
    ]
    .map(|(action, bytes)| ReservedStep {
        step: 0,
        action,
        bytes,
        address: None,
    })
    .to_vec();
    assert_eq!(sums.recorded_peak_reserved_bytes(), Some(15));
}
