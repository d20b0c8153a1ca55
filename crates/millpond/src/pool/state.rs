//! What the pool's lock guards, and the steps that need nothing but it.
//!
//! Nothing here calls the device.
//!
//! # Invariants
//!
//! 1. Memory that is not free is a live block's, a region's of small blocks, or claimed by a call
//!    that is under way (growth, a wait being inserted, a trim).
//! 2. Claimed address space is exactly what is mapped, being mapped, or stranded.

use smallvec::SmallVec;

use super::error::BlockError;
use super::front::{Fronts, Parked};
use super::graphs::GraphTotals;
use super::policy::Strain;
use crate::backing::{Backing, Wanted};
use crate::blocks::{Blocks, Place};
use crate::mapping::Mapping;
use crate::order::{End, Ends, MarkerRequest, Order, Reasons, StreamIndex, StreamKey};
use crate::pages::{HandleSlot, Pages};
use crate::small::{self, EmptyRegion, REGION, Small};

/// A request, with its size rounded to the grain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) requested: u64,
    pub(super) size: u64,
    pub(super) alignment: u64,
    pub(super) key: StreamKey,
    pub(super) stream: StreamIndex,
    pub(super) reasons: Reasons,
    /// Whether memory that others may use too is left to them: it saves waits, and costs memory.
    pub(super) own_first: bool,
    /// Whether it is to stand in a region of small blocks.
    pub(super) small: bool,
}

impl Need {
    /// Whether a request of this size and alignment is usually a small one.
    pub(super) fn is_small(size: u64, alignment: u64) -> bool {
        size < small::SMALL && alignment <= small::SMALL
    }

    /// What has to be found for it in mapped memory.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            size: if self.small { REGION } else { self.size },
            alignment: self.alignment,
        }
    }

    /// The past of memory that nobody has used yet, and that is the asking stream's first.
    pub(super) fn fresh(&self) -> Ends {
        Ends::from(End {
            stream: self.stream,
            position: 0,
        })
    }
}

/// Memory that was taken for a request, and the ends that its earlier uses had.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    address: u64,
    size: u64,
    place: Place,
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

#[derive(Debug)]
pub(super) struct State {
    pub(super) order: Order,
    pub(super) backing: Backing,
    pub(super) small: Small,
    pub(super) pages: Pages,
    pub(super) blocks: Blocks,
    pub(super) fronts: Fronts,
    /// Mappings that could not be taken away (see `mapping`); their handles are pinned.
    pub(super) stranded: Vec<(Mapping, HandleSlot)>,
    /// Whether the last wish for more address space was refused.
    pub(super) addresses_short: bool,
    pub(super) strain: Strain,
    pub(super) counters: Counters,
    /// What graphs have of the pool's memory.
    pub(super) graphs: GraphTotals,
    /// Whether the device is lost, so that nothing is to be given back any more.
    pub(super) given_up: bool,
}

