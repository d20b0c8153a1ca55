//! Why a model has no sizes.

/// What is wrong with a model, or missing. One line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The bytes are no ONNX model.
    #[error("not an ONNX model: {reason}; export it again, or check it with onnx.checker")]
    Malformed {
        /// What the decoder or the reader found.
        reason: String,
    },
    /// A dimension of an input has no number.
    #[error("dimension {axis} of input `{input}` has no number; give one with --dim {hint}=N")]
    FreeDimension {
        /// The input's name.
        input: String,
        /// Which dimension, the first is 0.
        axis: usize,
        /// What to call it: its own name, or `input:axis`.
        hint: String,
    },
    /// A binding that no dimension has the name of.
    #[error("no dimension is called `{name}`; the model has {known}")]
    UnknownDimension {
        /// The name that was given.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// Tensors whose size follows from nothing that is known.
    #[error(
        "{count} tensors have no size: {names}; their shapes depend on data, or on operators \
         without a rule here: run onnx.shape_inference.infer_shapes (or onnxruntime's symbolic one) \
         first, or cut the model before them"
    )]
    Unsized {
        /// How many.
        count: usize,
        /// The first few, with the operator that makes each.
        names: String,
    },
    /// Nodes with graphs of their own.
    #[error(
        "{count} nodes hold graphs of their own ({names}), whose memory depends on data at run time; \
         export the model without control flow, or plan its branches as models"
    )]
    ControlFlow {
        /// How many.
        count: usize,
        /// The first few.
        names: String,
    },
    /// The sizes are beyond what can be counted.
    #[error("tensor `{name}` is larger than 2^60 bytes; a dimension is damaged")]
    TooLarge {
        /// The tensor's name.
        name: String,
    },
}

/// Up to three of `names`, quoted, and how many more there are.
pub(crate) fn listed(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text: Vec<String> = names.iter().take(SHOWN).cloned().collect();
    if names.len() > SHOWN {
        text.push(format!("and {} more", names.len() - SHOWN));
    }
    text.join(", ")
}

/// A name out of a file, made fit for one line.
pub(crate) fn quoted(name: &str) -> String {
    const SHOWN: usize = 60;
    let short: String = name.chars().take(SHOWN).collect();
    let more = if short.len() < name.len() { "..." } else { "" };
    format!("{}{more}", short.escape_debug())
}
