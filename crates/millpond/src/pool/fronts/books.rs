//! Fronts, as the pool's lock sees them: whose they are, and what moves between them and the pool.

use std::sync::Arc;

use super::front::{Front, FrontBlock, Live};
use super::{FRONTS, Fronts, MarkerRequests, Need, SHARE, Wish};
use crate::blocks::{HeapIndex, Place};
use crate::order::{Ends, StreamIndex};
use crate::pool::state::{Claim, Stand, State};
use crate::small::{EmptyRegion, Small};
use crate::space::ExtentId;

/// Which stream has which front.
#[derive(Debug, Default)]
pub(in crate::pool) struct Bindings {
    by_stream: Vec<Option<usize>>,
    by_front: Vec<Option<StreamIndex>>,
}

impl Bindings {
    pub(in crate::pool) fn front_of(&self, stream: StreamIndex) -> Option<usize> {
        self.by_stream.get(stream.slot()).copied().flatten()
    }

    fn set(&mut self, stream: StreamIndex, front: usize) {
        if self.by_stream.len() <= stream.slot() {
            self.by_stream.resize(stream.slot() + 1, None);
        }
        if self.by_front.len() <= front {
            self.by_front.resize(front + 1, None);
        }
        self.by_stream[stream.slot()] = Some(front);
        self.by_front[front] = Some(stream);
    }

    fn clear(&mut self, stream: StreamIndex) -> Option<usize> {
        let front = self.by_stream.get_mut(stream.slot())?.take()?;
        self.by_front[front] = None;
        Some(front)
    }

    fn vacant(&self) -> Option<usize> {
        let vacant = self.by_front.iter().position(Option::is_none);
        let vacant = vacant.unwrap_or(self.by_front.len());
        (vacant < FRONTS).then_some(vacant)
    }
}

/// Heaps to look into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Heaps {
    /// The stream's own, and the common one.
    Own,
    /// Those of other streams' fronts.
    OfOthers,
}

impl State {
    /// The front of a stream, which gets one if there is one left.
    pub(in crate::pool) fn front_for(&mut self, stream: StreamIndex) -> Option<usize> {
        if !self.has_fronts {
            return None;
        }
        if let Some(front) = self.bindings.front_of(stream) {
            return Some(front);
        }
        let number = self.bindings.vacant()?;
        let front = self.fronts.fronts[number].get_or_init(|| Box::new(Front::new(number)));
        let (key, position) = (self.order.key(stream), self.order.position(stream));
        front.lock().bind(key, stream, position);
        self.bindings.set(stream, number);
        Some(number)
    }

    /// Takes a stream's front away, before the stream goes: its live blocks are in the pool's books
    /// from now on, and what was parked is free for all.
    pub(in crate::pool) fn take_front_away(&mut self, stream: StreamIndex) {
        let Some(number) = self.bindings.clear(stream) else {
            return;
        };
        let fronts = Arc::clone(&self.fronts);
        let Some(front) = fronts.front(number) else {
            return;
        };
        let mut front = front.lock();
        if let Some(end) = front.hear() {
            self.order.reached(end);
        }
        for block in front.take_parked(&fronts.directory) {
            self.release_parked(&block, stream);
        }
        front.release_small(&fronts.directory);
        self.release_regions(front.take_regions());
        for heap in [HeapIndex::OfFront(number), HeapIndex::Leases(number)] {
            let kept = front.heap(heap).give_up_kept();
            self.release_region(kept);
        }
        for block in front.take_all_live(&fronts.directory) {
            self.write_down(&block, stream);
        }
        front.unbind();
    }

    /// Takes all fronts away: the pool serves no requests any more.
    pub(in crate::pool) fn take_all_fronts_away(&mut self) {
        let bound: Vec<StreamIndex> = self.bindings.by_front.iter().flatten().copied().collect();
        for stream in bound {
            self.take_front_away(stream);
        }
    }

    /// The start and the requested size of the fronts' live block that an address lies in, and the
    /// stream that it is on. Looks at all live blocks of fronts.
    pub(in crate::pool) fn pointer_in_fronts(
        &self,
        address: u64,
    ) -> Option<(u64, u64, StreamIndex)> {
        self.fronts.all().find_map(|(_, front)| {
            let front = front.lock();
            let block = front.around(address)?;
            Some((block.address, block.requested, front.stream()?))
        })
    }

    /// A front's live block is in the pool's books from now on.
    fn write_down(&mut self, block: &FrontBlock, owner: StreamIndex) {
        self.blocks.add_numbered(
            block.address,
            block.place,
            block.requested,
            block.size,
            owner,
            block.serial,
        );
        self.order.name(owner);
    }

    /// Takes the live block at an address into the pool's books, if a front has it.
    pub(in crate::pool) fn take_into_books(&mut self, address: u64) {
        let fronts = Arc::clone(&self.fronts);
        let Some(held) = fronts.directory.get(address) else {
            return;
        };
        let Some(front) = fronts.front(held.front) else {
            return;
        };
        let mut front = front.lock();
        let block = front.take_live(&fronts.directory, held.slot, address);
        if let (Some(block), Some(stream)) = (block, front.stream()) {
            self.write_down(&block, stream);
        }
    }