impl State {
    pub(super) fn new(pages: Pages) -> State {
        State {
            order: Order::default(),
            backing: Backing::new(),
            small: Small::new(),
            pages,
            blocks: Blocks::default(),
            fronts: Fronts::default(),
            stranded: Vec::new(),
            addresses_short: false,
            strain: Strain::default(),
            counters: Counters::default(),
            graphs: GraphTotals::default(),
            given_up: false,
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

    /// Takes memory that the request's stream may use at once.
    pub(super) fn claim_usable(&mut self, need: &Need) -> Option<Claim> {
        self.strain.eased();
        if let Some(parked) = self.fronts.take(need.stream, need.size, need.alignment) {
            self.order.taken_back_whole(need.stream, need.size);
            return Some(Claim {
                address: parked.address,
                size: parked.size,
                place: parked.place,
                ends: parked.ends(),
            });
        }
        self.claim_in_place(need).or_else(|| {
            let unparked = self.unpark();
            unparked.then(|| self.claim_in_place(need))?
        })
    }

    /// Makes parked blocks free like all others. Gives whether there were any.
    pub(super) fn unpark(&mut self) -> bool {
        let all = self.fronts.take_all();
        for parked in &all {
            self.release_parked(parked);
        }
        !all.is_empty()
    }

    pub(super) fn release_parked(&mut self, parked: &Parked) {
        self.release(
            parked.address,
            parked.size,
            parked.place,
            parked.ends(),
            parked.freed,
        );
    }

    fn claim_in_place(&mut self, need: &Need) -> Option<Claim> {
        let State {
            order,
            backing,
            small,
            ..
        } = self;
        if need.small
            && let Some(taken) =
                small.take_usable(order, need.size, need.alignment, need.stream, need.reasons)
        {
            return Some(small_claim(need, taken));
        }
        let (wanted, asker) = (need.wanted(), need.stream);
        let place = backing.find_usable(order, wanted, asker, need.reasons, need.own_first)?;
        Some(self.take(need, place))
    }

    /// A place in memory that the request's stream may use after waits, of which as little as can
    /// be was freed lately; and the number of the latest free that it has to wait for.
    pub(super) fn oldest_place(&self, need: &Need) -> Option<(u64, u64)> {
        let usable = |ends: &Ends| self.order.usable(ends, need.stream, need.reasons);
        let waitable = |ends: &Ends| self.order.can_be_waited_for(ends);
        self.backing.find_oldest(need.wanted(), usable, waitable)
    }

    /// Takes a small block, whoever used its memory last.
    pub(super) fn claim_any_small(&mut self, need: &Need) -> Option<Claim> {
        if !need.small {
            return None;
        }
        let State { order, small, .. } = self;
        let acceptable = |ends: &Ends| {
            order.usable(ends, need.stream, need.reasons) || order.can_be_waited_for(ends)
        };
        let taken = small.take_any(need.size, need.alignment, acceptable)?;
        Some(small_claim(need, taken))
    }

    /// Takes what is free at a place that was found.
    pub(super) fn take(&mut self, need: &Need, place: u64) -> Claim {
        let wanted = need.wanted();
        let ends = self.backing.ends(place, wanted.size);
        self.backing.occupy(place, wanted.size);
        if ends.only_stream() == Some(need.stream) {
            self.order.taken_back(need.stream, wanted.size);
        }
        self.claim_occupied(need, place, ends)
    }

    /// Makes a claim of occupied memory: for a small block, out of the region that it becomes.
    pub(super) fn claim_occupied(&mut self, need: &Need, address: u64, ends: Ends) -> Claim {
        if !need.small {
            return Claim {
                address,
                size: need.size,
                place: Place::Backed,
                ends,
            };
        }
        let taken = self
            .small
            .add_region(address, ends, need.size, need.alignment);
        small_claim(need, taken)
    }

    /// Makes a live block of claimed memory.
    pub(super) fn hand_out(&mut self, need: &Need, claim: &Claim) -> Granted {
        let address = claim.address;
        let serial = self
            .blocks
            .add(address, claim.place, need.requested, need.size, need.stream);
        self.order.name(need.stream);
        Granted { address, serial }
    }

    /// Gives claimed memory back as it was.
    pub(super) fn unclaim(&mut self, claim: Claim) {
        let freed = self.backing.number_free();
        self.release(claim.address, claim.size, claim.place, claim.ends, freed);
    }

    /// Frees memory whose uses ended there.
    pub(super) fn release(
        &mut self,
        address: u64,
        size: u64,
        place: Place,
        ends: Ends,
        freed: u64,
    ) {
        match place {
            Place::Backed => {
                self.backing
                    .release(&self.order, address, size, &ends, freed);
            }
            Place::Small(extent) => {
                let empty = self.small.release(extent, ends);
                self.release_region(empty);
            }
        }
    }

    fn release_region(&mut self, region: Option<EmptyRegion>) {
        if let Some(region) = region {
            let freed = self.backing.number_free();
            self.backing
                .release(&self.order, region.address, REGION, &region.ends, freed);
        }
    }

    /// Gives the memory of small blocks back that is kept for the next one.
    pub(super) fn give_up_kept_region(&mut self) {
        self.unpark();
        let empty = self.small.give_up_kept();
        self.release_region(empty);
    }

    /// The live block of an address, or why there is none.
    pub(super) fn block_error(&self, address: u64) -> BlockError {
        if self.backing.reservations.around(address).is_none() {
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

    /// Small blocks' memory whose uses are completed is everybody's: makes it the asking stream's,
    /// so that it merges with what that stream has. Looks at all that is free: for when memory is
    /// short.
    pub(super) fn gather_completed(&mut self, need: &Need) {
        let State { order, small, .. } = self;
        small.rewrite(|ends: &Ends| {
            let gather = ends.only_stream() != Some(need.stream) && order.completed(ends);
            gather.then(|| need.fresh())
        });
    }

    /// Streams that are gone and done leave nothing behind: their free ranges become everybody's,
    /// and their slots are given to others.
    pub(super) fn settle_finished_streams(&mut self) {
        let finished = self.order.finished();
        if finished.is_empty() {
            return;
        }
        self.unpark();
        let State {
            order,
            backing,
            small,
            ..
        } = self;
        for stream in finished {
            let forgotten = |ends: &Ends| {
                let named = ends.iter().any(|end| end.stream == stream);
                named.then(|| {
                    ends.iter()
                        .filter(|&end| !order.is_completed(end))
                        .collect()
                })
            };
            backing.rewrite(order, forgotten);
            small.rewrite(forgotten);
            order.vacate(stream);
        }
    }

    /// Checks the invariants of this file and of all rooms.
    pub(super) fn validate(&self) -> Result<(), String> {
        self.order.validate()?;
        self.backing.validate()?;
        let regions = self.small.validate()?;
        let small_free = self.small.free_bytes();
        let taken = self.backing.occupied() - small_free - self.fronts.bytes();
        if taken < self.blocks.live_rounded() {
            return Err(format!(
                "{taken} bytes are taken, but more are in live blocks"
            ));
        }
        let mut in_regions = 0;
        for (address, record) in self.blocks.iter() {
            match record.place {
                Place::Small(extent) => {
                    in_regions += record.size;
                    if self.small.block(extent) != Some((address, record.size)) {
                        return Err(format!("the block at {address:#x} and its extent disagree"));
                    }
                }
                Place::Backed => self.backing.validate_block(address, record.size)?,
            }
        }
        if in_regions > regions - small_free {
            return Err("more small blocks live than their regions have room for".to_owned());
        }
        Ok(())
    }
}

fn small_claim(need: &Need, taken: small::Taken) -> Claim {
    Claim {
        address: taken.address,
        size: need.size,
        place: Place::Small(taken.extent),
        ends: taken.ends,
    }
}
