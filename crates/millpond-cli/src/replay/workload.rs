//! A recording made ready to be replayed.
//!
//! # Invariants
//!
//! - Everything that [`Trace`] promises of its steps holds, but for the sizes, which are scaled.
//! - Every free is on the block's own stream. Where the recording frees on another one, the block
//!   is used there first: that use is over, and ordered, when the free comes.

use std::fmt;
use std::str::FromStr;

use millpond_trace::{Op, Step, Trace};

const MIB: u64 = 1 << 20;

/// The pool's unit: what a block takes is a multiple of it.
const GRAIN: u64 = 256;

/// By what the sizes of large blocks are multiplied.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Scale {
    /// So that the recording fits the device; 1 where it does.
    Auto,
    /// A positive number.
    Factor(f64),
}

/// A text that says no scale.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a scale; write `auto` or a number greater than 0, such as 0.5")]
pub(crate) struct ScaleError;

impl FromStr for Scale {
    type Err = ScaleError;

    fn from_str(text: &str) -> Result<Scale, ScaleError> {
        if text == "auto" {
            return Ok(Scale::Auto);
        }
        match text.parse() {
            Ok(factor) if f64::is_finite(factor) && factor > 0.0 => Ok(Scale::Factor(factor)),
            _ => Err(ScaleError),
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scale::Auto => f.write_str("auto"),
            Scale::Factor(factor) => factor.fmt(f),
        }
    }
}

/// A block of a recording, as it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockFacts {
    /// Bytes.
    pub(crate) size: u64,
    /// The stream that asks for it, and frees it.
    pub(crate) stream: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: String,
    /// The recording says how far each stream was.
    pub(crate) ordered: bool,
    pub(crate) streams: usize,
    pub(crate) events: usize,
    pub(crate) blocks: Vec<BlockFacts>,
    pub(crate) steps: Vec<Step>,
    /// What the sizes were multiplied by.
    pub(crate) scale: f64,
}

impl Workload {
    /// Scales a recording.
    pub(crate) fn new(trace: Trace, scale: f64) -> Workload {
        let mut blocks = Vec::with_capacity(trace.block_count as usize);
        let mut steps = Vec::with_capacity(trace.steps.len());
        for mut step in trace.steps {
            match &mut step.op {
                Op::Alloc { size, stream, .. } => {
                    *size = scaled(*size, scale);
                    blocks.push(BlockFacts {
                        size: *size,
                        stream: *stream,
                    });
                }
                Op::Free {
                    block,
                    stream,
                    device_ns,
                } => {
                    let owner = blocks[*block as usize].stream;
                    if owner != *stream {
                        let (block, stream, device_ns) = (*block, *stream, device_ns.take());
                        let used = Op::Use { block, stream };
                        let ended = Op::UseEnd {
                            block,
                            stream,
                            device_ns,
                        };
                        steps.extend([used, ended].map(|op| Step { op, ..step }));
                    }
                    *stream = owner;
                }
                _ => {}
            }
            steps.push(step);
        }
        Workload {
            name: trace.name,
            ordered: trace.ordered,
            streams: trace.streams.len(),
            events: trace.event_count as usize,
            blocks,
            steps,
            scale,
        }
    }

    /// What the sizes were multiplied by, unless that is 1.
    pub(crate) fn scale_if_scaled(&self) -> Option<f64> {
        (self.scale != 1.0).then_some(self.scale)
    }

    /// What the job asks of its pool: allocations, frees, uses, records and waits.
    pub(crate) fn ops(&self) -> u64 {
        let calls = |step: &&Step| is_operation(step.op);
        self.steps.iter().filter(calls).count() as u64
    }
}

/// Whether a step is a call of the job. The end of a use is none.
#[inline]
pub(super) fn is_operation(op: Op) -> bool {
    !matches!(op, Op::UseEnd { .. })
}

/// The stream that a step is about.
pub(super) fn stream_of(op: Op) -> u32 {
    match op {
        Op::Alloc { stream, .. }
        | Op::Free { stream, .. }
        | Op::Use { stream, .. }
        | Op::UseEnd { stream, .. }
        | Op::Record { stream, .. }
        | Op::Wait { stream, .. } => stream,
    }
}

fn scaled(size: u64, scale: f64) -> u64 {
    if size < MIB {
        return size;
    }
    // The cast ends at the largest number where the product is larger.
    ((size as f64 * scale).round() as u64).max(MIB)
}

