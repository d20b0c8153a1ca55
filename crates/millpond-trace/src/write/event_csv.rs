//! Writing event CSV: what [`event_csv`](crate::event_csv) reads.

use std::io::{self, Write};

use super::Checked;
use super::ordered_csv::Micros;
use crate::event_csv::HEADER;
use crate::model::{Op, ReservedAction};

pub(super) fn write(checked: &Checked<'_>, to: &mut dyn Write) -> io::Result<()> {
    let trace = checked.trace;
    to.write_all(HEADER)?;
    to.write_all(b"\n")?;
    let mut reserved = trace.reserved.iter().peekable();
    let mut failures = trace.failures.iter().peekable();
    let mut now = Micros(0);
    for index in 0..=trace.steps.len() {
        if let Some(step) = trace.steps.get(index) {
            now = Micros(step.host_ns);
        }
        while let Some(step) = reserved.next_if(|step| step.step as usize == index) {
            let action = match step.action {
                // The format cannot say what was there before; got at the beginning is the same.
                ReservedAction::Initial | ReservedAction::SegmentAlloc => "segment_alloc",
                ReservedAction::SegmentFree => "segment_free",
                ReservedAction::SegmentMap => "segment_map",
                ReservedAction::SegmentUnmap => "segment_unmap",
            };
            let address = step.address.unwrap_or(0);
            writeln!(to, "{action},{address},{},0,{now}", step.bytes)?;
        }
        while let Some(failed) = failures.next_if(|failed| failed.step as usize == index) {
            writeln!(to, "oom,,{},0,{now}", failed.bytes)?;
        }
        let Some(step) = trace.steps.get(index) else {
            break;
        };
        match step.op {
            Op::Alloc {
                block,
                size,
                stream,
            } => {
                let address = checked.addresses[block as usize];
                let stream = checked.handles[stream as usize];
                writeln!(to, "alloc,{address},{size},{stream},{now}")?;
            }
            Op::Free { block, stream, .. } => {
                let address = checked.addresses[block as usize];
                let size = checked.sizes[block as usize];
                let stream = checked.handles[stream as usize];
                writeln!(to, "free_requested,{address},{size},{stream},{now}")?;
                writeln!(to, "free_completed,{address},{size},{stream},{now}")?;
            }
            Op::Use { .. } | Op::UseEnd { .. } | Op::Record { .. } | Op::Wait { .. } => {}
        }
    }
    to.flush()
}
