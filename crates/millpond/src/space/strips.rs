//! Where memory is mapped, in order of address, and where it is free in stretches that do not end
//! where a mapping ends.
//!
//! A *run* is a range of free addresses, as long as it can be; it may go through several mappings.
//! Runs are not kept: for each mapping there is a *summary* of what is free in it, and a tree of
//! summaries above them, in which long runs are found in a few steps. So a mapping costs little
//! when what is free in its handle changes, and nothing when its summary stays the same.
//!
//! # Invariants
//!
//! 1. Mappings do not overlap; runs go from one into the next where both touch and no wall stands
//!    between them.
//! 2. From [`Strips::refresh`] until a mapping changes, is added or removed, every inner node is the
//!    sum of the two below it.

use std::ops::ControlFlow;

use rustc_hash::FxHashSet;

use super::pieces::Pieces;

/// Free bytes at the beginning, at the end, and in the longest run of a range.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Summary {
    pub(crate) prefix: u64,
    pub(crate) suffix: u64,
    pub(crate) longest: u64,
}

/// The summary of mappings one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    free: Summary,
    bytes: u64,
    /// Whether runs go on from the mapping below into the first of these.
    joined: bool,
}

/// What stands where there are no more mappings.
const NOTHING: Node = Node {
    free: Summary {
        prefix: 0,
        suffix: 0,
        longest: 0,
    },
    bytes: 0,
    joined: true,
};

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The owner's name for it.
    pub(crate) key: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Strips {
    mapped: Vec<Mapped>,
    /// As many as there is room for; those of the mappings follow.
    nodes: Vec<Node>,
    /// Nodes above the mappings from this one on, and up to that one, are not up to date.
    stale: usize,
    stale_to: usize,
    /// Otherwise: nodes of mappings that have changed.
    dirty: Vec<u32>,
    /// Addresses across which nothing merges: where one allocation or reservation ends and another
    /// one begins.
    walls: FxHashSet<u64>,
}

impl Strips {
    pub(crate) fn new() -> Strips {
        Strips {
            mapped: Vec::new(),
            nodes: vec![NOTHING; 2],
            stale: usize::MAX,
            stale_to: 0,
            dirty: Vec::new(),
            walls: FxHashSet::default(),
        }
    }

    /// Nothing merges across this address from now on.
    pub(crate) fn add_wall(&mut self, address: u64) {
        self.walls.insert(address);
        if let Some(place) = self.place_of(address) {
            self.set_joined(place);
        }
    }

    /// Adds a mapping, which is not free yet.
    pub(crate) fn insert(&mut self, mapped: Mapped) {
        // What was said of mappings holds at their places before anything moves.
        self.refresh_dirty();
        let place = self.place_above(mapped.start);
        let count = self.mapped.len();
        let half = self.nodes.len() / 2;
        if count == half {
            let mut nodes = vec![NOTHING; 4 * half];
            nodes[2 * half..][..count].copy_from_slice(&self.nodes[half..]);
            self.nodes = nodes;
            self.stale = 0;
            self.stale_to = 2 * half - 1;
        }
        let half = self.nodes.len() / 2;
        self.mapped.insert(place, mapped);
        self.nodes
            .copy_within(half + place..half + count, half + place + 1);
        self.nodes[half + place] = Node {
            bytes: mapped.end - mapped.start,
            ..NOTHING
        };
        self.set_stale(place, count);
        self.set_joined(place);
        self.set_joined(place + 1);
    }

