//! The tensors of an ONNX model: their sizes, and from which node to which each of them lives.
//!
//! Weights are counted, never read. Shapes come from the file where it has them, and else from
//! rules for the usual operators. Symbolic dimensions get their numbers from the caller.
//!
//! # Invariants
//! - No input makes the reader panic, or recurse deeper than the decoder's limit.
//! - Every tensor in a [`Model`] has its size; where one cannot be had, there is an error that names it.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod error;
mod fold;
mod graph;
mod lives;
mod proto;
mod rules;
mod value;
mod window;

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

pub use error::OnnxError;
pub use lives::{Model, Tensor};

/// Reads a model.
///
/// `dims` gives numbers to symbolic dimensions by their names, and to nameless ones of an input by
/// `input:axis`. With `in_place`, operators such as Relu write their result over an input that
/// nobody reads after them; views (Reshape, Flatten, ...) never have memory of their own.
///
/// # Errors
/// The bytes are no model, a dimension has no number, or a tensor has no size.
pub fn read(
    bytes: Vec<u8>,
    dims: &BTreeMap<String, u64>,
    in_place: bool,
) -> Result<Model, OnnxError> {
    let malformed = |reason: String| OnnxError::Malformed { reason };
    let model = proto::ModelProto::decode(Bytes::from(bytes))
        .map_err(|e| malformed(error::quoted(&e.to_string())))?;
    let known_version = model.ir_version.is_some_and(|v| v > 0);
    let graph = model
        .graph
        .filter(|g| known_version && !g.node.is_empty())
        .ok_or_else(|| malformed("it has no graph of nodes".to_owned()))?;
    let opset = model
        .opset_import
        .iter()
        .filter(|o| matches!(o.domain.as_deref(), None | Some("" | "ai.onnx")))
        .find_map(|o| o.version)
        .unwrap_or(1);
    let graph = graph::Graph::new(graph, dims, opset)?;
    lives::model(&graph, in_place)
}

/// Whether bytes can be the begin of an ONNX model: the field `ir_version`, which all writers put first,
/// or another of the model's few fields.
pub fn looks_like_onnx(bytes: &[u8]) -> bool {
    matches!(bytes, [0x08, version, ..] if (1..64).contains(version))
}
