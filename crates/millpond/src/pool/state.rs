//! What the pool's lock guards, and the steps that need nothing but it.
//!
//! Nothing here calls the device.
//!
//! # Invariants
//!
//! 1. Every taken extent is a live block, or claimed by a call that is under way (growth, a move,
//!    a wait being inserted), or stranded.
//! 2. Extents cover exactly what is mapped, and claimed address space is exactly what is mapped,
//!    being mapped, or stranded.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::error::BlockError;
use super::graphs::GraphTotals;
use crate::mapping::{Mapping, Mappings};
use crate::order::{Ends, MarkerRequest, Order, Reasons, StreamIndex, StreamKey};
use crate::pages::Pages;
use crate::space::{ExtentId, Extents, Reservations, Silo, align_up};

/// A request, with its size rounded to the grain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) requested: u64,
    pub(super) size: u64,
    pub(super) alignment: u64,
    pub(super) key: StreamKey,
    pub(super) stream: StreamIndex,
    pub(super) reasons: Reasons,
}

/// Memory that was taken for a request, and the ends that its earlier uses had.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) extent: ExtentId,
    pub(super) ends: Ends,
}

/// What a caller holds of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) address: u64,
    pub(super) serial: u64,
}

/// Markers that a free asks for, to be recorded without the lock.
pub(super) type MarkerRequests = SmallVec<[MarkerRequest; 2]>;

#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counters {
    pub(super) waits_inserted: u64,
    pub(super) events_recorded: u64,
    pub(super) event_queries: u64,
}

/// A run of neighbouring free extents.
struct Run {
    first: ExtentId,
    start: u64,
    length: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) order: Order,
    pub(super) extents: Extents,
    pub(super) reservations: Reservations,
    pub(super) mappings: Mappings,
    pub(super) pages: Pages,
    pub(super) blocks: crate::blocks::Blocks,
    /// Plain allocations (no mapping): address and size.
    pub(super) plain: BTreeMap<u64, u64>,
    /// Mappings that could not be taken away (see `mapping`).
    pub(super) stranded: Vec<Mapping>,
    pub(super) counters: Counters,
    /// What graphs have of the pool's memory.
    pub(super) graphs: GraphTotals,
}

impl State {
    pub(super) fn new(pages: Pages) -> State {
        State {
            order: Order::default(),
            extents: Extents::new(),
            reservations: Reservations::default(),
            mappings: Mappings::default(),
            pages,
            blocks: crate::blocks::Blocks::default(),
            plain: BTreeMap::new(),
            stranded: Vec::new(),
            counters: Counters::default(),
            graphs: GraphTotals::default(),
        }
    }

    /// The slot of a stream. A stream under a handle value that stood for another one before
    /// takes nothing over from it: that one is gone.
    pub(super) fn stream(&mut self, key: StreamKey) -> StreamIndex {
        if let Some(known) = self.order.known(key) {
            return known;
        }
        if key.stream != crate::device::StreamId::PER_THREAD
            && let Some(predecessor) = self.order.predecessor(key)
        {
            self.order.lose(predecessor);
        }
        self.order.stream(key)
    }

    /// Takes memory that the request's stream may use at once: from its own silo, then from what
    /// is ordered or completed in the others, then from neighbours of several silos together.
    pub(super) fn claim_usable(&mut self, need: &Need) -> Option<Claim> {
        let State { order, extents, .. } = self;
        let asker = need.stream;
        let own = Silo::of_stream(asker);
        let usable = |ends: &Ends| order.usable(ends, asker, need.reasons);
        if let Some(fit) = extents.find(own, need.size, need.alignment, usable) {
            let (extent, ends) = extents.take(fit.id, fit.address, need.size);
            self.order.taken_back(asker, need.size);
            return Some(Claim { extent, ends });
        }
        let others = extents.silos().filter(|&silo| silo != own);
        let fit = others
            .filter_map(|silo| extents.find(silo, need.size, need.alignment, usable))
            .next();
        if let Some(fit) = fit {
            let (extent, ends) = extents.take(fit.id, fit.address, need.size);
            return Some(Claim { extent, ends });
        }
        // Neighbours of one silo are merged already.
        if !self.order.is_shared() {
            return None;
        }
        self.claim_run(need, |order, ends| order.usable(ends, asker, need.reasons))
    }

    /// Takes memory that is free, whoever used it last: the claim's ends say what the request's
    /// stream has to wait for.
    pub(super) fn claim_any(&mut self, need: &Need) -> Option<Claim> {
        let silos: Vec<Silo> = self.extents.silos().collect();
        let fits = silos
            .iter()
            .filter_map(|&silo| self.extents.find(silo, need.size, need.alignment, |_| true));
        let smallest = fits.min_by_key(|fit| (self.extents.get(fit.id).size, fit.address));
        if let Some(fit) = smallest {
            let (extent, ends) = self.extents.take(fit.id, fit.address, need.size);
            return Some(Claim { extent, ends });
        }
        self.claim_run(need, |_, _| true)
    }