    /// Puts a live block of claimed memory into its stream's front. Gives its serial number, or
    /// `None` if it cannot be there.
    pub(in crate::pool) fn hand_to_front(&mut self, need: &Need, claim: &Claim) -> Option<u64> {
        let number = self.bindings.front_of(need.stream)?;
        let front = self.fronts.front(number)?;
        let own = [HeapIndex::OfFront(number), HeapIndex::Leases(number)];
        if let Place::Cut(heap, _) = claim.place
            && !own.contains(&heap)
        {
            return None;
        }
        let mut front = front.lock();
        let directory = &self.fronts.directory;
        front.add(directory, claim.address, need.wish(), claim.place)
    }

    /// Takes what a front has too much.
    pub(super) fn take_from_front(&mut self, number: usize) -> MarkerRequests {
        let mut requests = MarkerRequests::new();
        let live = self.fronts.live_bytes();
        self.set_allowance(live);
        let fronts = Arc::clone(&self.fronts);
        let Some(front) = fronts.front(number) else {
            return requests;
        };
        let mut front = front.lock();
        self.release_regions(front.take_regions());
        let Some(stream) = front.stream() else {
            return requests;
        };
        let allowance = fronts.allowance();
        while let Some(block) = front.take_surplus(&fronts.directory, allowance) {
            self.release_parked(&block, stream);
            requests.extend(self.order.freed(stream, block.size, live));
        }
        requests
    }

    fn release_parked(&mut self, block: &FrontBlock, stream: StreamIndex) {
        let end = block.end(stream);
        self.order.reached(end);
        let freed = self.backing.number_free();
        let (address, size) = (block.address, block.size);
        self.backing
            .release(&self.order, address, size, &Ends::from(end), freed);
    }

    fn set_allowance(&self, live: u64) {
        let allowance = live / SHARE;
        let known = self.fronts.allowance();
        // All threads read it: it follows in steps.
        if known.abs_diff(allowance) > known / 16 {
            let order = std::sync::atomic::Ordering::Relaxed;
            self.fronts.allowance.store(allowance, order);
        }
    }

    /// What streams freed lately is known to have ended from now on, so that it can be marked.
    pub(in crate::pool) fn hear_fronts(&mut self) {
        for (_, front) in self.fronts.all() {
            let mut front = front.lock();
            if let Some(end) = front.hear() {
                self.order.reached(end);
            }
            self.strain.eased(front.take_served());
        }
    }

    /// Makes parked blocks free like all others. Gives whether there were any.
    pub(in crate::pool) fn unpark(&mut self) -> bool {
        let mut any = false;
        let fronts = Arc::clone(&self.fronts);
        for (number, front) in fronts.all() {
            let mut front = front.lock();
            let Some(stream) = front.stream() else {
                continue;
            };
            self.strain.eased(front.take_served());
            for block in front.take_parked(&fronts.directory) {
                any = true;
                self.release_parked(&block, stream);
                self.order.freed_unasked(stream, block.size);
            }
            // Of a front that is at work it would soon be asked back.
            if !front.was_at_work()
                && let Some(lease) = front.heap(HeapIndex::Leases(number)).give_up_kept()
            {
                any = true;
                self.release_region(Some(lease));
            }
        }
        any
    }

    /// The same for small blocks, which then merge with what is free beside them.
    pub(in crate::pool) fn unpark_small(&mut self) {
        let fronts = Arc::clone(&self.fronts);
        for (_, front) in fronts.all() {
            let mut front = front.lock();
            if let Some(end) = front.hear() {
                self.order.reached(end);
            }
            front.release_small(&fronts.directory);
            self.release_regions(front.take_regions());
        }
    }

    fn release_regions(&mut self, regions: Vec<EmptyRegion>) {
        for region in regions {
            self.release_region(Some(region));
        }
    }

    /// Looks into heaps in which a block could stand until one gives an answer.
    pub(in crate::pool) fn find_in_heaps<T>(
        &mut self,
        need: &Need,
        heaps: Heaps,
        mut look: impl FnMut(&mut State, HeapIndex, &mut Small) -> Option<T>,
    ) -> Option<T> {
        let leased = need.stand == Stand::Leased;
        let index = |number| {
            if leased {
                HeapIndex::Leases(number)
            } else {
                HeapIndex::OfFront(number)
            }
        };
        let own = self.bindings.front_of(need.stream);
        let fronts = Arc::clone(&self.fronts);
        let mut in_front = |state: &mut State, number| {
            let mut front = fronts.front(number)?.lock();
            let heap = index(number);
            look(state, heap, front.heap(heap))
        };
        match heaps {
            Heaps::Own => {
                if let Some(found) = own.and_then(|number| in_front(self, number)) {
                    return Some(found);
                }
                if leased {
                    return None;
                }
                let mut common = std::mem::replace(&mut self.small, Small::new());
                let found = look(self, HeapIndex::Common, &mut common);
                self.small = common;
                found
            }
            Heaps::OfOthers => fronts
                .all()
                .map(|(number, _)| number)
                .filter(|&number| Some(number) != own)
                .find_map(|number| in_front(self, number)),
        }
    }

