//! A model's graph with what is known of every tensor.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{OnnxError, listed, quoted};
use crate::fold;
use crate::proto::{GraphProto, NodeProto, ValueInfoProto};
use crate::rules::{Call, results};
use crate::value::{Value, stated};

pub(crate) struct Graph {
    pub(crate) nodes: Vec<NodeProto>,
    /// Names of the inputs that the caller gives; those that only stand for an initialiser are not among
    /// them.
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    /// Names of the initialisers.
    pub(crate) initialisers: BTreeSet<String>,
    pub(crate) values: HashMap<String, Value>,
}

impl Graph {
    pub(crate) fn new(
        graph: GraphProto,
        dims: &BTreeMap<String, u64>,
        opset: i64,
    ) -> Result<Graph, OnnxError> {
        refuse_control_flow(&graph.node)?;
        let mut values = HashMap::new();
        let mut initialisers = BTreeSet::new();
        for tensor in &graph.initializer {
            let name = tensor.name.clone().unwrap_or_default();
            values.insert(name.clone(), Value::of_tensor(tensor));
            initialisers.insert(name);
        }
        let is_input = |info: &&ValueInfoProto| {
            !initialisers.contains(info.name.as_deref().unwrap_or_default())
        };
        let inputs: Vec<&ValueInfoProto> = graph.input.iter().filter(is_input).collect();
        check_names(&inputs, &graph, dims)?;
        for info in &inputs {
            let value = input_value(info, dims)?;
            values.insert(info.name.clone().unwrap_or_default(), value);
        }
        let inputs = inputs
            .iter()
            .map(|i| i.name.clone().unwrap_or_default())
            .collect();
        let outputs = graph
            .output
            .iter()
            .map(|o| o.name.clone().unwrap_or_default())
            .collect();
        let said: HashMap<&str, Value> = graph
            .value_info
            .iter()
            .chain(&graph.output)
            .filter_map(|info| Some((info.name.as_deref()?, said_value(info, dims))))
            .collect();
        for node in &graph.node {
            let found = node_values(node, &values, &said, opset)?;
            for (name, value) in node.output.iter().zip(found) {
                if !name.is_empty() && values.insert(name.clone(), value).is_some() {
                    return Err(OnnxError::Malformed {
                        reason: format!("tensor `{}` is made twice", quoted(name)),
                    });
                }
            }
        }
        Ok(Graph {
            inputs,
            outputs,
            initialisers,
            values,
            nodes: graph.node,
        })
    }
}

fn refuse_control_flow(nodes: &[NodeProto]) -> Result<(), OnnxError> {
    let holding = nodes
        .iter()
        .filter(|n| n.attribute.iter().any(|a| a.g.is_some()));
    let names: Vec<String> = holding
        .map(|n| {
            let operator = quoted(n.op_type.as_deref().unwrap_or(""));
            let name = n.name.as_deref().filter(|name| !name.is_empty());
            let name = name.or(n.output.first().map(String::as_str)).unwrap_or("");
            format!("{operator} `{}`", quoted(name))
        })
        .collect();
    match names.len() {
        0 => Ok(()),
        count => Err(OnnxError::ControlFlow {
            count,
            names: listed(&names),
        }),
    }
}

/// Every binding must be of a dimension that there is.
fn check_names(
    inputs: &[&ValueInfoProto],
    graph: &GraphProto,
    dims: &BTreeMap<String, u64>,
) -> Result<(), OnnxError> {
    let mut known = BTreeSet::new();
    for info in inputs {
        let name = info.name.as_deref().unwrap_or_default();
        for (axis, (number, symbol)) in stated(info)
            .dims
            .unwrap_or_default()
            .into_iter()
            .enumerate()
        {
            if number.is_none() {
                known.insert(symbol.unwrap_or_else(|| format!("{name}:{axis}")));
            }
        }
    }
    for info in graph.value_info.iter().chain(&graph.output) {
        let dims = stated(info).dims.unwrap_or_default();
        known.extend(dims.into_iter().filter_map(|d| d.1));
    }
    match dims.keys().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => {
            let known: Vec<String> = known.iter().map(|n| format!("`{}`", quoted(n))).collect();
            Err(OnnxError::UnknownDimension {
                name: quoted(name),
                known: if known.is_empty() {
                    "none to be named".to_owned()
                } else {
                    known.join(", ")
                },
            })
        }
    }
}

fn input_value(info: &ValueInfoProto, dims: &BTreeMap<String, u64>) -> Result<Value, OnnxError> {
    let stated = stated(info);
    let name = info.name.as_deref().unwrap_or_default();
    let mut shape = Vec::new();
    for (axis, (number, symbol)) in stated
        .dims
        .clone()
        .unwrap_or_default()
        .into_iter()
        .enumerate()
    {
        let hint = symbol.unwrap_or_else(|| format!("{name}:{axis}"));
        let number = number.or(dims.get(&hint).copied());
        shape.push(number.ok_or_else(|| OnnxError::FreeDimension {
            input: quoted(name),
            axis,
            hint: quoted(&hint),
        })?);
    }
    Ok(Value {
        data_type: stated.data_type,
        shape: stated.dims.map(|_| shape),
        ..Value::default()
    })
}

/// What the file says of a tensor that is made; a shape only if all of it is known.
fn said_value(info: &ValueInfoProto, dims: &BTreeMap<String, u64>) -> Value {
    let stated = stated(info);
    let number = |(number, symbol): (Option<u64>, Option<String>)| {
        number.or(symbol.and_then(|s| dims.get(&s).copied()))
    };
    Value {
        data_type: stated.data_type,
        shape: stated
            .dims
            .and_then(|dims| dims.into_iter().map(number).collect()),
        ..Value::default()
    }
}

fn node_values(
    node: &NodeProto,
    values: &HashMap<String, Value>,
    said: &HashMap<&str, Value>,
    opset: i64,
) -> Result<Vec<Value>, OnnxError> {
    if let (Some("Constant"), Some(tensor)) = (
        node.op_type.as_deref(),
        node.attribute.iter().find_map(|a| a.t.as_ref()),
    ) {
        return Ok(vec![Value::of_tensor(tensor)]);
    }
    let mut inputs = Vec::with_capacity(node.input.len());
    for name in &node.input {
        let value = values.get(name);
        if value.is_none() && !name.is_empty() {
            return Err(OnnxError::Malformed {
                reason: format!("tensor `{}` is read before it is made", quoted(name)),
            });
        }
        inputs.push(value);
    }
    let random = node
        .op_type
        .as_deref()
        .is_some_and(|o| o.starts_with("Random"));
    let constant = !random && inputs.iter().flatten().all(|v| v.constant);
    let call = Call {
        node,
        inputs,
        opset,
    };
    let mut found = results(&call);
    found.resize(node.output.len(), Value::default());
    for (name, value) in node.output.iter().zip(&mut found) {
        if let Some(said) = said.get(name.as_str()) {
            value.data_type = said.data_type.filter(|&t| t != 0).or(value.data_type);
            value.shape = said.shape.clone().or(value.shape.take());
        }
        value.constant = constant;
    }
    if let Some(first) = found.first_mut() {
        first.numbers = fold::numbers(&call, first);
    }
    Ok(found)
}
