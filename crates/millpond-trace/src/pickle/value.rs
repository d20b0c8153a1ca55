//! The values of a pickle, in an arena.
//!
//! # Invariants
//! - A shared object is one node: its id stands wherever it is used, so neither memory nor time
//!   grows with the number of paths to it.
//! - Nothing here recurses, so cycles and deep nesting are harmless.
//! - Strings are ranges of the input, which is below 4 GiB.

/// A value's place in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub(super) u32);

/// One value. `begin` is where in the input it began.
#[derive(Clone, Copy, Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside i64.
    BigInt {
        begin: u32,
    },
    Float(f64),
    Str {
        begin: u32,
        length: u32,
    },
    Bytes {
        begin: u32,
    },
    /// `items` is a place in [`Pickle::items`], or [`EMPTY`].
    List {
        begin: u32,
        items: u32,
    },
    Tuple {
        begin: u32,
        items: u32,
    },
    Set {
        begin: u32,
        items: u32,
    },
    /// Its items are keys and values in turn.
    Dict {
        begin: u32,
        items: u32,
    },
}

// A hostile pickle makes a node of every byte.
const _: () = assert!(size_of::<Node>() <= 16);

/// A container without items of its own yet.
pub(super) const EMPTY: u32 = u32::MAX;

/// A pickle that was read.
pub(crate) struct Pickle<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) nodes: Vec<Node>,
    pub(super) items: Vec<Vec<NodeId>>,
    pub(super) root: NodeId,
}

impl Pickle<'_> {
    /// The object that was pickled.
    pub(crate) fn root(&self) -> NodeId {
        self.root
    }

    /// The items of a list or tuple.
    pub(crate) fn sequence(&self, id: NodeId) -> Option<&[NodeId]> {
        match self.node(id) {
            Node::List { items, .. } | Node::Tuple { items, .. } => Some(self.items(items)),
            _ => None,
        }
    }

    /// The keys and values of a dict, as they were set: of equal keys the last counts.
    pub(crate) fn dict(&self, id: NodeId) -> Option<impl ExactSizeIterator<Item = Pair> + '_> {
        let Node::Dict { items, .. } = self.node(id) else {
            return None;
        };
        Some(
            self.items(items)
                .chunks_exact(2)
                .map(|pair| (pair[0], pair[1])),
        )
    }

    /// An integer.
    pub(crate) fn int(&self, id: NodeId) -> Option<i64> {
        match self.node(id) {
            Node::Int(value) => Some(value),
            _ => None,
        }
    }

    /// The bytes of a string, which need not be UTF-8.
    pub(crate) fn text(&self, id: NodeId) -> Option<&[u8]> {
        match self.node(id) {
            Node::Str { begin, length } => self
                .bytes
                .get(begin as usize..begin as usize + length as usize),
            _ => None,
        }
    }

    /// Where in the input the value began; 0 where that is not kept.
    pub(crate) fn offset(&self, id: NodeId) -> u64 {
        match self.node(id) {
            Node::None | Node::Bool(_) | Node::Int(_) | Node::Float(_) => 0,
            Node::Str { begin, .. }
            | Node::Bytes { begin }
            | Node::BigInt { begin }
            | Node::List { begin, .. }
            | Node::Tuple { begin, .. }
            | Node::Set { begin, .. }
            | Node::Dict { begin, .. } => u64::from(begin),
        }
    }

    /// A value in a few words, for messages.
    pub(crate) fn describe(&self, id: NodeId) -> String {
        match self.node(id) {
            Node::None => "None".to_owned(),
            Node::Bool(value) => format!("the bool {value}"),
            Node::Int(value) => format!("the number {value}"),
            Node::BigInt { .. } => "a number beyond 64 bits".to_owned(),
            Node::Float(value) => format!("the float {value}"),
            Node::Str { .. } => {
                format!(
                    "the string {}",
                    crate::error::quote(self.text(id).unwrap_or_default())
                )
            }
            Node::Bytes { .. } => "bytes".to_owned(),
            Node::List { .. } => "a list".to_owned(),
            Node::Tuple { .. } => "a tuple".to_owned(),
            Node::Set { .. } => "a set".to_owned(),
            Node::Dict { .. } => "a dict".to_owned(),
        }
    }

    pub(super) fn node(&self, id: NodeId) -> Node {
        self.nodes.get(id.0 as usize).copied().unwrap_or(Node::None)
    }

    fn items(&self, items: u32) -> &[NodeId] {
        self.items.get(items as usize).map_or(&[], Vec::as_slice)
    }
}

/// A key and its value.
pub(crate) type Pair = (NodeId, NodeId);
