//! Suspected leaks: groups of blocks of which more and more stay.
//!
//! The recording is cut into windows of equal steps. What a group never falls below in a window is
//! its *floor* there. Work that comes again and again leaves the floor where it is, however high it
//! reaches; a leak lifts it from window to window. The first and the last window do not count, for a
//! job sets itself up in the one, and clears up in the other.
//!
//! # Invariants
//!
//! - A group is named only if its floor never falls, rises in most windows, and if most of the rise
//!   is in blocks that are never freed.

use millpond_trace::{Op, Trace};
use serde::Serialize;

use super::groups::{Group, Grouping};

const WINDOWS: usize = 10;

/// Counted windows in which the floor must lie above that of the window before.
const RISES: usize = 5;

/// The rise in bytes that is worth a word: this, and this part of the highest live bytes.
const LEAST: u64 = 256 << 10;
const LEAST_PART: u64 = 200;

/// Rows of the table.
const ROWS: usize = 10;

/// A group that grows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Growing {
    pub(crate) what: String,
    /// By which its floor rose over the counted windows, in bytes.
    pub(crate) bytes: u64,
    /// Blocks allocated after the first window and never freed.
    pub(crate) kept_blocks: u64,
    pub(crate) kept_bytes: u64,
    /// In nanoseconds.
    pub(crate) over_ns: u64,
    /// The floor of each window, in bytes.
    floors: Vec<u64>,
    /// Of call sites and single sizes, which say more than a size class.
    pub(crate) precise: bool,
}

/// The groups that grow, the one that grows most first.
pub(super) fn growing(trace: &Trace) -> Vec<Growing> {
    let mut found = Vec::new();
    let precise = [Grouping::CallSite, Grouping::Size];
    for grouping in [Grouping::CallSite, Grouping::Size, Grouping::SizeClass] {
        if grouping == Grouping::CallSite && trace.block_sites.is_empty() {
            continue;
        }
        found = of(trace, grouping, precise.contains(&grouping));
        // The next one says less about the same blocks.
        if !found.is_empty() {
            break;
        }
    }
    found.sort_by(|a, b| (b.bytes, &a.what).cmp(&(a.bytes, &b.what)));
    found.truncate(ROWS);
    found
}

#[derive(Clone, Default)]
struct Counts {
    live: u64,
    floors: [u64; WINDOWS],
    /// The window of the last change.
    window: usize,
    seen: bool,
    kept_blocks: u64,
    kept_bytes: u64,
}

impl Counts {
    /// Comes to a window: what is live at its begin is the floor of all up to it.
    fn come_to(&mut self, window: usize) {
        let from = if self.seen { self.window + 1 } else { 0 };
        for floor in &mut self.floors[from.min(window + 1)..=window] {
            *floor = self.live;
        }
        self.seen = true;
        self.window = window;
    }

    fn changed(&mut self) {
        let floor = &mut self.floors[self.window];
        *floor = self.live.min(*floor);
    }

    fn grows(&self, least: u64) -> bool {
        let counted = &self.floors[1..WINDOWS - 1];
        let rises = counted.windows(2).filter(|pair| pair[1] > pair[0]).count();
        let falls = counted.windows(2).any(|pair| pair[1] < pair[0]);
        let rise = self.rise();
        rises >= RISES && !falls && rise >= least && self.kept_bytes * 2 >= rise
    }

    fn rise(&self) -> u64 {
        self.floors[WINDOWS - 2].saturating_sub(self.floors[1])
    }
}

fn of(trace: &Trace, grouping: Grouping, precise: bool) -> Vec<Growing> {
    let steps = trace.steps.len();
    if steps < WINDOWS * 2 {
        return Vec::new();
    }
    let group = Group::new(trace, grouping);
    let mut counts = vec![Counts::default(); group.keys.len()];
    let mut blocks = Vec::with_capacity(trace.block_count as usize);
    for (index, step) in trace.steps.iter().enumerate() {
        let window = index * WINDOWS / steps;
        match step.op {
            Op::Alloc { block, size, .. } => {
                blocks.push((size, window));
                let counts = &mut counts[group.of_block[block as usize] as usize];
                counts.come_to(window);
                counts.live += size;
                if window > 0 {
                    counts.kept_blocks += 1;
                    counts.kept_bytes += size;
                }
            }
            Op::Free { block, .. } => {
                let (size, since) = blocks[block as usize];
                let counts = &mut counts[group.of_block[block as usize] as usize];
                counts.come_to(window);
                counts.live -= size;
                counts.changed();
                if since > 0 {
                    counts.kept_blocks -= 1;
                    counts.kept_bytes -= size;
                }
            }
            _ => {}
        }
    }
    let least = LEAST.max(trace.peak_live_bytes() / LEAST_PART);
    let begins = |window: usize| trace.steps[steps * window / WINDOWS].host_ns;
    let over_ns = begins(WINDOWS - 1) - begins(1);
    let mut found = Vec::new();
    for (key, mut counts) in group.keys.iter().zip(counts) {
        counts.come_to(WINDOWS - 1);
        if counts.grows(least) {
            found.push(Growing {
                what: key.label(),
                bytes: counts.rise(),
                kept_blocks: counts.kept_blocks,
                kept_bytes: counts.kept_bytes,
                over_ns,
                floors: counts.floors.to_vec(),
                precise,
            });
        }
    }
    found
}
