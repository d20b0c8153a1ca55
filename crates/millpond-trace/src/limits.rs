//! Bounds on what a reader accepts, so that a hostile file costs little.

/// What a reader may take before it stops with [`ErrorKind::Limit`](crate::ErrorKind::Limit).
///
/// The defaults admit production recordings (hundreds of megabytes). Memory in use stays under
/// about 150 bytes a step, 50 a pickle value, and the text of a pickle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of text or pickle after decompression. A pickle is never read beyond 4 GiB - 1.
    pub decompressed_bytes: u64,
    /// A gzip file may expand to `expansion_floor_bytes` plus this many times the compressed
    /// bytes read so far; recordings expand 10 to 50 times, a bomb 1000 times.
    pub expansion: u64,
    /// Bytes that any gzip file may expand to, whatever its own length.
    pub expansion_floor_bytes: u64,
    /// Bytes of one line of text.
    pub line_bytes: usize,
    /// Values in one pickle (a shared one counts once).
    pub pickle_nodes: u32,
    /// Entries of one pickle's memo.
    pub pickle_memo: u32,
    /// Containers open at once while a pickle is read.
    pub pickle_depth: u32,
    /// Bytes of one string or integer of a pickle.
    pub pickle_value_bytes: u64,
    /// Steps of a trace; its `reserved` list is bounded by the same number.
    pub steps: u32,
    /// Streams of a trace.
    pub streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            decompressed_bytes: 4 << 30,
            expansion: 200,
            expansion_floor_bytes: 16 << 20,
            line_bytes: 64 << 10,
            pickle_nodes: 200_000_000,
            pickle_memo: 200_000_000,
            pickle_depth: 1_000,
            pickle_value_bytes: 64 << 20,
            steps: 100_000_000,
            streams: 65_536,
        }
    }
}
