//! `include/millpond.h` is what cbindgen makes of this crate.

use std::path::Path;

/// Set to anything, it writes the header instead of comparing it.
const WRITE: &str = "MILLPOND_WRITE_HEADER";

#[test]
fn the_header_is_current() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).expect("a configuration");
    let bindings = cbindgen::Builder::new()
        .with_crate(here)
        .with_config(config)
        .generate()
        .expect("a header");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = without_safety_sections(&String::from_utf8(made).expect("text"));

    let path = here.join("include/millpond.h");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, made).expect("the header can be written");
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "include/millpond.h is not current; run the test again with {WRITE}=1 and commit it"
    );
}

/// Rust's heading for what a caller must see to reads oddly in C.
fn without_safety_sections(header: &str) -> String {
    header.replace(" * # Safety\n *\n", " * The caller sees to this:\n *\n")
}
