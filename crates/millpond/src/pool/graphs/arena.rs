//! The memory of graphs: where it is free, in the order of the captures that are under way.
//!
//! What was mapped once stays where it is until the memory is closed, since every replay uses it.
//! Ranges grow at their end alone, so neighbours are one memory wherever handles begin and end.
//!
//! Nothing here calls the device.
//!
//! # Invariants
//!
//! 1. A range is mapped from its base to `mapped`; of that every byte is in a block, free, late, or
//!    taken by a call that is under way. No two pieces overlap.
//! 2. `order` knows one slot for every stream of every capture under way, and no other that lives.
//!    When a capture ends, what was ordered within it is over: its slots are settled.
//! 3. A use on a stream that is not captured is an ordinary one: it stands in the pool's own order,
//!    and what it used is late until the pool knows it to be completed.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::device::{EventId, HandleId};
use crate::order::{Ends, Order, Reasons, StreamIndex};
use crate::space::align_up;

/// Tells a capture from all others of its pool.
pub(super) type CaptureId = u64;

/// A stream of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) capture: CaptureId,
    /// In the arena's order.
    pub(super) slot: StreamIndex,
    /// In the pool's order.
    pub(super) stream: StreamIndex,
}

/// A live block of a graph's.
#[derive(Clone, Debug)]
pub(in crate::pool) struct GraphBlock {
    pub(in crate::pool) requested: u64,
    pub(super) size: u64,
    pub(super) serial: u64,
    /// In the pool's order.
    pub(in crate::pool) owner: StreamIndex,
    /// Uses within captures that are not over.
    pub(super) captured: SmallVec<[Member; 1]>,
    /// Ordinary uses that are not over, in the pool's order.
    pub(in crate::pool) ordinary: SmallVec<[StreamIndex; 1]>,
    /// Ends of uses that are over: in the arena's order, and in the pool's.
    pub(super) ended: Ends,
    pub(super) ended_ordinary: Ends,
}

/// Memory that is freed, but whose ordinary uses may not be completed.
#[derive(Clone, Debug)]
pub(super) struct Late {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) ends: Ends,
    pub(super) ordinary: Ends,
}

/// A handle under the arena's addresses; or, where nothing can be mapped, a plain allocation.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Backed {
    pub(in crate::pool) address: u64,
    pub(in crate::pool) size: u64,
    /// The handle, and whether it is still mapped.
    pub(in crate::pool) handle: Option<(HandleId, bool)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) size: u64,
    /// Up to here it is mapped, or being mapped by a call that is under way.
    pub(super) mapped: u64,
    /// Whether it is a reservation; if not, a plain allocation.
    pub(super) reserved: bool,
}

impl Range {
    pub(super) fn end(&self) -> u64 {
        self.base + self.size
    }
}

#[derive(Clone, Debug)]
struct Piece {
    size: u64,
    ends: Ends,
}

/// What a growth took.
#[derive(Debug)]
pub(super) struct Plan {
    range: usize,
    /// Where the block is to stand.
    pub(super) block: u64,
    /// What is free below the part that is to be mapped, and goes into the block.
    below: Vec<(u64, Piece)>,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// What is asked for on a captured stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) requested: u64,
    pub(super) size: u64,
    pub(super) alignment: u64,
    pub(super) member: Member,
    pub(super) reasons: Reasons,
}

#[derive(Debug, Default)]
pub(super) struct ArenaState {
    pub(super) order: Order,
    pub(super) running: Vec<CaptureId>,
    /// The caller's events that were recorded within a capture.
    pub(super) events: FxHashMap<EventId, CaptureId>,
    pub(super) ranges: Vec<Range>,
    pub(super) backed: Vec<Backed>,
    pub(super) blocks: FxHashMap<u64, GraphBlock>,
    pub(super) late: Vec<Late>,
    free: BTreeMap<u64, Piece>,
    serials: u64,
}

impl ArenaState {
    /// Whether an address is one of the arena's.
    pub(super) fn holds(&self, address: u64) -> bool {
        let mut ranges = self.ranges.iter();
        ranges.any(|range| (range.base..range.end()).contains(&address))
    }

    /// The live block that an address lies in, and where it starts. Looks at every block.
    pub(super) fn around(&self, address: u64) -> Option<(u64, &GraphBlock)> {
        let mut blocks = self.blocks.iter().map(|(&start, block)| (start, block));
        blocks.find(|(start, block)| *start <= address && address - start < block.size)
    }

    pub(super) fn reserved(&self) -> u64 {
        self.backed.iter().map(|backed| backed.size).sum()
    }

    pub(super) fn largest_free(&self) -> u64 {
        let sizes = self.free.values().map(|piece| piece.size);
        sizes.max().unwrap_or(0)
    }

