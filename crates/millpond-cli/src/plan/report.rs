//! What a plan takes, in text and in JSON.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use millpond_plan::{Comparison, Plan, PlanError, compare, held_at, peak_time};
use serde::Serialize;

use super::input::{Input, Source};
use crate::size::ByteSize;

/// Beyond this many buffers the simpler ways take longer than the plan, and are left out.
const MOST_COMPARED: usize = 20_000;

/// Rows of what is live at the peak, in the text.
const SHOWN: usize = 12;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    input: String,
    #[serde(flatten)]
    source: Source,
    buffers: usize,
    lower_bound: u64,
    peak: u64,
    /// How far the peak is above the bound, as a share of that.
    gap: f64,
    proven_optimal: bool,
    seconds: f64,
    capacity: Option<u64>,
    /// What other ways take; null if they were left out.
    naive: Option<u64>,
    greedy_by_size: Option<u64>,
    no_sharing: Option<u64>,
    /// When the most is live, and what.
    peak_time: Option<i64>,
    live_at_peak: Vec<Live>,
}

#[derive(Debug, Serialize)]
struct Live {
    name: String,
    offset: u64,
    bytes: u64,
    lower: i64,
    upper: i64,
}

impl Report {
    pub(crate) fn new(
        name: &str,
        input: &Input,
        plan: &Plan,
        capacity: Option<u64>,
    ) -> Result<Report, PlanError> {
        let problem = &input.problem;
        let compared: Option<Comparison> = match problem.buffers.len() {
            ..=MOST_COMPARED => Some(compare(problem)?),
            _ => None,
        };
        let time = peak_time(problem)?;
        let held = time.map_or(Vec::new(), |time| held_at(problem, plan, time));
        let live = held.into_iter().map(|i| {
            let buffer = &problem.buffers[i];
            Live {
                name: input.names[i].clone(),
                offset: plan.placements[i].offset,
                bytes: buffer.size,
                lower: buffer.lower,
                upper: buffer.upper,
            }
        });
        Ok(Report {
            input: name.to_owned(),
            source: input.source.clone(),
            buffers: problem.buffers.len(),
            lower_bound: plan.lower_bound,
            peak: plan.peak,
            gap: plan.gap(),
            proven_optimal: plan.is_optimal(),
            seconds: plan.elapsed.as_secs_f64(),
            capacity,
            naive: compared.map(|c| c.naive),
            greedy_by_size: compared.map(|c| c.greedy_by_size),
            no_sharing: compared.map(|c| c.no_sharing),
            peak_time: time,
            live_at_peak: live.collect(),
        })
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{}: {}",
            self.input.escape_debug(),
            self.source_line()
        );
        for (label, line) in self.lines() {
            let _ = writeln!(text, "  {label:<15} {line}");
        }
        if let Some(time) = self.peak_time {
            let all: u64 = self.live_at_peak.iter().map(|l| l.bytes).sum();
            let _ = writeln!(
                text,
                "\nLive at time {time}, when the most is: {} buffers, {}",
                self.live_at_peak.len(),
                bytes(all)
            );
            let mut table = Table::new();
            table.load_preset(presets::NOTHING);
            table.set_header(["name", "bytes", "offset", "lives"]);
            for live in self.live_at_peak.iter().take(SHOWN) {
                table.add_row([
                    live.name.escape_debug().to_string(),
                    live.bytes.to_string(),
                    live.offset.to_string(),
                    format!("{}..{}", live.lower, live.upper),
                ]);
            }
            for column in [1, 2] {
                if let Some(column) = table.column_mut(column) {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
            let _ = writeln!(text, "{table}");
            if let Some(more) = self
                .live_at_peak
                .len()
                .checked_sub(SHOWN)
                .filter(|&n| n > 0)
            {
                let _ = writeln!(text, " and {more} more");
            }
        }
        text
    }

    fn source_line(&self) -> String {
        match &self.source {
            Source::PlanningCsv => format!("{} buffers", self.buffers),
            Source::Onnx {
                nodes,
                weight_bytes,
                input_bytes,
                output_bytes,
            } => format!(
                "{} activations of {nodes} nodes; beside them weights {}, inputs {}; outputs ({}) are planned",
                self.buffers,
                ByteSize(*weight_bytes),
                ByteSize(*input_bytes),
                ByteSize(*output_bytes)
            ),
            Source::Recording {
                steps,
                first_step,
                last_step,
                repeats,
                held_bytes,
            } => {
                let what = if *repeats {
                    "one iteration, which repeats: "
                } else {
                    ""
                };
                format!(
                    "{} blocks; {what}steps {first_step}..{last_step} of {steps}, in host order; beside \
                     them {} are held all along",
                    self.buffers,
                    ByteSize(*held_bytes)
                )
            }
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let state = match self.proven_optimal {
            true => "proven optimal".to_owned(),
            false => format!("{:.3} % above the lower bound", self.gap * 100.0),
        };
        let mut lines = vec![
            ("peak", format!("{}, {state}", bytes(self.peak))),
            ("lower bound", bytes(self.lower_bound)),
            ("time", format!("{:.3} s", self.seconds)),
        ];
        if let Some(capacity) = self.capacity {
            lines.push(("capacity", bytes(capacity)));
        }
        let ways = [
            ("naive", self.naive),
            ("greedy by size", self.greedy_by_size),
            ("no sharing", self.no_sharing),
        ];
        for (label, peak) in ways {
            if let Some(peak) = peak {
                let share = peak as f64 / self.peak.max(1) as f64;
                lines.push((label, format!("{}, {share:.3} times the plan", bytes(peak))));
            }
        }
        lines
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        _ => format!("{bytes} B ({})", ByteSize(bytes)),
    }
}
