//! No bytes make the reader panic, and what it reads adds up.

use std::collections::BTreeMap;

use millpond_onnx::{OnnxError, looks_like_onnx, read};
use proptest::prelude::*;

/// A protobuf field of bytes.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    let mut length = content.len();
    while length > 127 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(content);
    bytes
}

/// `name: float[dims]`
fn tensor(name: &str, dims: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|&d| field(1, &[8, d])).collect();
    let kind = field(1, &[vec![8, 1], field(2, &dims)].concat());
    [field(1, name.as_bytes()), field(2, &kind)].concat()
}

fn attribute(name: &str, numbers: &[u8]) -> Vec<u8> {
    let numbers: Vec<u8> = numbers.iter().flat_map(|&n| [0x40, n]).collect();
    field(5, &[field(1, name.as_bytes()), numbers].concat())
}

fn node(operator: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|i| field(1, i.as_bytes())).collect();
    let rest = [
        field(2, output.as_bytes()),
        field(4, operator.as_bytes()),
        attributes.concat(),
    ];
    field(1, &[inputs, rest.concat()].concat())
}

fn model(nodes: &[Vec<u8>], inputs: &[Vec<u8>], initialisers: &[Vec<u8>], output: &str) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|i| field(11, i)).collect();
    let weights: Vec<u8> = initialisers.iter().flat_map(|i| field(5, i)).collect();
    let graph = [
        nodes.concat(),
        weights,
        inputs,
        field(12, &field(1, output.as_bytes())),
    ]
    .concat();
    let opset = field(8, &[16, 13]);
    [vec![8, 8], field(7, &graph), opset].concat()
}

/// `name: float[dims]` without contents: `TensorProto`.
fn weight(name: &str, dims: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|&d| [8, d]).collect();
    [dims, vec![16, 1], field(8, name.as_bytes())].concat()
}

fn network() -> Vec<u8> {
    let pads = attribute("pads", &[1, 1, 1, 1]);
    let kernel = attribute("kernel_shape", &[2, 2]);
    let strides = attribute("strides", &[2, 2]);
    model(
        &[
            node("Conv", &["x", "w"], "c", &[pads]),
            node("Relu", &["c"], "r", &[]),
            node("MaxPool", &["r"], "p", &[kernel, strides]),
            node("Flatten", &["p"], "f", &[]),
            node("MatMul", &["f", "m"], "y", &[]),
        ],
        &[tensor("x", &[1, 3, 8, 8])],
        &[weight("w", &[4, 3, 3, 3]), weight("m", &[64, 10])],
        "y",
    )
}

#[test]
fn a_small_network_is_sized_by_rules() {
    let mut bytes = network();
    let none = BTreeMap::new();
    assert!(looks_like_onnx(&bytes));
    let model = read(bytes.clone(), &none, true).unwrap();
    let found: Vec<_> = model
        .tensors
        .iter()
        .map(|t| (t.name.as_str(), t.bytes, t.lower, t.upper, t.inside))
        .collect();
    assert_eq!(
        found,
        [
            ("c", 1024, 0, 2, None),
            ("r", 1024, 1, 3, Some(0)),
            ("p", 256, 2, 4, None),
            ("f", 256, 3, 5, Some(2)),
            ("y", 40, 4, 6, None),
        ]
    );
    assert_eq!(model.weight_bytes, 4 * (4 * 27 + 640));
    assert_eq!(
        (model.input_bytes, model.output_bytes, model.nodes),
        (768, 40, 5)
    );
    let apart = read(bytes.clone(), &none, false).unwrap();
    assert_eq!(apart.tensors[1].inside, None);
    bytes.truncate(bytes.len() / 2);
    assert!(matches!(
        read(bytes, &none, true),
        Err(OnnxError::Malformed { .. })
    ));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(bytes, &BTreeMap::new(), true);
    }

    #[test]
    fn no_damage_to_a_model_makes_it_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = network();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Err(error) = read(bytes, &BTreeMap::new(), true) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
