//! What a replay gives: one row of the table, one JSON object.

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use serde::Serialize;

use super::allocator::PolicyChoice;
use super::calls::{CallTotals, DriverCalls};
use super::findings::Findings;
use super::session::Tally;
use super::workload::Workload;
use crate::device::DeviceName;
use crate::size::ByteSize;

/// What one replay gave. Serialised, it is the JSON object of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) trace: String,
    pub(crate) device: String,
    pub(crate) policy: &'static str,
    /// The pool's; `None` for other policies.
    pub(crate) setting: Option<&'static str>,
    /// By what the sizes were multiplied, where it is not 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scale: Option<f64>,
    /// From 1, where the job was repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) repetition: Option<u32>,
    pub(crate) ops: u64,
    pub(crate) failed_allocations: u64,
    pub(crate) corrupt_blocks: u64,
    pub(crate) peak_live_bytes: u64,
    pub(crate) peak_reserved_bytes: u64,
    /// `None` if nothing was ever live.
    pub(crate) reserved_over_live: Option<f64>,
    pub(crate) host_ns_per_op: f64,
    pub(crate) driver_ns_per_op: f64,
    pub(crate) driver_calls: DriverCalls,
    pub(crate) waits_inserted: u64,
    pub(crate) events_recorded: u64,
    pub(crate) event_queries: u64,
    /// How much later the device is done than without the inserted waits, as a share of the time
    /// in which it was active; `None` where that cannot be told.
    pub(crate) final_delay_share: Option<f64>,
    /// Where it was looked for: the smallest limit at which nothing fails, or `None` if something
    /// does even without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_limit_bytes: Option<Option<u64>>,
    #[serde(skip)]
    pub(crate) failures: Findings,
    #[serde(skip)]
    pub(crate) corruptions: Findings,
}

impl Outcome {
    /// Of one repetition of a recording, with what it was on a device, and nothing corrupt.
    /// `host_ns` is the time of this machine, in nanoseconds.
    pub(super) fn new(
        workload: &Workload,
        device: DeviceName,
        tally: &Tally,
        totals: CallTotals,
        host_ns: u64,
    ) -> Outcome {
        let ops = workload.ops();
        Outcome {
            trace: workload.name.clone(),
            device: device.to_string(),
            policy: tally.settings.policy.as_str(),
            setting: tally.settings.setting_name(),
            scale: workload.scale_if_scaled(),
            repetition: None,
            ops,
            failed_allocations: tally.failed_allocations,
            corrupt_blocks: 0,
            peak_live_bytes: tally.peak_live,
            peak_reserved_bytes: tally.peak_reserved,
            reserved_over_live: ratio(tally.peak_reserved, tally.peak_live),
            host_ns_per_op: per_op(host_ns, ops),
            driver_ns_per_op: per_op(totals.driver_ns, ops),
            driver_calls: totals.calls,
            waits_inserted: tally.waits_inserted,
            events_recorded: tally.events_recorded,
            event_queries: tally.event_queries,
            final_delay_share: None,
            min_limit_bytes: None,
            failures: Findings::default(),
            corruptions: Findings::default(),
        }
    }

    /// What was replayed, and how much memory that took, in one line.
    pub(crate) fn description(&self) -> String {
        let setting = self
            .setting
            .map_or_else(String::new, |name| format!(" ({name})"));
        let scale = self
            .scale
            .map_or_else(String::new, |scale| format!(" at scale {scale}"));
        format!(
            "{}{scale} on {}, {}{setting}: {} live at most, {} reserved",
            self.trace,
            self.device,
            self.policy,
            ByteSize(self.peak_live_bytes),
            ByteSize(self.peak_reserved_bytes),
        )
    }

    /// Whether nothing failed and nothing was corrupt.
    pub(crate) fn is_clean(&self) -> bool {
        self.failed_allocations == 0 && self.corrupt_blocks == 0
    }
}

/// A ratio of peaks.
fn ratio(reserved: u64, live: u64) -> Option<f64> {
    (live > 0).then(|| reserved as f64 / live as f64)
}

/// Nanoseconds an operation, to a tenth.
fn per_op(nanoseconds: u64, ops: u64) -> f64 {
    (nanoseconds as f64 / ops.max(1) as f64 * 10.0).round() / 10.0
}

/// The table of several replays.
pub(crate) fn table(outcomes: &[Outcome]) -> Table {
    let scaled = outcomes.iter().any(|outcome| outcome.scale.is_some());
    let ours = PolicyChoice::Millpond.as_str();
    let compared = outcomes.iter().any(|outcome| outcome.policy != ours);
    let mut header = vec!["trace"];
    if compared {
        header.push("policy");
    }
    if scaled {
        header.push("scale");
    }
    let repeated = outcomes.iter().any(|outcome| outcome.repetition.is_some());
    if repeated {
        header.push("repetition");
    }
    header.extend([
        "ops",
        "failed",
        "corrupt",
        "peak live",
        "peak reserved",
        "ratio",
        "host ns/op",
        "driver ns/op",
    ]);
    if compared {
        header.push("driver ms");
    }
    header.extend(["calls", "waits"]);
    let delays = outcomes
        .iter()
        .any(|outcome| outcome.final_delay_share.is_some());
    if delays {
        header.push("delay");
    }
    let limits = outcomes
        .iter()
        .any(|outcome| outcome.min_limit_bytes.is_some());
    if limits {
        header.push("min limit");
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header);
    for outcome in outcomes {
        let mut row = vec![outcome.trace.clone()];
        if compared {
            row.push(outcome.policy.to_owned());
        }
        if scaled {
            row.push(outcome.scale.unwrap_or(1.0).to_string());
        }
        if repeated {
            row.push(outcome.repetition.unwrap_or(1).to_string());
        }
        row.extend([
            outcome.ops.to_string(),
            outcome.failed_allocations.to_string(),
            outcome.corrupt_blocks.to_string(),
            ByteSize(outcome.peak_live_bytes).to_string(),
            ByteSize(outcome.peak_reserved_bytes).to_string(),
            outcome
                .reserved_over_live
                .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
            format!("{:.0}", outcome.host_ns_per_op),
            format!("{:.0}", outcome.driver_ns_per_op),
        ]);
        if compared {
            let driver_ms = outcome.driver_ns_per_op * outcome.ops as f64 / 1e6;
            row.push(format!("{driver_ms:.1}"));
        }
        row.extend([
            outcome.driver_calls.total().to_string(),
            outcome.waits_inserted.to_string(),
        ]);
        if delays {
            let share = outcome.final_delay_share;
            row.push(
                share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", share * 100.0)),
            );
        }
        if limits {
            let limit = outcome.min_limit_bytes.flatten();
            row.push(limit.map_or_else(|| "-".to_owned(), |limit| ByteSize(limit).to_string()));
        }
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_constraint(ColumnConstraint::ContentWidth);
        if column.index > usize::from(compared) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
