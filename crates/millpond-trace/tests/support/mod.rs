//! What several test files need: a small pickle writer and the recordings of the repository.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::path::PathBuf;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use millpond_trace::{Limits, Trace, TraceError, read_bytes};

/// The recordings in `traces/` of the repository.
pub(crate) const RECORDINGS: [&str; 7] = [
    "fsdp_prefetch.ordered.csv.gz",
    "gnn_sampled.csv.gz",
    "gnn_sampled.pickle.gz",
    "mixed_dynamic.ordered.csv.gz",
    "offload_streams.ordered.csv.gz",
    "rmm_cupy_log.csv.gz",
    "small_full_context.pickle.gz",
];

pub(crate) fn recording(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "traces", name]
        .iter()
        .collect()
}

/// A recording's text or pickle.
pub(crate) fn content(name: &str) -> Vec<u8> {
    let mut content = Vec::new();
    let zipped = std::fs::read(recording(name)).unwrap();
    MultiGzDecoder::new(&zipped[..])
        .read_to_end(&mut content)
        .unwrap();
    content
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Reads, and holds the result against the invariants.
pub(crate) fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    read_within(bytes, &Limits::default())
}

pub(crate) fn read_within(bytes: &[u8], limits: &Limits) -> Result<Trace, TraceError> {
    let trace = read_bytes("test", bytes, limits)?;
    trace.validate().unwrap();
    assert!(trace.steps.len() <= limits.steps as usize);
    Ok(trace)
}

/// The one line of an error.
pub(crate) fn refusal(bytes: &[u8]) -> String {
    let line = read(bytes).unwrap_err().to_string();
    assert!(!line.contains('\n') && line.len() < 400, "{line}");
    line
}

/// A Python value to pickle.
#[derive(Clone)]
pub(crate) enum Py {
    Int(i64),
    Str(&'static str),
    List(Vec<Py>),
    Dict(Vec<(&'static str, Py)>),
}

/// A pickle of `value`, written like CPython does but without memo.
pub(crate) fn pickle(protocol: u8, value: &Py) -> Vec<u8> {
    let mut body = Vec::new();
    write(&mut body, protocol, value);
    body.push(b'.');
    let mut out = vec![0x80, protocol];
    if protocol >= 4 {
        out.push(0x95);
        out.extend((body.len() as u64).to_le_bytes());
    }
    out.extend(body);
    out
}

fn write(out: &mut Vec<u8>, protocol: u8, value: &Py) {
    match value {
        Py::Int(int) => match u8::try_from(*int) {
            Ok(byte) => out.extend([b'K', byte]),
            Err(_) => {
                out.extend([0x8a, 8]);
                out.extend(int.to_le_bytes());
            }
        },
        Py::Str(text) if protocol >= 4 => {
            out.extend([0x8c, text.len() as u8]);
            out.extend(text.as_bytes());
        }
        Py::Str(text) => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Py::List(items) => {
            out.extend(b"](");
            for item in items {
                write(out, protocol, item);
            }
            out.push(b'e');
        }
        Py::Dict(pairs) => {
            out.extend(b"}(");
            for (key, value) in pairs {
                write(out, protocol, &Py::Str(key));
                write(out, protocol, value);
            }
            out.push(b'u');
        }
    }
}

/// A history entry of a snapshot.
pub(crate) fn entry(action: &'static str, addr: i64, size: i64, time_us: i64) -> Py {
    Py::Dict(vec![
        ("action", Py::Str(action)),
        ("addr", Py::Int(addr)),
        ("size", Py::Int(size)),
        ("stream", Py::Int(0)),
        ("time_us", Py::Int(time_us)),
    ])
}

/// A segment of a snapshot with blocks `(size, requested, state)` from its start.
pub(crate) fn segment(device: i64, address: i64, blocks: &[(i64, i64, &'static str)]) -> Py {
    let total = blocks.iter().map(|b| b.0).sum();
    let mut next = address;
    let blocks = blocks.iter().map(|&(size, requested, state)| {
        let block = Py::Dict(vec![
            ("address", Py::Int(next)),
            ("size", Py::Int(size)),
            ("requested_size", Py::Int(requested)),
            ("state", Py::Str(state)),
        ]);
        next += size;
        block
    });
    let blocks = Py::List(blocks.collect());
    Py::Dict(vec![
        ("device", Py::Int(device)),
        ("address", Py::Int(address)),
        ("total_size", Py::Int(total)),
        ("stream", Py::Int(0)),
        ("blocks", blocks),
    ])
}

/// A snapshot of segments and of each device's history.
pub(crate) fn snapshot(segments: Vec<Py>, histories: Vec<Vec<Py>>) -> Py {
    Py::Dict(vec![
        ("segments", Py::List(segments)),
        (
            "device_traces",
            Py::List(histories.into_iter().map(Py::List).collect()),
        ),
    ])
}
