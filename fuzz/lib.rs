//! What the fuzz targets share: every input ends in a valid trace or in an error of one line.

use millpond_trace::{Limits, read_bytes};

/// Reads `bytes` under limits small enough that a breach of one shows as memory or time.
pub fn check(bytes: &[u8]) {
    let limits = Limits {
        decompressed_bytes: 1 << 20,
        expansion_floor_bytes: 1 << 16,
        line_bytes: 1 << 10,
        pickle_nodes: 100_000,
        pickle_memo: 10_000,
        pickle_depth: 100,
        pickle_value_bytes: 1 << 16,
        steps: 20_000,
        streams: 64,
        ..Limits::default()
    };
    match read_bytes("fuzz", bytes, &limits) {
        Ok(trace) => {
            if let Err(broken) = trace.validate() {
                panic!("{broken}");
            }
            assert!(trace.steps.len() <= limits.steps as usize);
            trace.peak_live_bytes();
            trace.recorded_peak_reserved_bytes();
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}

/// Reads `body` behind the first bytes of a format, so that every input reaches its reader.
pub fn check_behind(first: &[u8], body: &[u8]) {
    check(&[first, body].concat());
}
