//! Why there is no plan for an input. One line each.

use std::io;
use std::path::PathBuf;

use millpond_onnx::OnnxError;
use millpond_plan::PlanError;
use millpond_trace::TraceError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("cannot be read: {0}; check the path and its permissions")]
    Io(#[source] io::Error),
    #[error("the gzip stream is damaged or cut short: {0}; copy the file again")]
    Gzip(#[source] io::Error),
    #[error("more than {0} bytes after decompression; unpack and cut it first")]
    TooLarge(u64),
    #[error("the file is empty; give a planning CSV, an ONNX model or a recording")]
    Empty,
    #[error("line {line}: {reason}")]
    Csv { line: usize, reason: String },
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    #[error("no planning CSV or ONNX model, and as a recording: {0}")]
    Trace(#[from] TraceError),
    #[error("the iteration {first}..{last} is not in the recording, which has {steps} steps")]
    NoSuchSteps {
        first: usize,
        last: usize,
        steps: usize,
    },
    #[error("--{option} is for {what}, and this is {found}")]
    NotFor {
        option: &'static str,
        what: &'static str,
        found: &'static str,
    },
    #[error("alignment {given} and {own} together are beyond 2^40; give a smaller --align")]
    Alignment { given: u64, own: u64 },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error("the ending of {} says no format; use .csv, .json, .h or .tflm", .0.display())]
    UnknownFormat(PathBuf),
    #[error("{} could not be written: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error(
        "buffer id {0:?} is no tensor index, and TFLite-Micro knows tensors by their index alone; name \
         the buffers 0, 1, 2, ..."
    )]
    NoIndex(String),
    #[error("offset {0} does not fit the 32 bits that TFLite-Micro has for it")]
    TooFar(u64),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Input(#[from] InputError),
    #[error("{0}")]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Export(#[from] ExportError),
}

impl Failure {
    pub(crate) fn picture(path: &std::path::Path, error: io::Error) -> Failure {
        Failure::Export(ExportError::Io {
            path: path.to_owned(),
            error,
        })
    }
}
