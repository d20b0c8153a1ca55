//! Improves the plan of items that hang together in time.
//!
//! Small ones by exact search: at the lower bound first, then between it and the best plan, halving
//! the distance, with every strategy for a number of nodes that doubles from round to round. Which
//! capacities are hard does not follow their size, so that each round asks again. Large ones by
//! packing in a changed order: what did not fit comes earlier.
//!
//! # Invariants
//! - `best` is a plan of `instance`; it only gets better. `bound` is a lower bound; it only rises.
//! - Without a deadline or cancel, the result of each round is the same on every machine and for any number of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::control::Control;
use crate::exact::{self, First, Outcome, Place, Stop, Strategy};
use crate::greedy::{Fit, Measures, Order, Packing, measures, ordered, pack};
use crate::instance::{Instance, Part};
use crate::occupancy::Occupancy;

/// Beyond this many items the exact search takes too long for each node.
const MOST_ITEMS: usize = 2500;

/// Stack of a searching thread: the search is as deep as there are items.
const STACK: usize = 64 << 20;

/// Orders of the exact search: what is compared, first to last.
const KEYS: [[Key; 3]; 9] = [
    [Key::Contention, Key::Sections, Key::SectionArea],
    [Key::Contention, Key::SectionArea, Key::Sections],
    [Key::Sections, Key::SectionArea, Key::Contention],
    [Key::Contention, Key::Width, Key::Area],
    [Key::Contention, Key::Neighbours, Key::Sections],
    [Key::Contention, Key::Area, Key::Width],
    [Key::Width, Key::Area, Key::Contention],
    [Key::SectionArea, Key::Sections, Key::Contention],
    [Key::Area, Key::Width, Key::Contention],
];

const STRATEGIES: [Strategy; 4] = [
    Strategy {
        place: Place::Foremost,
        first: First::Lowest,
    },
    Strategy {
        place: Place::Lowest,
        first: First::Lowest,
    },
    Strategy {
        place: Place::Foremost,
        first: First::Foremost,
    },
    Strategy {
        place: Place::Lowest,
        first: First::Foremost,
    },
];

#[derive(Clone, Copy)]
enum Key {
    /// Bytes of the fullest section.
    Contention,
    /// Time.
    Width,
    /// Sections.
    Sections,
    /// Bytes times time.
    Area,
    /// Bytes times sections.
    SectionArea,
    /// Items that it shares a section with.
    Neighbours,
}

pub(crate) struct Component {
    pub(crate) instance: Instance,
    pub(crate) best: Packing,
    pub(crate) bound: u64,
    grain: u64,
    rounds: u32,
    work: Work,
}

enum Work {
    Exact {
        /// The instance itself, or with each item's parts grown to all of its bytes.
        instance: Instance,
        /// Whether what has no plan here has none at all.
        complete: bool,
        orders: Vec<Vec<u32>>,
        /// Strategy and order, what found a plan last first.
        tasks: Vec<(Strategy, usize)>,
    },
    Reorder {
        order: Vec<u32>,
        occupancy: Occupancy,
    },
}

/// The orders in which packing is tried, the best for large instances first.
pub(crate) const TRIES: [(Order, Fit); 12] = [
    (Order::ContentionWidth, Fit::First),
    (Order::Contention, Fit::First),
    (Order::Size, Fit::First),
    (Order::Width, Fit::First),
    (Order::Area, Fit::First),
    (Order::Birth, Fit::First),
    (Order::Width, Fit::Best),
    (Order::ContentionWidth, Fit::Best),
    (Order::Size, Fit::Best),
    (Order::Contention, Fit::Best),
    (Order::Birth, Fit::Best),
    (Order::Area, Fit::Best),
];