    /// Works on one heap.
    pub(in crate::pool) fn with_heap<T>(
        &mut self,
        heap: HeapIndex,
        work: impl FnOnce(&mut Small) -> T,
    ) -> T {
        let number = match heap {
            HeapIndex::Common => None,
            HeapIndex::OfFront(number) | HeapIndex::Leases(number) => Some(number),
        };
        match number.and_then(|number| self.fronts.front(number)) {
            Some(front) => work(front.lock().heap(heap)),
            None => work(&mut self.small),
        }
    }

    /// Works on all heaps.
    pub(in crate::pool) fn for_all_heaps(&mut self, mut work: impl FnMut(&mut State, &mut Small)) {
        let mut common = std::mem::replace(&mut self.small, Small::new());
        work(self, &mut common);
        self.small = common;
        let fronts = Arc::clone(&self.fronts);
        for (number, front) in fronts.all() {
            let mut front = front.lock();
            work(self, front.heap(HeapIndex::OfFront(number)));
            work(self, front.heap(HeapIndex::Leases(number)));
        }
    }

    /// The heap to which a new region for a request is added.
    pub(in crate::pool) fn heap_for(&self, need: &Need) -> HeapIndex {
        match self.bindings.front_of(need.stream) {
            None => HeapIndex::Common,
            Some(number) if need.stand == Stand::Leased => HeapIndex::Leases(number),
            Some(number) => HeapIndex::OfFront(number),
        }
    }

    /// Where a stream's request is to stand. `met` says whether its thread met another one on its
    /// way here.
    pub(in crate::pool) fn stand(&mut self, stream: StreamIndex, wish: &Wish, met: bool) -> Stand {
        if wish.is_small() {
            return Stand::Small;
        }
        let number = self.bindings.front_of(stream);
        let Some(front) = number.and_then(|number| self.fronts.front(number)) else {
            return Stand::Alone;
        };
        let mut front = front.lock();
        front.came_to_pool(met);
        // Where sizes never come again, a search in the front is cheaper than one in the pool.
        let leases = front.has_leases() || self.strain.is_unusual();
        if leases && wish.can_be_leased() {
            Stand::Leased
        } else {
            Stand::Alone
        }
    }

    /// Where a block of one of the fronts' heaps stands: its address and size, if there is one.
    pub(in crate::pool) fn block_in_front(
        &self,
        heap: HeapIndex,
        extent: ExtentId,
    ) -> Option<(u64, u64)> {
        let (HeapIndex::OfFront(number) | HeapIndex::Leases(number)) = heap else {
            return None;
        };
        self.fronts.front(number)?.lock().cut_block(heap, extent)
    }

    /// What all fronts together have.
    pub(in crate::pool) fn in_fronts(&self) -> InFronts {
        let mut all = InFronts::default();
        for (_, front) in self.fronts.all() {
            let front = front.lock();
            let live = front.live();
            all.live.blocks += live.blocks;
            all.live.bytes += live.bytes;
            all.live.rounded += live.rounded;
            let (parked, pending) = front.parked_bytes(&self.order);
            let (free, late) = front.free_in_regions(&self.order);
            all.free += parked + free;
            all.pending += pending + late;
        }
        all
    }

    /// The largest size that was asked for of the fronts' live blocks.
    pub(in crate::pool) fn largest_in_fronts(&self) -> u64 {
        let fronts = self.fronts.all().filter_map(|(_, front)| {
            let front = front.lock();
            front.live_blocks().map(|block| block.requested).max()
        });
        fronts.max().unwrap_or(0)
    }

    /// Checks the invariants of all fronts. Gives the bytes of their heaps' regions.
    pub(in crate::pool) fn validate_fronts(&self) -> Result<u64, String> {
        let mut regions = 0;
        for (number, front) in self.fronts.all() {
            let front = front.lock();
            regions += front.validate(&self.fronts.directory)?;
            let bound = front.stream();
            if bound.is_some_and(|stream| self.bindings.front_of(stream) != Some(number)) {
                return Err(format!("front {number} is another stream's"));
            }
            for block in front.live_blocks() {
                if block.place == Place::Backed {
                    self.backing.validate_block(block.address, block.size)?;
                }
            }
        }
        Ok(regions)
    }
}

/// What all fronts of a pool have.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::pool) struct InFronts {
    pub(in crate::pool) live: Live,
    /// Bytes that are parked or free in regions.
    pub(in crate::pool) free: u64,
    /// Of these: the bytes whose last uses are not seen to be completed.
    pub(in crate::pool) pending: u64,
}

impl Default for Fronts {
    fn default() -> Fronts {
        Fronts::new()
    }
}
