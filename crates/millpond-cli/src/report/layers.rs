//! Live memory by kind, at each moment.

use millpond_trace::{Op, Trace};
use serde::Serialize;

use super::axis::Axis;
use super::groups::{Group, Grouping};

/// Layers with a name of their own; the rest is one more.
const NAMED: usize = 7;

/// A way to split live memory.
#[derive(Debug, Serialize)]
pub(super) struct Layers {
    by: &'static str,
    /// The one with the highest peak first; `other` at the end.
    labels: Vec<String>,
    /// Bytes of each layer at each moment.
    values: Vec<Vec<u64>>,
}

pub(super) fn all(trace: &Trace, axis: &Axis) -> Vec<Layers> {
    let one = |grouping| Layers::new(trace, axis, grouping);
    Grouping::of(trace).into_iter().map(one).collect()
}

impl Layers {
    fn new(trace: &Trace, axis: &Axis, grouping: Grouping) -> Layers {
        let group = Group::new(trace, grouping);
        let peaks = peaks(trace, &group);
        let mut order: Vec<usize> = (0..group.keys.len()).collect();
        if grouping == Grouping::SizeClass {
            order.sort_by_key(|&number| &group.keys[number]);
        } else {
            order.sort_by_key(|&number| std::cmp::Reverse(peaks[number]));
        }
        let mut labels: Vec<String> = order
            .iter()
            .take(NAMED)
            .map(|&number| group.keys[number].label())
            .collect();
        if order.len() > NAMED {
            labels.push(format!("{} others", order.len() - NAMED));
        }
        let mut layer_of = vec![0; group.keys.len()];
        for (rank, &number) in order.iter().enumerate() {
            layer_of[number] = rank.min(NAMED);
        }
        let mut values = vec![vec![0; axis.moments.len()]; labels.len()];
        let mut now = vec![0_u64; labels.len()];
        let mut sizes = Vec::with_capacity(trace.block_count as usize);
        let mut done = 0;
        for (at, moment) in axis.moments.iter().enumerate() {
            // A moment of a part without steps is the end of the part before it, which may lie
            // after that part's own moment, but never before it.
            for step in &trace.steps[done..moment.steps] {
                match step.op {
                    Op::Alloc { block, size, .. } => {
                        sizes.push(size);
                        now[layer_of[group.of_block[block as usize] as usize]] += size;
                    }
                    Op::Free { block, .. } => {
                        let size = sizes[block as usize];
                        now[layer_of[group.of_block[block as usize] as usize]] -= size;
                    }
                    _ => {}
                }
            }
            done = moment.steps;
            for (layer, &bytes) in values.iter_mut().zip(&now) {
                layer[at] = bytes;
            }
        }
        Layers {
            by: grouping.title(),
            labels,
            values,
        }
    }
}

/// The most bytes of each group that are live at one time.
fn peaks(trace: &Trace, group: &Group) -> Vec<u64> {
    let mut peaks = vec![0_u64; group.keys.len()];
    let mut now = vec![0_u64; group.keys.len()];
    let mut sizes = Vec::with_capacity(trace.block_count as usize);
    for step in &trace.steps {
        match step.op {
            Op::Alloc { block, size, .. } => {
                sizes.push(size);
                let number = group.of_block[block as usize] as usize;
                now[number] += size;
                peaks[number] = peaks[number].max(now[number]);
            }
            Op::Free { block, .. } => {
                now[group.of_block[block as usize] as usize] -= sizes[block as usize];
            }
            _ => {}
        }
    }
    peaks
}

impl Layers {
    pub(super) fn is_of_call_sites(&self) -> bool {
        self.by == Grouping::CallSite.title()
    }

    /// Of all layers, at each moment.
    #[cfg(test)]
    pub(super) fn sums(&self) -> Vec<u64> {
        let mut sums = vec![0; self.values.first().map_or(0, Vec::len)];
        for layer in &self.values {
            for (sum, bytes) in sums.iter_mut().zip(layer) {
                *sum += bytes;
            }
        }
        sums
    }
}
