//! One picture of a pool at one moment.

use super::state::State;

/// What a pool holds. All values are taken at one moment, under one lock, and agree with each
/// other: `reserved_bytes = live_rounded_bytes + free_bytes + in_transit_bytes +
/// graph_reserved_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Live blocks, but for those of graphs.
    pub live_blocks: u64,
    /// Bytes asked for and not freed, but for those of graphs.
    pub live_bytes: u64,
    /// Bytes that the live blocks take, rounding included.
    pub live_rounded_bytes: u64,
    /// The highest `live_bytes` since the pool was made, or since the peaks were reset.
    pub peak_live_bytes: u64,
    /// Bytes of the physical handles that exist, mapped or not, and of plain allocations.
    pub reserved_bytes: u64,
    /// The highest `reserved_bytes` since the pool was made, or since the peaks were reset.
    pub peak_reserved_bytes: u64,
    /// Bytes free in the pool: for somebody at once, or after a wait, or after mapping.
    pub free_bytes: u64,
    /// Of the free bytes: freed by the host, but not known to be done with by the device.
    pub pending_bytes: u64,
    /// Of the free bytes: in handles that are mapped nowhere.
    pub unmapped_bytes: u64,
    /// Bytes on their way: being created, mapped, or withheld after a failed unmapping.
    pub in_transit_bytes: u64,
    /// Bytes in the memory of graphs, used or free: no other request is served from them.
    pub graph_reserved_bytes: u64,
    /// Live blocks in the memory of graphs.
    pub graph_live_blocks: u64,
    /// Bytes asked for in the memory of graphs and not freed.
    pub graph_live_bytes: u64,
    /// Physical handles that exist.
    pub handles: u64,
    /// Bytes of address space reserved.
    pub address_space_bytes: u64,
    /// Waits that the pool inserted into streams.
    pub waits_inserted: u64,
    /// Events that the pool recorded.
    pub events_recorded: u64,
    /// Events that the pool queried.
    pub event_queries: u64,
}

impl State {
    pub(super) fn statistics(&mut self) -> Statistics {
        self.gather_usage();
        let in_fronts = self.in_fronts();
        let (backing, small) = (&self.backing, &self.small);
        let pending_bytes = backing.pending_bytes(&self.order)
            + small.pending_bytes(&self.order)
            + in_fronts.pending;
        let unmapped_bytes = backing.unmapped_bytes();
        let free_bytes = backing.free_bytes() + small.free_bytes() + in_fronts.free;
        let reserved_bytes = self.pages.reserved();
        let live_rounded_bytes = self.blocks.live_rounded() + in_fronts.live.rounded;
        let live_bytes = self.blocks.live_bytes() + in_fronts.live.bytes;
        self.peaks.live = self.peaks.live.max(live_bytes);
        Statistics {
            live_blocks: self.blocks.count() + in_fronts.live.blocks,
            live_bytes,
            live_rounded_bytes,
            peak_live_bytes: self.peaks.live,
            reserved_bytes,
            peak_reserved_bytes: self.pages.peak_reserved(),
            free_bytes,
            pending_bytes,
            unmapped_bytes,
            in_transit_bytes: reserved_bytes
                .saturating_sub(live_rounded_bytes + free_bytes + self.graphs.reserved),
            graph_reserved_bytes: self.graphs.reserved,
            graph_live_blocks: self.graphs.blocks,
            graph_live_bytes: self.graphs.live,
            handles: backing.handles() + self.graphs.handles,
            address_space_bytes: backing.reservations.bytes(),
            waits_inserted: self.counters.waits_inserted,
            events_recorded: self.counters.events_recorded,
            event_queries: self.counters.event_queries,
        }
    }
}
