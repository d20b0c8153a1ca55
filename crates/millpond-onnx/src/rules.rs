//! Shapes of results, by operator (<https://onnx.ai/onnx/operators/>). A rule gives `None` where
//! it cannot tell; it never guesses.

use crate::proto::NodeProto;
use crate::value::{BOOL, FLOAT, INT64, Value, elements};
use crate::window::{transposed, window};

pub(crate) type Shape = Vec<u64>;

/// A node and what is known of its inputs.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a NodeProto,
    pub(crate) inputs: Vec<Option<&'a Value>>,
    pub(crate) opset: i64,
}

impl Call<'_> {
    pub(crate) fn operator(&self) -> &str {
        self.node.op_type.as_deref().unwrap_or("")
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        let attributes = &self.node.attribute;
        attributes
            .iter()
            .find(|a| a.name.as_deref() == Some(name))?
            .i
    }

    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        let attributes = &self.node.attribute;
        let found = attributes
            .iter()
            .find(|a| a.name.as_deref() == Some(name))?;
        Some(&found.ints)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&[u8]> {
        let attributes = &self.node.attribute;
        attributes
            .iter()
            .find(|a| a.name.as_deref() == Some(name))?
            .s
            .as_deref()
    }

    pub(crate) fn input(&self, at: usize) -> Option<&Value> {
        self.inputs.get(at).copied().flatten()
    }

    pub(crate) fn shape(&self, at: usize) -> Option<&[u64]> {
        self.input(at)?.shape.as_deref()
    }

    /// Numbers that newer versions of an operator take as an input, and older ones as an attribute.
    pub(crate) fn numbers(&self, at: usize, attribute: &str) -> Option<Vec<i64>> {
        match self.node.input.get(at).filter(|name| !name.is_empty()) {
            Some(_) => self.input(at)?.numbers.clone(),
            None => Some(self.ints(attribute)?.to_vec()),
        }
    }

    fn has_input(&self, at: usize) -> bool {
        self.node.input.get(at).is_some_and(|name| !name.is_empty())
    }
}

pub(crate) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 {
        axis.checked_add(rank as i64)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|&a| a < rank)
}

/// Types and shapes of the outputs; fewer than there are where nothing is known.
pub(crate) fn results(call: &Call<'_>) -> Vec<Value> {
    let count = call.node.output.len();
    let first_type = call.input(0).and_then(|v| v.data_type);
    let operator = call.operator();
    if let Some(shapes) = several(call) {
        return shapes
            .into_iter()
            .take(count)
            .map(|(data_type, shape)| Value {
                data_type,
                shape: Some(shape),
                ..Value::default()
            })
            .collect();
    }
    let data_type = match operator {
        "Shape" | "ArgMax" | "ArgMin" | "NonZero" | "Size" => Some(INT64),
        "Cast" => call.int("to").and_then(|t| i32::try_from(t).ok()),
        "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "Not" | "And" | "Or"
        | "Xor" | "IsNaN" | "IsInf" => Some(BOOL),
        "Where" => call.input(1).and_then(|v| v.data_type),
        "CastLike" => call.input(1).and_then(|v| v.data_type),
        "QuantizeLinear" => call.input(2).map_or(Some(2), |v| v.data_type),
        "DequantizeLinear" => call.input(1).and_then(|v| v.data_type),
        "OneHot" => call.input(2).and_then(|v| v.data_type),
        "MatMulInteger" | "ConvInteger" => Some(6),
        "QLinearConv" | "QLinearMatMul" => call.input(7).and_then(|v| v.data_type),
        "ConstantOfShape" => {
            let value = call.node.attribute.iter().find_map(|a| a.t.as_ref());
            value.map_or(Some(FLOAT), |t| t.data_type)
        }
        _ => first_type,
    };
    let shape = one(call);
    vec![Value {
        data_type,
        shape,
        ..Value::default()
    }]
}

