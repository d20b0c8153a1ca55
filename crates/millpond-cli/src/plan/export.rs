//! Plans for other programs.
//!
//! - `.csv`: the planning CSV with an `offset` for each buffer.
//! - `.json`: peak, arenas and placements.
//! - `.h`: a C header: the size of the arena, the offsets as an array, and a constant for each name.
//! - `.tflm`: what TFLite-Micro reads as the metadata `OfflineMemoryAllocation`
//!   (tflite-micro, docs/memory_management.md): little-endian 32-bit integers: version 0, subgraph 0, the number of
//!   tensors, and for each tensor its offset, or -1 where it is not planned. The buffers' ids are the
//!   tensors' indices.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use millpond_plan::{Gap, Plan};

use super::error::ExportError;
use super::input::Input;

/// Tensor indices beyond this are no indices of a model for microcontrollers.
const MOST_TENSORS: usize = 1 << 20;

/// Writes the plan in the format that the ending of `path` says.
pub(crate) fn export(path: &Path, input: &Input, plan: &Plan) -> Result<(), ExportError> {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    let content = match ending {
        "csv" => csv(input, plan).into_bytes(),
        "json" => json(input, plan).into_bytes(),
        "h" => header(path, input, plan).into_bytes(),
        "tflm" => metadata(input, plan)?,
        _ => return Err(ExportError::UnknownFormat(path.to_owned())),
    };
    fs::write(path, content).map_err(|error| ExportError::Io {
        path: path.to_owned(),
        error,
    })
}

fn csv(input: &Input, plan: &Plan) -> String {
    let mut text = "id,lower,upper,size,alignment,offset,gaps\n".to_owned();
    for ((buffer, name), place) in input
        .problem
        .buffers
        .iter()
        .zip(&input.names)
        .zip(&plan.placements)
    {
        // The format has no quotes.
        let id = name.replace([',', '\n', '\r'], "_");
        let gaps: Vec<String> = buffer.gaps.iter().map(gap).collect();
        let _ = writeln!(
            text,
            "{id},{},{},{},{},{},{}",
            buffer.lower,
            buffer.upper,
            buffer.size,
            buffer.alignment,
            place.offset,
            gaps.join(" ")
        );
    }
    text
}

fn gap(gap: &Gap) -> String {
    let Gap { lower, upper, held } = gap;
    match held {
        Some((first, last)) => format!("{lower}-{upper}@{first}:{last}"),
        None => format!("{lower}-{upper}"),
    }
}

fn json(input: &Input, plan: &Plan) -> String {
    let buffers = input
        .problem
        .buffers
        .iter()
        .zip(&input.names)
        .zip(&plan.placements);
    let placements: Vec<serde_json::Value> = buffers
        .map(|((buffer, name), place)| {
            serde_json::json!({
                "name": name, "arena": place.arena, "offset": place.offset, "size": buffer.size,
                "lower": buffer.lower, "upper": buffer.upper,
            })
        })
        .collect();
    let object = serde_json::json!({
        "peak": plan.peak, "peaks": plan.peaks, "lower_bound": plan.lower_bound,
        "placements": placements,
    });
    format!("{object:#}\n")
}

fn header(path: &Path, input: &Input, plan: &Plan) -> String {
    let stem = identifier(&path.file_stem().unwrap_or_default().to_string_lossy());
    let guard = format!("MILLPOND_PLAN_{}_H", stem.to_uppercase());
    let alignment = input
        .problem
        .buffers
        .iter()
        .map(|b| b.alignment)
        .max()
        .unwrap_or(1);
    let mut text = format!(
        "/* Written by `millpond plan`. The arena must be aligned to {alignment} bytes. */\n\
         #ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n\n\
         #define {}_ARENA_BYTES UINT64_C({})\n#define {}_BUFFERS {}\n\n",
        stem.to_uppercase(),
        plan.peak,
        stem.to_uppercase(),
        plan.placements.len()
    );
    // Names that the header has anyway.
    let mut used = BTreeSet::from([format!("{stem}_none"), format!("{stem}_offsets")]);
    let _ = writeln!(text, "enum {{");
    for (index, name) in input.names.iter().enumerate() {
        let mut constant = format!("{stem}_{}", identifier(name));
        if !used.insert(constant.clone()) {
            let _ = write!(constant, "__{index}");
            used.insert(constant.clone());
        }
        let _ = writeln!(text, "    {constant} = {index},");
    }
    let _ = writeln!(text, "    {stem}_none = -1\n}};\n");
    let _ = writeln!(text, "static const uint64_t {stem}_offsets[] = {{");
    for (place, buffer) in plan.placements.iter().zip(&input.problem.buffers) {
        let _ = writeln!(
            text,
            "    UINT64_C({}), /* {} bytes */",
            place.offset, buffer.size
        );
    }
    if plan.placements.is_empty() {
        let _ = writeln!(text, "    UINT64_C(0)");
    }
    let _ = writeln!(text, "}};\n\n#endif");
    text
}

/// Letters, digits and underscores, not beginning with a digit.
fn identifier(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let text: String = name.chars().map(keep).collect();
    match text.chars().next() {
        Some(c) if !c.is_ascii_digit() => text,
        _ => format!("n{text}"),
    }
}

fn metadata(input: &Input, plan: &Plan) -> Result<Vec<u8>, ExportError> {
    let mut offsets: Vec<i32> = Vec::new();
    for (name, place) in input.names.iter().zip(&plan.placements) {
        let index: Option<usize> = name.parse().ok().filter(|&i| i < MOST_TENSORS);
        let index = index.ok_or_else(|| ExportError::NoIndex(name.clone()))?;
        if offsets.len() <= index {
            offsets.resize(index + 1, -1);
        }
        offsets[index] =
            i32::try_from(place.offset).map_err(|_| ExportError::TooFar(place.offset))?;
    }
    let head = [0, 0, offsets.len() as i32];
    Ok(head
        .iter()
        .chain(&offsets)
        .flat_map(|n| n.to_le_bytes())
        .collect())
}
