//! Names the shared library, so that programs ask for the interface that they were built with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillpond.so.0");
}