/// Operators with several results.
fn several(call: &Call<'_>) -> Option<Vec<(Option<i32>, Shape)>> {
    let kind = call.input(0).and_then(|v| v.data_type);
    let rank = |shape: &[u64]| shape.len();
    match call.operator() {
        "Split" => {
            let shape = call.shape(0)?;
            let at = axis(call.int("axis").unwrap_or(0), rank(shape))?;
            let count = call.node.output.len() as u64;
            let parts: Vec<u64> = match call.numbers(1, "split") {
                Some(parts) => parts
                    .iter()
                    .map(|&p| u64::try_from(p).ok())
                    .collect::<Option<_>>()?,
                None if call.has_input(1) || count == 0 => return None,
                None => {
                    let each = shape[at].div_ceil(count);
                    (0..count)
                        .map(|k| each.min(shape[at].saturating_sub(k * each)))
                        .collect()
                }
            };
            let part = |&p: &u64| {
                let mut shape = shape.to_vec();
                shape[at] = p;
                (kind, shape)
            };
            Some(parts.iter().map(part).collect())
        }
        "TopK" => {
            let mut shape = call.shape(0)?.to_vec();
            let at = axis(call.int("axis").unwrap_or(-1), shape.len())?;
            let k = match call.int("k") {
                Some(k) => k,
                None => *call.numbers(1, "k")?.first()?,
            };
            shape[at] = u64::try_from(k).ok()?;
            Some(vec![(kind, shape.clone()), (Some(INT64), shape)])
        }
        "Dropout" => {
            let shape = call.shape(0)?.to_vec();
            let mask = if call.opset >= 10 { Some(BOOL) } else { kind };
            Some(vec![(kind, shape.clone()), (mask, shape)])
        }
        "MaxPool" => {
            let shape = window(call, call.shape(0)?.get(1).copied()?, None)?;
            Some(vec![(kind, shape.clone()), (Some(INT64), shape)])
        }
        "BatchNormalization" => Some(vec![(kind, call.shape(0)?.to_vec())]),
        "LayerNormalization" => {
            let shape = call.shape(0)?.to_vec();
            let at = axis(call.int("axis").unwrap_or(-1), shape.len())?;
            let mut small = shape.clone();
            small[at..].fill(1);
            Some(vec![
                (kind, shape),
                (Some(FLOAT), small.clone()),
                (Some(FLOAT), small),
            ])
        }
        "LSTM" | "GRU" | "RNN" => {
            let (x, weights) = (call.shape(0)?, call.shape(1)?);
            let (&[length, batch, _], &[directions, ..]) = (x, weights) else {
                return None;
            };
            let hidden = u64::try_from(call.int("hidden_size")?).ok()?;
            if call.int("layout").unwrap_or(0) != 0 {
                return None;
            }
            let last = vec![directions, batch, hidden];
            let all = vec![length, directions, batch, hidden];
            Some(vec![(kind, all), (kind, last.clone()), (kind, last)])
        }
        _ => None,
    }
}

