//! What the pool's lock guards, and the steps that need nothing but it.
//!
//! Nothing here calls the device.
//!
//! # Invariants
//!
//! 1. Memory that is not free is a live block's, a region's of small blocks, or claimed by a call
//!    that is under way (growth, a wait being inserted, a trim).
//! 2. Claimed address space is exactly what is mapped, being mapped, or stranded.

use std::sync::Arc;

use smallvec::SmallVec;

use super::error::BlockError;
use super::fronts::{Bindings, Fronts, Heaps};
use super::graphs::GraphTotals;
use super::policy::Strain;
use crate::backing::{Backing, Wanted};
use crate::blocks::{Blocks, HeapIndex, Place};
use crate::mapping::Mapping;
use crate::order::{End, Ends, MarkerRequest, Order, Reasons, StreamIndex, StreamKey};
use crate::pages::{HandleSlot, Pages};
use crate::small::{self, EmptyRegion, LEASE, REGION, Small};
use crate::space::ExtentId;

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
    pub(super) stand: Stand,
}

/// Where a block is to stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stand {
    /// By itself in mapped memory.
    Alone,
    /// In a region of small blocks.
    Small,
    /// In a lease of its stream's front.
    Leased,
}

impl Need {
    /// What has to be found for it in mapped memory.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            size: match self.stand {
                Stand::Alone => self.size,
                Stand::Small => REGION,
                Stand::Leased => LEASE,
            },
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
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) place: Place,
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
    /// Live blocks that are in no front.
    pub(super) blocks: Blocks,
    pub(super) peaks: Peaks,
    pub(super) fronts: Arc<Fronts>,
    pub(super) bindings: Bindings,
    /// Whether streams get fronts.
    pub(super) has_fronts: bool,
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

/// What was ever live.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Peaks {
    /// Since the peaks were reset.
    pub(super) live: u64,
    /// Since memory was last given back.
    pub(super) most_live: u64,
    /// The largest block that was ever asked for, but for those that a front had ready.
    pub(super) largest_request: u64,
}

impl State {
    pub(super) fn new(pages: Pages, fronts: Arc<Fronts>, has_fronts: bool) -> State {
        State {
            order: Order::default(),
            backing: Backing::new(),
            small: Small::new(),
            pages,
            blocks: Blocks::default(),
            peaks: Peaks::default(),
            fronts,
            bindings: Bindings::default(),
            has_fronts,
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
            self.lose_stream(predecessor);
        }
        self.order.stream(key)
    }

    /// A stream turns out to be gone.
    pub(super) fn lose_stream(&mut self, stream: StreamIndex) {
        self.take_front_away(stream);
        self.order.lose(stream);
    }

    /// What was asked for so far says nothing any more of what will be.
    pub(super) fn begin_again(&mut self) {
        self.peaks.most_live = self.gather_usage();
        self.strain = Strain::default();
        let books = self.blocks.iter().map(|(_, record)| record.requested);
        let largest = books.max().unwrap_or(0);
        self.peaks.largest_request = largest.max(self.largest_in_fronts());
    }

    /// Where a small block stands: its address and size, if there is one.
    fn small_block(&self, heap: HeapIndex, extent: ExtentId) -> Option<(u64, u64)> {
        match heap {
            HeapIndex::Common => self.small.block(extent),
            of_front => self.block_in_front(of_front, extent),
        }
    }

    /// Sees what was live since this was last called. Gives what is.
    pub(super) fn gather_usage(&mut self) -> u64 {
        let (high, live) = self.fronts.gather_usage();
        self.peaks.live = self.peaks.live.max(high);
        self.peaks.most_live = self.peaks.most_live.max(high);
        live
    }

    /// Takes memory that the request's stream may use at once.
    pub(super) fn claim_usable(&mut self, need: &Need) -> Option<Claim> {
        self.strain.eased(1);
        self.claim_in_place(need).or_else(|| {
            let unparked = self.unpark();
            unparked.then(|| self.claim_in_place(need))?
        })
    }

    fn claim_in_place(&mut self, need: &Need) -> Option<Claim> {
        if need.stand != Stand::Alone
            && let Some(claim) = self.claim_cut(need, Heaps::Own)
        {
            return Some(claim);
        }
        let (wanted, asker) = (need.wanted(), need.stream);
        let State { order, backing, .. } = self;
        let place = backing.find_usable(order, wanted, asker, need.reasons, need.own_first)?;
        Some(self.take(need, place))
    }

    /// The same out of a region of any stream's: it is not worth the search while there is other
    /// memory.
    pub(super) fn claim_usable_of_others(&mut self, need: &Need) -> Option<Claim> {
        let need = match need.stand {
            Stand::Small | Stand::Leased => *need,
            Stand::Alone if need.wish().can_be_leased() => Need {
                stand: Stand::Leased,
                ..*need
            },
            Stand::Alone => return None,
        };
        let own = self.claim_cut(&need, Heaps::Own);
        own.or_else(|| self.claim_cut(&need, Heaps::OfOthers))
    }

    fn claim_cut(&mut self, need: &Need, heaps: Heaps) -> Option<Claim> {
        self.find_in_heaps(need, heaps, |state, heap, small| {
            let order = &state.order;
            let (size, alignment) = (need.size, need.alignment);
            let taken = small.take_usable(order, size, alignment, need.stream, need.reasons)?;
            Some(cut_claim(need, heap, taken))
        })
    }

    /// A place in memory that the request's stream may use after waits, of which as little as can
    /// be was freed lately; and the number of the latest free that it has to wait for.
    pub(super) fn oldest_place(&self, need: &Need) -> Option<(u64, u64)> {
        let usable = |ends: &Ends| self.order.usable(ends, need.stream, need.reasons);
        let waitable = |ends: &Ends| self.order.can_be_waited_for(ends);
        self.backing.find_oldest(need.wanted(), usable, waitable)
    }

