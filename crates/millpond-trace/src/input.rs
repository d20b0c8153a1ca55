//! Bytes of a file: decompression, detection of the format, and lines.
//!
//! # Invariants
//! - At most one chunk and one line are held, except for a pickle, which is held whole.
//! - What is held grows with the bytes that were really there, up to the limits.

use std::cell::Cell;
use std::io::{self, BufReader, Cursor, Read};
use std::ops::Range;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::error::{ErrorKind, Position, TraceError, quote};
use crate::limits::Limits;
use crate::{event_csv, ordered_csv, rmm_log};

const CHUNK: usize = 128 << 10;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file's content, its format found.
pub(crate) enum Content<'a> {
    Pickle(Input<'a>),
    EventCsv(Lines<'a>),
    OrderedCsv(Lines<'a>),
    RmmLog(Lines<'a>),
}

/// The decompressed bytes of a file, from front to back.
pub(crate) struct Input<'a> {
    source: Box<dyn Read + 'a>,
    /// Compressed bytes taken so far; `None` for a plain file.
    compressed: Option<Rc<Cell<u64>>>,
    limits: &'a Limits,
    /// Decompressed bytes so far.
    produced: u64,
    /// Bytes read and not yet handed out are `buffer[start..]`.
    buffer: Vec<u8>,
    start: usize,
    ended: bool,
}

impl<'a> Input<'a> {
    /// Begins to read; gzip is recognised by its magic number.
    pub(crate) fn open(
        mut raw: Box<dyn Read + 'a>,
        limits: &'a Limits,
    ) -> Result<Self, TraceError> {
        let mut magic = Vec::new();
        raw.by_ref()
            .take(2)
            .read_to_end(&mut magic)
            .map_err(|e| TraceError::new(Position::Start, ErrorKind::Io(e)))?;
        let zipped = magic == [0x1f, 0x8b];
        let whole = Cursor::new(magic).chain(raw);
        let mut compressed = None;
        let source: Box<dyn Read + 'a> = if zipped {
            let count = Rc::new(Cell::new(0));
            compressed = Some(Rc::clone(&count));
            let counted = BufReader::with_capacity(
                CHUNK / 4,
                Counted {
                    inner: whole,
                    count,
                },
            );
            Box::new(MultiGzDecoder::new(counted))
        } else {
            Box::new(whole)
        };
        Ok(Self {
            source,
            compressed,
            limits,
            produced: 0,
            buffer: Vec::new(),
            start: 0,
            ended: false,
        })
    }

    /// Finds the format by the first bytes: a pickle opcode, or the header line of a text.
    pub(crate) fn detect(mut self) -> Result<Content<'a>, TraceError> {
        while self.buffer.len() < BYTE_ORDER_MARK.len() && !self.ended {
            self.fill()?;
        }
        if self.buffer.is_empty() {
            return Err(TraceError::new(Position::Start, ErrorKind::Empty));
        }
        if self.buffer[0] == crate::pickle::PROTO {
            return Ok(Content::Pickle(self));
        }
        if self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.start = BYTE_ORDER_MARK.len();
        }
        let mut lines = Lines {
            input: self,
            line: 0,
            last: 0..0,
            again: false,
        };
        let Some(first) = lines.next_line()? else {
            return Err(TraceError::new(Position::Start, ErrorKind::Empty));
        };
        let first = first.text.trim_ascii();
        if first == event_csv::HEADER {
            Ok(Content::EventCsv(lines))
        } else if first == ordered_csv::HEADER {
            Ok(Content::OrderedCsv(lines))
        } else if rmm_log::is_header(first) {
            Ok(Content::RmmLog(lines))
        } else if rmm_log::is_row(first) {
            lines.again = true;
            Ok(Content::RmmLog(lines))
        } else {
            let kind = ErrorKind::UnknownFormat {
                found: quote(first),
            };
            Err(TraceError::new(Position::Start, kind))
        }
    }

    /// All bytes, for a format that needs them at once.
    pub(crate) fn into_bytes(mut self) -> Result<Vec<u8>, TraceError> {
        while !self.ended {
            self.fill()?;
        }
        self.buffer.drain(..self.start);
        Ok(self.buffer)
    }

    /// Reads one more chunk to the end of the buffer.
    fn fill(&mut self) -> Result<(), TraceError> {
        let old = self.buffer.len();
        // Small files are not worth a large buffer.
        let chunk = (self.produced as usize).clamp(CHUNK / 32, CHUNK);
        self.buffer.resize(old + chunk, 0);
        let got = loop {
            match self.source.read(&mut self.buffer[old..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.buffer.truncate(old + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => self.ended = true,
            Ok(count) => self.produced += count as u64,
            Err(e) => {
                let kind = match self.compressed {
                    Some(_) => ErrorKind::Gzip(e),
                    None => ErrorKind::Io(e),
                };
                return Err(TraceError::new(Position::Byte(self.produced), kind));
            }
        }
        self.check_limits()
    }

    fn check_limits(&self) -> Result<(), TraceError> {
        let at = Position::Byte(self.produced);
        let most = self.limits.decompressed_bytes;
        if self.produced > most {
            return Err(TraceError::limit(at, "bytes of content", most));
        }
        if let Some(compressed) = &self.compressed {
            let grown = compressed.get().saturating_mul(self.limits.expansion);
            let most = grown.saturating_add(self.limits.expansion_floor_bytes);
            if self.produced > most {
                return Err(TraceError::limit(
                    at,
                    "bytes out of a gzip file so small",
                    most,
                ));
            }
        }
        Ok(())
    }
}

/// Counts the bytes that pass.
struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buffer)?;
        self.count.set(self.count.get() + got as u64);
        Ok(got)
    }
}

