//! Writing pickles of protocol 4, with the opcodes alone that every reader of snapshots knows.
//!
//! # Invariants
//! - Appends and items come in batches of at most [`BATCH`], as CPython's own pickler has them.
//! - Every number has at most 8 bytes.

use std::collections::HashMap;
use std::io::{self, Write};

use super::opcode;

/// Items between a mark and its `APPENDS` or `SETITEMS`.
const BATCH: usize = 1000;

/// See the [module](self).
pub(crate) struct PickleWriter<'w> {
    to: &'w mut dyn Write,
    /// Objects that were memoized.
    memo: u32,
    /// Where in the memo a text is.
    texts: HashMap<&'static str, u32>,
    /// Of each open list: items since its last mark.
    open: Vec<usize>,
}

impl<'w> PickleWriter<'w> {
    pub(crate) fn begin(to: &'w mut dyn Write) -> io::Result<PickleWriter<'w>> {
        to.write_all(&[opcode::PROTO, 4])?;
        Ok(PickleWriter {
            to,
            memo: 0,
            texts: HashMap::new(),
            open: Vec::new(),
        })
    }

    pub(crate) fn end(self) -> io::Result<()> {
        self.to.write_all(&[opcode::STOP])?;
        self.to.flush()
    }

    pub(crate) fn int(&mut self, value: i64) -> io::Result<()> {
        if let Ok(value) = i32::try_from(value) {
            self.to.write_all(&[opcode::BININT])?;
            return self.to.write_all(&value.to_le_bytes());
        }
        self.to.write_all(&[opcode::LONG1, 8])?;
        self.to.write_all(&value.to_le_bytes())
    }

    pub(crate) fn bool(&mut self, value: bool) -> io::Result<()> {
        self.to.write_all(&[if value {
            opcode::NEWTRUE
        } else {
            opcode::NEWFALSE
        }])
    }

    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        let length = u32::try_from(text.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a text of 4 GiB or more"))?;
        self.to.write_all(&[opcode::BINUNICODE])?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(text.as_bytes())
    }

    /// A text that comes often: written once.
    pub(crate) fn key(&mut self, text: &'static str) -> io::Result<()> {
        if let Some(&at) = self.texts.get(text) {
            return self.again(at);
        }
        self.text(text)?;
        let at = self.memoize()?;
        self.texts.insert(text, at);
        Ok(())
    }

    /// Remembers the object that was written last; gives what [`again`](Self::again) takes.
    pub(crate) fn memoize(&mut self) -> io::Result<u32> {
        self.to.write_all(&[opcode::MEMOIZE])?;
        self.memo += 1;
        Ok(self.memo - 1)
    }

    pub(crate) fn again(&mut self, at: u32) -> io::Result<()> {
        if let Ok(at) = u8::try_from(at) {
            return self.to.write_all(&[opcode::BINGET, at]);
        }
        self.to.write_all(&[opcode::LONG_BINGET])?;
        self.to.write_all(&at.to_le_bytes())
    }

    /// A pair of numbers.
    pub(crate) fn pair(&mut self, one: i64, other: i64) -> io::Result<()> {
        self.int(one)?;
        self.int(other)?;
        self.to.write_all(&[opcode::TUPLE2])
    }

    /// Begins a list; each item is followed by [`item`](Self::item).
    pub(crate) fn open_list(&mut self) -> io::Result<()> {
        self.open.push(0);
        self.to.write_all(&[opcode::EMPTY_LIST, opcode::MARK])
    }

    /// An item of the innermost open list is complete.
    pub(crate) fn item(&mut self) -> io::Result<()> {
        let Some(items) = self.open.last_mut() else {
            return Ok(());
        };
        *items += 1;
        if *items < BATCH {
            return Ok(());
        }
        *items = 0;
        self.to.write_all(&[opcode::APPENDS, opcode::MARK])
    }

    pub(crate) fn close_list(&mut self) -> io::Result<()> {
        self.open.pop();
        self.to.write_all(&[opcode::APPENDS])
    }

    /// Begins a dict, into which keys and values go in turn, fewer than [`BATCH`] of them.
    pub(crate) fn open_dict(&mut self) -> io::Result<()> {
        self.to.write_all(&[opcode::EMPTY_DICT, opcode::MARK])
    }

    pub(crate) fn close_dict(&mut self) -> io::Result<()> {
        self.to.write_all(&[opcode::SETITEMS])
    }
}
