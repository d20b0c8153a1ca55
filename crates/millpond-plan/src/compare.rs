//! What simpler ways would take, and what is live when a plan is fullest.

use crate::error::PlanError;
use crate::greedy::{Fit, Order, measures, ordered, pack};
use crate::instance::{Instance, fullest_time, ties};
use crate::occupancy::Occupancy;
use crate::planner::Plan;
use crate::problem::Problem;

/// Bytes that other ways of placing the same buffers take, in one arena without limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Each in the order of birth, at the lowest free place: what an allocator does that knows
    /// nothing of the future and wastes nothing on rounding.
    pub naive: u64,
    /// The largest first, each into the smallest gap that it fits into: what most runtimes do.
    pub greedy_by_size: u64,
    /// Each with memory of its own; what is tied together counts once.
    pub no_sharing: u64,
}

/// Plans `problem` in the simpler ways.
///
/// # Errors
/// The problem contradicts itself.
pub fn compare(problem: &Problem) -> Result<Comparison, PlanError> {
    problem.check()?;
    let instance = Instance::new(problem, &ties(problem)?, &|_| true)?;
    let measures = measures(&instance);
    let mut occupancy = Occupancy::new(instance.sections);
    let mut peak = |order, fit| {
        let order = ordered(&instance, &measures, order);
        pack(&instance, &order, fit, u64::MAX, &mut occupancy).map_or(u64::MAX, |p| p.peak)
    };
    Ok(Comparison {
        naive: peak(Order::Birth, Fit::First),
        greedy_by_size: peak(Order::Size, Fit::Best),
        no_sharing: instance.items.iter().fold(0, |sum, item| sum + item.size),
    })
}

/// The first time at which the most bytes are live; `None` if none ever are.
///
/// # Errors
/// The problem contradicts itself.
pub fn peak_time(problem: &Problem) -> Result<Option<i64>, PlanError> {
    problem.check()?;
    Ok(fullest_time(problem, &ties(problem)?)?)
}

/// The buffers that are live at `time`, by falling size, those of equal size by their place.
pub fn held_at(problem: &Problem, plan: &Plan, time: i64) -> Vec<usize> {
    let live = |&i: &usize| {
        let b = &problem.buffers[i];
        b.size > 0 && b.lower <= time && time < b.upper
    };
    let mut held: Vec<usize> = (0..problem.buffers.len()).filter(live).collect();
    held.sort_by_key(|&i| {
        let place = plan.placements.get(i).map_or(0, |p| p.offset);
        (std::cmp::Reverse(problem.buffers[i].size), place, i)
    });
    held
}
