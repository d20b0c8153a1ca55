//! One stream's front: what it has live, what it freed lately, and its small blocks.
//!
//! # Invariants
//!
//! 1. A block in a front, live or parked, is used by the front's own stream alone, and by default:
//!    until it is freed.
//! 2. A parked block counts as free. It keeps its slot, so that it is handed out again without a
//!    search.
//! 3. The directory names the slot of every block that is in the front, and no other.
//! 4. A front that is bound to no stream has no blocks. Its heap may still have some, which the
//!    pool's books name, and free memory that is anybody's who may use it.

use std::sync::PoisonError;

use slab::Slab;
use smallvec::SmallVec;

use crate::blocks::{Directory, HeapIndex, Held, Place};
use crate::order::{End, Ends, Order, Position, StreamIndex, StreamKey};
use crate::small::{EmptyRegion, LEASED, SMALL, Small};
use crate::space::{ExtentId, GRAIN};
use crate::sync::{Mutex, MutexGuard};

/// Frees after which a block that is not small is parked no longer. What waits here is missing
/// where it would fit better: with many of them recorded jobs took up to a tenth more memory.
const BLOCKS: usize = 8;

/// Bytes of small blocks that are parked at most.
const SMALL_BYTES: u64 = 256 << 10;

/// Sizes of small blocks.
const SIZES: usize = (SMALL / GRAIN) as usize;

/// No slot.
const NONE: u32 = u32::MAX;

/// How often a stream's thread found another one in the pool.
#[derive(Clone, Copy, Default, Debug)]
struct Meetings {
    times: u32,
    met: u32,
}

impl Meetings {
    /// Times after which it is judged. Few in tests, whose threads do little.
    const TIMES: u32 = if cfg!(test) { 4 } else { 64 };
    /// Of these, the part that is often.
    const OFTEN: u32 = Meetings::TIMES.div_ceil(8);

    /// Counts one. Gives at times whether threads meet often.
    fn count(&mut self, met: bool) -> Option<bool> {
        self.times += 1;
        self.met += u32::from(met);
        if self.times < Meetings::TIMES {
            return None;
        }
        let often = self.met >= Meetings::OFTEN;
        *self = Meetings::default();
        Some(often)
    }
}

/// Whose front it is.
#[derive(Debug)]
struct Bound {
    key: StreamKey,
    stream: StreamIndex,
    position: Position,
}

/// A block in a front.
#[derive(Clone, Debug)]
pub(super) struct FrontBlock {
    pub(super) address: u64,
    /// Bytes taken.
    pub(super) size: u64,
    /// Bytes asked for.
    pub(super) requested: u64,
    pub(super) serial: u64,
    pub(super) place: Place,
    live: bool,
    /// Where its stream stood when it was freed.
    freed: u64,
    /// The next parked small block of the same size.
    next: u32,
}

/// A parked block that is not small.
#[derive(Clone, Copy, Debug)]
struct Parked {
    slot: usize,
    address: u64,
    size: u64,
    /// Which free of the front's it was.
    free: u64,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Wish {
    /// Bytes asked for.
    pub(in crate::pool) requested: u64,
    /// The same, rounded to the grain.
    pub(in crate::pool) size: u64,
    /// Bytes; the grain at least.
    pub(in crate::pool) alignment: u64,
}

impl Wish {
    /// Whether it may stand in a lease.
    pub(in crate::pool) fn can_be_leased(&self) -> bool {
        self.size <= LEASED && self.alignment <= LEASED && !self.is_small()
    }

    /// Whether it is usually served in a region of small blocks.
    pub(in crate::pool) fn is_small(&self) -> bool {
        self.size < SMALL && self.alignment <= SMALL
    }
}

/// What the live blocks of a front come to.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::pool) struct Live {
    pub(in crate::pool) blocks: u64,
    /// Bytes asked for.
    pub(in crate::pool) bytes: u64,
    /// Bytes taken.
    pub(in crate::pool) rounded: u64,
}

impl Live {
    fn add(&mut self, block: &FrontBlock) {
        self.blocks += 1;
        self.bytes += block.requested;
        self.rounded += block.size;
    }

