//! What the recording says of the allocator that was there when it was made.

use millpond_trace::{ReservedAction, Trace};
use serde::Serialize;

use super::axis::{Axis, Live};

/// What the recording allocator held.
#[derive(Debug, Serialize)]
pub(super) struct Recorded {
    pub(super) peak_reserved: u64,
    /// The most bytes in each part of the recording.
    reserved: Vec<u64>,
}

/// An allocation that the recording allocator could not serve. Sizes are in bytes.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    /// The part of the recording that it lies in.
    part: usize,
    pub(super) size: u64,
    pub(super) live: u64,
    /// Held by the allocator.
    pub(super) reserved: u64,
    pub(super) device_free: Option<u64>,
}

/// Failures on a page.
const FAILURES: usize = 50;

impl Recorded {
    pub(super) fn new(trace: &Trace, axis: &Axis) -> Option<Recorded> {
        let peak_reserved = trace.recorded_peak_reserved_bytes()?;
        let mut reserved = vec![0; axis.moments.len()];
        let mut now = 0_u64;
        let mut next = trace.reserved.iter().peekable();
        let mut from = 0;
        while let Some(step) = next.next() {
            now = after(now, step.action, step.bytes);
            // All that happens before the same step is one change.
            if next.peek().is_some_and(|other| other.step == step.step) {
                let part = part_of(trace, axis, step.step);
                reserved[part] = now.max(reserved[part]);
                continue;
            }
            let end = next
                .peek()
                .map_or(axis.moments.len(), |n| part_of(trace, axis, n.step) + 1);
            from = part_of(trace, axis, step.step).max(from);
            for part in &mut reserved[from..end] {
                *part = now.max(*part);
            }
        }
        Some(Recorded {
            peak_reserved,
            reserved,
        })
    }
}

pub(super) fn failures(trace: &Trace, axis: &Axis) -> Vec<Failure> {
    let mut found = Vec::new();
    let mut held = trace.reserved.iter().peekable();
    let (mut live, mut reserved, mut done) = (Live::default(), 0, 0);
    for failed in trace.failures.iter().take(FAILURES) {
        for step in &trace.steps[done..failed.step as usize] {
            live.step(step.op);
        }
        done = failed.step as usize;
        while let Some(step) = held.next_if(|step| step.step <= failed.step) {
            reserved = after(reserved, step.action, step.bytes);
        }
        found.push(Failure {
            part: part_of(trace, axis, failed.step),
            size: failed.bytes,
            live: live.bytes,
            reserved,
            device_free: failed.device_free,
        });
    }
    found
}

fn part_of(trace: &Trace, axis: &Axis, step: u32) -> usize {
    let last = trace.steps.len().saturating_sub(1);
    let index = (step as usize).min(last);
    let host_ns = trace.steps.get(index).map_or(0, |step| step.host_ns);
    axis.part(index, host_ns)
}

fn after(held: u64, action: ReservedAction, bytes: u64) -> u64 {
    match action {
        ReservedAction::Initial | ReservedAction::SegmentAlloc | ReservedAction::SegmentMap => {
            held.saturating_add(bytes)
        }
        ReservedAction::SegmentFree | ReservedAction::SegmentUnmap => held.saturating_sub(bytes),
    }
}
