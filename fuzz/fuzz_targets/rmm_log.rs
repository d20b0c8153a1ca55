//! RMM logs: rows behind the header.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| millpond_fuzz::check_behind(
    b"Thread,Time,Action,Pointer,Size,Stream\n",
    body
));
