//! Writing RMM logs: what [`rmm_log`](crate::rmm_log) reads. Times of day begin at midnight.

use std::fmt;
use std::io::{self, Write};

use super::Checked;
use crate::model::Op;
use crate::rmm_log::HEADER;

pub(super) fn write(checked: &Checked<'_>, to: &mut dyn Write) -> io::Result<()> {
    let trace = checked.trace;
    to.write_all(HEADER)?;
    to.write_all(b"\n")?;
    let mut failures = trace.failures.iter().peekable();
    let mut now = TimeOfDay(0);
    for index in 0..=trace.steps.len() {
        if let Some(step) = trace.steps.get(index) {
            now = TimeOfDay(step.host_ns);
        }
        while let Some(failed) = failures.next_if(|failed| failed.step as usize == index) {
            writeln!(to, "1,{now},allocate failure,(nil),{},0", failed.bytes)?;
        }
        let Some(step) = trace.steps.get(index) else {
            break;
        };
        let (action, block, stream) = match step.op {
            Op::Alloc { block, stream, .. } => ("allocate", block, stream),
            Op::Free { block, stream, .. } => ("free", block, stream),
            Op::Use { .. } | Op::UseEnd { .. } | Op::Record { .. } | Op::Wait { .. } => continue,
        };
        let address = checked.addresses[block as usize];
        let size = checked.sizes[block as usize];
        let stream = checked.handles[stream as usize];
        writeln!(to, "1,{now},{action},{address:#x},{size},{stream:#x}")?;
    }
    to.flush()
}

/// Nanoseconds, shown as a time of day; in microseconds, as RMM does, where that is exact.
struct TimeOfDay(u64);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ns) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
        write!(f, "{hour:02}:{minute:02}:{:02}.", seconds % 60)?;
        if ns % 1000 == 0 {
            write!(f, "{:06}", ns / 1000)
        } else {
            write!(f, "{ns:09}")
        }
    }
}
