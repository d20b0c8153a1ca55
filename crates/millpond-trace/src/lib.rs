//! Readers for recordings of allocation: what a real job asked of its allocator, in host order.
//!
//! Four file formats become one [`Trace`]: PyTorch memory snapshots (pickle), event CSVs,
//! ordered CSVs (with the device's progress) and RMM logs, each plain or gzip. The format is
//! found by content, never by name.
//!
//! ```
//! use millpond_trace::{Limits, Op, read_bytes};
//! let text = b"action,addr,size,stream,time_us\nalloc,512,100,0,7\nfree_requested,512,100,0,9\n";
//! let trace = read_bytes("tiny.csv", text, &Limits::default())?;
//! assert_eq!(trace.peak_live_bytes(), 100);
//! assert_eq!(trace.steps[1].host_ns, 2_000);
//! assert!(matches!(trace.steps[1].op, Op::Free { block: 0, stream: 0, .. }));
//! # Ok::<(), millpond_trace::TraceError>(())
//! ```
//!
//! And back: [`write`](fn@write) writes a trace in any of the formats, [`write_ordered_csv`] in the richest, and [`JobKind::generate`] makes some that are in no
//! file; [`churn`] is a load without a job.
//!
//! # Invariants
//! - Every reader ends in a [`Trace`] that [`Trace::validate`] accepts, or in one [`TraceError`].
//! - No input makes a reader panic, recurse, or hold more memory than [`Limits`] allows;
//!   nothing is allocated because a file claims a length.
//! - A pickle is data: no name in it is ever looked up or called.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod churn;

mod builder;
mod error;
mod event_csv;
mod fields;
mod generate;
mod input;
mod limits;
mod model;
mod ordered_csv;
mod pickle;
mod pytorch;
mod rmm_log;
mod write;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use error::{ErrorKind, Position, TraceError};
pub use generate::JobKind;
pub use limits::Limits;
pub use model::{
    FailedStep, Format, Frame, InvalidTrace, Op, ReservedAction, ReservedStep, Site, Step, Trace,
    TraceRule,
};
pub use write::{losses, write, write_ordered_csv};

use input::{Content, Input};

/// Reads the recording at `path`, with [`Limits::default`].
///
/// # Errors
/// The file cannot be opened or read, its format is not known, or its content is malformed or
/// beyond a limit; the error does not repeat the path.
pub fn read_path(path: &Path) -> Result<Trace, TraceError> {
    let file = File::open(path).map_err(|e| TraceError::new(Position::Start, ErrorKind::Io(e)))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    read(&name, Box::new(file), &Limits::default())
}

/// Reads a recording that is in memory; `name` is its file name, from which [`Trace::name`] is
/// made and nothing else.
///
/// # Errors
/// The format is not known, or the content is malformed or beyond a limit.
pub fn read_bytes(name: &str, bytes: &[u8], limits: &Limits) -> Result<Trace, TraceError> {
    read(name, Box::new(bytes), limits)
}

fn read(name: &str, raw: Box<dyn Read + '_>, limits: &Limits) -> Result<Trace, TraceError> {
    let name = stem(name);
    match Input::open(raw, limits)?.detect()? {
        Content::Pickle(input) => {
            pytorch::read(name, input, limits).map_err(|e| e.in_format(Format::PytorchSnapshot))
        }
        Content::EventCsv(lines) => {
            event_csv::read(name, lines, limits).map_err(|e| e.in_format(Format::EventCsv))
        }
        Content::OrderedCsv(lines) => {
            ordered_csv::read(name, lines, limits).map_err(|e| e.in_format(Format::OrderedCsv))
        }
        Content::RmmLog(lines) => {
            rmm_log::read(name, lines, limits).map_err(|e| e.in_format(Format::RmmLog))
        }
    }
}

/// The file name without the endings that say how it is stored.
fn stem(name: &str) -> &str {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    for ending in [".csv", ".pickle", ".pkl", ".log", ".txt"] {
        if let Some(stem) = name.strip_suffix(ending) {
            return stem;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::stem;

    #[test]
    fn stem_drops_storage_endings_only() {
        assert_eq!(stem("gnn_sampled.csv.gz"), "gnn_sampled");
        assert_eq!(stem("gnn_sampled.ordered.csv.gz"), "gnn_sampled.ordered");
        assert_eq!(stem("snapshot.pickle"), "snapshot");
        assert_eq!(stem("rmm.dev0"), "rmm.dev0");
        assert_eq!(stem(""), "");
    }
}
