//! Reads a pickle's opcodes into values.
//!
//! # Invariants
//! - Only data opcodes are carried out; those that name code are refused by name.
//! - The stack, the memo and the arena grow by at most one entry an opcode; no length that the
//!   file claims is trusted before as many bytes are there.
//! - `marks` holds rising heights of `stack`, none above its length.

use std::collections::HashMap;

use super::opcode::{self as op, refused};
use super::value::{EMPTY, Node, NodeId, Pickle};
use crate::error::{ErrorKind, Position, TraceError, quote};
use crate::limits::Limits;

/// Ids that every arena begins with, so that the commonest values take no further nodes.
const NONE: NodeId = NodeId(0);
const FALSE: NodeId = NodeId(1);
const TRUE: NodeId = NodeId(2);
const SMALL_INTS: u32 = 3;

/// Reads the pickle in `bytes` up to its STOP; what follows is ignored, as Python does.
///
/// # Errors
/// Truncated, malformed, beyond a limit, or asking for more than data; at a byte offset.
pub(crate) fn read<'a>(bytes: &'a [u8], limits: &'a Limits) -> Result<Pickle<'a>, TraceError> {
    if u32::try_from(bytes.len()).is_err() {
        let at = Position::Byte(u64::from(u32::MAX));
        return Err(TraceError::limit(
            at,
            "bytes of pickle",
            u64::from(u32::MAX),
        ));
    }
    let mut nodes = vec![Node::None, Node::Bool(false), Node::Bool(true)];
    nodes.extend((0..=255).map(Node::Int));
    let reader = Reader {
        limits,
        position: 0,
        opcode_at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Memo::default(),
        pickle: Pickle {
            bytes,
            nodes,
            items: Vec::new(),
            root: NONE,
        },
    };
    reader.run()
}

struct Reader<'a> {
    limits: &'a Limits,
    position: usize,
    /// Where the opcode in hand began.
    opcode_at: usize,
    stack: Vec<NodeId>,
    marks: Vec<usize>,
    memo: Memo,
    pickle: Pickle<'a>,
}

/// Picklers number the memo from 0 without gaps; any other index goes to a map, so that a large
/// one costs no more than a small one.
#[derive(Default)]
struct Memo {
    dense: Vec<NodeId>,
    sparse: HashMap<u32, NodeId>,
}

type Done = Result<(), TraceError>;

