//! The moments that are looked at: one in each of a fixed number of equal parts of the recording,
//! where most was live in that part, so that no peak is lost.
//!
//! The parts are equal in time, unless the recording has no times or stands still for most of it;
//! then they are equal in steps.

use millpond_trace::{Op, Trace};
use serde::Serialize;

/// Moments of a recording.
pub(super) const MOMENTS: usize = 720;

/// If fewer of the parts than this have a step, time is no good axis.
const PARTS_WITH_STEPS: usize = MOMENTS / 4;

/// A state of the job: that after a number of steps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Moment {
    /// Steps done.
    pub(super) steps: usize,
    /// Calls of the job done, as a replay counts them.
    pub(super) operations: u64,
    /// Of the last step, in nanoseconds.
    pub(super) host_ns: u64,
    /// Bytes.
    pub(super) live: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Axis {
    pub(super) moments: Vec<Moment>,
    /// Equal in time.
    timed: bool,
    end_ns: u64,
    steps: usize,
}

/// What the page has to know of it.
#[derive(Debug, Serialize)]
pub(super) struct AxisData {
    timed: bool,
    end_ns: u64,
    /// Of each moment: nanoseconds, and steps done.
    at_ns: Vec<u64>,
    at_step: Vec<usize>,
}

impl Axis {
    pub(super) fn new(trace: &Trace) -> Axis {
        let end_ns = trace.steps.last().map_or(0, |step| step.host_ns);
        let mut axis = Axis {
            moments: Vec::new(),
            timed: true,
            end_ns,
            steps: trace.steps.len(),
        };
        let mut busy = vec![false; MOMENTS];
        for (index, step) in trace.steps.iter().enumerate() {
            busy[axis.part(index, step.host_ns)] = true;
        }
        axis.timed = busy.iter().filter(|&&busy| busy).count() >= PARTS_WITH_STEPS;
        axis.moments = axis.choose(trace);
        axis
    }

    fn choose(&self, trace: &Trace) -> Vec<Moment> {
        let mut chosen: Vec<Option<Moment>> = vec![None; MOMENTS];
        let mut last = vec![Moment::default(); MOMENTS];
        let owners = owners(trace);
        let mut now = Moment::default();
        let mut live = Live::default();
        for (index, step) in trace.steps.iter().enumerate() {
            live.step(step.op);
            now = Moment {
                steps: index + 1,
                operations: now.operations + operations(step.op, &owners),
                host_ns: step.host_ns,
                live: live.bytes,
            };
            let part = self.part(index, step.host_ns);
            let best = &mut chosen[part];
            if best.is_none_or(|best| best.live < now.live) {
                *best = Some(now);
            }
            last[part] = now;
        }
        let mut before = Moment::default();
        let mut moments = Vec::with_capacity(MOMENTS);
        for (best, last) in chosen.into_iter().zip(last) {
            match best {
                Some(best) => {
                    moments.push(best);
                    before = last;
                }
                None => moments.push(before),
            }
        }
        moments
    }

    /// The part of the recording that a step lies in.
    pub(super) fn part(&self, step: usize, host_ns: u64) -> usize {
        let (at, of) = if self.timed {
            (host_ns, self.end_ns)
        } else {
            (step as u64, self.steps as u64)
        };
        let part = u128::from(at) * MOMENTS as u128 / (u128::from(of) + 1);
        (part as usize).min(MOMENTS - 1)
    }

    /// The number of the moment with most live bytes.
    pub(super) fn peak(&self) -> usize {
        let best = |&(at, moment): &(usize, &Moment)| (moment.live, usize::MAX - at);
        let moments = self.moments.iter().enumerate();
        moments.max_by_key(best).map_or(0, |(at, _)| at)
    }

    pub(super) fn peak_live(&self) -> u64 {
        self.moments.iter().map(|m| m.live).max().unwrap_or(0)
    }

    pub(super) fn live(&self) -> Vec<u64> {
        self.moments.iter().map(|moment| moment.live).collect()
    }

    pub(super) fn data(&self) -> AxisData {
        AxisData {
            timed: self.timed,
            end_ns: self.end_ns,
            at_ns: self.moments.iter().map(|moment| moment.host_ns).collect(),
            at_step: self.moments.iter().map(|moment| moment.steps).collect(),
        }
    }

    /// The first moment after this operation, and the last one at which nothing later than it has
    /// been done: `[from, to)` in moments for something that was there from one operation to another.
    pub(super) fn span(&self, from: u64, to: u64) -> (usize, usize) {
        let first = self.moments.partition_point(|m| m.operations <= from);
        let end = self.moments.partition_point(|m| m.operations <= to);
        (first, end)
    }
}

/// The stream of each block.
fn owners(trace: &Trace) -> Vec<u32> {
    let stream = |op| match op {
        Op::Alloc { stream, .. } => Some(stream),
        _ => None,
    };
    trace
        .steps
        .iter()
        .filter_map(|step| stream(step.op))
        .collect()
}

/// Calls that a replay makes for a step: a free on another stream is a use there, and a free.
fn operations(op: Op, owners: &[u32]) -> u64 {
    match op {
        Op::UseEnd { .. } => 0,
        Op::Free { block, stream, .. } => 1 + u64::from(owners[block as usize] != stream),
        _ => 1,
    }
}

/// The live bytes along the steps of a recording.
#[derive(Default)]
pub(super) struct Live {
    pub(super) bytes: u64,
    sizes: Vec<u64>,
}

impl Live {
    pub(super) fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { size, .. } => {
                self.sizes.push(size);
                self.bytes += size;
            }
            Op::Free { block, .. } => self.bytes -= self.sizes[block as usize],
            _ => {}
        }
    }
}
