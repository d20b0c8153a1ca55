//! One iteration of a recorded job.
//!
//! The steps of a job that repeats are alike at a distance: the same sizes are allocated, and what is
//! freed was allocated equally long ago. The distance that most windows of steps recur at is the
//! iteration's length; the cut is where the least is live, the last one that leaves a whole
//! iteration. Without such a distance the whole recording is planned.

use std::collections::HashMap;

use millpond_plan::{Buffer, Problem};
use millpond_trace::{Op, Trace};

use super::error::InputError;
use super::input::{Input, Source};

/// Steps in a window that is looked for again.
const WINDOW: usize = 32;

/// Distances that are looked at, those first at which the most windows recur.
const MOST_DISTANCES: usize = 32;

/// A job repeats itself if this share of its steps does.
const LIKENESS: f64 = 0.7;

/// An allocation or a free, in host order.
#[derive(Clone, Copy)]
struct Change {
    block: u32,
    /// Its size if it is allocated.
    size: Option<u64>,
    /// The step of the recording.
    step: usize,
}

pub(super) fn input(trace: &Trace, given: Option<(usize, usize)>) -> Result<Input, InputError> {
    let steps = trace.steps.len();
    let changes = changes(trace);
    let (range, repeats) = match given {
        Some((first, last)) if first < last && last <= steps => {
            let at = |step| changes.partition_point(|c| c.step < step);
            (at(first)..at(last), false)
        }
        Some((first, last)) => return Err(InputError::NoSuchSteps { first, last, steps }),
        None => match period(&changes) {
            Some((period, end)) => (cut(&changes, period, end), true),
            None => (0..changes.len(), false),
        },
    };
    let step_at = |at: usize| changes.get(at).map_or(steps, |c| c.step);
    let (first_step, last_step) = given.unwrap_or((step_at(range.start), step_at(range.end)));
    let (buffers, names, held_bytes) = buffers(&changes, range, trace.block_count as usize);
    Ok(Input {
        problem: Problem::new(buffers),
        names,
        source: Source::Recording {
            steps,
            first_step,
            last_step,
            repeats,
            held_bytes,
        },
    })
}

fn changes(trace: &Trace) -> Vec<Change> {
    let change = |(step, s): (usize, &millpond_trace::Step)| match s.op {
        Op::Alloc { block, size, .. } => Some(Change {
            block,
            size: Some(size),
            step,
        }),
        Op::Free { block, .. } => Some(Change {
            block,
            size: None,
            step,
        }),
        _ => None,
    };
    trace.steps.iter().enumerate().filter_map(change).collect()
}

/// The distance at which the job repeats itself, in changes, and where it has done so.
fn period(changes: &[Change]) -> Option<(usize, usize)> {
    // What a change is, without the block's number: the size, or how long ago it was allocated.
    let mut allocated = HashMap::new();
    let mut kinds = Vec::with_capacity(changes.len());
    for (at, change) in changes.iter().enumerate() {
        kinds.push(match change.size {
            Some(size) => {
                allocated.insert(change.block, at);
                (true, size)
            }
            None => (
                false,
                allocated.get(&change.block).map_or(0, |a| at - a) as u64,
            ),
        });
    }
    let mut seen: HashMap<&[(bool, u64)], usize> = HashMap::new();
    let mut distances: HashMap<usize, usize> = HashMap::new();
    for (at, window) in kinds.windows(WINDOW).enumerate() {
        if let Some(before) = seen.insert(window, at) {
            *distances.entry(at - before).or_default() += 1;
        }
    }
    let mut likely: Vec<(usize, usize)> = distances
        .into_iter()
        .filter(|&(distance, _)| distance >= WINDOW && 2 * distance <= changes.len())
        .map(|(distance, count)| (count, distance))
        .collect();
    likely.sort_unstable_by(|a, b| b.cmp(a));
    likely.truncate(MOST_DISTANCES);
    let alike = |&(_, distance): &(usize, usize)| {
        let (share, end) = likeness(&kinds, distance);
        (share, distance, end)
    };
    let found: Vec<(f64, usize, usize)> = likely.iter().map(alike).collect();
    let best = found.iter().map(|f| f.0).fold(0.0, f64::max);
    // Two iterations are as good a distance as one: the shortest counts.
    let good = found
        .iter()
        .filter(|f| f.0 >= LIKENESS && f.0 >= best - 0.02);
    good.min_by_key(|f| f.1)
        .map(|&(_, distance, end)| (distance, end))
}

/// The largest share of steps, over a quarter of the recording, that are what they were `distance` before;
/// and the end of that quarter. Jobs warm up and are taken down, so that only a part repeats.
fn likeness(kinds: &[(bool, u64)], distance: usize) -> (f64, usize) {
    let stretch = (kinds.len() / 4).max(distance).min(kinds.len() - distance);
    let same = |at: usize| usize::from(kinds[at] == kinds[at - distance]);
    let mut count = 0;
    let mut best = (0, kinds.len());
    for at in distance..kinds.len() {
        count += same(at);
        if at >= distance + stretch {
            count -= same(at - stretch);
        }
        if at + 1 >= distance + stretch && count >= best.0 {
            best = (count, at + 1);
        }
    }
    (best.0 as f64 / stretch.max(1) as f64, best.1)
}

/// The last whole iteration before `end` that begins where the least is live.
fn cut(changes: &[Change], period: usize, end: usize) -> std::ops::Range<usize> {
    let mut sizes = HashMap::new();
    let mut live = vec![0_u64];
    for change in changes {
        let now = live[live.len() - 1];
        live.push(match change.size {
            Some(size) => {
                sizes.insert(change.block, size);
                now.saturating_add(size)
            }
            None => now.saturating_sub(sizes.get(&change.block).copied().unwrap_or(0)),
        });
    }
    let last = end - period;
    let from = (last + 1).saturating_sub(period);
    let start = (from..=last)
        .rev()
        .min_by_key(|&at| live[at])
        .unwrap_or(last);
    start..start + period
}

/// What lives in the range, clipped to it, and the bytes of what lives all through it.
fn buffers(
    changes: &[Change],
    range: std::ops::Range<usize>,
    blocks: usize,
) -> (Vec<Buffer>, Vec<String>, u64) {
    let mut lives: Vec<Option<(u64, usize, usize)>> = vec![None; blocks];
    for (at, change) in changes.iter().enumerate() {
        let Some(life) = lives.get_mut(change.block as usize) else {
            continue;
        };
        match (change.size, life) {
            (Some(size), life) => *life = Some((size, at, usize::MAX)),
            (None, Some(life)) => life.2 = at,
            (None, None) => {}
        }
    }
    let (mut buffers, mut names, mut held) = (Vec::new(), Vec::new(), 0_u64);
    for (block, life) in lives.into_iter().enumerate() {
        let Some((size, from, to)) = life else {
            continue;
        };
        if from >= range.end || to <= range.start {
            continue;
        }
        if from < range.start && to >= range.end {
            held = held.saturating_add(size);
            continue;
        }
        let time = |at: usize| (at.clamp(range.start, range.end) - range.start) as i64;
        buffers.push(Buffer::new(time(from), time(to), size));
        names.push(format!("block {block}"));
    }
    (buffers, names, held)
}
