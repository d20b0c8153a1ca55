//! From which node to which each tensor lives, and which share memory by the meaning of their
//! operators.

use std::collections::HashMap;

use crate::error::{OnnxError, listed, quoted};
use crate::graph::Graph;

/// A tensor that needs memory while the model runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in the model.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// The node that makes it, counted from 0 in the file's order.
    pub lower: u64,
    /// The first node after the last that reads it; one more than the number of nodes for a graph output.
    pub upper: u64,
    /// The tensor (an index) whose memory it has, from the first byte on: it is a view of it, or written
    /// over it.
    pub inside: Option<usize>,
}

/// What a model needs memory for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Activations: everything that nodes make from the inputs, outputs of the graph among them.
    pub tensors: Vec<Tensor>,
    /// Number of nodes.
    pub nodes: usize,
    /// Bytes of initialisers, and of what is computed from constants alone.
    pub weight_bytes: u64,
    /// Bytes of the inputs that the caller gives.
    pub input_bytes: u64,
    /// Bytes of the graph's outputs, as far as they are activations.
    pub output_bytes: u64,
}

/// Operators whose result is its first input with another shape or none of its own.
const VIEWS: [&str; 6] = [
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "Dropout",
];

/// Operators that can write each element over the one that it is computed from.
const IN_PLACE: [&str; 37] = [
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Elu",
    "Selu",
    "Celu",
    "ThresholdedRelu",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Mish",
    "Gelu",
    "Swish",
    "Tanh",
    "Softplus",
    "Softsign",
    "Clip",
    "Exp",
    "Log",
    "Sqrt",
    "Abs",
    "Neg",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Reciprocal",
    "Erf",
    "Sin",
    "Cos",
    "Not",
    "BatchNormalization",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Sum",
];

/// While tensors are collected: the live ones by name.
struct Lives<'g> {
    graph: &'g Graph,
    /// The last node that reads a tensor, by name; the number of nodes for a graph output.
    last: HashMap<&'g str, usize>,
    index: HashMap<&'g str, usize>,
    tensors: Vec<Tensor>,
    /// Of each tensor the one whose memory it has in the end.
    root: Vec<usize>,
    /// Of each root the end of the last tensor in its memory.
    busy: Vec<u64>,
}

pub(crate) fn model(graph: &Graph, in_place: bool) -> Result<Model, OnnxError> {
    check_sizes(graph)?;
    let mut last: HashMap<&str, usize> = HashMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        for name in &node.input {
            last.insert(name, at);
        }
    }
    for name in &graph.outputs {
        last.insert(name, graph.nodes.len());
    }
    let bytes = |name: &str| graph.values.get(name).and_then(|v| v.bytes()).unwrap_or(0);
    let mut lives = Lives {
        graph,
        last,
        index: HashMap::new(),
        tensors: Vec::new(),
        root: Vec::new(),
        busy: Vec::new(),
    };
    let mut weight_bytes: u64 = 0;
    for name in &graph.initialisers {
        weight_bytes = weight_bytes.saturating_add(bytes(name));
    }
    for at in 0..graph.nodes.len() {
        for output in 0..graph.nodes[at].output.len() {
            let name = &graph.nodes[at].output[output];
            if graph.values.get(name).is_some_and(|v| v.constant) {
                weight_bytes = weight_bytes.saturating_add(bytes(name));
            } else if !name.is_empty() {
                lives.add(at, output, bytes(name), in_place);
            }
        }
    }
    let sum = |names: &mut dyn Iterator<Item = &String>| {
        names.fold(0_u64, |sum, name| sum.saturating_add(bytes(name)))
    };
    Ok(Model {
        nodes: graph.nodes.len(),
        weight_bytes,
        input_bytes: sum(&mut graph.inputs.iter()),
        output_bytes: sum(&mut graph
            .outputs
            .iter()
            .filter(|o| lives.index.contains_key(o.as_str()))),
        tensors: lives.tensors,
    })
}

impl<'g> Lives<'g> {
    fn add(&mut self, at: usize, output: usize, bytes: u64, in_place: bool) {
        let graph: &'g Graph = self.graph;
        let node = &graph.nodes[at];
        let name = &node.output[output];
        let operator = node.op_type.as_deref().unwrap_or("");
        let upper = self.last.get(name.as_str()).map_or(at + 1, |&l| l + 1);
        let tensor = Tensor {
            name: name.clone(),
            bytes,
            lower: at as u64,
            upper: upper.max(at + 1) as u64,
            inside: None,
        };
        let view = output == 0 && VIEWS.contains(&operator);
        let base = match (view, node.input.first()) {
            (true, Some(input)) => match self.index.get(input.as_str()) {
                Some(&base) => Some(base),
                // A view of an input of the graph or of a weight has no memory of the plan's.
                None => return,
            },
            _ if in_place && output == 0 && IN_PLACE.contains(&operator) => {
                self.free_input(at, bytes)
            }
            _ => None,
        };
        let index = self.tensors.len();
        let root = base.map_or(index, |base| self.root[base]);
        self.busy.push(0);
        self.busy[root] = self.busy[root].max(tensor.upper);
        self.root.push(root);
        self.index.insert(name, index);
        self.tensors.push(Tensor {
            inside: base,
            ..tensor
        });
    }

    /// An input of just this size that nothing reads after node `at`, in any of its views.
    fn free_input(&self, at: usize, bytes: u64) -> Option<usize> {
        let inputs = self.graph.nodes[at].input.iter();
        let mut held = inputs.filter_map(|name| self.index.get(name.as_str()).copied());
        held.find(|&i| {
            let ends_here = self.busy[self.root[i]] == at as u64 + 1;
            let output = self.graph.outputs.contains(&self.tensors[i].name);
            ends_here && !output && self.tensors[i].bytes == bytes
        })
    }
}

/// Names what has no size.
fn check_sizes(graph: &Graph) -> Result<(), OnnxError> {
    let mut unsized_names = Vec::new();
    let unknown = |name: &str| graph.values.get(name).is_none_or(|v| v.bytes().is_none());
    let too_large = |name: &str| {
        graph.values.get(name).is_some_and(|v| {
            v.shape.is_some() && v.data_type.and_then(crate::value::bits).is_some()
        })
    };
    let mut check = |name: &str, what: &str| {
        if !name.is_empty() && unknown(name) {
            if too_large(name) {
                return Err(OnnxError::TooLarge { name: quoted(name) });
            }
            unsized_names.push(format!("`{}` ({what})", quoted(name)));
        }
        Ok(())
    };
    for name in &graph.inputs {
        check(name, "input")?;
    }
    for node in &graph.nodes {
        for name in &node.output {
            let constant = graph.values.get(name).is_some_and(|v| v.constant);
            if !constant {
                check(name, &quoted(node.op_type.as_deref().unwrap_or("")))?;
            }
        }
    }
    match unsized_names.len() {
        0 => Ok(()),
        count => Err(OnnxError::Unsized {
            count,
            names: listed(&unsized_names),
        }),
    }
}