    /// Removes the mapping at an address.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Mapped> {
        self.refresh_dirty();
        let place = self.place_of(start)?;
        let half = self.nodes.len() / 2;
        let mapped = self.mapped.remove(place);
        let count = self.mapped.len();
        self.nodes
            .copy_within(half + place + 1..half + count + 1, half + place);
        self.nodes[half + count] = NOTHING;
        self.set_stale(place, count);
        self.set_joined(place);
        Some(mapped)
    }

    fn set_joined(&mut self, place: usize) {
        let Some(mapped) = self.mapped.get(place) else {
            return;
        };
        let below = place.checked_sub(1).map(|below| self.mapped[below].end);
        let joined = below == Some(mapped.start) && !self.walls.contains(&mapped.start);
        let half = self.nodes.len() / 2;
        self.nodes[half + place].joined = joined;
        self.set_stale(place, place);
    }

    fn set_stale(&mut self, from: usize, to: usize) {
        self.stale = self.stale.min(from);
        self.stale_to = self.stale_to.max(to);
    }

    /// Says what is free in the mapping at an address. [`Strips::refresh`] is to follow.
    pub(crate) fn set(&mut self, start: u64, free: Summary) {
        let Some(place) = self.place_of(start) else {
            debug_assert!(false, "nothing is mapped at {start:#x}");
            return;
        };
        let node = self.nodes.len() / 2 + place;
        self.nodes[node].free = free;
        if self.stale == usize::MAX {
            self.dirty.push(node as u32);
        } else {
            self.set_stale(place, place);
        }
    }

    /// Brings all nodes up to date.
    pub(crate) fn refresh(&mut self) {
        if self.stale == usize::MAX {
            self.refresh_dirty();
            return;
        }
        let half = self.nodes.len() / 2;
        let mut from = half + self.stale.min(half - 1);
        let mut to = half + self.stale_to.min(half - 1);
        while from > 1 {
            from /= 2;
            to /= 2;
            for node in from..=to {
                self.nodes[node] = self.nodes[2 * node].and(&self.nodes[2 * node + 1]);
            }
        }
        (self.stale, self.stale_to) = (usize::MAX, 0);
    }

    /// Sums up again what stands above mappings that were said to have changed.
    fn refresh_dirty(&mut self) {
        self.dirty.sort_unstable();
        let mut dirty = std::mem::take(&mut self.dirty);
        while dirty.first().is_some_and(|&node| node > 1) {
            // All are of one level, in order.
            let mut kept = 0;
            let mut before = 0;
            for number in 0..dirty.len() {
                let above = dirty[number] / 2;
                if above == before {
                    continue;
                }
                before = above;
                let node = above as usize;
                let sum = self.nodes[2 * node].and(&self.nodes[2 * node + 1]);
                if self.nodes[node].free != sum.free {
                    self.nodes[node].free = sum.free;
                    dirty[kept] = above;
                    kept += 1;
                }
            }
            dirty.truncate(kept);
        }
        dirty.clear();
        self.dirty = dirty;
    }

    pub(crate) fn len(&self) -> usize {
        self.mapped.len()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Mapped> {
        self.mapped.get(place)
    }

    /// All mappings, lowest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Mapped> {
        self.mapped.iter()
    }

    /// The place of the mapping that begins at an address.
    pub(crate) fn place_of(&self, start: u64) -> Option<usize> {
        let place = self.place_above(start);
        (self.mapped.get(place)?.start == start).then_some(place)
    }

    /// The place of the first mapping that ends above an address.
    pub(crate) fn first_above(&self, address: u64) -> usize {
        let place = self.mapped.partition_point(|m| m.start <= address);
        match place.checked_sub(1) {
            Some(below) if self.mapped[below].end > address => below,
            _ => place,
        }
    }

    /// The place of the first mapping from `place` on that begins at an address or above it, which
    /// is most often near.
    pub(crate) fn first_above_from(&self, place: usize, address: u64) -> usize {
        let rest = &self.mapped[place..];
        let near = rest.iter().take(8).take_while(|m| m.start < address);
        match near.count() {
            8 => place + rest.partition_point(|mapped| mapped.start < address),
            near => place + near,
        }
    }

    /// The mappings in these places.
    pub(crate) fn within(&self, places: std::ops::Range<usize>) -> &[Mapped] {
        self.mapped.get(places).unwrap_or_default()
    }

    fn place_above(&self, start: u64) -> usize {
        self.mapped.partition_point(|mapped| mapped.start < start)
    }

    /// Whether runs go on from the mapping below into this one.
    pub(crate) fn is_joined(&self, place: usize) -> bool {
        place < self.mapped.len() && self.nodes[self.nodes.len() / 2 + place].joined
    }

    /// Whether a mapping touches the one below it, be there a wall or not.
    pub(crate) fn touches_below(&self, place: usize) -> bool {
        place > 0 && place < self.mapped.len() && {
            self.mapped[place - 1].end == self.mapped[place].start
        }
    }

    /// The bytes of the run below the end of a mapping.
    pub(crate) fn free_below(&self, place: usize) -> u64 {
        let leaves = &self.nodes[self.nodes.len() / 2..];
        let mut bytes = 0;
        for node in leaves[..=place].iter().rev() {
            bytes += node.free.suffix;
            if !node.is_free() || !node.joined {
                break;
            }
        }
        bytes
    }

    /// The bytes of the run above the start of a mapping.
    pub(crate) fn free_above(&self, place: usize) -> u64 {
        let leaves = &self.nodes[self.nodes.len() / 2..];
        let mut bytes = leaves[place].free.prefix;
        let mut whole = leaves[place].is_free();
        for node in &leaves[place + 1..self.mapped.len()] {
            if !whole || !node.joined {
                break;
            }
            bytes += node.free.prefix;
            whole = node.is_free();
        }
        bytes
    }

    /// Tells the bounds of all runs of at least `size` bytes, lowest first, until that breaks.
    /// `pieces` gives what is free in a mapping.
    pub(crate) fn runs<'a>(
        &self,
        size: u64,
        pieces: impl Fn(u32) -> &'a Pieces,
        tell: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) {
        debug_assert!(self.stale == usize::MAX && self.dirty.is_empty());
        let mut walk = Walk {
            strips: self,
            size,
            pieces,
            tell,
            start: 0,
            end: 0,
        };
        if walk.go(1, 0, self.nodes.len() / 2).is_continue() {
            let _ = walk.close();
        }
    }

    /// Checks the invariants. `free` says what is free in a mapping.
    pub(crate) fn validate(&self, free: impl Fn(u32) -> Summary) -> Result<(), String> {
        let half = self.nodes.len() / 2;
        let mut below = None;
        for (place, mapped) in self.mapped.iter().enumerate() {
            let node = self.nodes[half + place];
            let touches = below == Some(mapped.start);
            let joined = touches && !self.walls.contains(&mapped.start);
            let expected = Node {
                free: free(mapped.key),
                bytes: mapped.end - mapped.start,
                joined,
            };
            if node != expected || below.is_some_and(|below| below > mapped.start) {
                return Err(format!("{mapped:x?} is {node:?}, not {expected:?}"));
            }
            below = Some(mapped.end);
        }
        if self.nodes[half + self.mapped.len()..]
            .iter()
            .any(|node| *node != NOTHING)
        {
            return Err("there are summaries of no mapping".to_owned());
        }
        let sum = |node: usize| self.nodes[2 * node].and(&self.nodes[2 * node + 1]);
        let fresh = self.stale == usize::MAX && self.dirty.is_empty();
        if fresh && (1..half).any(|node| self.nodes[node] != sum(node)) {
            return Err("a summary is not the sum of its parts".to_owned());
        }
        Ok(())
    }
}

