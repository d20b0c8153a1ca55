//! What a replay gives: one row of the table, one JSON object.

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use serde::Serialize;

use super::calls::DriverCalls;
use super::findings::Findings;
use crate::size::ByteSize;

/// What one replay gave. Serialised, it is the JSON object of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) trace: String,
    pub(crate) device: String,
    pub(crate) policy: &'static str,
    /// By what the sizes were multiplied, where it is not 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scale: Option<f64>,
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
    #[serde(skip)]
    pub(crate) failures: Findings,
    #[serde(skip)]
    pub(crate) corruptions: Findings,
}

impl Outcome {
    /// Whether nothing failed and nothing was corrupt.
    pub(crate) fn is_clean(&self) -> bool {
        self.failed_allocations == 0 && self.corrupt_blocks == 0
    }
}

/// A ratio of peaks.
pub(super) fn ratio(reserved: u64, live: u64) -> Option<f64> {
    (live > 0).then(|| reserved as f64 / live as f64)
}

/// Nanoseconds an operation, to a tenth.
pub(super) fn per_op(nanoseconds: u64, ops: u64) -> f64 {
    (nanoseconds as f64 / ops.max(1) as f64 * 10.0).round() / 10.0
}

/// The table of several replays.
pub(crate) fn table(outcomes: &[Outcome]) -> Table {
    let scaled = outcomes.iter().any(|outcome| outcome.scale.is_some());
    let compared = outcomes.iter().any(|outcome| outcome.policy != "millpond");
    let mut header = vec!["trace"];
    if compared {
        header.push("policy");
    }
    if scaled {
        header.push("scale");
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
        "driver ms",
        "calls",
        "waits",
    ]);
    let delays = outcomes
        .iter()
        .any(|outcome| outcome.final_delay_share.is_some());
    if delays {
        header.push("delay");
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
            format!("{:.1}", outcome.driver_ns_per_op * outcome.ops as f64 / 1e6),
            outcome.driver_calls.total().to_string(),
            outcome.waits_inserted.to_string(),
        ]);
        if delays {
            let share = outcome.final_delay_share;
            row.push(
                share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}%", share * 100.0)),
            );
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
