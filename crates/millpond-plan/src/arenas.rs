//! Several arenas, or one of several blocks: who goes where.
//!
//! Each item in turn goes into the first block that it may lie in and where it ends within the
//! block's bytes; of several orders the one that needs the least is taken. Then each block is planned on
//! its own.

use crate::component::TRIES;
use crate::error::PlanError;
use crate::greedy::{Order, measures, ordered};
use crate::instance::{Instance, Item};
use crate::occupancy::Occupancy;
use crate::planner::{Job, Plan};
use crate::problem::Arena;

/// A range of an arena that items do not cross.
#[derive(Clone, Copy)]
struct Block {
    arena: usize,
    start: u64,
    /// Bytes.
    length: u64,
}

/// Blocks of an arena without a limit that are looked at.
const MOST_BLOCKS: u64 = 1 << 12;

fn blocks(arenas: &[Arena], total: u64) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (arena, limits) in arenas.iter().enumerate() {
        let capacity = limits.capacity.unwrap_or(u64::MAX >> 1);
        let Some(length) = limits.largest_block else {
            blocks.push(Block {
                arena,
                start: 0,
                length: capacity,
            });
            continue;
        };
        // More than can be filled are of no use.
        let count = capacity
            .div_ceil(length)
            .min(MOST_BLOCKS)
            .min(total / length * 2 + 2);
        blocks.extend((0..count).map(|k| Block {
            arena,
            start: k * length,
            length: length.min(capacity - k * length),
        }));
    }
    blocks
}

/// The block and the offset in the arena of every item.
type Assignment = Vec<(usize, u64)>;

pub(crate) fn plan(
    job: &Job<'_>,
    instance: &Instance,
    improved: &mut dyn FnMut(&Plan),
) -> Result<Plan, PlanError> {
    let arenas = &job.problem.arenas;
    let total = instance.items.iter().map(|i| i.size).sum();
    let blocks = blocks(arenas, total);
    let capacity = arenas.iter().fold(0_u64, |sum, a| {
        sum.saturating_add(a.capacity.unwrap_or(u64::MAX))
    });
    let lower_bound = lower_bound(instance);
    if lower_bound > capacity {
        return Err(PlanError::Impossible {
            needed: lower_bound,
            capacity,
        });
    }
    let measures = measures(instance);
    let mut best: Option<(u64, Assignment)> = None;
    let mut orders: Vec<Order> = TRIES.iter().map(|t| t.0).collect();
    orders.dedup();
    orders.truncate(Order::ALL.len());
    for order in orders {
        if best.is_some() && job.control.over() {
            break;
        }
        let order = ordered(instance, &measures, order);
        if let Some(assignment) = assign(job, instance, &order, &blocks)
            && let peak = peak(instance, &blocks, &assignment, arenas.len())
            && best.as_ref().is_none_or(|b| peak < b.0)
        {
            best = Some((peak, assignment));
        }
    }
    let Some((_, assignment)) = best else {
        return Err(PlanError::NotFound {
            peak: 0,
            capacity,
            lower_bound,
        });
    };
    let mut places: Vec<(usize, u64)> = job.offsets().iter().map(|&o| (0, o)).collect();
    for (root, place) in places.iter_mut().enumerate() {
        place.0 = job.arena_of(root).unwrap_or(0);
    }
    for (item, &(block, offset)) in instance.items.iter().zip(&assignment) {
        places[item.root] = (blocks[block].arena, offset);
    }
    let mut plan = job.finish(&|root| places[root], lower_bound)?;
    improved(&plan);
    for (at, block) in blocks.iter().enumerate() {
        let here = |(_, a): &(&Item, &(usize, u64))| a.0 == at;
        let in_block: Vec<Item> = instance
            .items
            .iter()
            .zip(&assignment)
            .filter(here)
            .map(|(i, _)| i.clone())
            .collect();
        if in_block.is_empty() || plan.is_optimal() || job.control.over() {
            continue;
        }
        let mut part = Instance {
            items: in_block,
            sections: instance.sections,
        };
        for item in &mut part.items {
            item.fixed = item.fixed.map(|fixed| fixed - block.start);
        }
        // A few rounds each, so that one hard block does not take the time of all.
        let (offsets, _) = job.improve(&part, job.rounds.min(ROUNDS), &mut |_, _| {});
        // Planned without a limit, it can be higher than what is there already.
        if part
            .items
            .iter()
            .any(|i| offsets[i.root] + i.size > block.length)
        {
            continue;
        }
        let before = places.clone();
        for item in &part.items {
            places[item.root].1 = block.start + offsets[item.root];
        }
        let better = job.finish(&|root| places[root], lower_bound)?;
        if better.peak < plan.peak {
            plan = better;
            improved(&plan);
        } else {
            places = before;
        }
    }
    plan.elapsed = job.started.elapsed();
    Ok(plan)
}

const ROUNDS: u32 = 4;

/// All that is live at one time, wherever it is.
fn lower_bound(instance: &Instance) -> u64 {
    instance.totals().into_iter().max().unwrap_or(0)
}

fn assign(
    job: &Job<'_>,
    instance: &Instance,
    order: &[u32],
    blocks: &[Block],
) -> Option<Assignment> {
    let mut occupied: Vec<Option<Occupancy>> = blocks.iter().map(|_| None).collect();
    let mut assignment = vec![(0, 0); instance.items.len()];
    for &index in order {
        let item = &instance.items[index as usize];
        let wanted = job.arena_of(item.root);
        let mut place = None;
        for (at, block) in blocks.iter().enumerate() {
            let fits = item.size <= block.length && block.start.is_multiple_of(item.alignment);
            if !fits || wanted.is_some_and(|arena| arena != block.arena) {
                continue;
            }
            let from = match item.fixed {
                Some(fixed) if fixed < block.start => continue,
                Some(fixed) => fixed - block.start,
                None => 0,
            };
            let space = occupied[at].get_or_insert_with(|| Occupancy::new(instance.sections));
            let offset = space.first_fit(item, from);
            let moved = item.fixed.is_some() && offset != from;
            if !moved && offset + item.size <= block.length {
                space.insert(item, offset);
                place = Some((at, block.start + offset));
                break;
            }
        }
        assignment[index as usize] = place?;
    }
    Some(assignment)
}

fn peak(instance: &Instance, blocks: &[Block], assignment: &Assignment, arenas: usize) -> u64 {
    let mut peaks = vec![0_u64; arenas];
    for (item, &(block, offset)) in instance.items.iter().zip(assignment) {
        let peak = &mut peaks[blocks[block].arena];
        *peak = (*peak).max(offset + item.size);
    }
    peaks.iter().sum()
}