    /// Takes neighbouring free extents that `accept` accepts and that together are large enough.
    fn claim_run(&mut self, need: &Need, accept: impl Fn(&Order, &Ends) -> bool) -> Option<Claim> {
        let accepted = |id: ExtentId| {
            self.extents.is_free(id) && accept(&self.order, &self.extents.get(id).ends)
        };
        let mut best: Option<Run> = None;
        for first in self.extents.free() {
            let continued = self.extents.previous(first).is_some_and(accepted);
            if continued || !accepted(first) {
                continue;
            }
            let start = self.extents.get(first).address;
            let mut last = first;
            while let Some(next) = self.extents.next(last).filter(|&next| accepted(next)) {
                last = next;
            }
            let end = self.extents.get(last).end();
            let Some(aligned) = align_up(start, need.alignment) else {
                continue;
            };
            let fits = aligned
                .checked_add(need.size)
                .is_some_and(|needed| needed <= end);
            let run = Run {
                first,
                start,
                length: end - start,
            };
            let better = |b: &Run| (run.length, run.start) < (b.length, b.start);
            if fits && best.as_ref().is_none_or(better) {
                best = Some(run);
            }
        }
        let run = best?;
        let start = align_up(run.start, need.alignment)?;
        Some(self.take_across(run.first, start, start + need.size))
    }

    /// Takes `start..end` out of neighbouring free extents, of which `from` is one at or below
    /// `start`, and makes one taken extent of it.
    pub(super) fn take_across(&mut self, from: ExtentId, start: u64, end: u64) -> Claim {
        let mut id = from;
        while self.extents.get(id).end() <= start {
            let Some(next) = self.extents.next(id) else {
                break;
            };
            id = next;
        }
        let mut claim: Option<Claim> = None;
        let mut at = start;
        loop {
            let piece_end = self.extents.get(id).end().min(end);
            let (piece, ends) = self.extents.take(id, at, piece_end - at);
            let whole = match claim.take() {
                None => Claim {
                    extent: piece,
                    ends,
                },
                Some(Claim {
                    extent,
                    ends: mut all,
                }) => {
                    all.merge(&ends);
                    Claim {
                        extent: self.extents.join_taken(extent, piece),
                        ends: all,
                    }
                }
            };
            at = piece_end;
            match self.extents.next(whole.extent) {
                Some(next) if at < end => {
                    id = next;
                    claim = Some(whole);
                }
                _ => return whole,
            }
        }
    }

    /// Makes a live block of claimed memory.
    pub(super) fn hand_out(&mut self, need: &Need, extent: ExtentId) -> Granted {
        let address = self.extents.get(extent).address;
        let serial = self
            .blocks
            .add(address, extent, need.requested, need.size, need.stream);
        self.order.name(need.stream);
        Granted { address, serial }
    }

    /// Gives claimed memory back as it was.
    pub(super) fn unclaim(&mut self, claim: Claim) {
        self.extents.free_extent(claim.extent, claim.ends);
    }

    /// The live block of an address, or why there is none.
    pub(super) fn block_error(&self, address: u64) -> BlockError {
        if self.reservations.around(address).is_none() {
            return BlockError::Foreign { address };
        }
        match self.blocks.around(address) {
            Some((start, record)) => BlockError::Interior {
                address,
                start,
                size: record.requested,
            },
            None => BlockError::NotLive { address },
        }
    }

    /// Memory whose uses are completed belongs to no stream any more: takes it out of the silos,
    /// so that neighbours become one range. Looks at all that is free: for when memory is short.
    pub(super) fn gather_completed(&mut self) {
        let State { order, extents, .. } = self;
        for id in extents.free().collect::<Vec<_>>() {
            // An earlier change may have merged this extent into another one.
            if extents.is_free(id) && order.completed(&extents.get(id).ends) {
                extents.change_ends(id, |ends| *ends = Ends::default());
            }
        }
    }

    /// Streams that are gone and done leave nothing behind: their free ranges become everybody's,
    /// and their slots are given to others.
    pub(super) fn settle_finished_streams(&mut self) {
        for stream in self.order.finished() {
            let named = self.extents.free_in(Silo::of_stream(stream)).into_iter();
            let common = self.extents.free_in(Silo::COMMON);
            for id in named.chain(common) {
                // An earlier change may have merged this extent into another one.
                if self.extents.is_free(id) {
                    let order = &self.order;
                    self.extents
                        .change_ends(id, |ends| ends.retain(|e| !order.is_completed(e)));
                }
            }
            self.order.vacate(stream);
        }
    }

    /// Checks the invariants of this file and of all rooms.
    pub(super) fn validate(&self) -> Result<(), String> {
        self.order.validate()?;
        let covered = self.extents.validate()?;
        let plain: u64 = self.plain.values().sum();
        let mapped = self.mappings.bytes() + plain;
        if covered > mapped {
            return Err(format!(
                "extents cover {covered} bytes, but {mapped} are mapped"
            ));
        }
        if self.reservations.claimed_bytes() < mapped {
            return Err("less address space is claimed than is mapped".to_owned());
        }
        let taken = covered - self.extents.free_bytes();
        if taken < self.blocks.live_rounded() {
            return Err(format!(
                "{taken} bytes are taken, but more are in live blocks"
            ));
        }
        for (address, record) in self.blocks.iter() {
            let extent = self.extents.get(record.extent);
            if self.extents.is_free(record.extent)
                || extent.address != address
                || extent.size != record.size
            {
                return Err(format!("the block at {address:#x} and its extent disagree"));
            }
        }
        Ok(())
    }
}