impl Component {
    /// With the best of the simple plans, as far as time allows: the first order always.
    pub(crate) fn new(instance: Instance, control: &Control<'_>) -> Component {
        let bound = instance.lower_bound();
        let measures = measures(&instance);
        let mut best: Option<(Packing, usize)> = None;
        let mut from = 0;
        while from < TRIES.len() && best.as_ref().is_none_or(|b| b.0.peak > bound) {
            if best.is_some() && control.over() {
                break;
            }
            // One alone first, so that there is a plan soon.
            let count = if from == 0 { 1 } else { control.threads };
            let to = TRIES.len().min(from + count);
            let limit = best.as_ref().map_or(u64::MAX, |b| b.0.peak);
            for (at, packing) in pack_all(&instance, &measures, from..to, limit) {
                if best.as_ref().is_none_or(|b| packing.peak < b.0.peak) {
                    best = Some((packing, at));
                }
            }
            from = to;
        }
        let (best, at) = best.unwrap_or((
            Packing {
                offsets: Vec::new(),
                peak: 0,
            },
            0,
        ));
        let work = Work::new(&instance, &measures, TRIES[at].0);
        Component {
            grain: instance.grain(),
            instance,
            best,
            bound,
            rounds: 0,
            work,
        }
    }

    /// Writes the offsets of the best plan, by the root's buffer.
    pub(crate) fn write(&self, offsets: &mut [u64]) {
        for (item, &offset) in self.instance.items.iter().zip(&self.best.offsets) {
            offsets[item.root] = offset;
        }
    }

    /// Tries for a while to come below the best plan, down to `target`, below which is no use.
    pub(crate) fn improve(&mut self, target: u64, control: &Control<'_>) {
        self.rounds += 1;
        let target = target.max(self.bound);
        match self.work {
            Work::Exact { .. } => self.search(target, control),
            Work::Reorder { .. } => self.reorder(target, control),
        }
    }

    fn search(&mut self, target: u64, control: &Control<'_>) {
        let round = self.rounds.min(40) - 1;
        let nodes = (3 * self.instance.items.len() as u64 / 2 + 60) << round;
        let finest = (self.bound >> (4 + round.min(20))).max(self.grain);
        // `low` is the lowest capacity that is worth asking for; each turn it rises, or the plan gets
        // better.
        let (mut low, mut capacity) = (target, target);
        while self.best.peak > low && !control.over() {
            match self.ask(capacity, nodes, control) {
                Outcome::Found(offsets) => self.adopt(offsets),
                Outcome::None => {
                    self.bound = self.bound.max(capacity + self.grain);
                    low = low.max(self.bound);
                }
                Outcome::Stopped => {
                    low = capacity + self.grain;
                    if self.best.peak < low + finest {
                        return;
                    }
                }
            }
            // What fails asks every strategy, what succeeds few: small steps are cheaper.
            let gap = self.best.peak.saturating_sub(low);
            let step = (gap / 4).max(finest) / self.grain * self.grain;
            capacity = self.best.peak - step.clamp(self.grain.min(gap), gap);
        }
    }

    fn adopt(&mut self, offsets: Vec<u64>) {
        let tops = self.instance.items.iter().zip(&offsets);
        let peak = tops
            .map(|(item, offset)| offset + item.size)
            .max()
            .unwrap_or(0);
        if peak < self.best.peak {
            self.best = Packing { offsets, peak };
        }
    }

