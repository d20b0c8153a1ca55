//! The command line of millpond.
fn main() {}
