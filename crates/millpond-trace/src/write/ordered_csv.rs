//! Writing ordered CSV: the format that [`ordered_csv`](crate::ordered_csv) reads.
//!
//! # Invariants
//! - Read back, a trace has the same steps, streams, blocks and events. What the format has no
//!   place for goes: the name, the notes, and what the recording allocator held.

use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU64;

use super::{handles, invalid};
use crate::model::{Op, Trace};
use crate::ordered_csv::HEADER;

/// Writes a trace as ordered CSV, plain.
///
/// Streams are written by their handles, in decimal. Sizes are in bytes and times in microseconds
/// with three decimals, so that no nanosecond is lost.
///
/// # Errors
/// Those of the writer; and [`io::ErrorKind::InvalidInput`] if the trace does not
/// [hold together](Trace::validate), or the name of a stream is no handle.
pub fn write_ordered_csv(trace: &Trace, to: &mut dyn Write) -> io::Result<()> {
    trace
        .validate()
        .map_err(|error| invalid(error.to_string()))?;
    let handles = handles(trace)?;
    to.write_all(HEADER)?;
    to.write_all(b"\n")?;
    let mut sizes = Vec::with_capacity(trace.block_count as usize);
    for step in &trace.steps {
        let host = Micros(step.host_ns);
        let stream = |stream: u32| handles[stream as usize];
        match step.op {
            Op::Alloc {
                block,
                size,
                stream: on,
            } => {
                sizes.push(size);
                writeln!(to, "alloc,{block},{size},{},,{host},", stream(on))?;
            }
            Op::Free {
                block,
                stream: on,
                device_ns,
            } => {
                let (size, device) = (sizes[block as usize], Mark(device_ns));
                writeln!(to, "free,{block},{size},{},,{host},{device}", stream(on))?;
            }
            Op::Use { block, stream: on } => {
                let size = sizes[block as usize];
                writeln!(to, "use,{block},{size},{},,{host},", stream(on))?;
            }
            Op::UseEnd {
                block,
                stream: on,
                device_ns,
            } => {
                let (size, device) = (sizes[block as usize], Mark(device_ns));
                writeln!(to, "use_end,{block},{size},{},,{host},{device}", stream(on))?;
            }
            Op::Record {
                event,
                stream: on,
                device_ns,
            } => {
                let device = Mark(device_ns);
                writeln!(to, "record,,,{},{event},{host},{device}", stream(on))?;
            }
            Op::Wait { event, stream: on } => {
                writeln!(to, "wait,,,{},{event},{host},", stream(on))?;
            }
        }
    }
    to.flush()
}

/// Nanoseconds, shown as microseconds.
pub(super) struct Micros(pub(super) u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// When the device came to a mark, in nanoseconds; shown as microseconds, or empty.
struct Mark(Option<NonZeroU64>);

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |ns| Micros(ns.get()).fmt(f))
    }
}
