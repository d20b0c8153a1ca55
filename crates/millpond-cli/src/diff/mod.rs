//! What grew from one recording to another.
//!
//! Groups of blocks are compared by name (size class, call site, stream), in two ways: at the end
//! of each recording, which for a snapshot is the moment it was taken, and at each one's peak.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use millpond_trace::{Op, Trace};
use serde::Serialize;

use crate::report::{Group, Grouping, Key};
use crate::size::ByteSize;

/// See the [module](self). Sizes are in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct Diff {
    pub(crate) before: Side,
    pub(crate) after: Side,
    pub(crate) end: Vec<Change>,
    pub(crate) peak: Vec<Change>,
}

/// One of the two recordings.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) live_at_end: u64,
    pub(crate) peak_live: u64,
    /// Of the recording allocator, where the recording says.
    pub(crate) peak_reserved: Option<u64>,
}

/// A group, before and after.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Change {
    pub(crate) by: Grouping,
    pub(crate) what: String,
    pub(crate) before: Amount,
    pub(crate) after: Amount,
    /// Bytes; negative if it shrank.
    pub(crate) grew: i128,
}

/// Blocks of a group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Amount {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

/// Groups by name.
type Amounts = BTreeMap<Key, Amount>;

impl Diff {
    /// Compares two recordings.
    pub(crate) fn new(before: &Trace, after: &Trace) -> Diff {
        let groupings = groupings(before, after);
        let changes = |steps: [usize; 2]| {
            let mut all = Vec::new();
            for &grouping in &groupings {
                let one = amounts(before, grouping, steps[0]);
                let other = amounts(after, grouping, steps[1]);
                all.extend(compared(grouping, &one, &other));
            }
            all.sort_by_key(|change| (Reverse(change.grew), change.by));
            all
        };
        Diff {
            end: changes([before.steps.len(), after.steps.len()]),
            peak: changes([peak_at(before), peak_at(after)]),
            before: Side::new(before),
            after: Side::new(after),
        }
    }

    /// The largest growth, in a line.
    pub(crate) fn headline(&self) -> String {
        let (change, when) = match (precise(&self.end), precise(&self.peak)) {
            (Some(end), Some(peak)) if peak.grew > end.grew => (peak, "at the peak"),
            (Some(end), _) => (end, "at the end"),
            (None, Some(peak)) => (peak, "at the peak"),
            (None, None) => {
                return format!(
                    "Nothing grew from {} to {}.",
                    self.before.name, self.after.name
                );
            }
        };
        format!(
            "{} grew most, by {} {when}: from {} in {} blocks to {} in {}.",
            change.what,
            ByteSize(change.grew.unsigned_abs().min(u128::from(u64::MAX)) as u64),
            ByteSize(change.before.bytes),
            change.before.blocks,
            ByteSize(change.after.bytes),
            change.after.blocks,
        )
    }
}

impl Side {
    fn new(trace: &Trace) -> Side {
        Side {
            name: trace.name.clone(),
            live_at_end: live_at(trace, trace.steps.len()),
            peak_live: trace.peak_live_bytes(),
            peak_reserved: trace.recorded_peak_reserved_bytes(),
        }
    }
}

/// The largest growth of a group that says most: of a call site or a single size, if one of them
/// has most of what the classes and streams grew by.
fn precise(changes: &[Change]) -> Option<&Change> {
    let first = changes.first().filter(|change| change.grew > 0)?;
    let says_more = |change: &&Change| matches!(change.by, Grouping::CallSite | Grouping::Size);
    let exact = changes.iter().find(says_more);
    Some(
        exact
            .filter(|exact| exact.grew * 2 > first.grew)
            .unwrap_or(first),
    )
}

/// Those that both recordings can be put together by.
fn groupings(before: &Trace, after: &Trace) -> Vec<Grouping> {
    let mut groupings = Grouping::of(before);
    for grouping in Grouping::of(after) {
        if !groupings.contains(&grouping) {
            groupings.push(grouping);
        }
    }
    // Without call stacks in both, sites say nothing of what grew.
    if before.block_sites.is_empty() != after.block_sites.is_empty() {
        groupings.retain(|&grouping| grouping != Grouping::CallSite);
    }
    groupings.push(Grouping::Size);
    groupings
}

/// The blocks of each group that are live after this many steps.
fn amounts(trace: &Trace, grouping: Grouping, steps: usize) -> Amounts {
    let group = Group::new(trace, grouping);
    let mut of_group = vec![Amount::default(); group.keys.len()];
    let mut sizes = Vec::new();
    for step in &trace.steps[..steps] {
        match step.op {
            Op::Alloc { block, size, .. } => {
                sizes.push(size);
                let amount = &mut of_group[group.of_block[block as usize] as usize];
                amount.blocks += 1;
                amount.bytes += size;
            }
            Op::Free { block, .. } => {
                let amount = &mut of_group[group.of_block[block as usize] as usize];
                amount.blocks -= 1;
                amount.bytes -= sizes[block as usize];
            }
            _ => {}
        }
    }
    group.keys.into_iter().zip(of_group).collect()
}

fn compared(by: Grouping, before: &Amounts, after: &Amounts) -> Vec<Change> {
    let mut keys: Vec<&Key> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let change = |key: &Key| {
        let amount = |amounts: &Amounts| amounts.get(key).copied().unwrap_or_default();
        let (before, after) = (amount(before), amount(after));
        Change {
            by,
            what: key.label(),
            before,
            after,
            grew: i128::from(after.bytes) - i128::from(before.bytes),
        }
    };
    let changes = keys.into_iter().map(change);
    changes
        .filter(|change| change.before != change.after)
        .collect()
}

/// Steps done when most was live.
fn peak_at(trace: &Trace) -> usize {
    let (mut at, mut most) = (0, 0);
    along(trace, trace.steps.len(), |done, live| {
        if live > most {
            (at, most) = (done, live);
        }
    });
    at
}

fn live_at(trace: &Trace, steps: usize) -> u64 {
    let mut last = 0;
    along(trace, steps, |_, live| last = live);
    last
}

/// Calls this with the live bytes after each step.
fn along(trace: &Trace, steps: usize, mut each: impl FnMut(usize, u64)) {
    let (mut live, mut sizes) = (0_u64, Vec::new());
    for (index, step) in trace.steps[..steps].iter().enumerate() {
        match step.op {
            Op::Alloc { size, .. } => {
                sizes.push(size);
                live += size;
            }
            Op::Free { block, .. } => live -= sizes[block as usize],
            _ => {}
        }
        each(index + 1, live);
    }
}
