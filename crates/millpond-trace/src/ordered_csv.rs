//! Ordered CSV: what the job did, with stream order and the device's progress.
//!
//! Which columns a line fills depends on `op`; `device_us` may always be empty. A block's number
//! may be used again after its free.

use crate::builder::{Builder, Radix, Times};
use crate::error::TraceError;
use crate::fields::{decimal, handle, micros_as_ns, split};
use crate::input::Lines;
use crate::limits::Limits;
use crate::model::{Format, Trace};

pub(crate) const HEADER: &[u8] = b"op,block,size,stream,event,host_us,device_us";

pub(crate) fn read(name: &str, mut lines: Lines<'_>, limits: &Limits) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(limits, Radix::Decimal);
    while let Some(line) = lines.next_line()? {
        let at = line.at;
        builder.set_position(at);
        let [op, block, size, stream, event, host, device] = split(line.text, at)?;
        let stream = handle(stream, at)?;
        let times = Times {
            host_ns: micros_as_ns(host, "host_us", at)?,
            device_ns: match device {
                b"" => None,
                _ => Some(micros_as_ns(device, "device_us", at)?),
            },
        };
        let block = || decimal(block, "block", at);
        let size = || decimal(size, "size", at);
        let event = || decimal(event, "event", at);
        match op {
            b"alloc" => builder.alloc(block()?, size()?, stream, times)?,
            b"free" => builder.free(block()?, size()?, stream, times)?,
            b"use" => builder.use_on(block()?, stream, times)?,
            b"use_end" => builder.use_end(block()?, stream, times)?,
            b"record" => builder.record(event()?, stream, times)?,
            b"wait" => builder.wait(event()?, stream, times)?,
            _ => {
                let expected = "alloc, free, use, use_end, record or wait";
                return Err(TraceError::malformed(at, "op", op, expected));
            }
        }
    }
    Ok(builder.finish(name, Format::OrderedCsv))
}
