//! What can be wrong with a recording: where, why, and what to do about it.

use std::fmt;
use std::io;

use crate::model::Format;

/// Where in a recording something was found; counted in the text after decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before anything was read.
    Start,
    /// A line, the first is 1.
    Line(u64),
    /// A byte offset, the first is 0.
    Byte(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Start => f.write_str("at the start"),
            Position::Line(line) => write!(f, "line {line}"),
            Position::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// A recording that could not be read. [`Display`](fmt::Display) is one line: format, position,
/// reason, way out.
#[derive(Debug)]
pub struct TraceError {
    /// The format that the content was taken for; `None` where it was not yet known.
    pub format: Option<Format>,
    /// Where reading stopped.
    pub position: Position,
    /// Why it stopped.
    pub kind: ErrorKind,
}

/// Why a recording could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file could not be opened or read.
    #[error("cannot be read: {0}")]
    Io(#[source] io::Error),
    /// The gzip stream is damaged or ends early.
    #[error("the gzip stream is damaged or cut short: {0}")]
    Gzip(#[source] io::Error),
    /// There is nothing in the file.
    #[error("the file is empty")]
    Empty,
    /// The content is none of the known formats.
    #[error("no known format: it begins with {found}")]
    UnknownFormat {
        /// The first bytes, quoted and shortened.
        found: String,
    },
    /// A limit of [`Limits`](crate::Limits) was reached.
    #[error("more than {limit} {what}")]
    Limit {
        /// What was counted.
        what: &'static str,
        /// The limit that was in force.
        limit: u64,
    },
    /// The content ends inside something that it began.
    #[error("{what} takes {wanted} bytes and {left} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes that it takes, as the file claims.
        wanted: u64,
        /// Bytes that are there.
        left: u64,
    },
    /// Something is not what the format has there.
    #[error("{what} is {found}, expected {expected}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// What was there, quoted and shortened.
        found: String,
        /// What the format has there.
        expected: &'static str,
    },
    /// A required field is absent.
    #[error("{within} without `{field}`")]
    Missing {
        /// The record that lacks it.
        within: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A pickle asks for code or classes.
    #[error("the pickle asks for code by {opcode}{names}; only data is read")]
    Refused {
        /// The opcode's name.
        opcode: &'static str,
        /// The global it names, quoted, after a space; or empty.
        names: String,
    },
    /// An allocation returned an address or block that is still live.
    #[error("allocates {key}, which is live since {since}")]
    StillLive {
        /// The address, or the block's number, as the file writes it.
        key: String,
        /// Where it was allocated.
        since: Position,
    },
    /// The sizes of the live blocks add up to more than 2^64 - 1 bytes.
    #[error("the live blocks add up to more than 2^64 - 1 bytes")]
    LiveOverflow,
}

impl ErrorKind {
    /// What the owner of the file can do.
    pub fn way_out(&self) -> &'static str {
        match self {
            ErrorKind::Io(_) => "check the path and its permissions",
            ErrorKind::Gzip(_) => "copy or download the file again; `gzip -t` must accept it",
            ErrorKind::Empty => "record the job again",
            ErrorKind::UnknownFormat { .. } => {
                "give a PyTorch snapshot (pickle protocol 2 to 5), an event or ordered CSV, \
                 or an RMM log, plain or gzip"
            }
            ErrorKind::Limit { .. } => {
                "record a shorter part of the job, or raise the limit if the file is trusted"
            }
            ErrorKind::Truncated { .. } => "copy the file again, it ends early",
            ErrorKind::Malformed { .. } | ErrorKind::Missing { .. } => {
                "the file is damaged or of another version; write it again"
            }
            ErrorKind::Refused { .. } => {
                "write the snapshot with torch.cuda.memory._dump_snapshot, which holds data alone"
            }
            ErrorKind::StillLive { .. } => {
                "a free is missing before it: record without skipping frees, one device a file"
            }
            ErrorKind::LiveOverflow => "the sizes are damaged; write the file again",
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(format) = self.format {
            write!(f, "{format}, ")?;
        }
        write!(
            f,
            "{}: {}; {}",
            self.position,
            self.kind,
            self.kind.way_out()
        )
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(e) | ErrorKind::Gzip(e) => Some(e),
            _ => None,
        }
    }
}

impl TraceError {
    pub(crate) fn new(position: Position, kind: ErrorKind) -> Self {
        Self {
            format: None,
            position,
            kind,
        }
    }

    pub(crate) fn in_format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    pub(crate) fn malformed(
        position: Position,
        what: &'static str,
        found: &[u8],
        expected: &'static str,
    ) -> Self {
        Self::new(
            position,
            ErrorKind::Malformed {
                what,
                found: quote(found),
                expected,
            },
        )
    }

    pub(crate) fn limit(position: Position, what: &'static str, limit: u64) -> Self {
        Self::new(position, ErrorKind::Limit { what, limit })
    }
}

/// Bytes of a file made fit for one line of a message: escaped, in backquotes, shortened.
pub(crate) fn quote(bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let more = if bytes.len() > SHOWN { "..." } else { "" };
    format!("`{}{more}`", shown.escape_ascii())
}
