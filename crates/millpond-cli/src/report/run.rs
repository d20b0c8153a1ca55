//! A replay: reserved memory, driver calls and scattered free memory at each moment.

use millpond::device::Call;
use millpond_trace::Trace;
use serde::Serialize;

use super::axis::Axis;
use super::map::{Free, Map};
use crate::replay::{Outcome, Recording};

/// Kinds of calls, as the page shows them.
pub(super) const KINDS: [&str; 4] = [
    "create, allocate",
    "map, set access",
    "unmap",
    "release, free",
];

/// Calls after this part of the recording are those of a job that has set itself up.
const SETTLED: usize = 2;

/// See the [module](self). Sizes are in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) policy: &'static str,
    pub(crate) failed_allocations: u64,
    pub(crate) peak_live: u64,
    pub(crate) peak_reserved: u64,
    pub(crate) driver_calls: u64,
    pub(crate) driver_ms: f64,
    /// In the second half of the recording.
    pub(crate) late_calls: u64,
    pub(crate) late_ms: f64,
    pub(crate) waits_inserted: u64,
    /// The most in each part of the recording.
    reserved: Vec<u64>,
    /// At each moment: memory that is neither live nor mapped elsewhere where something is.
    pub(crate) free: Vec<u64>,
    /// At each moment: the largest piece of it in one place.
    pub(crate) largest_free: Vec<u64>,
    /// Calls in each part of the recording, of each kind.
    calls: [Vec<u32>; KINDS.len()],
    /// Time in them, in microseconds.
    call_us: Vec<f64>,
    map: Map,
}

impl Run {
    pub(super) fn new(outcome: &Outcome, recording: &Recording, axis: &Axis, trace: &Trace) -> Run {
        let moments = axis.moments.len();
        let mut run = Run {
            policy: outcome.policy,
            failed_allocations: outcome.failed_allocations,
            peak_live: outcome.peak_live_bytes,
            peak_reserved: outcome.peak_reserved_bytes,
            driver_calls: outcome.driver_calls.total(),
            driver_ms: outcome.driver_ns_per_op * outcome.ops as f64 / 1e6,
            late_calls: 0,
            late_ms: 0.0,
            waits_inserted: outcome.waits_inserted,
            reserved: vec![0; moments],
            free: Vec::new(),
            largest_free: Vec::new(),
            calls: std::array::from_fn(|_| vec![0; moments]),
            call_us: vec![0.0; moments],
            map: Map::default(),
        };
        run.count_calls(recording, axis);
        let (map, free) = Map::new(recording, axis, trace, outcome.failed_allocations == 0);
        run.map = map;
        for Free { bytes, largest } in free {
            run.free.push(bytes);
            run.largest_free.push(largest);
        }
        run
    }

    fn count_calls(&mut self, recording: &Recording, axis: &Axis) {
        let mut reserved = 0;
        let mut calls = recording.calls.iter().peekable();
        let last = axis.moments.len() - 1;
        for (part, moment) in axis.moments.iter().enumerate() {
            let mut most = reserved;
            // The pool's end, after the last operation, is no part of the job.
            let until = if part == last {
                recording.operations
            } else {
                moment.operations
            };
            while let Some(call) = calls.next_if(|call| call.at < until) {
                let kind = match call.call {
                    Call::Create | Call::Allocate => 0,
                    Call::Map | Call::SetAccess => 1,
                    Call::Unmap => 2,
                    _ => 3,
                };
                let ms = call.nanoseconds as f64 / 1e6;
                self.calls[kind][part] += 1;
                self.call_us[part] += call.nanoseconds as f64 / 1e3;
                if call.at * SETTLED as u64 >= recording.operations {
                    self.late_calls += 1;
                    self.late_ms += ms;
                }
                reserved = call.reserved;
                most = most.max(reserved);
            }
            self.reserved[part] = most;
        }
        for us in &mut self.call_us {
            *us = (*us * 10.0).round() / 10.0;
        }
    }

    /// Puts the bytes that are no JSON at the end of these.
    pub(super) fn pack(&mut self, bytes: &mut Vec<u8>) {
        self.map.pack(bytes);
    }

    #[cfg(test)]
    pub(super) fn reserved(&self) -> &[u64] {
        &self.reserved
    }
}
