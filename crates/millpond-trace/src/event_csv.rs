//! Event CSV: one line for each event of PyTorch's caching allocator, in host order.
//!
//! `alloc` and `free_requested` are what the job asked for. `free_completed` is when the
//! allocator could really free, and counts only where no request came before it.

use crate::builder::{Builder, Radix, Times};
use crate::error::TraceError;
use crate::fields::{decimal, handle, micros_as_ns, split};
use crate::input::Lines;
use crate::limits::Limits;
use crate::model::{Format, ReservedAction, Trace};

pub(crate) const HEADER: &[u8] = b"action,addr,size,stream,time_us";

pub(crate) fn read(name: &str, mut lines: Lines<'_>, limits: &Limits) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(limits, Radix::Decimal);
    let mut out_of_memory = 0_u64;
    while let Some(line) = lines.next_line()? {
        let at = line.at;
        builder.set_position(at);
        let [action, addr, size, stream, time] = split(line.text, at)?;
        let reserved = match action {
            b"alloc" | b"free_requested" | b"free_completed" => {
                let key = decimal(addr, "addr", at)?;
                let size = decimal(size, "size", at)?;
                let stream = handle(stream, at)?;
                let times = Times::host(micros_as_ns(time, "time_us", at)?);
                match action {
                    b"alloc" => builder.alloc(key, size, stream, times)?,
                    b"free_requested" => builder.free_requested(key, size, stream, times)?,
                    _ => builder.free_completed(key, size, stream, times)?,
                }
                continue;
            }
            b"segment_alloc" => ReservedAction::SegmentAlloc,
            b"segment_free" => ReservedAction::SegmentFree,
            b"segment_map" => ReservedAction::SegmentMap,
            b"segment_unmap" => ReservedAction::SegmentUnmap,
            b"oom" => {
                out_of_memory += 1;
                builder.failed(decimal(size, "size", at)?, None)?;
                continue;
            }
            b"snapshot" | b"annotate" => continue,
            _ => {
                let expected = "an action of the caching allocator";
                return Err(TraceError::malformed(at, "action", action, expected));
            }
        };
        let (bytes, addr) = (decimal(size, "size", at)?, decimal(addr, "addr", at)?);
        builder.reserved(reserved, bytes, Some(addr))?;
    }
    if out_of_memory > 0 {
        builder.note(format!(
            "{out_of_memory} out-of-memory events in the recording"
        ));
    }
    Ok(builder.finish(name, Format::EventCsv))
}
