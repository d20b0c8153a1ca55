//! Checks plans: a sweep over time that shares no code with the planner.
//!
//! At each time, the ranges held by different pieces must be apart. Buffers that are tied together
//! count as one range, from their lowest to their highest byte.

use std::collections::{BTreeMap, HashMap};

use crate::problem::Problem;

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The plan is for another number of buffers.
    #[error("it places {placed} of {buffers} buffers")]
    Count {
        /// Buffers that it places.
        placed: usize,
        /// Buffers that there are.
        buffers: usize,
    },
    /// Two buffers share bytes at one time.
    #[error("buffers {first} and {second} share bytes at time {time}")]
    Overlap {
        /// One of them.
        first: usize,
        /// The other.
        second: usize,
        /// The first such time.
        time: i64,
    },
    /// A buffer is not where its alignment or fixed offset says.
    #[error("buffer {buffer} is at {offset}, not aligned or not at its fixed offset")]
    Misplaced {
        /// Its index.
        buffer: usize,
        /// Where it is.
        offset: u64,
    },
    /// A buffer is outside of its arena, across the border of two blocks, or in a wrong arena.
    #[error("buffer {buffer} at {offset} is beyond its arena, or lies across two of its blocks")]
    Outside {
        /// Its index.
        buffer: usize,
        /// Where it is.
        offset: u64,
    },
    /// A buffer is not where it must be in the one that it lies inside.
    #[error("buffer {buffer} is not at its place inside buffer {base}")]
    Untied {
        /// Its index.
        buffer: usize,
        /// The one that it lies inside.
        base: usize,
    },
}

/// Checks that `placements` (arena and offset of each buffer) is a plan for `problem`, which has passed
/// [`Problem::check`].
///
/// # Errors
/// The first thing that is wrong.
pub fn validate(problem: &Problem, placements: &[(usize, u64)]) -> Result<(), Violation> {
    let buffers = &problem.buffers;
    if placements.len() != buffers.len() {
        return Err(Violation::Count {
            placed: placements.len(),
            buffers: buffers.len(),
        });
    }
    for (buffer, &(arena, offset)) in placements.iter().enumerate() {
        check_place(problem, placements, buffer, arena, offset)?;
    }
    let owners = owners(problem);
    let mut events = Vec::with_capacity(2 * buffers.len());
    for (index, b) in buffers.iter().enumerate() {
        let mut add = |lower, upper, from: u64, to: u64| {
            if lower < upper && from < to {
                let at = placements[index].1;
                // What ends at a time comes before what begins then.
                events.push((lower, true, index, at + from, at + to));
                events.push((upper, false, index, at + from, at + to));
            }
        };
        let mut since = b.lower;
        for gap in &b.gaps {
            add(since, gap.lower, 0, b.size);
            if let Some((from, to)) = gap.held {
                add(gap.lower, gap.upper, from, to);
            }
            since = gap.upper;
        }
        add(since, b.upper, 0, b.size);
    }
    events.sort_unstable_by_key(|&(time, begins, index, ..)| (time, begins, index));
    let mut sweep = Sweep::default();
    for now in events.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        for &(time, begins, index, from, to) in now {
            let arena = placements[index].0;
            sweep.change(time, begins, (arena, owners[index]), index, from, to)?;
        }
    }
    Ok(())
}

fn check_place(
    problem: &Problem,
    placements: &[(usize, u64)],
    buffer: usize,
    arena: usize,
    offset: u64,
) -> Result<(), Violation> {
    let b = &problem.buffers[buffer];
    if !offset.is_multiple_of(b.alignment) || b.offset.is_some_and(|fixed| fixed != offset) {
        return Err(Violation::Misplaced { buffer, offset });
    }
    if let Some((base, distance)) = b.inside {
        let (base_arena, base_offset) = placements[base];
        if base_arena != arena || base_offset.checked_add(distance) != Some(offset) {
            return Err(Violation::Untied { buffer, base });
        }
    }
    if b.size == 0 || b.lower == b.upper {
        return Ok(());
    }
    let outside = Violation::Outside { buffer, offset };
    let end = offset.checked_add(b.size).ok_or(outside.clone())?;
    let limits = match problem.arenas.get(arena) {
        Some(limits) => *limits,
        None if arena == 0 => return Ok(()),
        None => return Err(outside),
    };
    let beyond = limits.capacity.is_some_and(|capacity| end > capacity);
    let across = limits
        .largest_block
        .is_some_and(|block| offset / block != (end - 1) / block);
    if beyond || across || b.arena.is_some_and(|wanted| wanted != arena) {
        return Err(outside);
    }
    Ok(())
}

/// For each buffer one of those that it is tied to, the same for all of them.
fn owners(problem: &Problem) -> Vec<usize> {
    let mut owners: Vec<usize> = (0..problem.buffers.len()).collect();
    for index in 0..owners.len() {
        let mut at = index;
        let mut hops = 0;
        while let Some((base, _)) = problem.buffers[at].inside
            && hops <= owners.len()
        {
            // Those before this one are already followed to the end.
            at = if base < index { owners[base] } else { base };
            hops += 1;
        }
        owners[index] = at;
    }
    owners
}

/// A range of bytes, from the first to before the last, and the buffer that holds it.
type Held = (u64, u64, usize);

/// What is held at the present time of the sweep.
#[derive(Default)]
struct Sweep {
    /// Ranges of each owner's buffers, and which buffers.
    held: HashMap<(usize, usize), Vec<Held>>,
    /// By arena and first byte: the end, and the owner.
    ranges: BTreeMap<(usize, u64), (u64, usize)>,
}

impl Sweep {
    fn change(
        &mut self,
        time: i64,
        begins: bool,
        owner: (usize, usize),
        index: usize,
        from: u64,
        to: u64,
    ) -> Result<(), Violation> {
        let arena = owner.0;
        let held = self.held.entry(owner).or_default();
        if let Some(start) = held.iter().map(|r| r.0).min() {
            self.ranges.remove(&(arena, start));
        }
        if begins {
            held.push((from, to, index));
        } else if let Some(at) = held.iter().position(|&r| r == (from, to, index)) {
            held.swap_remove(at);
        }
        let Some(start) = held.iter().map(|r| r.0).min() else {
            self.held.remove(&owner);
            return Ok(());
        };
        let end = held.iter().map(|r| r.1).max().unwrap_or(start);
        let before = self.ranges.range(..(arena, end)).next_back();
        if let Some((&(other_arena, _), &(other_end, other))) = before
            && other_arena == arena
            && other_end > start
        {
            let second = self.held.get(&(arena, other)).and_then(|h| h.first());
            return Err(Violation::Overlap {
                first: index,
                second: second.map_or(other, |r| r.2),
                time,
            });
        }
        self.ranges.insert((arena, start), (end, owner.1));
        Ok(())
    }
}
