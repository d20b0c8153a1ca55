//! Where a job's memory is: one page for a recording, or for several, or for several policies.
//!
//! - [`axis`]: the moments that are looked at; [`groups`]: blocks that belong together.
//! - From the recording: [`layers`] (live memory by kind), [`peak`], [`growth`] (suspected leaks),
//!   [`holds`] (streams that hold memory), [`recorded`] (the recording allocator itself).
//! - From its replay: [`run`] (reserved memory, driver calls, scattered free memory), [`map`] (the
//!   address space).
//! - [`advice`]: what would help, in words; [`page`]: all of it as one HTML file.
//!
//! # Invariants
//!
//! - The size of a page does not depend on the number of steps: everything is brought to
//!   [`axis::MOMENTS`] moments, a fixed number of cells, and lists of bounded length.

mod advice;
mod axis;
mod groups;
mod growth;
mod holds;
mod layers;
mod map;
mod page;
mod peak;
mod recorded;
mod run;

use std::sync::Arc;

use millpond_trace::Trace;
use serde::Serialize;

use crate::replay::{PolicyChoice, PoolSettings, Recorder, ReplayError, Workload, record};

pub(crate) use advice::Finding;
pub(crate) use groups::{Group, Grouping, Key};
pub(crate) use growth::Growing;
pub(crate) use holds::StreamRow;
pub(crate) use page::write as write_page;

use axis::Axis;
use run::Run;

/// Everything that a page says of one recording.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) name: String,
    pub(crate) format: String,
    pub(crate) steps: usize,
    pub(crate) blocks: u32,
    pub(crate) notes: Vec<String>,
    pub(crate) peak_live: u64,
    axis: axis::AxisData,
    live: Vec<u64>,
    pending: Vec<u64>,
    pub(crate) peak_pending: u64,
    layers: Vec<layers::Layers>,
    recorded: Option<recorded::Recorded>,
    failures: Vec<recorded::Failure>,
    pub(crate) peak: peak::Peak,
    largest: Vec<peak::Large>,
    pub(crate) growing: Vec<Growing>,
    pub(crate) streams: Vec<StreamRow>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) runs: Vec<Run>,
    limit: Option<u64>,
}

impl Report {
    /// Looks at a recording, and at its replay with each of these policies.
    /// `limit`: bytes that an allocator may take in a replay; without it, everything.
    pub(crate) fn new(
        trace: &Trace,
        policies: &[PolicyChoice],
        limit: Option<u64>,
    ) -> Result<Report, ReplayError> {
        let axis = Axis::new(trace);
        let workload = Workload::new(trace.clone(), 1.0);
        let mut runs = Vec::new();
        for &policy in policies {
            let settings = PoolSettings {
                policy,
                limit,
                ..PoolSettings::default()
            };
            let recorder = Arc::new(Recorder::default());
            let outcome = record(&workload, settings, &recorder)?;
            runs.push(Run::new(&outcome, &recorder.recording(), &axis, trace));
        }
        drop(workload);
        let holds = holds::Holds::new(trace, &axis);
        let mut report = Report {
            name: trace.name.clone(),
            format: trace.format.to_string(),
            steps: trace.steps.len(),
            blocks: trace.block_count,
            notes: trace.notes.clone(),
            peak_live: axis.peak_live(),
            axis: axis.data(),
            live: axis.live(),
            pending: holds.pending,
            peak_pending: holds.peak_pending,
            layers: layers::all(trace, &axis),
            recorded: recorded::Recorded::new(trace, &axis),
            failures: recorded::failures(trace, &axis),
            peak: peak::Peak::new(trace, &axis),
            largest: peak::largest(trace),
            growing: growth::growing(trace),
            streams: holds.streams,
            findings: Vec::new(),
            runs,
            limit,
        };
        report.findings = advice::findings(&report);
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millpond_trace::{JobKind, read_path};

    use super::*;

    /// Live memory, its layers, what is mapped and what is reserved are counted by different parts,
    /// from the recording or from the device's calls.
    fn assert_the_parts_agree(trace: &Trace) {
        let policies: Vec<PolicyChoice> = ["millpond", "caching", "expandable", "cuda-malloc"]
            .map(|name| name.parse().unwrap())
            .to_vec();
        let report = Report::new(trace, &policies, None).unwrap();
        let name = &report.name;
        assert_eq!(report.peak_live, trace.peak_live_bytes(), "{name}");
        assert_eq!(report.live[report.peak.at], report.peak_live, "{name}");
        for layers in &report.layers {
            let sums = layers.sums();
            assert_eq!(sums, report.live, "{name}");
        }
        let rows: u64 = report.peak.rows.iter().map(|row| row.bytes).sum();
        assert!(rows <= report.peak_live, "{name}");
        for run in &report.runs {
            let name = format!("{name} with {}", run.policy);
            assert_eq!(run.failed_allocations, 0, "{name}");
            let reserved = run.reserved();
            assert_eq!(reserved.iter().max(), Some(&run.peak_reserved), "{name}");
            for (at, reserved) in reserved.iter().enumerate() {
                let mapped = report.live[at] + run.free[at];
                assert!(
                    mapped <= *reserved,
                    "{name}, moment {at}: {mapped}, {reserved}"
                );
                assert!(run.largest_free[at] <= run.free[at], "{name}, moment {at}");
            }
        }
    }

    #[test]
    fn what_is_counted_in_different_ways_comes_to_the_same() {
        for name in [
            "gnn_sampled.csv.gz",
            "small_full_context.pickle.gz",
            "rmm_cupy_log.csv.gz",
            "fsdp_prefetch.ordered.csv.gz",
        ] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"));
            let path = path.join("../../traces").join(name);
            assert_the_parts_agree(&read_path(&path).unwrap());
        }
        assert_the_parts_agree(&JobKind::ProducerConsumers.generate(1));
    }
}