impl<'a> Reader<'a> {
    fn run(mut self) -> Result<Pickle<'a>, TraceError> {
        loop {
            self.opcode_at = self.position;
            let [opcode] = self.array("the next opcode")?;
            match opcode {
                op::STOP => {
                    self.pickle.root = self.pop()?;
                    return Ok(self.pickle);
                }
                op::PROTO => self.protocol()?,
                op::FRAME => self.frame()?,
                op::MARK => self.mark()?,
                op::POP => self.discard()?,
                op::POP_MARK => {
                    let from = self.pop_mark()?;
                    self.stack.truncate(from);
                }
                op::DUP => {
                    let top = self.top()?;
                    self.push(top);
                }
                op::BINPUT | op::LONG_BINPUT | op::MEMOIZE => self.put(opcode)?,
                op::BINGET | op::LONG_BINGET => self.get(opcode)?,
                _ => self.value(opcode)?,
            }
        }
    }

    /// Opcodes that make a value or fill one.
    fn value(&mut self, opcode: u8) -> Done {
        let begin = self.opcode_at as u32;
        match opcode {
            op::NONE => self.push(NONE),
            op::NEWTRUE => self.push(TRUE),
            op::NEWFALSE => self.push(FALSE),
            op::BININT1 => {
                let [value] = self.array("BININT1")?;
                self.push(NodeId(SMALL_INTS + u32::from(value)));
            }
            op::BININT2 => {
                let value = u16::from_le_bytes(self.array("BININT2")?);
                self.make(Node::Int(i64::from(value)))?;
            }
            op::BININT => {
                let value = i32::from_le_bytes(self.array("BININT")?);
                self.make(Node::Int(i64::from(value)))?;
            }
            op::BINFLOAT => {
                let value = f64::from_be_bytes(self.array("BINFLOAT")?);
                self.make(Node::Float(value))?;
            }
            op::LONG1 | op::LONG4 => self.long(opcode)?,
            op::EMPTY_LIST => self.make(Node::List {
                begin,
                items: EMPTY,
            })?,
            op::EMPTY_TUPLE => self.make(Node::Tuple {
                begin,
                items: EMPTY,
            })?,
            op::EMPTY_DICT => self.make(Node::Dict {
                begin,
                items: EMPTY,
            })?,
            op::EMPTY_SET => self.make(Node::Set {
                begin,
                items: EMPTY,
            })?,
            op::TUPLE1 => self.tuple(1)?,
            op::TUPLE2 => self.tuple(2)?,
            op::TUPLE3 => self.tuple(3)?,
            op::TUPLE | op::LIST | op::FROZENSET | op::DICT => {
                let from = self.pop_mark()?;
                let items = self.take_items(from)?;
                self.make(match opcode {
                    op::TUPLE => Node::Tuple { begin, items },
                    op::LIST => Node::List { begin, items },
                    op::FROZENSET => Node::Set { begin, items },
                    _ => Node::Dict { begin, items },
                })?;
                if opcode == op::DICT {
                    self.check_pairs(items)?;
                }
            }
            op::APPEND => self.extend_from_top(opcode, 1)?,
            op::SETITEM => self.extend_from_top(opcode, 2)?,
            op::APPENDS | op::SETITEMS | op::ADDITEMS => {
                let from = self.pop_mark()?;
                self.extend(opcode, from)?;
            }
            _ => self.string(opcode)?,
        }
        Ok(())
    }

    fn string(&mut self, opcode: u8) -> Done {
        let what = "a string";
        let length = match opcode {
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING | op::SHORT_BINBYTES => {
                u64::from(u8::from_le_bytes(self.array(what)?))
            }
            op::BINUNICODE | op::BINSTRING | op::BINBYTES => {
                u64::from(u32::from_le_bytes(self.array(what)?))
            }
            op::BINUNICODE8 | op::BINBYTES8 | op::BYTEARRAY8 => {
                u64::from_le_bytes(self.array(what)?)
            }
            _ => return Err(self.not_data(opcode)),
        };
        let begin = self.position as u32;
        self.take(what, length)?;
        self.make(match opcode {
            op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                Node::Bytes { begin }
            }
            _ => Node::Str {
                begin,
                length: length as u32,
            },
        })
    }

    /// Little-endian two's complement of any length.
    fn long(&mut self, opcode: u8) -> Done {
        let what = "an integer";
        let length = match opcode {
            op::LONG1 => u64::from(u8::from_le_bytes(self.array(what)?)),
            _ => u64::from(u32::from_le_bytes(self.array(what)?)),
        };
        let begin = self.opcode_at as u32;
        let bytes = self.take(what, length)?;
        let sign = if bytes.last().is_some_and(|&b| b >= 0x80) {
            0xff
        } else {
            0
        };
        let (low, high) = bytes.split_at(bytes.len().min(8));
        let mut value = [sign; 8];
        value[..low.len()].copy_from_slice(low);
        let value = i64::from_le_bytes(value);
        let fits = high.iter().all(|&b| b == sign) && (value < 0) == (sign != 0);
        self.make(if fits {
            Node::Int(value)
        } else {
            Node::BigInt { begin }
        })
    }

    fn tuple(&mut self, count: usize) -> Done {
        let from = self.top_items(count)?;
        let items = self.take_items(from)?;
        self.make(Node::Tuple {
            begin: self.opcode_at as u32,
            items,
        })
    }

    fn extend_from_top(&mut self, opcode: u8, count: usize) -> Done {
        let from = self.top_items(count)?;
        self.extend(opcode, from)
    }

    /// Moves `stack[from..]` into the container below it.
    fn extend(&mut self, opcode: u8, from: usize) -> Done {
        let below = from.checked_sub(1).filter(|&b| b >= self.floor());
        let Some(&container) = below.and_then(|b| self.stack.get(b)) else {
            return Err(self.stack_short());
        };
        let wanted = match opcode {
            op::APPEND | op::APPENDS => "a list",
            op::ADDITEMS => "a set",
            _ => "a dict",
        };
        let old = match (self.pickle.node(container), wanted) {
            (Node::List { items, .. }, "a list")
            | (Node::Set { items, .. }, "a set")
            | (Node::Dict { items, .. }, "a dict") => items,
            _ => {
                let what = "the container to fill";
                let found = self.pickle.describe(container);
                return Err(self.error(ErrorKind::Malformed {
                    what,
                    found,
                    expected: wanted,
                }));
            }
        };
        if from == self.stack.len() {
            return Ok(());
        }
        let new = self.items_slot(old);
        if let Some(list) = self.pickle.items.get_mut(new as usize) {
            list.extend_from_slice(&self.stack[from..]);
        }
        self.stack.truncate(from);
        if let Some(Node::List { items, .. } | Node::Set { items, .. } | Node::Dict { items, .. }) =
            self.pickle.nodes.get_mut(container.0 as usize)
        {
            *items = new;
        }
        if wanted == "a dict" {
            self.check_pairs(new)
        } else {
            Ok(())
        }
    }

    fn check_pairs(&self, items: u32) -> Done {
        match self.pickle.items.get(items as usize) {
            Some(list) if list.len() % 2 != 0 => Err(self.error(ErrorKind::Malformed {
                what: "the dict",
                found: "a key without a value".to_owned(),
                expected: "keys and values in turn",
            })),
            _ => Ok(()),
        }
    }

    /// A new container's items, moved from `stack[from..]`.
    fn take_items(&mut self, from: usize) -> Result<u32, TraceError> {
        if from == self.stack.len() {
            return Ok(EMPTY);
        }
        let slot = self.items_slot(EMPTY);
        if let Some(list) = self.pickle.items.get_mut(slot as usize) {
            list.extend_from_slice(&self.stack[from..]);
        }
        self.stack.truncate(from);
        Ok(slot)
    }

    /// The place of a container's items, made if it has none. There are never more than nodes.
    fn items_slot(&mut self, old: u32) -> u32 {
        if old != EMPTY {
            return old;
        }
        self.pickle.items.push(Vec::new());
        (self.pickle.items.len() - 1) as u32
    }

    fn protocol(&mut self) -> Done {
        let [version] = self.array("PROTO")?;
        if (2..=5).contains(&version) {
            return Ok(());
        }
        let (what, found) = ("the pickle protocol", version.to_string());
        Err(self.error(ErrorKind::Malformed {
            what,
            found,
            expected: "2 to 5",
        }))
    }

    /// A frame only says how far one could read ahead; it must not reach beyond the end.
    fn frame(&mut self) -> Done {
        let wanted = u64::from_le_bytes(self.array("FRAME")?);
        let left = (self.pickle.bytes.len() - self.position) as u64;
        if wanted > left {
            return Err(self.error(ErrorKind::Truncated {
                what: "a frame",
                wanted,
                left,
            }));
        }
        Ok(())
    }

    fn mark(&mut self) -> Done {
        if self.marks.len() >= self.limits.pickle_depth as usize {
            return Err(self.limit("open containers", u64::from(self.limits.pickle_depth)));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn pop_mark(&mut self) -> Result<usize, TraceError> {
        self.marks.pop().ok_or_else(|| self.stack_short())
    }

    /// POP takes the topmost value, or the mark if that is topmost, as Python does.
    fn discard(&mut self) -> Done {
        if self.stack.len() > self.floor() {
            self.stack.pop();
            return Ok(());
        }
        self.pop_mark().map(|_| ())
    }

    fn put(&mut self, opcode: u8) -> Done {
        let top = self.top()?;
        let count = self.memo.dense.len() + self.memo.sparse.len();
        let index = match opcode {
            op::BINPUT => u32::from(u8::from_le_bytes(self.array("BINPUT")?)),
            op::LONG_BINPUT => u32::from_le_bytes(self.array("LONG_BINPUT")?),
            _ => u32::try_from(count).unwrap_or(u32::MAX),
        };
        if let Some(slot) = self.memo.dense.get_mut(index as usize) {
            *slot = top;
            return Ok(());
        }
        if count >= self.limits.pickle_memo as usize {
            return Err(self.limit("memo entries", u64::from(self.limits.pickle_memo)));
        }
        if index as usize == self.memo.dense.len() {
            self.memo.dense.push(top);
            self.memo.sparse.remove(&index);
        } else {
            self.memo.sparse.insert(index, top);
        }
        Ok(())
    }

    fn get(&mut self, opcode: u8) -> Done {
        let index = match opcode {
            op::BINGET => u32::from(u8::from_le_bytes(self.array("BINGET")?)),
            _ => u32::from_le_bytes(self.array("LONG_BINGET")?),
        };
        let dense = self.memo.dense.get(index as usize);
        match dense.or_else(|| self.memo.sparse.get(&index)) {
            Some(&id) => {
                self.push(id);
                Ok(())
            }
            None => Err(self.error(ErrorKind::Malformed {
                what: "the memo index",
                found: index.to_string(),
                expected: "one that was stored before",
            })),
        }
    }

    fn make(&mut self, node: Node) -> Done {
        let index = self.pickle.nodes.len();
        if index >= self.limits.pickle_nodes as usize {
            return Err(self.limit("values in the pickle", u64::from(self.limits.pickle_nodes)));
        }
        self.pickle.nodes.push(node);
        self.push(NodeId(index as u32));
        Ok(())
    }

    fn push(&mut self, id: NodeId) {
        self.stack.push(id);
    }

    /// The height of the stack that belongs to an open mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// Where the topmost `count` values begin.
    fn top_items(&self, count: usize) -> Result<usize, TraceError> {
        let from = self.stack.len().checked_sub(count);
        from.filter(|&from| from >= self.floor())
            .ok_or_else(|| self.stack_short())
    }

    fn top(&self) -> Result<NodeId, TraceError> {
        let from = self.top_items(1)?;
        Ok(self.stack[from])
    }

    fn pop(&mut self) -> Result<NodeId, TraceError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], TraceError> {
        match self
            .pickle
            .bytes
            .get(self.position..)
            .and_then(|rest| rest.first_chunk::<N>())
        {
            Some(bytes) => {
                self.position += N;
                Ok(*bytes)
            }
            None => Err(self.truncated(what, N as u64)),
        }
    }

    fn take(&mut self, what: &'static str, length: u64) -> Result<&'a [u8], TraceError> {
        if length > self.limits.pickle_value_bytes {
            return Err(self.limit("bytes in one value", self.limits.pickle_value_bytes));
        }
        let bytes: &'a [u8] = self.pickle.bytes;
        let end = self.position.checked_add(length as usize);
        match end.and_then(|end| bytes.get(self.position..end)) {
            Some(taken) => {
                self.position += taken.len();
                Ok(taken)
            }
            None => Err(self.truncated(what, length)),
        }
    }

    fn not_data(&self, opcode: u8) -> TraceError {
        let Some(name) = refused(opcode) else {
            let (what, found) = ("the opcode", format!("{opcode:#04x}"));
            let expected = "a data opcode of pickle protocols 2 to 5";
            return self.error(ErrorKind::Malformed {
                what,
                found,
                expected,
            });
        };
        let names = match opcode {
            op::GLOBAL | op::INST => {
                let mut lines = self.pickle.bytes[self.position..].splitn(3, |&b| b == b'\n');
                let module = lines.next().unwrap_or_default();
                global(module, lines.next().unwrap_or_default())
            }
            op::STACK_GLOBAL => match self.stack.as_slice() {
                [.., module, name] => {
                    let text = |id| self.pickle.text(id).unwrap_or_default();
                    global(text(*module), text(*name))
                }
                _ => String::new(),
            },
            _ => String::new(),
        };
        self.error(ErrorKind::Refused {
            opcode: name,
            names,
        })
    }

    fn stack_short(&self) -> TraceError {
        self.error(ErrorKind::Malformed {
            what: "the stack",
            found: "too short".to_owned(),
            expected: "the operands of the opcode",
        })
    }

    fn truncated(&self, what: &'static str, wanted: u64) -> TraceError {
        let left = (self.pickle.bytes.len() - self.position) as u64;
        self.error(ErrorKind::Truncated { what, wanted, left })
    }

    fn limit(&self, what: &'static str, limit: u64) -> TraceError {
        self.error(ErrorKind::Limit { what, limit })
    }

    fn error(&self, kind: ErrorKind) -> TraceError {
        TraceError::new(Position::Byte(self.opcode_at as u64), kind)
    }
}

fn global(module: &[u8], name: &[u8]) -> String {
    const SHOWN: usize = 40;
    let short = |bytes: &[u8]| bytes[..bytes.len().min(SHOWN)].to_vec();
    let full = [short(module), b".".to_vec(), short(name)].concat();
    format!(" {}", quote(&full))
}
