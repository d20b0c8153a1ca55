//! Memory that was freed and could not serve yet: what is *pending* because the device has not come
//! so far, and what a further stream *holds* after the block's own stream was done with it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use millpond_trace::{Op, Trace};
use serde::Serialize;

use super::axis::Axis;

/// Rows of the table.
const ROWS: usize = 64;

/// A stream, and the memory that waits for it. Sizes are in bytes, times in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct StreamRow {
    pub(crate) name: String,
    pub(crate) blocks: u64,
    pub(crate) peak_live: u64,
    /// Blocks of other streams that it used.
    pub(crate) foreign_blocks: u64,
    /// The most that it held at one time of what other streams were done with.
    pub(crate) peak_held: u64,
    pub(crate) longest_hold_ns: u64,
    /// Bytes times nanoseconds, in byte seconds.
    pub(crate) held_byte_seconds: f64,
}

/// See the [module](self).
pub(super) struct Holds {
    /// At each moment.
    pub(super) pending: Vec<u64>,
    pub(super) peak_pending: u64,
    /// The one that holds most first.
    pub(super) streams: Vec<StreamRow>,
}

#[derive(Clone, Copy)]
struct Hold {
    stream: u32,
    from: u64,
    to: u64,
    size: u64,
}

impl Holds {
    pub(super) fn new(trace: &Trace, axis: &Axis) -> Holds {
        let mut rows: Vec<StreamRow> = trace
            .streams
            .iter()
            .map(|name| StreamRow {
                name: name.clone(),
                blocks: 0,
                peak_live: 0,
                foreign_blocks: 0,
                peak_held: 0,
                longest_hold_ns: 0,
                held_byte_seconds: 0.0,
            })
            .collect();
        let mut live = vec![0_u64; rows.len()];
        let mut blocks = Vec::with_capacity(trace.block_count as usize);
        let mut ends: HashMap<u32, Vec<(u32, u64)>> = HashMap::new();
        let mut holds = Vec::new();
        let mut waiting = BinaryHeap::new();
        let (mut now_pending, mut peak_pending) = (0_u64, 0);
        let mut pending = Vec::with_capacity(axis.moments.len());
        let mut moments = axis.moments.iter().peekable();
        for (index, step) in trace.steps.iter().enumerate() {
            while let Some(&Reverse((end, size))) = waiting.peek()
                && end <= step.host_ns
            {
                waiting.pop();
                now_pending = now_pending.saturating_sub(size);
            }
            match step.op {
                Op::Alloc { size, stream, .. } => {
                    blocks.push((size, stream));
                    let (row, live) = (&mut rows[stream as usize], &mut live[stream as usize]);
                    *live += size;
                    row.blocks += 1;
                    row.peak_live = row.peak_live.max(*live);
                }
                Op::UseEnd {
                    block,
                    stream,
                    device_ns,
                } => {
                    rows[stream as usize].foreign_blocks += 1;
                    if let Some(end) = device_ns {
                        ends.entry(block).or_default().push((stream, end.get()));
                    }
                }
                Op::Free {
                    block,
                    stream,
                    device_ns,
                } => {
                    let (size, owner) = blocks[block as usize];
                    live[owner as usize] -= size;
                    let mut ends = ends.remove(&block).unwrap_or_default();
                    let at = device_ns.map(|end| end.get());
                    let own = at.filter(|_| stream == owner);
                    if stream != owner {
                        rows[stream as usize].foreign_blocks += 1;
                        ends.extend(at.map(|end| (stream, end)));
                    }
                    let free = own.unwrap_or(0).max(step.host_ns);
                    for &(stream, end) in &ends {
                        if end > free {
                            holds.push(Hold {
                                stream,
                                from: free,
                                to: end,
                                size,
                            });
                        }
                    }
                    let last = ends.iter().map(|&(_, end)| end).max();
                    let last = last.max(own).unwrap_or(0);
                    if last > step.host_ns {
                        waiting.push(Reverse((last, size)));
                        now_pending = now_pending.saturating_add(size);
                        peak_pending = peak_pending.max(now_pending);
                    }
                }
                _ => {}
            }
            while moments.next_if(|m| m.steps <= index + 1).is_some() {
                pending.push(now_pending);
            }
        }
        pending.resize(axis.moments.len(), now_pending);
        hold(&mut rows, &holds);
        rows.sort_by(|a, b| {
            let key = |row: &StreamRow| (row.peak_held, row.peak_live);
            key(b).cmp(&key(a))
        });
        rows.truncate(ROWS);
        Holds {
            pending,
            peak_pending,
            streams: rows,
        }
    }
}

/// Adds up what each stream held, and finds the most at one time.
fn hold(rows: &mut [StreamRow], holds: &[Hold]) {
    let mut changes: Vec<(u64, bool, u32, u64)> = Vec::with_capacity(holds.len() * 2);
    for hold in holds {
        let row = &mut rows[hold.stream as usize];
        let duration = hold.to - hold.from;
        row.longest_hold_ns = row.longest_hold_ns.max(duration);
        row.held_byte_seconds += hold.size as f64 * duration as f64 / 1e9;
        changes.push((hold.from, true, hold.stream, hold.size));
        changes.push((hold.to, false, hold.stream, hold.size));
    }
    // Of one time, ends come before beginnings.
    changes.sort_unstable();
    let mut held = vec![0_u64; rows.len()];
    for (_, begins, stream, size) in changes {
        let (row, held) = (&mut rows[stream as usize], &mut held[stream as usize]);
        if begins {
            *held = held.saturating_add(size);
            row.peak_held = row.peak_held.max(*held);
        } else {
            *held = held.saturating_sub(size);
        }
    }
}
