//! The planner: from a problem to a plan that only gets better.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crate::arenas;
use crate::component::Component;
use crate::control::Control;
use crate::error::{PlanError, ProblemError};
use crate::instance::{Instance, Item, Tie, ties};
use crate::problem::{Arena, Problem};
use crate::validate::validate;

/// How long and on what to work.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// When to hand out the best plan so far; `None` if only the bound, `rounds` or `cancel` end the
    /// search.
    pub time: Option<Duration>,
    /// How many rounds of improvement, after the simple plans; `None` for as many as time allows.
    /// With a number, and neither time nor cancel in the way, the same problem gives the same plan
    /// everywhere.
    pub rounds: Option<u32>,
    /// Threads to search on; by default those of the machine. The plan does not depend on it but for
    /// what time allows.
    pub threads: Option<NonZeroUsize>,
    /// Set by the caller from another thread to end the search with the best plan so far.
    pub cancel: Option<&'a AtomicBool>,
}

impl Default for Options<'_> {
    /// Two seconds, all threads.
    fn default() -> Self {
        Options {
            time: Some(Duration::from_secs(2)),
            rounds: None,
            threads: None,
            cancel: None,
        }
    }
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Index of the arena.
    pub arena: usize,
    /// Bytes from the arena's start.
    pub offset: u64,
}

/// Offsets for all buffers of a problem, checked by [`validate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where each buffer lies, by its index in the problem.
    pub placements: Vec<Placement>,
    /// Bytes that the plan needs of each arena: the highest end of a buffer there.
    pub peaks: Vec<u64>,
    /// The sum of these.
    pub peak: u64,
    /// No plan has a smaller sum.
    pub lower_bound: u64,
    /// Time from the call to the end of the search.
    pub elapsed: Duration,
}

impl Plan {
    /// Whether no plan can be better.
    pub fn is_optimal(&self) -> bool {
        self.peak <= self.lower_bound
    }

    /// How far the peak is above the lower bound, as a share of that; 0 if it is proven optimal.
    pub fn gap(&self) -> f64 {
        match self.lower_bound {
            0 => 0.0,
            bound => (self.peak - bound.min(self.peak)) as f64 / bound as f64,
        }
    }
}

/// Plans `problem`.
///
/// # Errors
/// The problem contradicts itself, or no plan fits the arenas, or none was found in time that does.
pub fn plan(problem: &Problem, options: &Options<'_>) -> Result<Plan, PlanError> {
    plan_with(problem, options, &mut |_| {})
}

/// Like [`plan`]; calls `improved` with every plan on the way that is better than those before, the last
/// one included. Plans that do not fit their arena are not shown.
///
/// # Errors
/// As [`plan`].
pub fn plan_with(
    problem: &Problem,
    options: &Options<'_>,
    improved: &mut dyn FnMut(&Plan),
) -> Result<Plan, PlanError> {
    let started = Instant::now();
    problem.check()?;
    let never = AtomicBool::new(false);
    let all = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let control = Control {
        deadline: options.time.and_then(|time| started.checked_add(time)),
        cancel: options.cancel.unwrap_or(&never),
        threads: options.threads.map_or_else(all, NonZeroUsize::get),
    };
    let ties = ties(problem)?;
    let instance = Instance::new(problem, &ties, &|_| true)?;
    check_fixed(problem, &instance)?;
    let job = Job {
        problem,
        arenas: wanted_arenas(problem, &ties)?,
        ties,
        started,
        control,
        rounds: options.rounds.unwrap_or(u32::MAX),
    };
    if let []
    | [
        Arena {
            largest_block: None,
            ..
        },
    ] = problem.arenas[..]
    {
        return job.one_arena(&instance, improved);
    }
    arenas::plan(&job, &instance, improved)
}

/// A call of the planner.
pub(crate) struct Job<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) ties: Vec<Tie>,
    /// By root: the arena that something tied to it must lie in.
    arenas: Vec<Option<usize>>,
    pub(crate) started: Instant,
    pub(crate) control: Control<'a>,
    pub(crate) rounds: u32,
}