    /// Whether nothing but the arena itself needs its memory.
    pub(super) fn is_unused(&self) -> bool {
        self.blocks.is_empty() && self.running.is_empty()
    }

    /// Serves a wish from what is free and ordered before it: neighbours together, of all that are
    /// large enough the smallest, of equal ones the lowest. Gives address and serial number.
    pub(super) fn allocate(&mut self, wish: &Wish) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        let mut run: Option<(u64, u64)> = None;
        let mut consider = |run: Option<(u64, u64)>| {
            let Some((start, end)) = run else { return };
            let aligned = align_up(start, wish.alignment);
            let needed = aligned.and_then(|aligned| aligned.checked_add(wish.size));
            let fits = needed.is_some_and(|needed| needed <= end);
            if fits && best.is_none_or(|(start, length)| (end - start, start) < (length, start)) {
                best = Some((start, end - start));
            }
        };
        for (&address, piece) in &self.free {
            let end = address + piece.size;
            if !self.usable(&piece.ends, wish) {
                consider(run.take());
                continue;
            }
            run = match run {
                Some((start, until)) if until == address && !self.begins_range(address) => {
                    Some((start, end))
                }
                before => {
                    consider(before);
                    Some((address, end))
                }
            };
        }
        consider(run);
        let (start, _) = best?;
        let address = align_up(start, wish.alignment)?;
        self.take(address, address + wish.size);
        Some(self.hand_out(wish, address))
    }

    fn usable(&self, ends: &Ends, wish: &Wish) -> bool {
        self.order.usable(ends, wish.member.slot, wish.reasons)
    }

    /// Ranges that touch by chance are not one memory.
    fn begins_range(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| range.base == address)
    }

    /// Takes free pieces out of `start..end`, which they cover; what is beyond stays free.
    fn take(&mut self, start: u64, end: u64) {
        let first = self.free.range(..=start).next_back();
        let from = first.map_or(start, |(&address, _)| address);
        let met: Vec<u64> = self.free.range(from..end).map(|(&at, _)| at).collect();
        for address in met {
            let Some(piece) = self.free.remove(&address) else {
                continue;
            };
            let until = address + piece.size;
            if until <= start {
                self.free.insert(address, piece);
                continue;
            }
            let mut keep = |from: u64, to: u64| {
                if from < to {
                    let (size, ends) = (to - from, piece.ends.clone());
                    self.free.insert(from, Piece { size, ends });
                }
            };
            keep(address, start);
            keep(end, until);
        }
    }

    fn hand_out(&mut self, wish: &Wish, address: u64) -> (u64, u64) {
        let serial = self.serials;
        self.serials += 1;
        let block = GraphBlock {
            requested: wish.requested,
            size: wish.size,
            serial,
            owner: wish.member.stream,
            captured: SmallVec::from_iter([wish.member]),
            ordinary: SmallVec::new(),
            ended: Ends::default(),
            ended_ordinary: Ends::default(),
        };
        self.order.name(wish.member.slot);
        self.blocks.insert(address, block);
        (address, serial)
    }

    /// Makes memory free after these ends; neighbours with the same ends become one.
    pub(super) fn put_free(&mut self, address: u64, size: u64, ends: Ends) {
        let (mut address, mut size) = (address, size);
        let below = self.free.range(..address).next_back();
        if let Some((&start, piece)) = below
            && start + piece.size == address
            && piece.ends == ends
            && !self.begins_range(address)
        {
            size += piece.size;
            self.free.remove(&start);
            address = start;
        }
        let end = address + size;
        if let Some(above) = self.free.get(&end)
            && above.ends == ends
            && !self.begins_range(end)
        {
            size += above.size;
            self.free.remove(&end);
        }
        self.free.insert(address, Piece { size, ends });
    }

    /// Decides what to map for a wish that nothing free serves, and takes it: what is missing at
    /// the end of a range. `None` if no range has room.
    pub(super) fn plan(&mut self, wish: &Wish, granularity: u64) -> Option<Plan> {
        let mut plans = (0..self.ranges.len()).filter_map(|range| {
            let (from, end) = (self.ranges[range].mapped, self.ranges[range].end());
            let mut start = from;
            while let Some((&below, piece)) = self.free.range(..start).next_back()
                && below + piece.size == start
                && !self.begins_range(start)
                && self.usable(&piece.ends, wish)
            {
                start = below;
            }
            let block = align_up(start, wish.alignment)?;
            let to = block.checked_add(wish.size)?;
            let to = to.max(from).checked_next_multiple_of(granularity)?;
            (from < to && to <= end && self.ranges[range].reserved)
                .then_some((range, block, start, from, to))
        });
        let (range, block, start, from, to) = plans.next()?;
        let met: Vec<u64> = self.free.range(start..from).map(|(&at, _)| at).collect();
        let pieces = met.into_iter();
        let below = pieces.filter_map(|at| Some((at, self.free.remove(&at)?)));
        let below = below.collect();
        self.ranges[range].mapped = to;
        Some(Plan {
            range,
            block,
            below,
            from,
            to,
        })
    }

    /// What was planned is mapped: the block stands, and the rest is free.
    pub(super) fn settle(&mut self, plan: Plan, wish: &Wish, backed: Backed) -> (u64, u64) {
        self.backed.push(backed);
        for (address, piece) in plan.below {
            self.free.insert(address, piece);
        }
        self.put_free(plan.from, plan.to - plan.from, Ends::default());
        self.take(plan.block, plan.block + wish.size);
        self.hand_out(wish, plan.block)
    }

    /// What was planned came to nothing. With `hole`, its addresses are not free again.
    pub(super) fn undo(&mut self, plan: Plan, hole: bool) {
        for (address, piece) in plan.below {
            self.free.insert(address, piece);
        }
        // What another call mapped beyond it meanwhile leaves a hole as well.
        if !hole
            && let Some(range) = self.ranges.get_mut(plan.range)
            && range.mapped == plan.to
        {
            range.mapped = plan.from;
        }
    }

    /// What was planned came to nothing, and left something that could not be undone.
    pub(super) fn undo_leaving(&mut self, plan: Plan, left: Backed) {
        let mapped = left.handle.is_some_and(|(_, mapped)| mapped);
        self.backed.push(left);
        self.undo(plan, mapped);
    }

    /// A plain allocation serves the wish, and the rest of it is free.
    pub(super) fn settle_plain(&mut self, backed: Backed, wish: &Wish) -> (u64, u64) {
        let Backed { address, size, .. } = backed;
        self.ranges.push(Range {
            base: address,
            size,
            mapped: address + size,
            reserved: false,
        });
        self.backed.push(backed);
        self.put_free(address, size, Ends::default());
        // It is aligned to the grain at least, and large enough for what is asked beyond that.
        let block = align_up(address, wish.alignment).unwrap_or(address);
        self.take(block, block + wish.size);
        self.hand_out(wish, block)
    }

    /// A capture is over: its streams' slots go, and what was ordered in it is ordered before
    /// everything that comes.
    pub(super) fn capture_ended(&mut self, capture: CaptureId, slots: &[StreamIndex]) {
        for &slot in slots {
            let knowledge = self.order.knowledge(slot);
            self.order.synchronized_knowledge(&knowledge);
            self.order.retire(slot);
        }
        self.running.retain(|&running| running != capture);
        let order = &mut self.order;
        self.events.retain(|&event, of| {
            if *of == capture {
                order.forget_event(event);
            }
            *of != capture
        });
        // Uses that are not over are ordinary from now on.
        for block in self.blocks.values_mut() {
            let mut left = SmallVec::new();
            for &member in &block.captured {
                if member.capture == capture {
                    self.order.unname(member.slot);
                    block.ordinary.push(member.stream);
                } else {
                    left.push(member);
                }
            }
            block.captured = left;
            let order = &self.order;
            block.ended.retain(|end| !order.is_completed(end));
        }
        for late in &mut self.late {
            let order = &self.order;
            late.ends.retain(|end| !order.is_completed(end));
        }
        for (address, mut piece) in std::mem::take(&mut self.free) {
            let order = &self.order;
            piece.ends.retain(|end| !order.is_completed(end));
            self.put_free(address, piece.size, piece.ends);
        }
        for slot in self.order.finished() {
            self.order.vacate(slot);
        }
    }

    /// Forgets all that is free, since it is being closed.
    pub(super) fn forget_free(&mut self) {
        self.free.clear();
        self.late.clear();
    }

    /// Checks the invariants.
    pub(super) fn validate(&self) -> Result<(), String> {
        self.order.validate()?;
        let free = self.free.iter().map(|(&at, piece)| (at, piece.size));
        let blocks = self.blocks.iter().map(|(&at, block)| (at, block.size));
        let late = self.late.iter().map(|late| (late.address, late.size));
        let mut all: Vec<(u64, u64)> = free.chain(blocks).chain(late).collect();
        all.sort_unstable();
        let mut reached = 0;
        for &(address, size) in &all {
            let inside = self
                .ranges
                .iter()
                .any(|range| range.base <= address && address + size <= range.mapped);
            if address < reached || !inside {
                return Err(format!("the graph memory at {address:#x} is not one piece"));
            }
            reached = address + size;
        }
        let covered: u64 = all.iter().map(|(_, size)| size).sum();
        if covered > self.reserved() {
            return Err(format!(
                "pieces of graph memory cover {covered} bytes of {}",
                self.reserved()
            ));
        }
        Ok(())
    }
}
