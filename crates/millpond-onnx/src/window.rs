//! Shapes that a sliding window leaves: convolutions and pools.

use crate::rules::{Call, Shape, positive};

/// Convolutions and pools: batch, channels, and what the window leaves of each further dimension.
pub(crate) fn window(call: &Call<'_>, channels: u64, weights: Option<&[u64]>) -> Option<Shape> {
    let input = call.shape(0)?;
    let (&batch, spatial) = (input.first()?, input.get(2..)?);
    let kernel = match call.ints("kernel_shape") {
        Some(kernel) if !kernel.is_empty() => positive(kernel)?,
        _ => weights?.to_vec(),
    };
    let ones = vec![1; spatial.len()];
    let list = |name, default: &[i64]| match call.ints(name) {
        Some(list) if !list.is_empty() => list.to_vec(),
        _ => default.to_vec(),
    };
    let (strides, dilations) = (list("strides", &ones), list("dilations", &ones));
    let pads = list("pads", &vec![0; 2 * spatial.len()]);
    let mode = call.text("auto_pad").unwrap_or(b"NOTSET");
    let mut shape = vec![batch, channels];
    for (at, &d) in spatial.iter().enumerate() {
        let stride = u64::try_from(*strides.get(at)?).ok().filter(|&s| s > 0)?;
        let dilation = u64::try_from(*dilations.get(at)?).ok()?;
        let reach = kernel
            .get(at)?
            .checked_sub(1)?
            .checked_mul(dilation)?
            .checked_add(1)?;
        if matches!(mode, b"SAME_UPPER" | b"SAME_LOWER") {
            shape.push(d.div_ceil(stride));
            continue;
        }
        let pad = match mode {
            b"VALID" => 0,
            _ => pads.get(at)?.checked_add(*pads.get(at + spatial.len())?)?,
        };
        let room = d.checked_add_signed(pad)?.checked_sub(reach)?;
        let steps = match call.int("ceil_mode").unwrap_or(0) {
            0 => room / stride,
            _ => room.div_ceil(stride),
        };
        shape.push(steps + 1);
    }
    Some(shape)
}

pub(crate) fn transposed(call: &Call<'_>) -> Option<Shape> {
    let (input, weights) = (call.shape(0)?, call.shape(1)?);
    let (&batch, spatial) = (input.first()?, input.get(2..)?);
    let group = u64::try_from(call.int("group").unwrap_or(1)).ok()?;
    let mut shape = vec![batch, weights.get(1)?.checked_mul(group)?];
    if call.text("auto_pad").is_some_and(|mode| mode != b"NOTSET") {
        return None;
    }
    if let Some(sizes) = call.ints("output_shape").filter(|s| !s.is_empty()) {
        shape.extend(positive(sizes)?);
        return (shape.len() == input.len()).then_some(shape);
    }
    let number = |name: &str, at: usize, default: i64| match call.ints(name) {
        Some(list) if !list.is_empty() => list.get(at).copied(),
        _ => Some(default),
    };
    for (at, &d) in spatial.iter().enumerate() {
        let kernel = i64::try_from(*weights.get(at + 2)?).ok()?;
        let reach = kernel
            .checked_sub(1)?
            .checked_mul(number("dilations", at, 1)?)?;
        let before = i64::try_from(d).ok()?.checked_sub(1)?;
        let size = before
            .checked_mul(number("strides", at, 1)?)?
            .checked_add(number("output_padding", at, 0)?)?
            .checked_add(reach)?
            .checked_add(1)?
            .checked_sub(number("pads", at, 0)?)?
            .checked_sub(number("pads", at + spatial.len(), 0)?)?;
        shape.push(u64::try_from(size).ok()?);
    }
    Some(shape)
}