impl Job<'_> {
    fn one_arena(
        &self,
        instance: &Instance,
        improved: &mut dyn FnMut(&Plan),
    ) -> Result<Plan, PlanError> {
        let capacity = self.problem.arenas.first().and_then(|a| a.capacity);
        let capacity = capacity.unwrap_or(u64::MAX);
        let needed = instance.lower_bound();
        if needed > capacity {
            return Err(PlanError::Impossible { needed, capacity });
        }
        let mut wrong = None;
        let (offsets, lower_bound) = self.improve(instance, self.rounds, &mut |offsets, bound| {
            let place = |root: usize| (0, offsets[root]);
            if self.peaks(&place)[0] > capacity {
                return;
            }
            match self.finish(&place, bound) {
                Ok(plan) => improved(&plan),
                Err(error) => wrong = Some(error),
            }
        });
        if let Some(error) = wrong {
            return Err(error);
        }
        if lower_bound > capacity {
            return Err(PlanError::Impossible {
                needed: lower_bound,
                capacity,
            });
        }
        let peak = self.peaks(&|root| (0, offsets[root])).iter().sum();
        if peak > capacity {
            return Err(PlanError::NotFound {
                peak,
                capacity,
                lower_bound,
            });
        }
        self.finish(&|root| (0, offsets[root]), lower_bound)
    }

    /// Plans the items of one arena or block without a limit: offsets by the root's buffer index, and a
    /// lower bound. `found` sees every better plan.
    pub(crate) fn improve(
        &self,
        instance: &Instance,
        rounds: u32,
        found: &mut dyn FnMut(&[u64], u64),
    ) -> (Vec<u64>, u64) {
        let mut offsets = self.offsets();
        let mut components: Vec<Component> = Vec::new();
        for part in instance.components() {
            let component = Component::new(part, &self.control);
            component.write(&mut offsets);
            components.push(component);
        }
        let bound = |c: &[Component]| c.iter().map(|c| c.bound).max().unwrap_or(0);
        let mut lower_bound = bound(&components);
        found(&offsets, lower_bound);
        for _ in 0..rounds {
            // The peak is that of the worst one alone.
            let Some(worst) = components.iter_mut().max_by_key(|c| c.best.peak) else {
                break;
            };
            if worst.best.peak <= lower_bound || self.control.over() {
                break;
            }
            let before = worst.best.peak;
            worst.improve(lower_bound, &self.control);
            worst.write(&mut offsets);
            let better = worst.best.peak < before;
            lower_bound = bound(&components);
            if better {
                found(&offsets, lower_bound);
            }
        }
        (offsets, lower_bound)
    }

    /// Of each root, as far as they are known before planning: fixed ones, and 0.
    pub(crate) fn offsets(&self) -> Vec<u64> {
        let mut offsets = vec![0; self.problem.buffers.len()];
        for (buffer, tie) in self.problem.buffers.iter().zip(&self.ties) {
            if let Some(offset) = buffer.offset {
                offsets[tie.root] = offset.saturating_sub(tie.distance);
            }
        }
        offsets
    }

    /// The arena that something tied to `root` must lie in.
    pub(crate) fn arena_of(&self, root: usize) -> Option<usize> {
        self.arenas[root]
    }

    fn peaks(&self, place: &dyn Fn(usize) -> (usize, u64)) -> Vec<u64> {
        let mut peaks = vec![0; self.problem.arenas.len().max(1)];
        for (buffer, tie) in self.problem.buffers.iter().zip(&self.ties) {
            let (arena, offset) = place(tie.root);
            if buffer.size > 0 && buffer.lower < buffer.upper {
                peaks[arena] = offset
                    .saturating_add(tie.distance + buffer.size)
                    .max(peaks[arena]);
            }
        }
        peaks
    }

    /// Makes the plan from the places of the roots, and checks it.
    pub(crate) fn finish(
        &self,
        place: &dyn Fn(usize) -> (usize, u64),
        lower_bound: u64,
    ) -> Result<Plan, PlanError> {
        let placements = self.ties.iter().map(|tie| {
            let (arena, offset) = place(tie.root);
            Placement {
                arena,
                offset: offset + tie.distance,
            }
        });
        let placements: Vec<Placement> = placements.collect();
        let checked: Vec<(usize, u64)> = placements.iter().map(|p| (p.arena, p.offset)).collect();
        validate(self.problem, &checked)?;
        let peaks = self.peaks(place);
        Ok(Plan {
            placements,
            peak: peaks.iter().sum(),
            peaks,
            lower_bound,
            elapsed: self.started.elapsed(),
        })
    }
}

fn wanted_arenas(problem: &Problem, ties: &[Tie]) -> Result<Vec<Option<usize>>, ProblemError> {
    let mut arenas = vec![None; ties.len()];
    for (index, (buffer, tie)) in problem.buffers.iter().zip(ties).enumerate() {
        if let Some(arena) = buffer.arena {
            if arenas[tie.root].is_some_and(|other| other != arena) {
                return Err(ProblemError::NoSuchArena {
                    buffer: index,
                    arena,
                });
            }
            arenas[tie.root] = Some(arena);
        }
    }
    Ok(arenas)
}

/// Fixed offsets that nothing can be done about.
fn check_fixed(problem: &Problem, instance: &Instance) -> Result<(), PlanError> {
    let fixed: Vec<(&Item, u64)> = instance
        .items
        .iter()
        .filter_map(|item| Some((item, item.fixed?)))
        .collect();
    let arena = |item: &Item| problem.buffers[item.root].arena;
    for (at, &(a, a_offset)) in fixed.iter().enumerate() {
        for &(b, b_offset) in &fixed[at + 1..] {
            let meet = a.parts.iter().any(|p| {
                b.parts.iter().any(|q| {
                    let time = p.first < q.last && q.first < p.last;
                    time && a_offset + p.lo < b_offset + q.hi && b_offset + q.lo < a_offset + p.hi
                })
            });
            if meet && arena(a) == arena(b) && problem.arenas.len() <= 1 {
                return Err(PlanError::FixedOverlap {
                    first: a.root.min(b.root),
                    second: a.root.max(b.root),
                });
            }
        }
    }
    Ok(())
}
