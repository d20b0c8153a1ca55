//! What to plan, out of a file: found by content, never by name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use millpond_plan::{Buffer, Problem};
use millpond_trace::{Limits, read_bytes};
use serde::Serialize;

use super::error::InputError;
use super::{csv, recording};

/// More than this comes out of no file: a guard against small files that unpack without end.
const MOST_BYTES: u64 = 8 << 30;

/// How to read an input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Numbers for the symbolic dimensions of a model.
    pub(crate) dims: BTreeMap<String, u64>,
    /// Results may be written over inputs.
    pub(crate) in_place: bool,
    /// The steps of a recording that are planned, from the first to before the second.
    pub(crate) iteration: Option<(usize, usize)>,
    /// Every offset is a multiple of this many bytes.
    pub(crate) alignment: Option<u64>,
}

/// Buffers with names, and what is to be said of where they come from.
pub(crate) struct Input {
    pub(crate) problem: Problem,
    pub(crate) names: Vec<String>,
    pub(crate) source: Source,
}

/// Where the buffers come from.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "format", rename_all = "kebab-case")]
pub(crate) enum Source {
    PlanningCsv,
    Onnx {
        nodes: usize,
        weight_bytes: u64,
        input_bytes: u64,
        output_bytes: u64,
    },
    Recording {
        /// Steps of the recording.
        steps: usize,
        first_step: usize,
        last_step: usize,
        /// Whether the steps repeat what came before them.
        repeats: bool,
        /// Bytes of blocks that are live before, during and after the iteration.
        held_bytes: u64,
    },
}

pub(crate) fn read(path: &Path, reading: &Reading) -> Result<Input, InputError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(InputError::Io)?;
    file.take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(InputError::Io)?;
    check_length(&bytes)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    read_content(&name, bytes, reading)
}

fn check_length(bytes: &[u8]) -> Result<(), InputError> {
    match bytes.len() as u64 {
        0 => Err(InputError::Empty),
        length if length > MOST_BYTES => Err(InputError::TooLarge(MOST_BYTES)),
        _ => Ok(()),
    }
}

fn read_content(name: &str, bytes: Vec<u8>, reading: &Reading) -> Result<Input, InputError> {
    let zipped = bytes.starts_with(&[0x1f, 0x8b]);
    // A recording has limits of its own for what it unpacks to.
    let begin = if zipped {
        unpack(&bytes, 1 << 10).unwrap_or_default()
    } else {
        Vec::new()
    };
    let begin = if zipped {
        &begin[..]
    } else {
        &bytes[..bytes.len().min(1 << 10)]
    };
    let text = String::from_utf8_lossy(begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin));
    let first_line = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("");
    let (is_csv, is_onnx) = (
        csv::is_header(first_line),
        millpond_onnx::looks_like_onnx(begin),
    );
    let other = |option, what, found| {
        Err(InputError::NotFor {
            option,
            what,
            found,
        })
    };
    if !is_onnx && !reading.dims.is_empty() {
        return other(
            "dim",
            "ONNX models",
            if is_csv {
                "a planning CSV"
            } else {
                "a recording"
            },
        );
    }
    if (is_onnx || is_csv) && reading.iteration.is_some() {
        return other(
            "iteration",
            "recordings",
            if is_csv {
                "a planning CSV"
            } else {
                "an ONNX model"
            },
        );
    }
    let mut input = if is_csv || is_onnx {
        let bytes = if zipped {
            unpack(&bytes, MOST_BYTES)?
        } else {
            bytes
        };
        check_length(&bytes)?;
        if is_csv {
            planning_csv(bytes)?
        } else {
            model(bytes, reading)?
        }
    } else {
        recording::input(
            &read_bytes(name, &bytes, &Limits::default())?,
            reading.iteration,
        )?
    };
    for buffer in &mut input.problem.buffers {
        buffer.alignment = match reading.alignment {
            Some(given) => common(given, buffer.alignment)?,
            None => buffer.alignment,
        };
    }
    Ok(input)
}

/// The least common multiple; 0 stays, for the planner to name.
fn common(given: u64, own: u64) -> Result<u64, InputError> {
    let (mut a, mut b) = (given, own);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let multiple = given.checked_div(a).and_then(|q| q.checked_mul(own));
    multiple
        .filter(|&m| m <= 1 << 40)
        .ok_or(InputError::Alignment { given, own })
}

/// Up to `most` bytes and one more.
fn unpack(bytes: &[u8], most: u64) -> Result<Vec<u8>, InputError> {
    let mut content = Vec::new();
    let taken = MultiGzDecoder::new(bytes)
        .take(most + 1)
        .read_to_end(&mut content);
    taken.map_err(InputError::Gzip)?;
    Ok(content)
}

fn planning_csv(bytes: Vec<u8>) -> Result<Input, InputError> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        InputError::Csv {
            line: before.iter().filter(|&&b| b == b'\n').count() + 1,
            reason: "bytes that are no UTF-8 text".to_owned(),
        }
    })?;
    let (buffers, names) = csv::read(text.strip_prefix('\u{feff}').unwrap_or(&text))?;
    Ok(Input {
        problem: Problem::new(buffers),
        names,
        source: Source::PlanningCsv,
    })
}

fn model(bytes: Vec<u8>, reading: &Reading) -> Result<Input, InputError> {
    let model = millpond_onnx::read(bytes, &reading.dims, reading.in_place)?;
    let (mut buffers, mut names) = (Vec::new(), Vec::new());
    for tensor in model.tensors {
        let mut buffer = Buffer::new(tensor.lower as i64, tensor.upper as i64, tensor.bytes);
        buffer.inside = tensor.inside.map(|base| (base, 0));
        buffers.push(buffer);
        names.push(tensor.name);
    }
    Ok(Input {
        problem: Problem::new(buffers),
        names,
        source: Source::Onnx {
            nodes: model.nodes,
            weight_bytes: model.weight_bytes,
            input_bytes: model.input_bytes,
            output_bytes: model.output_bytes,
        },
    })
}
