//! What an address belongs to.

use smallvec::{SmallVec, smallvec};

use super::error::BlockError;
use super::graphs::ArenaPointer;
use super::properties::PoolLocation;
use super::state::State;
use super::{Inner, Pool};
use crate::device::{HandleId, StreamId};
use crate::order::StreamIndex;

/// What the memory under an address is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PointerState {
    /// A live block.
    Live,
    /// A live block in the memory of a graph.
    Graph,
}

/// What an address belongs to: see [`Pool::pointer`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pointer {
    /// The pool.
    pub pool: Pool,
    /// The ordinal of the pool's device.
    pub device: u32,
    /// Where the memory lies.
    pub location: PoolLocation,
    /// What the memory is.
    pub state: PointerState,
    /// Where the block starts.
    pub start: u64,
    /// Bytes that were asked for the block.
    pub size: u64,
    /// Bytes from the block's start to the address.
    pub offset: u64,
    /// The stream that owns the block: the one it was allocated for, or last handed over to.
    pub stream: StreamId,
    /// All streams whose use of the block is not over; for a block of a graph, those that are not
    /// captured.
    pub users: Vec<StreamId>,
    /// The handle that the address lies in; none where the memory is a plain allocation.
    pub handle: Option<HandleId>,
    /// Bytes from the handle's start, or from the plain allocation's, to the address.
    pub handle_offset: u64,
    /// Bytes of the handle, or of the plain allocation. A block may go on in a further one.
    pub handle_size: u64,
}

/// A live block that an address lies in.
struct Around {
    start: u64,
    requested: u64,
    owner: StreamIndex,
    users: SmallVec<[StreamIndex; 2]>,
}

impl State {
    /// The live block around an address, in the books or in a front, where its stream alone uses
    /// it.
    fn live_around(&self, address: u64) -> Option<Around> {
        let exact = self.blocks.get(address).map(|record| (address, record));
        if let Some((start, record)) = exact.or_else(|| self.blocks.around(address)) {
            return Some(Around {
                start,
                requested: record.requested,
                owner: record.owner,
                users: record.users.clone(),
            });
        }
        let (start, requested, owner) = self.pointer_in_fronts(address)?;
        Some(Around {
            start,
            requested,
            owner,
            users: smallvec![owner],
        })
    }
}

impl Inner {
    /// Whether an address lies in the pool's address space.
    fn holds(&self, address: u64) -> bool {
        self.lock().backing.reservations.around(address).is_some()
            || self.graphs.pointer(address).is_some()
    }
}

impl Pool {
    /// What an address belongs to: any address inside a live block, rounding included, will do.
    ///
    /// # Errors
    ///
    /// [`BlockError::Foreign`]: the address is not one of this pool. [`BlockError::NotLive`]: it
    /// is, but no live block is there; it was freed, or nothing was ever placed there. Once an
    /// address is used again the answer is about the new block: no address tells which of two
    /// blocks was meant.
    pub fn pointer(&self, address: u64) -> Result<Pointer, BlockError> {
        let inner = &self.inner;
        let device = inner.device.capabilities().ordinal;
        let location = inner.properties.location;
        let of_graph = {
            let state = inner.lock();
            if let Some(found) = state.live_around(address) {
                let located = state.backing.locate(address);
                let located = located.ok_or(BlockError::NotLive { address })?;
                let stream = |index| state.order.key(index).stream;
                return Ok(Pointer {
                    pool: self.clone(),
                    device,
                    location,
                    state: PointerState::Live,
                    start: found.start,
                    size: found.requested,
                    offset: address - found.start,
                    stream: stream(found.owner),
                    users: found.users.iter().map(|&index| stream(index)).collect(),
                    handle: (!located.plain).then_some(located.handle.id),
                    handle_offset: located.offset,
                    handle_size: located.handle.size,
                });
            }
            state.backing.reservations.around(address).is_none()
        };
        let not_live = BlockError::NotLive { address };
        if !of_graph {
            return Err(not_live);
        }
        let found = inner.graphs.pointer(address);
        let ArenaPointer { block, backed } = found.ok_or(BlockError::Foreign { address })?;
        let (start, record) = block.ok_or_else(|| not_live.clone())?;
        let backed = backed.ok_or(not_live)?;
        let state = inner.lock();
        let stream = |index| state.order.key(index).stream;
        Ok(Pointer {
            pool: self.clone(),
            device,
            location,
            state: PointerState::Graph,
            start,
            size: record.requested,
            offset: address - start,
            stream: stream(record.owner),
            users: record.ordinary.iter().map(|&index| stream(index)).collect(),
            handle: backed.handle.map(|(handle, _)| handle),
            handle_offset: address - backed.address,
            handle_size: backed.size,
        })
    }

    /// Whether a stream is being captured into memory of this pool: then it can be asked nothing.
    pub(crate) fn is_captured(&self, stream: StreamId) -> bool {
        self.inner.graphs.captured_key(stream).is_some()
    }

    /// Whether an address lies in the pool's address space, live or not.
    pub fn contains(&self, address: u64) -> bool {
        self.inner.holds(address)
    }
}
