//! Writing recordings: every format that is read.
//!
//! - [`ordered_csv`], [`event_csv`], [`rmm_log`], [`snapshot`]: one file for each format.
//! - [`places`]: the addresses that blocks are written with; [`segments`]: what a snapshot says of the
//!   allocator's own memory; [`mod@losses`]: what a format has no place for.
//!
//! # Invariants
//! - Read back, a trace has the same steps, sizes, streams and times, as far as the format can carry
//!   them; whatever it cannot is named by [`losses()`].

mod event_csv;
mod losses;
mod ordered_csv;
mod places;
mod rmm_log;
mod segments;
mod snapshot;

use std::io::{self, Write};

use crate::model::{Format, Op, Trace};

pub use losses::losses;
pub use ordered_csv::write_ordered_csv;

/// Writes a trace in any of the formats, plain; gives what could not be carried, one line for each
/// thing, as [`losses()`] does.
///
/// # Errors
/// Those of the writer; and [`io::ErrorKind::InvalidInput`] if the trace does not
/// [hold together](Trace::validate), the name of a stream is no handle, or its blocks take more than
/// 2^63 addresses.
pub fn write(trace: &Trace, format: Format, to: &mut dyn Write) -> io::Result<Vec<String>> {
    match format {
        Format::OrderedCsv => write_ordered_csv(trace, to)?,
        Format::EventCsv => event_csv::write(&Checked::new(trace)?, to)?,
        Format::RmmLog => rmm_log::write(&Checked::new(trace)?, to)?,
        Format::PytorchSnapshot => {
            let carried = snapshot::write(&Checked::new(trace)?, to)?;
            let mut lost = losses(trace, format);
            if !carried && !trace.reserved.is_empty() {
                lost.push(format!(
                    "{} changes of what the recording allocator held, whose addresses do not say \
                     where its blocks lie",
                    trace.reserved.len()
                ));
            }
            return Ok(lost);
        }
    }
    Ok(losses(trace, format))
}

/// A trace that holds together, with what writers need of it.
struct Checked<'t> {
    trace: &'t Trace,
    /// Of each stream.
    handles: Vec<u64>,
    /// Of each block.
    sizes: Vec<u64>,
    /// Of each block.
    addresses: Vec<u64>,
    /// The addresses are the recording's.
    recorded: bool,
}

impl<'t> Checked<'t> {
    fn new(trace: &'t Trace) -> io::Result<Checked<'t>> {
        trace
            .validate()
            .map_err(|error| invalid(error.to_string()))?;
        let handles = handles(trace)?;
        let size = |op| match op {
            Op::Alloc { size, .. } => Some(size),
            _ => None,
        };
        let sizes = trace
            .steps
            .iter()
            .filter_map(|step| size(step.op))
            .collect();
        let (addresses, recorded) = places::of(trace)
            .ok_or_else(|| invalid("the blocks take more than 2^63 addresses".to_owned()))?;
        Ok(Checked {
            trace,
            handles,
            sizes,
            addresses,
            recorded,
        })
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// The streams' handles, from their names as readers give them.
fn handles(trace: &Trace) -> io::Result<Vec<u64>> {
    let handle = |name: &String| {
        let parsed = match name.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => name.parse().ok(),
        };
        parsed.ok_or_else(|| invalid(format!("`{name}` is no stream handle")))
    };
    trace.streams.iter().map(handle).collect()
}
