//! What is known of a tensor: type, shape, small contents.

use crate::proto::{TensorProto, ValueInfoProto};

/// Contents of more numbers than this are not followed: they are no shapes.
pub(crate) const MOST_NUMBERS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Value {
    /// `TensorProto.DataType`.
    pub(crate) data_type: Option<i32>,
    pub(crate) shape: Option<Vec<u64>>,
    /// Contents of a small tensor of integers.
    pub(crate) numbers: Option<Vec<i64>>,
    /// It does not depend on the model's inputs.
    pub(crate) constant: bool,
}

pub(crate) const INT64: i32 = 7;
pub(crate) const FLOAT: i32 = 1;
pub(crate) const BOOL: i32 = 9;
const INT32: i32 = 6;

/// Bits of one element, by `TensorProto.DataType`; strings have none.
pub(crate) fn bits(data_type: i32) -> Option<u64> {
    Some(match data_type {
        1 | 6 | 12 => 32,
        2 | 3 | 9 | 17..=20 | 24 => 8,
        4 | 5 | 10 | 16 => 16,
        7 | 11 | 13 | 14 => 64,
        15 => 128,
        21..=23 => 4,
        25 | 26 => 2,
        _ => return None,
    })
}

impl Value {
    /// Bytes, rounded up to whole ones; `None` if not known or beyond 2^60.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let elements = elements(self.shape.as_deref()?)?;
        let bits = elements.checked_mul(bits(self.data_type?)?)?;
        Some(bits.div_ceil(8)).filter(|&bytes| bytes <= 1 << 60)
    }

    pub(crate) fn of_tensor(tensor: &TensorProto) -> Value {
        let shape: Option<Vec<u64>> = tensor.dims.iter().map(|&d| u64::try_from(d).ok()).collect();
        let count = shape.as_deref().and_then(elements);
        Value {
            data_type: tensor.data_type,
            numbers: count
                .filter(|&c| c <= MOST_NUMBERS as u64)
                .and_then(|c| numbers(tensor, c as usize)),
            shape,
            constant: true,
        }
    }
}

pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1_u64, |product, &d| product.checked_mul(d))
}

fn numbers(tensor: &TensorProto, count: usize) -> Option<Vec<i64>> {
    let numbers: Vec<i64> = match (tensor.data_type?, &tensor.raw_data) {
        (INT64, Some(raw)) => {
            let chunks = raw.chunks_exact(8);
            chunks
                .map(|c| i64::from_le_bytes(c.try_into().unwrap_or_default()))
                .collect()
        }
        (INT32, Some(raw)) => {
            let chunks = raw.chunks_exact(4);
            chunks
                .map(|c| i32::from_le_bytes(c.try_into().unwrap_or_default()).into())
                .collect()
        }
        (INT64, None) => tensor.int64_data.clone(),
        (INT32, None) => tensor.int32_data.iter().map(|&n| n.into()).collect(),
        _ => return None,
    };
    (numbers.len() == count).then_some(numbers)
}

/// Type and dimensions of a tensor as the file states them: a number, a name, or neither.
pub(crate) struct Stated {
    pub(crate) data_type: Option<i32>,
    pub(crate) dims: Option<Vec<(Option<u64>, Option<String>)>>,
}

pub(crate) fn stated(info: &ValueInfoProto) -> Stated {
    let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let dims = tensor.and_then(|t| t.shape.as_ref()).map(|shape| {
        let dims = shape.dim.iter().map(|d| {
            let number = d.dim_value.and_then(|v| u64::try_from(v).ok());
            (number, d.dim_param.clone().filter(|name| !name.is_empty()))
        });
        dims.collect()
    });
    Stated {
        data_type: tensor.and_then(|t| t.elem_type),
        dims,
    }
}
