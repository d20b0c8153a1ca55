//! What a snapshot says of the memory that the recording allocator held: its own segments where the
//! recording tells them fully, or else as many as its blocks need.
//!
//! # Invariants
//! - Every block lies in one segment from its allocation to its free.
//! - Undoing the recorded changes from the last state backwards never takes what is not there.

use std::collections::BTreeMap;

use super::Checked;
use super::places::taken;
use crate::model::{Op, ReservedAction};

/// What segments without a recorded size are multiples of, in bytes.
const STEP: u64 = 2 << 20;

/// A segment at the end of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) expandable: bool,
}

/// See the [module](self).
pub(super) struct Segments {
    /// By address.
    pub(super) last: Vec<Segment>,
    /// The recorded changes lead there, and are written.
    pub(super) carried: bool,
}

impl Segments {
    pub(super) fn new(checked: &Checked<'_>) -> Segments {
        if checked.recorded
            && !checked.trace.reserved.is_empty()
            && let Some(last) = carried(checked)
        {
            return Segments {
                last: last.list(),
                carried: true,
            };
        }
        let blocks = checked.addresses.iter().zip(&checked.sizes);
        let mut ranges: Vec<(u64, u64)> = blocks.map(|(&at, &size)| (at, taken(size))).collect();
        let segment = |(address, size)| Segment {
            address,
            size,
            expandable: false,
        };
        Segments {
            last: merge(&mut ranges).into_iter().map(segment).collect(),
            carried: false,
        }
    }
}

/// Ranges that touch, put together.
fn merge(ranges: &mut [(u64, u64)]) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for &(address, size) in ranges.iter() {
        match merged.last_mut() {
            Some(last) if address <= last.0 + last.1 => {
                last.1 = last.1.max(address + size - last.0);
            }
            _ => merged.push((address, size)),
        }
    }
    merged
}

/// Memory that is held, by address.
#[derive(Clone, Default)]
struct Held(BTreeMap<u64, (u64, bool)>);

impl Held {
    /// Whether all of a range is in one segment.
    fn covers(&self, at: u64, size: u64) -> bool {
        let found = self.0.range(..=at).next_back();
        found.is_some_and(|(&from, &(length, _))| at + size <= from + length)
    }

    fn touches(&self, at: u64, size: u64) -> bool {
        let before = self.0.range(..at + size).next_back();
        size > 0 && before.is_some_and(|(&from, &(length, _))| from + length > at)
    }

    /// Adds a range; one of an expandable segment grows together with its neighbours.
    fn add(&mut self, mut at: u64, mut size: u64, expandable: bool) -> Option<()> {
        if self.touches(at, size) {
            return None;
        }
        if expandable {
            if let Some((&from, &(length, true))) = self.0.range(..at).next_back()
                && from + length == at
            {
                (at, size) = (from, length + size);
            }
            if let Some(&(length, true)) = self.0.get(&(at + size)) {
                self.0.remove(&(at + size));
                size += length;
            }
        }
        self.0.insert(at, (size, expandable));
        Some(())
    }

    /// Takes a range out; a part only of an expandable segment.
    fn take(&mut self, at: u64, size: u64) -> Option<()> {
        let (&from, &(length, expandable)) = self.0.range(..=at).next_back()?;
        let (end, last) = (at + size, from + length);
        if end > last || !(expandable || (from, length) == (at, size)) {
            return None;
        }
        self.0.remove(&from);
        if from < at {
            self.0.insert(from, (at - from, expandable));
        }
        if end < last {
            self.0.insert(end, (last - end, expandable));
        }
        Some(())
    }

    fn list(&self) -> Vec<Segment> {
        let segment = |(&address, &(size, expandable)): (&u64, &(u64, bool))| Segment {
            address,
            size,
            expandable,
        };
        self.0.iter().map(segment).collect()
    }
}

/// The segments at the end, if the recorded changes and blocks fit together.
fn carried(checked: &Checked<'_>) -> Option<Held> {
    let trace = checked.trace;
    let changes = || {
        let known = trace.reserved.iter();
        known.filter(|step| step.action != ReservedAction::Initial)
    };
    // Numbers of a pickle are signed.
    let fits = |at: u64, size: u64| at.checked_add(size).is_some_and(|end| end >> 63 == 0);
    // What is given back and was never got was there before.
    let (mut initial, mut held) = (Held::default(), Held::default());
    for step in changes() {
        let at = step.address.filter(|&at| fits(at, step.bytes))?;
        let expandable = is_map(step.action);
        if is_got(step.action) {
            held.add(at, step.bytes, expandable)?;
        } else if held.take(at, step.bytes).is_none() {
            if held.touches(at, step.bytes) {
                return None;
            }
            initial.add(at, step.bytes, expandable)?;
        }
    }
    // So was what blocks lie in that is in none of these.
    let mut uncovered = Vec::new();
    replay(checked, &initial, |at, size| uncovered.push((at, size)))?;
    for (at, size) in merge(&mut uncovered) {
        initial.add(at, size, false)?;
    }
    // And as much more as the recording says, where nothing else is.
    let said = trace.reserved.iter();
    let said: u64 = said
        .filter(|step| step.action == ReservedAction::Initial)
        .map(|step| step.bytes)
        .sum();
    let known: u64 = initial.0.values().map(|&(size, _)| size).sum();
    if said > known {
        let blocks = checked.addresses.iter().zip(&checked.sizes);
        let blocks = blocks.map(|(&at, &size)| at + taken(size));
        let got = changes().filter_map(|step| Some(step.address? + step.bytes));
        let at = blocks.chain(got).max().unwrap_or(0) + STEP;
        let at = at.checked_next_multiple_of(STEP)?;
        if !fits(at, said - known) {
            return None;
        }
        initial.add(at, said - known, false)?;
    }
    let mut fitting = true;
    let last = replay(checked, &initial, |_, _| fitting = false)?;
    fitting.then_some(last)
}

/// What is held at the end. `uncovered` is told of blocks that lie in nothing; `None` if changes do
/// not fit.
fn replay(
    checked: &Checked<'_>,
    initial: &Held,
    mut uncovered: impl FnMut(u64, u64),
) -> Option<Held> {
    let trace = checked.trace;
    let mut held = initial.clone();
    let mut changes = trace.reserved.iter().peekable();
    for index in 0..=trace.steps.len() {
        while let Some(step) = changes.next_if(|step| step.step as usize == index) {
            let Some(at) = step.address else {
                continue;
            };
            if is_got(step.action) {
                held.add(at, step.bytes, is_map(step.action))?;
            } else {
                held.take(at, step.bytes)?;
            }
        }
        if let Some(step) = trace.steps.get(index)
            && let Op::Alloc { block, size, .. } = step.op
        {
            let at = checked.addresses[block as usize];
            if !held.covers(at, size.max(1)) {
                uncovered(at, taken(size));
            }
        }
    }
    Some(held)
}

fn is_got(action: ReservedAction) -> bool {
    matches!(
        action,
        ReservedAction::Initial | ReservedAction::SegmentAlloc | ReservedAction::SegmentMap
    )
}

fn is_map(action: ReservedAction) -> bool {
    matches!(
        action,
        ReservedAction::SegmentMap | ReservedAction::SegmentUnmap
    )
}