    /// Takes a block out of a region, whoever used its memory last.
    pub(super) fn claim_any_cut(&mut self, need: &Need) -> Option<Claim> {
        if need.stand == Stand::Alone {
            return None;
        }
        let look = |state: &mut State, heap: HeapIndex, small: &mut Small| {
            let order = &state.order;
            let acceptable = |ends: &Ends| {
                order.usable(ends, need.stream, need.reasons) || order.can_be_waited_for(ends)
            };
            let taken = small.take_any(need.size, need.alignment, acceptable)?;
            Some(cut_claim(need, heap, taken))
        };
        self.find_in_heaps(need, Heaps::Own, look)
            .or_else(|| self.find_in_heaps(need, Heaps::OfOthers, look))
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
        if need.stand == Stand::Alone {
            return Claim {
                address,
                size: need.size,
                place: Place::Backed,
                ends,
            };
        }
        if need.stand == Stand::Leased && self.bindings.front_of(need.stream).is_none() {
            // The stream went meanwhile, and its front with it: the block stands alone.
            let freed = self.backing.number_free();
            let (rest, size) = (address + need.size, LEASE - need.size);
            self.backing.release(&self.order, rest, size, &ends, freed);
            return Claim {
                address,
                size: need.size,
                place: Place::Backed,
                ends,
            };
        }
        // What the stream may use at once is its own from now on: whatever it runs next comes after
        // the earlier uses, so that its later positions cover them.
        let past = if !self.order.usable(&ends, need.stream, need.reasons) {
            ends
        } else if self.order.completed(&ends) {
            need.fresh()
        } else {
            Ends::from(self.order.advance(need.stream))
        };
        let heap = self.heap_for(need);
        let taken = self.with_heap(heap, |small| {
            small.add_region(address, past, need.size, need.alignment)
        });
        cut_claim(need, heap, taken)
    }

    /// Makes a live block of claimed memory.
    pub(super) fn hand_out(&mut self, need: &Need, claim: &Claim) -> Granted {
        let address = claim.address;
        self.fronts.of_thread().usage.allocated(need.requested);
        self.peaks.largest_request = self.peaks.largest_request.max(need.requested);
        self.gather_usage();
        if let Some(serial) = self.hand_to_front(need, claim) {
            return Granted { address, serial };
        }
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
            Place::Cut(heap, extent) => {
                let empty = self.with_heap(heap, |small| small.release(extent, ends));
                self.release_region(empty);
            }
        }
    }

    pub(super) fn release_region(&mut self, region: Option<EmptyRegion>) {
        if let Some(region) = region {
            let freed = self.backing.number_free();
            self.backing.release(
                &self.order,
                region.address,
                region.size,
                &region.ends,
                freed,
            );
        }
    }

    /// Gives the memory of small blocks back that is kept for the next one.
    pub(super) fn give_up_kept_region(&mut self) {
        self.unpark();
        self.unpark_small();
        self.for_all_heaps(|state, small| {
            let empty = small.give_up_kept();
            state.release_region(empty);
        });
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
            None => match self.pointer_in_fronts(address) {
                Some((start, size, _)) => BlockError::Interior {
                    address,
                    start,
                    size,
                },
                None => BlockError::NotLive { address },
            },
        }
    }

    /// Small blocks' memory whose uses are completed is everybody's: makes it the asking stream's,
    /// so that it merges with what that stream has. Looks at all that is free: for when memory is
    /// short.
    pub(super) fn gather_completed(&mut self, need: &Need) {
        self.for_all_heaps(|state, small| {
            small.rewrite(|ends: &Ends| {
                let own = ends.only_stream() == Some(need.stream);
                (!own && state.order.completed(ends)).then(|| need.fresh())
            });
        });
    }

    /// Streams that are gone and done leave nothing behind: their free ranges become everybody's,
    /// and their slots are given to others.
    pub(super) fn settle_finished_streams(&mut self) {
        let finished = self.order.finished();
        if finished.is_empty() {
            return;
        }
        for stream in finished {
            let forgotten = |order: &Order, ends: &Ends| {
                let named = ends.iter().any(|end| end.stream == stream);
                named.then(|| {
                    ends.iter()
                        .filter(|&end| !order.is_completed(end))
                        .collect()
                })
            };
            let State { order, backing, .. } = self;
            backing.rewrite(order, |ends| forgotten(order, ends));
            self.for_all_heaps(|state, small| {
                small.rewrite(|ends| forgotten(&state.order, ends));
            });
            self.order.vacate(stream);
        }
    }

    /// Checks the invariants of this file and of all rooms.
    pub(super) fn validate(&self) -> Result<(), String> {
        self.order.validate()?;
        self.backing.validate()?;
        let regions = self.small.validate()? + self.validate_fronts()?;
        let in_fronts = self.in_fronts();
        let small_free = self.small.free_bytes();
        let taken = self.backing.occupied() - small_free - in_fronts.free;
        if taken < self.blocks.live_rounded() + in_fronts.live.rounded {
            return Err(format!(
                "{taken} bytes are taken, but more are in live blocks"
            ));
        }
        let mut in_regions = 0;
        for (address, record) in self.blocks.iter() {
            match record.place {
                Place::Cut(heap, extent) => {
                    in_regions += record.size;
                    if self.small_block(heap, extent) != Some((address, record.size)) {
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

fn cut_claim(need: &Need, heap: HeapIndex, taken: small::Taken) -> Claim {
    Claim {
        address: taken.address,
        size: need.size,
        place: Place::Cut(heap, taken.extent),
        ends: taken.ends,
    }
}
