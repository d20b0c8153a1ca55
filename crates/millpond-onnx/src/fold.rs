//! Contents of small tensors of integers: the arithmetic that shapes are made with.

use crate::rules::{Call, axis};
use crate::value::{MOST_NUMBERS, Value, elements};

/// The contents of the first result, whose type and shape are `result`'s.
pub(crate) fn numbers(call: &Call<'_>, result: &Value) -> Option<Vec<i64>> {
    let count = elements(result.shape.as_deref()?)?;
    if count > MOST_NUMBERS as u64 {
        return None;
    }
    let of = |at: usize| call.input(at)?.numbers.as_deref();
    let numbers = match call.operator() {
        "Shape" => {
            let shape = call.input(0)?.shape.as_deref()?;
            let rank = shape.len() as i64;
            let start = call.int("start").unwrap_or(0);
            let start = (if start < 0 { start + rank } else { start }).clamp(0, rank);
            let dims = shape.iter().skip(start as usize).take(count as usize);
            dims.map(|&d| i64::try_from(d).ok())
                .collect::<Option<_>>()?
        }
        "Size" => vec![i64::try_from(elements(call.input(0)?.shape.as_deref()?)?).ok()?],
        "Cast" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => of(0)?.to_vec(),
        "Concat" => {
            let all = (0..call.inputs.len()).map(of).collect::<Option<Vec<_>>>()?;
            all.concat()
        }
        "Gather" => {
            let data = of(0)?;
            let taken = of(1)?
                .iter()
                .map(|&i| data.get(axis(i, data.len())?).copied());
            taken.collect::<Option<_>>()?
        }
        "Slice" => {
            // Of one dimension, forward: what shapes are cut with.
            let data = of(0)?;
            let one = |at: usize, default: i64| match of(at) {
                Some(numbers) => numbers.first().copied(),
                None => call.input(at).is_none().then_some(default),
            };
            let (start, step) = match call.opset {
                ..10 => (*call.ints("starts")?.first()?, 1),
                _ => (one(1, 0)?, one(4, 1)?),
            };
            let length = data.len() as i64;
            let start = if start < 0 {
                start.saturating_add(length)
            } else {
                start
            };
            let step = usize::try_from(step).ok().filter(|&s| s > 0)?;
            let from = start.clamp(0, length) as usize;
            data[from..]
                .iter()
                .step_by(step)
                .take(count as usize)
                .copied()
                .collect()
        }
        "ConstantOfShape" => {
            let value = call.node.attribute.iter().find_map(|a| a.t.as_ref());
            let value = *Value::of_tensor(value?).numbers?.first()?;
            vec![value; count as usize]
        }
        "Add" | "Sub" | "Mul" | "Div" => {
            let (a, b) = (of(0)?, of(1)?);
            let at = |numbers: &[i64], i: usize| match numbers {
                [one] => Some(*one),
                many => many.get(i).copied(),
            };
            let each = (0..count as usize).map(|i| {
                let (a, b) = (at(a, i)?, at(b, i)?);
                match call.operator() {
                    "Add" => a.checked_add(b),
                    "Sub" => a.checked_sub(b),
                    "Mul" => a.checked_mul(b),
                    _ => a.checked_div(b),
                }
            });
            each.collect::<Option<_>>()?
        }
        _ => return None,
    };
    (numbers.len() as u64 == count).then_some(numbers)
}
