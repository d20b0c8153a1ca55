//! What was measured: one row of the table, one JSON object.

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use millpond::Statistics;
use serde::Serialize;

use super::cases::{Case, Pattern};
use super::clock::Clock;
use super::latencies::Percentiles;
use super::passes::Measured;
use super::replayed::{Recording, Repetition};
use crate::device::DeviceName;
use crate::size::ByteSize;

/// One measurement. Serialised, it is the JSON object of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Row {
    pattern: &'static str,
    device: String,
    /// The recording, where it is one.
    trace: Option<String>,
    /// From 1, of a recording.
    repetition: Option<usize>,
    threads: usize,
    streams: usize,
    live: u64,
    size_min: u64,
    size_max: u64,
    /// Pairs of a pass and thread; of a recording, its allocations.
    pairs: u64,
    /// Of each thread.
    ns_per_pair: f64,
    /// Of a recording: of all its operations.
    ns_per_op: Option<f64>,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    p99_99_ns: u64,
    max_ns: u64,
    /// Of all threads together.
    pairs_per_second: f64,
    /// On the sim: in all passes, and their time by its table of costs.
    driver_calls_per_pair: Option<f64>,
    driver_ns_per_pair: Option<f64>,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    failed_allocations: u64,
    /// Of one reading; subtracted from each percentile.
    clock_ns: f64,
}

impl Row {
    pub(super) fn of_case(
        case: &Case,
        device: DeviceName,
        clock: &Clock,
        measured: &Measured,
        statistics: &Statistics,
    ) -> Row {
        let largest = match case.pattern {
            Pattern::Pair => 1 << case.largest,
            _ => (1 << case.largest) - 1,
        };
        let pairs = case.pairs as u64;
        let row = Row::begun(case.pattern.as_str(), device, clock, &measured.percentiles);
        let driver = |sum| watched(device, sum, measured.all_pairs);
        Row {
            threads: case.threads,
            streams: case.threads,
            live: case.all_live(),
            size_min: 1 << case.smallest,
            size_max: largest,
            pairs,
            ns_per_pair: per(measured.pass_ns, pairs),
            pairs_per_second: per_second(pairs * case.threads as u64, measured.pass_ns),
            driver_calls_per_pair: driver(measured.driver.calls),
            driver_ns_per_pair: driver(measured.driver.device_ns),
            peak_live_bytes: statistics.peak_live_bytes,
            peak_reserved_bytes: statistics.peak_reserved_bytes,
            ..row
        }
    }

    pub(super) fn of_replay(
        recording: &Recording,
        device: DeviceName,
        clock: &Clock,
        repetition: &Repetition,
    ) -> Row {
        let (pairs, ns) = (recording.allocations, repetition.ns);
        let driver = |sum| watched(device, sum, pairs);
        Row {
            trace: Some(recording.name.clone()),
            repetition: Some(repetition.number),
            streams: recording.streams,
            live: recording.most_live_blocks,
            size_min: recording.smallest,
            size_max: recording.largest,
            pairs,
            ns_per_pair: per(ns, pairs),
            ns_per_op: Some(per(ns, recording.operations)),
            pairs_per_second: per_second(pairs, ns),
            driver_calls_per_pair: driver(repetition.driver.calls),
            driver_ns_per_pair: driver(repetition.driver.device_ns),
            peak_live_bytes: repetition.outcome.peak_live,
            peak_reserved_bytes: repetition.outcome.peak_reserved,
            failed_allocations: repetition.outcome.failed_allocations,
            ..Row::begun("replay", device, clock, &repetition.percentiles)
        }
    }

    /// With what all rows have alike.
    fn begun(
        pattern: &'static str,
        device: DeviceName,
        clock: &Clock,
        percentiles: &Percentiles,
    ) -> Row {
        Row {
            pattern,
            device: device.to_string(),
            trace: None,
            repetition: None,
            threads: 1,
            streams: 1,
            live: 0,
            size_min: 0,
            size_max: 0,
            pairs: 0,
            ns_per_pair: 0.0,
            ns_per_op: None,
            p50_ns: percentiles.p50,
            p90_ns: percentiles.p90,
            p99_ns: percentiles.p99,
            p99_9_ns: percentiles.p99_9,
            p99_99_ns: percentiles.p99_99,
            max_ns: percentiles.longest,
            pairs_per_second: 0.0,
            driver_calls_per_pair: None,
            driver_ns_per_pair: None,
            peak_live_bytes: 0,
            peak_reserved_bytes: 0,
            failed_allocations: 0,
            clock_ns: clock.cost_ns(),
        }
    }

    /// Allocations that failed: what was measured is then another thing.
    pub(crate) fn failed_allocations(&self) -> u64 {
        self.failed_allocations
    }

    fn label(&self) -> String {
        match (&self.trace, self.repetition) {
            (Some(trace), Some(repetition)) => format!("replay {trace} ({repetition})"),
            _ => self.pattern.to_owned(),
        }
    }

    fn sizes(&self) -> String {
        if self.size_min == self.size_max {
            return ByteSize(self.size_min).to_string();
        }
        format!("{}..{}", ByteSize(self.size_min), ByteSize(self.size_max))
    }
}

/// Driver calls or their time, of each pair, where they are watched.
fn watched(device: DeviceName, sum: u64, pairs: u64) -> Option<f64> {
    (device == DeviceName::Sim).then_some(sum as f64 / pairs.max(1) as f64)
}

/// To a tenth.
fn per(nanoseconds: u64, count: u64) -> f64 {
    (nanoseconds as f64 / count.max(1) as f64 * 10.0).round() / 10.0
}

fn per_second(count: u64, nanoseconds: u64) -> f64 {
    (count as f64 * 1e9 / nanoseconds.max(1) as f64).round()
}

/// The table of several rows.
pub(crate) fn table(rows: &[Row]) -> Table {
    let replayed = rows.iter().any(|row| row.ns_per_op.is_some());
    let watched = rows.iter().any(|row| row.driver_calls_per_pair.is_some());
    let mut header = vec!["pattern", "threads", "live", "sizes", "ns/pair"];
    if replayed {
        header.extend(["ns/op", "ratio"]);
    }
    header.extend(["p50", "p99", "p99.9", "p99.99", "max", "million pairs/s"]);
    if watched {
        header.push("driver calls/pair");
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header);
    for row in rows {
        let mut cells = vec![
            row.label(),
            row.threads.to_string(),
            row.live.to_string(),
            row.sizes(),
            format!("{:.1}", row.ns_per_pair),
        ];
        if replayed {
            let ratio = row.peak_reserved_bytes as f64 / row.peak_live_bytes.max(1) as f64;
            let dash = || "-".to_owned();
            cells.push(row.ns_per_op.map_or_else(dash, |ns| format!("{ns:.1}")));
            cells.push(row.ns_per_op.map_or_else(dash, |_| format!("{ratio:.3}")));
        }
        let times = [
            row.p50_ns,
            row.p99_ns,
            row.p99_9_ns,
            row.p99_99_ns,
            row.max_ns,
        ];
        cells.extend(times.map(|time| time.to_string()));
        cells.push(format!("{:.3}", row.pairs_per_second / 1e6));
        if watched {
            let calls = row.driver_calls_per_pair;
            cells.push(calls.map_or_else(|| "-".to_owned(), |calls| format!("{calls:.4}")));
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_constraint(ColumnConstraint::ContentWidth);
        if column.index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