/// The largest scale, up to 1 and in steps of a thousandth, at which no more than `room` bytes
/// are live at one time; or, if there is none, the bytes that are live at the smallest scale.
pub(crate) fn fitting_scale(trace: &Trace, room: u64) -> Result<f64, u64> {
    let factor = |thousandths: u32| f64::from(thousandths) / 1000.0;
    let fits = |thousandths| peak_live(trace, factor(thousandths)) <= room;
    if fits(1000) {
        return Ok(1.0);
    }
    if !fits(1) {
        return Err(peak_live(trace, factor(1)));
    }
    let (mut fitting, mut beyond) = (1_u32, 1000_u32);
    while beyond - fitting > 1 {
        let middle = fitting.midpoint(beyond);
        if fits(middle) {
            fitting = middle;
        } else {
            beyond = middle;
        }
    }
    Ok(factor(fitting))
}

/// The most bytes that the live blocks take at one time.
fn peak_live(trace: &Trace, scale: f64) -> u64 {
    let mut sizes = Vec::with_capacity(trace.block_count as usize);
    let (mut live, mut peak) = (0_u64, 0_u64);
    for step in &trace.steps {
        match step.op {
            Op::Alloc { size, .. } => {
                let size = scaled(size, scale)
                    .max(1)
                    .checked_next_multiple_of(GRAIN)
                    .unwrap_or(u64::MAX);
                sizes.push(size);
                live = live.saturating_add(size);
                peak = peak.max(live);
            }
            Op::Free { block, .. } => live = live.saturating_sub(sizes[block as usize]),
            _ => {}
        }
    }
    peak
}

#[cfg(test)]
mod tests {
    use millpond_trace::{Limits, read_bytes};

    use super::*;

    fn trace(lines: &str) -> Trace {
        let text = format!("op,block,size,stream,event,host_us,device_us\n{lines}");
        read_bytes("test.csv", text.as_bytes(), &Limits::default()).unwrap()
    }

    #[test]
    fn only_blocks_of_a_mebibyte_and_more_are_scaled_and_none_below_it() {
        let sizes = [0, 1, MIB - 1, MIB, MIB + 1, 10 * MIB, u64::MAX];
        let at = |scale| sizes.map(|size| scaled(size, scale));
        assert_eq!(at(1.0)[..6], sizes[..6]);
        let half = u64::MAX / 2 + 1;
        assert_eq!(at(0.5), [0, 1, MIB - 1, MIB, MIB, 5 * MIB, half]);
        assert_eq!(
            at(2.0),
            [0, 1, MIB - 1, 2 * MIB, 2 * MIB + 2, 20 * MIB, u64::MAX]
        );
    }

    #[test]
    fn the_fitting_scale_is_the_largest_thousandth_that_fits() {
        let recording = trace(
            "alloc,0,10485760,0,,0,\nalloc,1,10485760,0,,0,\nfree,0,10485760,0,,0,\n\
             alloc,2,1000,0,,0,\n",
        );
        let room = 20 * MIB;
        assert_eq!(fitting_scale(&recording, room), Ok(1.0));
        assert_eq!(fitting_scale(&recording, room - 1), Ok(0.999));
        assert_eq!(fitting_scale(&recording, 10 * MIB), Ok(0.5));
        assert_eq!(fitting_scale(&recording, MIB), Err(2 * MIB));
    }

    #[test]
    fn a_free_on_another_stream_is_a_use_there() {
        let recording = trace("alloc,0,5,7,,0,\nfree,0,5,8,,1,3\n");
        let workload = Workload::new(recording, 1.0);
        assert_eq!(workload.ops(), 3);
        let ops: Vec<Op> = workload.steps.iter().map(|step| step.op).collect();
        let [_, used, ended, freed] = ops[..] else {
            panic!("{ops:?}")
        };
        let (block, stream) = (0, 1);
        assert_eq!(used, Op::Use { block, stream });
        assert!(matches!(
            ended,
            Op::UseEnd {
                stream: 1,
                device_ns: Some(_),
                ..
            }
        ));
        assert_eq!(
            freed,
            Op::Free {
                block,
                stream: 0,
                device_ns: None
            }
        );
    }

    #[test]
    fn scales_are_positive_numbers_or_auto() {
        assert_eq!("auto".parse(), Ok(Scale::Auto));
        assert_eq!("0.94".parse(), Ok(Scale::Factor(0.94)));
        for text in ["", "0", "-1", "inf", "nan", "1x", "Auto"] {
            assert_eq!(text.parse::<Scale>(), Err(ScaleError), "{text:?}");
        }
    }
}
