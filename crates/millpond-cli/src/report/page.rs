//! The page: one HTML file with its style, its script and its data inside.
//!
//! The data is, compressed (zlib) and in base64: the length of the JSON text (32 bits, little
//! endian), the text, and the bytes of all maps.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::Report;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 3] = [
    include_str!("charts.js"),
    include_str!("map.js"),
    include_str!("page.js"),
];

/// Writes a page of one or more recordings.
pub(crate) fn write(reports: &mut [Report], to: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    for report in reports.iter_mut() {
        for run in &mut report.runs {
            run.pack(&mut bytes);
        }
    }
    let json = serde_json::to_vec(&reports)?;
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&(json.len() as u32).to_le_bytes())?;
    packed.write_all(&json)?;
    packed.write_all(&bytes)?;
    let data = STANDARD.encode(packed.finish()?);
    // Each mark is there once; nothing that is put in is looked at again.
    let mut rest = PAGE;
    let scripts = SCRIPTS.concat();
    for (mark, content) in [
        ("/*STYLE*/", STYLE),
        ("<!--DATA-->", &data),
        ("/*SCRIPT*/", &scripts),
    ] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        to.write_all(before.as_bytes())?;
        to.write_all(content.as_bytes())?;
        rest = after;
    }
    to.write_all(rest.as_bytes())?;
    to.flush()
}
