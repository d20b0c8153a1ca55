//! Ordered CSV: rows behind the header.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| millpond_fuzz::check_behind(
    b"op,block,size,stream,event,host_us,device_us\n",
    body
));
