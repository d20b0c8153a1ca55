//! What a pool holds, as C sees it.

use engine::Statistics;

/// What a pool holds. All values are taken at one moment and agree with each other:
/// `reserved_bytes = live_rounded_bytes + free_bytes + in_transit_bytes`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct millpond_statistics {
    /// Set by the caller: `sizeof(millpond_statistics)`. Later versions may have more fields; only
    /// as many bytes as this says are written.
    pub size: usize,
    /// Live blocks.
    pub live_blocks: u64,
    /// Bytes asked for and not freed.
    pub live_bytes: u64,
    /// Bytes that the live blocks take, rounding included.
    pub live_rounded_bytes: u64,
    /// The highest `live_bytes` since the pool was made, or since the peaks were reset.
    pub peak_live_bytes: u64,
    /// Bytes of device memory that the pool has, mapped or not.
    pub reserved_bytes: u64,
    /// The highest `reserved_bytes` since the pool was made, or since the peaks were reset.
    pub peak_reserved_bytes: u64,
    /// Bytes free in the pool: for somebody at once, or after a wait, or after mapping.
    pub free_bytes: u64,
    /// Of the free bytes: freed by the host, but not known to be done with by the device.
    pub pending_bytes: u64,
    /// Of the free bytes: in physical handles that are mapped nowhere.
    pub unmapped_bytes: u64,
    /// Bytes on their way: being created, mapped, or withheld after a failed unmapping.
    pub in_transit_bytes: u64,
    /// The most bytes that the pool takes from the device; UINT64_MAX: all that the device has.
    pub limit_bytes: u64,
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

impl millpond_statistics {
    pub(crate) fn new(of: &Statistics, limit_bytes: u64) -> millpond_statistics {
        millpond_statistics {
            size: 0,
            live_blocks: of.live_blocks,
            live_bytes: of.live_bytes,
            live_rounded_bytes: of.live_rounded_bytes,
            peak_live_bytes: of.peak_live_bytes,
            reserved_bytes: of.reserved_bytes,
            peak_reserved_bytes: of.peak_reserved_bytes,
            free_bytes: of.free_bytes,
            pending_bytes: of.pending_bytes,
            unmapped_bytes: of.unmapped_bytes,
            in_transit_bytes: of.in_transit_bytes,
            limit_bytes,
            handles: of.handles,
            address_space_bytes: of.address_space_bytes,
            waits_inserted: of.waits_inserted,
            events_recorded: of.events_recorded,
            event_queries: of.event_queries,
        }
    }

    /// Adds another pool's values to these; the limit stays. Peaks of pools are not reached
    /// together, so their sum is an upper bound.
    pub(crate) fn add(&mut self, other: &Statistics) {
        let other = millpond_statistics::new(other, 0);
        let pairs = [
            (&mut self.live_blocks, other.live_blocks),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.live_rounded_bytes, other.live_rounded_bytes),
            (&mut self.peak_live_bytes, other.peak_live_bytes),
            (&mut self.reserved_bytes, other.reserved_bytes),
            (&mut self.peak_reserved_bytes, other.peak_reserved_bytes),
            (&mut self.free_bytes, other.free_bytes),
            (&mut self.pending_bytes, other.pending_bytes),
            (&mut self.unmapped_bytes, other.unmapped_bytes),
            (&mut self.in_transit_bytes, other.in_transit_bytes),
            (&mut self.handles, other.handles),
            (&mut self.address_space_bytes, other.address_space_bytes),
            (&mut self.waits_inserted, other.waits_inserted),
            (&mut self.events_recorded, other.events_recorded),
            (&mut self.event_queries, other.event_queries),
        ];
        for (mine, others) in pairs {
            *mine += others;
        }
    }
}
