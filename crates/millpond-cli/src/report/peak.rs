//! The peak explained: what was live then, and where it came from; and the largest blocks.

use std::cmp::Reverse;
use std::collections::HashMap;

use millpond_trace::{Op, Trace};
use serde::Serialize;

use super::axis::Axis;
use super::groups::{Group, Grouping};
use crate::size::ByteSize;

/// Rows of a table.
const ROWS: usize = 15;
const LARGEST: usize = 15;

/// A block is as old as the job if it is live for this part of it.
const WHOLE: (usize, usize) = (4, 5);

/// A block is new at the peak if it was allocated in this part of the job before it.
const NEW: usize = 50;

/// What was live at the peak. Sizes are in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Peak {
    /// The number of its moment.
    pub(crate) at: usize,
    pub(crate) live: u64,
    pub(crate) blocks: usize,
    /// Of blocks that are live for nearly all of the job.
    pub(crate) always: u64,
    /// Of blocks allocated just before.
    pub(crate) new: u64,
    /// The part of the moments at which no more was live than nine tenths of the peak.
    pub(crate) below_nine_tenths: f64,
    /// The 95th percentile of the moments' live bytes.
    pub(crate) usual: u64,
    pub(crate) rows: Vec<Row>,
    /// Groups that have no row.
    others: usize,
}

/// Blocks that were live at the peak, and belong together.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) stream: String,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// When the first and the last of them were allocated, in nanoseconds.
    first_ns: u64,
    last_ns: u64,
}

/// Large blocks that are alike. Times are in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Large {
    size: u64,
    stream: String,
    /// The call site, where the recording has it.
    what: Option<String>,
    count: u64,
    /// Never freed.
    kept: u64,
    first_ns: u64,
    longest_ns: u64,
}

impl Row {
    /// `take` or `takes`.
    pub(super) fn takes(&self) -> &'static str {
        if self.count == 1 { "takes" } else { "take" }
    }

    /// For people, in the plural or not.
    pub(super) fn describe(&self) -> String {
        let block = if self.count == 1 { "block" } else { "blocks" };
        match self.what.strip_prefix("blocks") {
            Some(of_size) => format!("{} {block}{of_size}", self.count),
            None => format!("{} {block} from {}", self.count, self.what),
        }
    }
}

/// The life of a block, in steps.
#[derive(Clone, Copy)]
struct Life {
    size: u64,
    stream: u32,
    from: u32,
    to: Option<u32>,
}

fn lives(trace: &Trace) -> Vec<Life> {
    let mut lives = Vec::with_capacity(trace.block_count as usize);
    for (index, step) in trace.steps.iter().enumerate() {
        match step.op {
            Op::Alloc { size, stream, .. } => lives.push(Life {
                size,
                stream,
                from: index as u32,
                to: None,
            }),
            Op::Free { block, .. } => lives[block as usize].to = Some(index as u32),
            _ => {}
        }
    }
    lives
}

impl Peak {
    pub(super) fn new(trace: &Trace, axis: &Axis) -> Peak {
        let at = axis.peak();
        let moment = axis.moments[at];
        let grouping = if trace.block_sites.is_empty() {
            Grouping::Size
        } else {
            Grouping::CallSite
        };
        let group = Group::new(trace, grouping);
        let mut rows: HashMap<(u32, u32), Row> = HashMap::new();
        let (steps, now) = (trace.steps.len(), moment.steps);
        let (mut blocks, mut always, mut new) = (0, 0, 0);
        for (block, life) in lives(trace).into_iter().enumerate() {
            let (from, to) = (
                life.from as usize,
                life.to.map_or(steps, |step| step as usize),
            );
            if from >= now || to < now {
                continue;
            }
            blocks += 1;
            if (to - from) * WHOLE.1 >= steps * WHOLE.0 {
                always += life.size;
            }
            if now - from <= steps / NEW {
                new += life.size;
            }
            let allocated = trace.steps[from].host_ns;
            let number = group.of_block[block];
            let row = rows.entry((number, life.stream)).or_insert_with(|| Row {
                what: group.keys[number as usize].label(),
                stream: trace.streams[life.stream as usize].clone(),
                count: 0,
                bytes: 0,
                first_ns: allocated,
                last_ns: allocated,
            });
            row.count += 1;
            row.bytes += life.size;
            row.last_ns = allocated;
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        rows.sort_by(|a, b| (b.bytes, &a.what).cmp(&(a.bytes, &b.what)));
        let others = rows.len().saturating_sub(ROWS);
        rows.truncate(ROWS);
        let mut sorted = axis.live();
        sorted.sort_unstable();
        let below = sorted.partition_point(|&live| live <= moment.live / 10 * 9);
        Peak {
            at,
            live: moment.live,
            blocks,
            always,
            new,
            below_nine_tenths: below as f64 / sorted.len() as f64,
            usual: sorted[sorted.len() * 95 / 100],
            rows,
            others,
        }
    }
}

/// The largest blocks of the whole recording.
pub(super) fn largest(trace: &Trace) -> Vec<Large> {
    let end_ns = trace.steps.last().map_or(0, |step| step.host_ns);
    let time = |step: u32| trace.steps[step as usize].host_ns;
    let mut alike: HashMap<(Reverse<u64>, u32, Option<u32>), Large> = HashMap::new();
    for (block, life) in lives(trace).into_iter().enumerate() {
        let site = trace.block_sites.get(block).copied().flatten();
        let large = alike
            .entry((Reverse(life.size), life.stream, site))
            .or_insert_with(|| Large {
                size: life.size,
                stream: trace.streams[life.stream as usize].clone(),
                what: trace.site_of(block as u32).map(|site| site.label()),
                count: 0,
                kept: 0,
                first_ns: time(life.from),
                longest_ns: 0,
            });
        large.count += 1;
        large.kept += u64::from(life.to.is_none());
        let duration = life.to.map_or(end_ns, time) - time(life.from);
        large.longest_ns = large.longest_ns.max(duration);
    }
    let mut alike: Vec<_> = alike.into_iter().collect();
    alike.sort_by_key(|(key, _)| *key);
    alike.truncate(LARGEST);
    alike.into_iter().map(|(_, large)| large).collect()
}

/// How much of a whole, for people.
pub(super) fn share(part: u64, whole: u64) -> String {
    format!(
        "{} ({:.0} %)",
        ByteSize(part),
        part as f64 * 100.0 / whole.max(1) as f64
    )
}