    /// Asks every strategy for a plan within `capacity`. Of those that find one, the first in the
    /// list is taken, however fast the others were.
    fn ask(&mut self, capacity: u64, nodes: u64, control: &Control<'_>) -> Outcome {
        let Work::Exact {
            instance,
            complete,
            orders,
            tasks,
        } = &mut self.work
        else {
            return Outcome::Stopped;
        };
        if instance.lower_bound() > capacity {
            return Outcome::Stopped;
        }
        let flags: Vec<AtomicBool> = tasks.iter().map(|_| AtomicBool::new(false)).collect();
        let next = AtomicUsize::new(0);
        let first: Mutex<Option<(usize, Outcome)>> = Mutex::new(None);
        let worker = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(strategy, order)) = tasks.get(at) else {
                    return;
                };
                if flags[at].load(Ordering::Relaxed) || control.over() {
                    continue;
                }
                let stop = Stop {
                    nodes,
                    deadline: control.deadline,
                    flags: [&flags[at], control.cancel],
                };
                let outcome = exact::search(instance, &orders[order], strategy, capacity, stop);
                if outcome != Outcome::Stopped {
                    for flag in &flags[at + 1..] {
                        flag.store(true, Ordering::Relaxed);
                    }
                    let mut first = first.lock().unwrap_or_else(|e| e.into_inner());
                    if first.as_ref().is_none_or(|f| at < f.0) {
                        *first = Some((at, outcome));
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..control.threads {
                let builder = thread::Builder::new().stack_size(STACK);
                if builder.spawn_scoped(scope, worker).is_err() {
                    // No thread to be had: whatever others find counts, and else nothing is found.
                    return;
                }
            }
        });
        match first.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some((_, Outcome::None)) if !*complete => Outcome::Stopped,
            Some((at, outcome)) => {
                tasks[..=at].rotate_right(1);
                outcome
            }
            None => Outcome::Stopped,
        }
    }

    /// Packs again and again, with what did not fit earlier in the order.
    fn reorder(&mut self, target: u64, control: &Control<'_>) {
        const TRIES: u32 = 32;
        let Work::Reorder { order, occupancy } = &mut self.work else {
            return;
        };
        for _ in 0..TRIES {
            if self.best.peak <= target || control.over() {
                return;
            }
            match pack(&self.instance, order, Fit::First, self.best.peak, occupancy) {
                Ok(packing) => self.best = packing,
                Err(item) => {
                    let at = order.iter().position(|&i| i == item).unwrap_or(0);
                    order[at / 2..=at].rotate_right(1);
                }
            }
        }
    }
}

impl Work {
    fn new(instance: &Instance, measures: &[Measures], best: Order) -> Work {
        if instance.items.len() > MOST_ITEMS {
            return Work::Reorder {
                order: ordered(instance, measures, best),
                occupancy: Occupancy::new(instance.sections),
            };
        }
        let mut grown = instance.clone();
        let mut complete = true;
        for item in &mut grown.items {
            let size = item.size;
            complete &= item.parts.iter().all(|p| p.lo == 0 && p.hi == size);
            for part in &mut item.parts {
                *part = Part {
                    lo: 0,
                    hi: size,
                    ..*part
                };
            }
        }
        let near = exact::near(instance);
        let orders = KEYS.iter().map(|keys| {
            let mut order: Vec<u32> = (0..instance.items.len() as u32).collect();
            order.sort_by_cached_key(|&i| {
                let m = &measures[i as usize];
                let item = &instance.items[i as usize];
                let key = keys.map(|key| match key {
                    Key::Contention => u128::from(m.contention),
                    Key::Width => u128::from(item.duration),
                    Key::Sections => u128::from(m.width),
                    Key::Area => u128::from(item.duration) * u128::from(item.size),
                    Key::SectionArea => m.area,
                    Key::Neighbours => near[i as usize].len() as u128,
                });
                (std::cmp::Reverse(key), i)
            });
            order
        });
        let tasks = STRATEGIES
            .iter()
            .flat_map(|&s| (0..KEYS.len()).map(move |order| (s, order)));
        Work::Exact {
            tasks: tasks.collect(),
            orders: orders.collect(),
            instance: grown,
            complete,
        }
    }
}

/// Packs in several of [`TRIES`] at once; the results in their order, those within `limit`.
fn pack_all(
    instance: &Instance,
    measures: &[Measures],
    tries: std::ops::Range<usize>,
    limit: u64,
) -> Vec<(usize, Packing)> {
    let one = |at: usize| {
        let (order, fit) = TRIES[at];
        let order = ordered(instance, measures, order);
        let mut occupancy = Occupancy::new(instance.sections);
        let packing = pack(instance, &order, fit, limit, &mut occupancy).ok()?;
        Some((at, packing))
    };
    /// Below this many items a thread costs more than it gives.
    const WORTH_A_THREAD: usize = 2000;
    if tries.len() < 2 || instance.items.len() < WORTH_A_THREAD {
        return tries.filter_map(one).collect();
    }
    thread::scope(|scope| {
        let threads: Vec<_> = tries.map(|at| scope.spawn(move || one(at))).collect();
        let results = threads.into_iter().filter_map(|t| t.join().ok().flatten());
        results.collect()
    })
}
