//! PyTorch snapshots: opcodes behind a PROTO.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| millpond_fuzz::check_behind(b"\x80\x04", body));