fn one(call: &Call<'_>) -> Option<Shape> {
    match call.operator() {
        "Relu"
        | "LeakyRelu"
        | "PRelu"
        | "Elu"
        | "Selu"
        | "Celu"
        | "ThresholdedRelu"
        | "Sigmoid"
        | "HardSigmoid"
        | "HardSwish"
        | "Mish"
        | "Gelu"
        | "Swish"
        | "Tanh"
        | "Softplus"
        | "Softsign"
        | "Softmax"
        | "LogSoftmax"
        | "Hardmax"
        | "Clip"
        | "Exp"
        | "Log"
        | "Sqrt"
        | "Abs"
        | "Neg"
        | "Floor"
        | "Ceil"
        | "Round"
        | "Sign"
        | "Reciprocal"
        | "Erf"
        | "Sin"
        | "Cos"
        | "Tan"
        | "Asin"
        | "Acos"
        | "Atan"
        | "Sinh"
        | "Cosh"
        | "Asinh"
        | "Acosh"
        | "Atanh"
        | "Not"
        | "IsNaN"
        | "IsInf"
        | "Cast"
        | "CastLike"
        | "Identity"
        | "LRN"
        | "InstanceNormalization"
        | "Shrink"
        | "GroupNormalization"
        | "RMSNormalization"
        | "MeanVarianceNormalization"
        | "LpNormalization"
        | "CumSum"
        | "QuantizeLinear"
        | "DequantizeLinear"
        | "ScatterND"
        | "ScatterElements"
        | "Scatter"
        | "Trilu"
        | "ReverseSequence"
        | "EyeLike"
        | "BitwiseNot"
        | "RandomNormalLike"
        | "RandomUniformLike"
        | "Bernoulli" => Some(call.shape(0)?.to_vec()),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Mod" | "Sum" | "Mean" | "Max" | "Min"
        | "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "And" | "Or"
        | "Xor" | "Where" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "BitShift" => {
            let mut shape = Shape::new();
            for at in 0..call.inputs.len() {
                shape = broadcast(&shape, call.shape(at)?)?;
            }
            Some(shape)
        }
        "Conv" | "ConvInteger" => {
            let weights = call.shape(1)?;
            let group = u64::try_from(call.int("group").unwrap_or(1)).ok()?;
            let channels = weights.get(1)?.checked_mul(group)?;
            if call.shape(0)?.get(1) != Some(&channels) {
                return None;
            }
            window(call, *weights.first()?, Some(weights.get(2..)?))
        }
        "QLinearConv" => {
            let weights = call.shape(3)?;
            window(call, *weights.first()?, Some(weights.get(2..)?))
        }
        "ConvTranspose" => transposed(call),
        "AveragePool" | "LpPool" => window(call, *call.shape(0)?.get(1)?, None),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => {
            let mut shape = call.shape(0)?.to_vec();
            shape.get_mut(2..)?.fill(1);
            Some(shape)
        }
        "Gemm" => {
            let (a, b) = (call.shape(0)?, call.shape(1)?);
            let (&[a0, a1], &[b0, b1]) = (a, b) else {
                return None;
            };
            let turned = |name| call.int(name).unwrap_or(0) != 0;
            let (m, a_inner) = if turned("transA") { (a1, a0) } else { (a0, a1) };
            let (n, b_inner) = if turned("transB") { (b0, b1) } else { (b1, b0) };
            (a_inner == b_inner).then(|| vec![m, n])
        }
        "MatMul" | "MatMulInteger" => matmul(call.shape(0)?, call.shape(1)?),
        "QLinearMatMul" => matmul(call.shape(0)?, call.shape(3)?),
        "Reshape" => reshape(call),
        "Flatten" => {
            let shape = call.shape(0)?;
            let at = call.int("axis").unwrap_or(1);
            let at = if at == shape.len() as i64 {
                shape.len()
            } else {
                axis(at, shape.len())?
            };
            Some(vec![elements(&shape[..at])?, elements(&shape[at..])?])
        }
        "Transpose" => {
            let shape = call.shape(0)?;
            match call.ints("perm") {
                Some(order) if !order.is_empty() => order
                    .iter()
                    .map(|&p| shape.get(axis(p, shape.len())?).copied())
                    .collect(),
                _ => Some(shape.iter().rev().copied().collect()),
            }
        }
        "Concat" => {
            let mut shape = call.shape(0)?.to_vec();
            let at = axis(call.int("axis").unwrap_or(1), shape.len())?;
            for other in 1..call.inputs.len() {
                let more = call.shape(other)?;
                let alike = more.len() == shape.len();
                shape[at] = shape[at].checked_add(*more.get(at).filter(|_| alike)?)?;
            }
            Some(shape)
        }
        "Squeeze" => squeeze(call),
        "Unsqueeze" => {
            let shape = call.shape(0)?;
            let axes = call.numbers(1, "axes")?;
            let rank = shape.len() + axes.len();
            let mut new = vec![false; rank];
            for &a in &axes {
                new[axis(a, rank)?] = true;
            }
            let mut old = shape.iter().copied();
            new.into_iter()
                .map(|new| if new { Some(1) } else { old.next() })
                .collect()
        }
        "Shape" => {
            let rank = call.shape(0)?.len() as i64;
            let clamp = |at: i64| (if at < 0 { at + rank } else { at }).clamp(0, rank);
            let end = clamp(call.int("end").unwrap_or(rank));
            Some(vec![
                (end - clamp(call.int("start").unwrap_or(0))).max(0) as u64
            ])
        }
        "Size" => Some(Vec::new()),
        "ConstantOfShape" => positive(call.input(0)?.numbers.as_deref()?),
        "Expand" => broadcast(
            call.shape(0)?,
            &positive(call.input(1)?.numbers.as_deref()?)?,
        ),
        "Tile" => {
            let times = positive(call.input(1)?.numbers.as_deref()?)?;
            let both = call.shape(0)?.iter().zip(times);
            both.map(|(&d, t)| d.checked_mul(t)).collect()
        }
        "Gather" => {
            let (data, indices) = (call.shape(0)?, call.shape(1)?);
            let at = axis(call.int("axis").unwrap_or(0), data.len())?;
            Some([&data[..at], indices, &data[at + 1..]].concat())
        }
        "GatherElements" => Some(call.shape(1)?.to_vec()),
        "GatherND" => {
            let (data, indices) = (call.shape(0)?, call.shape(1)?);
            let (&last, front) = indices.split_last()?;
            let from = call.int("batch_dims").unwrap_or(0) as u64;
            let rest = data.get(usize::try_from(from.checked_add(last)?).ok()?..)?;
            Some([front, rest].concat())
        }
        "Slice" => slice(call),
        "Pad" => {
            let pads = match call.opset {
                ..11 => call.ints("pads").or(call.ints("paddings"))?.to_vec(),
                _ => call.input(1)?.numbers.clone()?,
            };
            let shape = call.shape(0)?;
            if pads.len() != 2 * shape.len() || call.has_input(3) {
                return None;
            }
            let padded = shape.iter().enumerate().map(|(at, &d)| {
                let more = pads[at].checked_add(pads[at + shape.len()])?;
                d.checked_add_signed(more)
            });
            padded.collect()
        }
        "Resize" | "Upsample" => {
            // Scales are floating-point numbers, which are not followed.
            let sizes = call.input(3)?.numbers.as_deref()?;
            positive(sizes).filter(|s| call.shape(0).is_some_and(|x| x.len() == s.len()))
        }
        "DepthToSpace" | "SpaceToDepth" => {
            let &[n, c, h, w] = call.shape(0)? else {
                return None;
            };
            let b = u64::try_from(call.int("blocksize")?)
                .ok()
                .filter(|&b| b > 0)?;
            let squared = b.checked_mul(b)?;
            Some(match call.operator() {
                "DepthToSpace" => vec![n, c / squared, h.checked_mul(b)?, w.checked_mul(b)?],
                _ => vec![n, c.checked_mul(squared)?, h / b, w / b],
            })
        }
        "OneHot" => {
            let depth = *positive(call.input(1)?.numbers.as_deref()?)?.first()?;
            let mut shape = call.shape(0)?.to_vec();
            let at = axis(call.int("axis").unwrap_or(-1), shape.len() + 1)?;
            shape.insert(at, depth);
            Some(shape)
        }
        "Range" => {
            let number = |at| call.input(at)?.numbers.as_deref()?.first().copied();
            let (start, limit, step): (i64, i64, i64) = (number(0)?, number(1)?, number(2)?);
            let distance = i128::from(limit) - i128::from(start);
            let step = i128::from(step);
            let steps = (step != 0).then(|| (distance + step - step.signum()) / step)?;
            Some(vec![u64::try_from(steps.max(0)).ok()?])
        }
        operator if operator.starts_with("Reduce") => {
            let axes = match call.has_input(1) {
                true => call.input(1)?.numbers.clone()?,
                false => call.ints("axes").unwrap_or(&[]).to_vec(),
            };
            let nothing = axes.is_empty() && call.int("noop_with_empty_axes").unwrap_or(0) != 0;
            if nothing {
                return Some(call.shape(0)?.to_vec());
            }
            reduce(
                call.shape(0)?,
                &axes,
                call.int("keepdims").unwrap_or(1) != 0,
            )
        }
        "ArgMax" | "ArgMin" => {
            let axes = [call.int("axis").unwrap_or(0)];
            reduce(
                call.shape(0)?,
                &axes,
                call.int("keepdims").unwrap_or(1) != 0,
            )
        }
        _ => None,
    }
}

