//! What a format has no place for.

use crate::model::{Format, Op, ReservedAction, Trace};

/// What of this trace would be lost in this format: a line for each thing, none if nothing is.
///
/// The name and the notes of a trace are never written, and not counted.
pub fn losses(trace: &Trace, format: Format) -> Vec<String> {
    let mut lost = Vec::new();
    let mut say = |count: usize, what: &str| {
        if count > 0 {
            lost.push(format!("{count} {what}"));
        }
    };
    let count = |wanted: fn(&Op) -> bool| trace.steps.iter().filter(|s| wanted(&s.op)).count();
    if format != Format::OrderedCsv {
        say(
            count(|op| matches!(op, Op::Use { .. })),
            "uses on further streams",
        );
        say(
            count(|op| matches!(op, Op::Record { .. } | Op::Wait { .. })),
            "records of events and waits for them",
        );
        say(
            count(|op| {
                matches!(
                    op,
                    Op::Free {
                        device_ns: Some(_),
                        ..
                    } | Op::UseEnd {
                        device_ns: Some(_),
                        ..
                    } | Op::Record {
                        device_ns: Some(_),
                        ..
                    }
                )
            }),
            "times of the device",
        );
    }
    if matches!(format, Format::OrderedCsv | Format::RmmLog) {
        say(
            trace.reserved.len(),
            "changes of what the recording allocator held",
        );
    }
    if format == Format::OrderedCsv {
        say(trace.failures.len(), "failed allocations");
        say(trace.addresses.len(), "addresses");
    }
    if format != Format::PytorchSnapshot {
        let sites = trace.block_sites.iter().flatten().count();
        say(sites, "call stacks of allocations");
        let known = trace.failures.iter().filter(|f| f.device_free.is_some());
        if format != Format::OrderedCsv {
            say(known.count(), "figures of what was free on the device");
        }
    }
    if format == Format::EventCsv {
        let initial = |action| action == ReservedAction::Initial;
        say(
            trace.reserved.iter().filter(|r| initial(r.action)).count(),
            "amounts held before the beginning are written as allocated in it",
        );
    }
    if format == Format::PytorchSnapshot {
        say(
            trace.steps.iter().filter(|s| s.host_ns % 1000 != 0).count(),
            "times are cut to microseconds",
        );
    }
    lost
}