    fn subtract(&mut self, block: &FrontBlock) {
        self.blocks -= 1;
        self.bytes -= block.requested;
        self.rounded -= block.size;
    }
}

#[derive(Debug)]
pub(super) struct FrontState {
    number: usize,
    bound: Option<Bound>,
    blocks: Slab<FrontBlock>,
    /// Parked blocks that are not small, the last freed last.
    parked: SmallVec<[Parked; BLOCKS]>,
    parked_bytes: u64,
    /// Blocks that were freed here so far.
    frees: u64,
    /// The first parked small block of each size.
    small: Box<[u32; SIZES]>,
    small_bytes: u64,
    heap: Small,
    leases: Small,
    /// Whether blocks are cut out of leases.
    has_leases: bool,
    meetings: Meetings,
    /// Regions of the heaps' that are empty, on their way to the pool.
    regions: Vec<EmptyRegion>,
    live: Live,
    serials: u64,
    /// Requests that were served here since the pool was told.
    served: u64,
    /// Whether anything was freed since this was last asked.
    at_work: bool,
    /// The position of the last free, if the pool was not told of it.
    unheard: Option<u64>,
}

/// See the [module](self). No two fronts share a cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Front(Mutex<FrontState>);

impl Front {
    pub(super) fn new(number: usize) -> Front {
        Front(Mutex::new(FrontState {
            number,
            bound: None,
            blocks: Slab::new(),
            parked: SmallVec::new(),
            parked_bytes: 0,
            frees: 0,
            small: Box::new([NONE; SIZES]),
            small_bytes: 0,
            heap: Small::new(),
            leases: Small::of_leases(),
            has_leases: false,
            meetings: Meetings::default(),
            regions: Vec::new(),
            live: Live::default(),
            serials: 0,
            served: 0,
            at_work: false,
            unheard: None,
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FrontState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FrontState {
    /// Serves a request of the front's stream, if it is this one's.
    pub(super) fn take(
        &mut self,
        directory: &Directory,
        key: StreamKey,
        wish: Wish,
    ) -> Option<(u64, u64)> {
        let bound = self.bound.as_ref().filter(|bound| bound.key == key)?;
        let stream = bound.stream;
        let slot = if wish.is_small() {
            match self.unpark_small(wish) {
                Some(slot) => slot,
                None => return self.cut(directory, HeapIndex::OfFront(self.number), wish, stream),
            }
        } else {
            match self.unpark(wish) {
                Some(slot) => slot,
                None if self.leases.free_bytes() >= wish.size && wish.can_be_leased() => {
                    return self.cut(directory, HeapIndex::Leases(self.number), wish, stream);
                }
                None => return None,
            }
        };
        self.served += 1;
        self.serials += 1;
        let serial = self.serial();
        let block = &mut self.blocks[slot];
        block.live = true;
        block.requested = wish.requested;
        block.serial = serial;
        self.live.add(block);
        Some((block.address, serial))
    }

    fn unpark_small(&mut self, wish: Wish) -> Option<usize> {
        let first = &mut self.small[size_class(wish.size)];
        let block = self.blocks.get(*first as usize)?;
        if !block.address.is_multiple_of(wish.alignment) {
            return None;
        }
        let slot = std::mem::replace(first, block.next);
        self.small_bytes -= block.size;
        Some(slot as usize)
    }

    fn unpark(&mut self, wish: Wish) -> Option<usize> {
        let place = self.parked.iter().rposition(|parked| {
            parked.size == wish.size && parked.address.is_multiple_of(wish.alignment)
        })?;
        self.parked_bytes -= wish.size;
        Some(self.parked.remove(place).slot)
    }

    /// The heap of that kind.
    pub(super) fn heap(&mut self, heap: HeapIndex) -> &mut Small {
        match heap {
            HeapIndex::Leases(_) => &mut self.leases,
            HeapIndex::Common | HeapIndex::OfFront(_) => &mut self.heap,
        }
    }

    /// Cuts a block out of a region of the front's that its own stream used last.
    fn cut(
        &mut self,
        directory: &Directory,
        heap: HeapIndex,
        wish: Wish,
        stream: StreamIndex,
    ) -> Option<(u64, u64)> {
        if self.blocks.len() >= Held::SLOTS {
            return None;
        }
        let taken = self
            .heap(heap)
            .take_own(wish.size, wish.alignment, stream)?;
        let place = Place::Cut(heap, taken.extent);
        match self.add(directory, taken.address, wish, place) {
            Some(serial) => {
                self.served += 1;
                Some((taken.address, serial))
            }
            None => {
                let empty = self.heap(heap).release(taken.extent, taken.ends);
                debug_assert!(empty.is_none(), "its region was not empty before");
                None
            }
        }
    }

    /// A live block of the stream's is in the front from now on. Gives its serial number, or
    /// `None` if there is no room for it.
    pub(super) fn add(
        &mut self,
        directory: &Directory,
        address: u64,
        wish: Wish,
        place: Place,
    ) -> Option<u64> {
        let entry = self.blocks.vacant_entry();
        let held = Held {
            front: self.number,
            slot: entry.key(),
        };
        if held.slot >= Held::SLOTS || !directory.set(address, held) {
            return None;
        }
        let block = FrontBlock {
            address,
            size: wish.size,
            requested: wish.requested,
            serial: 0,
            place,
            live: true,
            freed: 0,
            next: NONE,
        };
        self.live.add(&block);
        entry.insert(block);
        self.serials += 1;
        let serial = self.serial();
        self.blocks[held.slot].serial = serial;
        Some(serial)
    }

    /// The serial numbers of the pool's own books begin with zero bits, those of a front's with its
    /// number.
    fn serial(&self) -> u64 {
        ((self.number as u64 + 1) << 48) | self.serials
    }

    fn live_block(&self, slot: usize, address: u64, serial: Option<u64>) -> Option<&FrontBlock> {
        self.blocks.get(slot).filter(|block| {
            block.live
                && block.address == address
                && serial.is_none_or(|serial| serial == block.serial)
        })
    }

    /// Frees the live block at an address, if it is in this slot. Gives the bytes that were asked
    /// for, and whether the front has too much now. `allowance` are the bytes that may be parked
    /// beside the last block.
    pub(super) fn free(
        &mut self,
        directory: &Directory,
        (slot, address, serial): (usize, u64, Option<u64>),
        allowance: u64,
    ) -> Option<(u64, bool)> {
        self.live_block(slot, address, serial)?;
        let bound = self.bound.as_ref()?;
        let (stream, position) = (bound.stream, bound.position.next());
        let block = &mut self.blocks[slot];
        block.live = false;
        block.freed = position;
        let (size, requested) = (block.size, block.requested);
        self.live.subtract(block);
        self.unheard = Some(position);
        self.at_work = true;
        self.frees += 1;
        let surplus = if matches!(block.place, Place::Cut(HeapIndex::OfFront(_), _)) {
            let first = &mut self.small[size_class(size)];
            block.next = std::mem::replace(first, slot as u32);
            self.small_bytes += size;
            if self.small_bytes > SMALL_BYTES {
                self.release_small(directory);
            }
            self.has_surplus(allowance) || !self.regions.is_empty()
        } else if let Place::Cut(heap, extent) = block.place {
            let ends = Ends::from(End { stream, position });
            let _ = self.remove(directory, slot);
            let empty = self.heap(heap).release(extent, ends);
            self.regions.extend(empty);
            self.has_surplus(allowance) || !self.regions.is_empty()
        } else {
            self.parked_bytes += size;
            self.parked.push(Parked {
                slot,
                address,
                size,
                free: self.frees,
            });
            self.has_surplus(allowance)
        };
        Some((requested, surplus))
    }

    /// Whether more is parked than should be: blocks that were freed long ago, or too many bytes
    /// beside the block that was freed last.
    fn has_surplus(&self, allowance: u64) -> bool {
        let (Some(first), Some(last)) = (self.parked.first(), self.parked.last()) else {
            return false;
        };
        let newest = if last.free == self.frees {
            last.size
        } else {
            0
        };
        first.free + BLOCKS as u64 <= self.frees || self.parked_bytes - newest > allowance
    }

    /// Takes out the parked block that was freed first, if there is too much.
    pub(super) fn take_surplus(
        &mut self,
        directory: &Directory,
        allowance: u64,
    ) -> Option<FrontBlock> {
        if !self.has_surplus(allowance) {
            return None;
        }
        let first = self.parked.remove(0);
        self.parked_bytes -= first.size;
        Some(self.remove(directory, first.slot))
    }

    /// Takes out all parked blocks but the small ones, the first freed first.
    pub(super) fn take_parked(&mut self, directory: &Directory) -> SmallVec<[FrontBlock; BLOCKS]> {
        self.parked_bytes = 0;
        let parked = std::mem::take(&mut self.parked);
        let blocks = parked
            .into_iter()
            .map(|parked| self.remove(directory, parked.slot));
        blocks.collect()
    }

    /// Regions that are empty, to be given to the pool.
    pub(super) fn take_regions(&mut self) -> Vec<EmptyRegion> {
        std::mem::take(&mut self.regions)
    }

    /// Gives parked small blocks back to the heap. [`FrontState::take_regions`] is to follow.
    pub(super) fn release_small(&mut self, directory: &Directory) {
        if self.small_bytes == 0 {
            return;
        }
        let Some(stream) = self.bound.as_ref().map(|bound| bound.stream) else {
            return;
        };
        for size in 0..SIZES {
            let mut next = std::mem::replace(&mut self.small[size], NONE);
            while next != NONE {
                let block = self.remove(directory, next as usize);
                next = block.next;
                if let Place::Cut(_, extent) = block.place {
                    let ends = Ends::from(block.end(stream));
                    self.regions.extend(self.heap.release(extent, ends));
                }
            }
        }
        self.small_bytes = 0;
    }

    fn remove(&mut self, directory: &Directory, slot: usize) -> FrontBlock {
        let block = self.blocks.remove(slot);
        directory.clear(block.address);
        block
    }

    /// Takes out the live block at an address, if it is in this slot.
    pub(super) fn take_live(
        &mut self,
        directory: &Directory,
        slot: usize,
        address: u64,
    ) -> Option<FrontBlock> {
        self.live_block(slot, address, None)?;
        let block = self.remove(directory, slot);
        self.live.subtract(&block);
        Some(block)
    }

    /// Takes out all live blocks.
    pub(super) fn take_all_live(&mut self, directory: &Directory) -> Vec<FrontBlock> {
        let live = self.blocks.iter().filter(|(_, block)| block.live);
        let slots: Vec<usize> = live.map(|(slot, _)| slot).collect();
        let blocks = slots.into_iter().map(|slot| self.remove(directory, slot));
        let blocks: Vec<FrontBlock> = blocks.collect();
        self.live = Live::default();
        blocks
    }

    /// The live block that an address lies in. Looks at all: for errors only.
    pub(super) fn around(&self, address: u64) -> Option<&FrontBlock> {
        let mut live = self.live_blocks();
        live.find(|block| block.address <= address && address - block.address < block.size)
    }

    pub(super) fn live_blocks(&self) -> impl Iterator<Item = &FrontBlock> {
        self.blocks
            .iter()
            .map(|(_, block)| block)
            .filter(|b| b.live)
    }

    pub(super) fn live(&self) -> Live {
        self.live
    }

    fn parked_blocks(&self) -> impl Iterator<Item = &FrontBlock> {
        self.blocks
            .iter()
            .map(|(_, block)| block)
            .filter(|b| !b.live)
    }

    /// Bytes that are parked, and those of them whose last use is not seen to be completed.
    pub(super) fn parked_bytes(&self, order: &Order) -> (u64, u64) {
        let Some(bound) = &self.bound else {
            return (0, 0);
        };
        let mut bytes = 0;
        let mut pending = 0;
        for block in self.parked_blocks() {
            bytes += block.size;
            if !order.is_completed(block.end(bound.stream)) {
                pending += block.size;
            }
        }
        (bytes, pending)
    }

    pub(super) fn stream(&self) -> Option<StreamIndex> {
        self.bound.as_ref().map(|bound| bound.stream)
    }

    /// The front is a stream's from now on.
    pub(super) fn bind(&mut self, key: StreamKey, stream: StreamIndex, position: Position) {
        debug_assert!(self.bound.is_none() && self.blocks.is_empty());
        self.bound = Some(Bound {
            key,
            stream,
            position,
        });
    }

    /// The front is nobody's from now on; it has no blocks any more.
    pub(super) fn unbind(&mut self) {
        debug_assert!(self.blocks.is_empty());
        self.bound = None;
    }

    /// Where its stream's last free stood, if the pool was not told of it before.
    pub(super) fn hear(&mut self) -> Option<End> {
        let position = self.unheard.take()?;
        let stream = self.stream()?;
        Some(End { stream, position })
    }

    /// Whether the stream's thread met another one when it came to the pool; from time to time that
    /// settles whether the front gets leases.
    pub(super) fn came_to_pool(&mut self, met: bool) {
        if let Some(often) = self.meetings.count(met) {
            self.has_leases = often;
        }
    }

    pub(super) fn has_leases(&self) -> bool {
        self.has_leases
    }

    /// The bytes that are free in the front's regions, and those of them whose last uses are not
    /// seen to be completed.
    pub(super) fn free_in_regions(&self, order: &Order) -> (u64, u64) {
        let heaps = [&self.heap, &self.leases];
        let free = heaps.iter().map(|heap| heap.free_bytes()).sum();
        let pending = heaps.iter().map(|heap| heap.pending_bytes(order)).sum();
        (free, pending)
    }

    /// Where a block of one of the heaps stands: its address and size, if there is one.
    pub(super) fn cut_block(&self, heap: HeapIndex, extent: ExtentId) -> Option<(u64, u64)> {
        match heap {
            HeapIndex::Leases(_) => self.leases.block(extent),
            HeapIndex::Common | HeapIndex::OfFront(_) => self.heap.block(extent),
        }
    }

    /// Whether anything was freed here since this was last asked.
    pub(super) fn was_at_work(&mut self) -> bool {
        std::mem::take(&mut self.at_work)
    }

    /// Requests that were served here since this was last asked.
    pub(super) fn take_served(&mut self) -> u64 {
        std::mem::take(&mut self.served)
    }

    /// Checks the front's invariants. Gives the bytes of its heap's regions.
    pub(super) fn validate(&self, directory: &Directory) -> Result<u64, String> {
        let fault = |what: &str| Err(format!("front {} {what}", self.number));
        if self.bound.is_none() && !self.blocks.is_empty() {
            return fault("is nobody's and has blocks");
        }
        let mut live = Live::default();
        for (slot, block) in &self.blocks {
            let held = Held {
                front: self.number,
                slot,
            };
            if directory.get(block.address) != Some(held) {
                return fault("has a block that the directory does not know");
            }
            if block.live {
                live.add(block);
            }
            let cut = match block.place {
                Place::Backed => Some((block.address, block.size)),
                Place::Cut(HeapIndex::Leases(of), extent) if of == self.number => {
                    self.leases.block(extent)
                }
                Place::Cut(HeapIndex::OfFront(of), extent) if of == self.number => {
                    self.heap.block(extent)
                }
                Place::Cut(..) => None,
            };
            if cut != Some((block.address, block.size)) {
                return fault("has a block that its heap does not know");
            }
        }
        let mut listed = self.parked.len();
        let parked: u64 = self.parked.iter().map(|parked| parked.size).sum();
        if parked != self.parked_bytes {
            return fault("has lost count of what is parked");
        }
        let mut small_bytes = 0;
        for &first in self.small.iter() {
            let mut next = first;
            while let Some(block) = self.blocks.get(next as usize) {
                listed += 1;
                small_bytes += block.size;
                next = block.next;
            }
        }
        if listed != self.parked_blocks().count() || small_bytes != self.small_bytes {
            return fault("does not list what is parked");
        }
        let sums = |l: &Live| (l.blocks, l.bytes, l.rounded);
        if sums(&live) != sums(&self.live) {
            return fault("has lost count of what is live");
        }
        Ok(self.heap.validate()? + self.leases.validate()?)
    }
}

impl FrontBlock {
    /// Where its last use ended, once it is freed.
    pub(super) fn end(&self, stream: StreamIndex) -> End {
        End {
            stream,
            position: self.freed,
        }
    }
}

fn size_class(size: u64) -> usize {
    (size / GRAIN) as usize % SIZES
}
