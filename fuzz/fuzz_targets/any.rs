//! Whole files: gzip, detection and every reader.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| millpond_fuzz::check(body));