/// The lines of a text.
pub(crate) struct Lines<'a> {
    input: Input<'a>,
    /// Number of the last line handed out, the first is 1.
    line: u64,
    /// Where in the buffer that line is; nothing is read before the next is asked for.
    last: Range<usize>,
    /// That line has only been looked at, and comes again.
    again: bool,
}

/// One line that is not empty, without its end.
pub(crate) struct Line<'l> {
    pub(crate) text: &'l [u8],
    pub(crate) at: Position,
}

impl Lines<'_> {
    /// The next line that is not empty.
    pub(crate) fn next_line(&mut self) -> Result<Option<Line<'_>>, TraceError> {
        if std::mem::take(&mut self.again) {
            let text = &self.input.buffer[self.last.clone()];
            return Ok(Some(Line {
                text,
                at: Position::Line(self.line),
            }));
        }
        let mut searched = 0;
        loop {
            let held = &self.input.buffer[self.input.start..];
            let (length, skipped) = match memchr::memchr(b'\n', &held[searched..]) {
                Some(found) => (searched + found, 1),
                None if self.input.ended => (held.len(), 0),
                None => {
                    searched = held.len();
                    self.check_length(searched)?;
                    self.compact();
                    self.input.fill()?;
                    continue;
                }
            };
            self.check_length(length)?;
            if length + skipped == 0 {
                return Ok(None);
            }
            self.line += 1;
            let from = self.input.start;
            self.input.start += length + skipped;
            searched = 0;
            let text = &self.input.buffer[from..from + length];
            let length = length - usize::from(text.ends_with(b"\r"));
            if length > 0 {
                self.last = from..from + length;
                let text = &self.input.buffer[self.last.clone()];
                return Ok(Some(Line {
                    text,
                    at: Position::Line(self.line),
                }));
            }
        }
    }

    fn check_length(&self, length: usize) -> Result<(), TraceError> {
        let most = self.input.limits.line_bytes;
        if length > most {
            let at = Position::Line(self.line + 1);
            return Err(TraceError::limit(at, "bytes in one line", most as u64));
        }
        Ok(())
    }

    /// Drops what was handed out.
    fn compact(&mut self) {
        self.input.buffer.drain(..self.input.start);
        self.input.start = 0;
    }
}