pub(crate) fn positive(numbers: &[i64]) -> Option<Shape> {
    numbers.iter().map(|&n| u64::try_from(n).ok()).collect()
}

fn broadcast(a: &[u64], b: &[u64]) -> Option<Shape> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[u64], at: usize| match (at + shape.len()).checked_sub(rank) {
        Some(at) => shape[at],
        None => 1,
    };
    let dims = (0..rank).map(|at| match (dim(a, at), dim(b, at)) {
        (1, d) | (d, 1) => Some(d),
        (d, e) if d == e => Some(d),
        _ => None,
    });
    dims.collect()
}

fn matmul(a: &[u64], b: &[u64]) -> Option<Shape> {
    let inner = b[b.len().saturating_sub(2)..].first()?;
    if a.last()? != inner {
        return None;
    }
    match (a, b) {
        ([], _) | (_, []) => None,
        ([_], [_]) => Some(Vec::new()),
        ([_], [front @ .., _, n]) => Some([front, &[*n]].concat()),
        ([front @ .., m, _], [_]) => Some([front, &[*m]].concat()),
        ([a_front @ .., m, _], [b_front @ .., _, n]) => {
            let mut shape = broadcast(a_front, b_front)?;
            shape.extend([m, n]);
            Some(shape)
        }
    }
}