impl Node {
    fn is_free(&self) -> bool {
        self.free.prefix == self.bytes
    }

    /// The sum of both, of which the other stands above.
    #[inline]
    fn and(&self, above: &Node) -> Node {
        let (mut prefix, mut suffix) = (self.free.prefix, above.free.suffix);
        let mut longest = self.free.longest.max(above.free.longest);
        if above.joined {
            longest = longest.max(self.free.suffix + above.free.prefix);
            if self.is_free() {
                prefix += above.free.prefix;
            }
            if above.is_free() {
                suffix += self.free.suffix;
            }
        }
        Node {
            free: Summary {
                prefix,
                suffix,
                longest,
            },
            bytes: self.bytes + above.bytes,
            joined: self.joined,
        }
    }
}

/// A search for runs, with the one that is being followed.
struct Walk<'s, P, T> {
    strips: &'s Strips,
    size: u64,
    pieces: P,
    tell: T,
    start: u64,
    end: u64,
}

impl<'a, P: Fn(u32) -> &'a Pieces, T: FnMut(u64, u64) -> ControlFlow<()>> Walk<'_, P, T> {
    /// Goes through what is below a node: so many mappings from `first` on.
    fn go(&mut self, node: usize, first: usize, count: usize) -> ControlFlow<()> {
        let mapped = &self.strips.mapped;
        let last = (first + count).min(mapped.len());
        if first >= last {
            return ControlFlow::Continue(());
        }
        let below = &self.strips.nodes[node];
        if !below.joined {
            self.close()?;
        }
        let end = mapped[last - 1].end;
        if below.is_free() {
            if self.start == self.end {
                self.start = mapped[first].start;
            }
            self.end = end;
            return ControlFlow::Continue(());
        }
        let followed = self.end - self.start;
        if below.free.longest < self.size && followed + below.free.prefix < self.size {
            (self.start, self.end) = (end - below.free.suffix, end);
            return ControlFlow::Continue(());
        }
        if count == 1 {
            return self.go_through(mapped[first]);
        }
        self.go(2 * node, first, count / 2)?;
        self.go(2 * node + 1, first + count / 2, count / 2)
    }

    fn go_through(&mut self, mapped: Mapped) -> ControlFlow<()> {
        let pieces = (self.pieces)(mapped.key);
        for (start, end) in pieces.ranges() {
            let (start, end) = (mapped.start + start, mapped.start + end);
            if start != self.end {
                self.close()?;
                self.start = start;
            }
            self.end = end;
        }
        if self.end != mapped.end {
            self.close()?;
        }
        ControlFlow::Continue(())
    }

    /// The run goes no further.
    fn close(&mut self) -> ControlFlow<()> {
        let (start, end) = (self.start, self.end);
        (self.start, self.end) = (0, 0);
        if end - start >= self.size {
            (self.tell)(start, end)
        } else {
            ControlFlow::Continue(())
        }
    }
}