fn reduce(shape: &[u64], axes: &[i64], keep: bool) -> Option<Shape> {
    let mut gone = vec![axes.is_empty(); shape.len()];
    for &a in axes {
        gone[axis(a, shape.len())?] = true;
    }
    let dims = shape.iter().zip(gone);
    Some(
        dims.filter_map(|(&d, gone)| if gone { keep.then_some(1) } else { Some(d) })
            .collect(),
    )
}

fn squeeze(call: &Call<'_>) -> Option<Shape> {
    let shape = call.shape(0)?;
    let given = call.has_input(1) || call.ints("axes").is_some();
    if !given {
        return Some(shape.iter().copied().filter(|&d| d != 1).collect());
    }
    reduce(shape, &call.numbers(1, "axes")?, false)
}

fn reshape(call: &Call<'_>) -> Option<Shape> {
    let old = call.shape(0)?;
    let wanted = match call.opset {
        ..5 => call.ints("shape")?.to_vec(),
        _ => call.input(1)?.numbers.clone()?,
    };
    let zero_means_copy = call.int("allowzero").unwrap_or(0) == 0;
    let mut shape = Vec::with_capacity(wanted.len());
    let mut rest = None;
    for (at, &d) in wanted.iter().enumerate() {
        match d {
            -1 if rest.is_none() => {
                rest = Some(at);
                shape.push(1);
            }
            0 if zero_means_copy => shape.push(*old.get(at)?),
            _ => shape.push(u64::try_from(d).ok()?),
        }
    }
    let (total, others) = (elements(old)?, elements(&shape)?);
    if let Some(at) = rest {
        shape[at] = total.checked_div(others)?;
    }
    (elements(&shape)? == total).then_some(shape)
}

fn slice(call: &Call<'_>) -> Option<Shape> {
    let mut shape = call.shape(0)?.to_vec();
    let (starts, ends, axes, steps) = match call.opset {
        ..10 => (
            call.ints("starts")?.to_vec(),
            call.ints("ends")?.to_vec(),
            call.ints("axes").map(<[i64]>::to_vec),
            None,
        ),
        _ => {
            let optional = |at| match call.has_input(at) {
                true => call.input(at).and_then(|v| v.numbers.clone()).map(Some),
                false => Some(None),
            };
            let (starts, ends) = (
                call.input(1)?.numbers.clone()?,
                call.input(2)?.numbers.clone()?,
            );
            (starts, ends, optional(3)?, optional(4)?)
        }
    };
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    for (at, &a) in axes.iter().enumerate() {
        let dim = shape.get_mut(axis(a, call.shape(0)?.len())?)?;
        let length = i64::try_from(*dim).ok()?;
        *dim = sliced(length, *starts.get(at)?, *ends.get(at)?, *steps.get(at)?)?;
    }
    Some(shape)
}

fn sliced(length: i64, start: i64, end: i64, step: i64) -> Option<u64> {
    let from_end = |at: i64| {
        if at < 0 {
            at.saturating_add(length)
        } else {
            at
        }
    };
    let (start, end) = (from_end(start), from_end(end));
    let count = if step > 0 {
        let (start, end) = (start.clamp(0, length), end.clamp(0, length));
        (end - start).max(0).checked_add(step - 1)? / step
    } else {
        let (start, end) = (
            start.clamp(0, (length - 1).max(0)),
            end.clamp(-1, length - 1),
        );
        let step = step.checked_neg().filter(|&s| s > 0)?;
        (start - end).max(0).checked_add(step - 1)? / step
    };
    u64::try_from(count).ok()
}
