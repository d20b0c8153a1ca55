//! `caching`: PyTorch's caching allocator with its default segments.
//!
//! # Rules, beside those of both kinds
//!
//! - A segment is a plain allocation: 2 MiB for a small request, 20 MiB for a large one below 10
//!   MiB, and above that the request rounded up to 2 MiB.
//! - What is left of a block is split off if it is at least 512 bytes (small), or more than 1 MiB
//!   (large); otherwise it is handed out with the block.
//! - Segments are kept. When the device has no room, those that are free from end to end are given
//!   back.

use std::sync::Arc;

use millpond::device::{Device, StreamId};

use super::blocks::{Blocks, State};
use super::{GRAIN, Kind, LARGE_SEGMENT, SMALL_SEGMENT, SMALL_UP_TO, rounded};
use crate::policy::Policy;
use crate::{MIB, PolicyError};

/// From here on a large request gets a segment of its own size.
const OWN_SEGMENT_FROM: u64 = 10 * MIB;
/// What such segments are rounded up to.
const SEGMENT_ROUNDING: u64 = 2 * MIB;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Caching {
    device: Arc<dyn Device>,
    blocks: Blocks,
}

impl Caching {
    pub(crate) fn new(device: Arc<dyn Device>) -> Caching {
        Caching {
            device,
            blocks: Blocks::default(),
        }
    }
}

impl Policy for Caching {
    fn allocate(&mut self, requested: u64, stream: StreamId) -> Result<u64, PolicyError> {
        let size = rounded(requested)?;
        let kind = Kind::of(size);
        let best = self.blocks.fitting(kind, stream, size).next();
        let id = match best {
            Some(id) => id,
            None => {
                let segment = segment_size(size).ok_or(PolicyError::TooLarge(requested))?;
                let base = self
                    .device
                    .allocate(segment)
                    .map_err(|cause| PolicyError::growing(requested, segment, cause))?;
                self.blocks
                    .add_segment((base, segment), State::Free, stream, kind)
            }
        };
        let rest = self.blocks.get(id).size - size;
        let splits = match kind {
            Kind::Small => rest >= GRAIN,
            Kind::Large => rest > SMALL_UP_TO,
        };
        if splits {
            self.blocks.split(id, size);
        }
        self.blocks.set(id, State::Live);
        Ok(self.blocks.get(id).address)
    }

    fn free(&mut self, address: u64) -> Result<(), PolicyError> {
        let id = self.blocks.live_at(address);
        let id = id.ok_or(PolicyError::NotLive(address))?;
        self.blocks.set(id, State::Free);
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), PolicyError> {
        // `cudaFree` waits for the device.
        self.device.synchronize()?;
        for id in self.blocks.all_free() {
            let block = self.blocks.get(id);
            if block.before.is_none() && block.after.is_none() {
                self.device.free(block.address)?;
                self.blocks.remove_segment(id);
            }
        }
        Ok(())
    }
}

/// The segment that a request of this rounded size gets.
fn segment_size(size: u64) -> Option<u64> {
    if size <= SMALL_UP_TO {
        Some(SMALL_SEGMENT)
    } else if size < OWN_SEGMENT_FROM {
        Some(LARGE_SEGMENT)
    } else {
        size.checked_next_multiple_of(SEGMENT_ROUNDING)
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::{Observed, SimDevice};

    use super::*;
    use crate::Reserved;

    const STREAM: StreamId = StreamId::DEFAULT;

    fn caching() -> (Caching, Arc<Reserved>) {
        let reserved = Arc::new(Reserved::new(None));
        let observers = vec![Arc::clone(&reserved) as _];
        let device = Observed::new(Arc::new(SimDevice::new()), observers);
        (Caching::new(Arc::new(device)), reserved)
    }

    #[test]
    fn segments_are_as_large_as_the_rules_say() {
        let sizes = [
            (1, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 1, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 1, 12 * MIB),
        ];
        for (size, segment) in sizes {
            let (mut caching, reserved) = caching();
            caching.allocate(size, STREAM).unwrap();
            assert_eq!(reserved.bytes(), segment, "{size}");
        }
    }

    #[test]
    fn a_large_block_keeps_a_rest_of_up_to_a_mebibyte() {
        let (mut caching, reserved) = caching();
        let first = caching.allocate(19 * MIB, STREAM).unwrap();
        caching.free(first).unwrap();
        assert_eq!(reserved.bytes(), 20 * MIB);
        // 19 MiB of the 20 are taken, and the rest with them.
        assert_eq!(caching.allocate(18 * MIB, STREAM).unwrap(), first);
        caching.allocate(2 * MIB, STREAM).unwrap();
        assert_eq!(reserved.bytes(), 20 * MIB, "2 MiB are left and serve");
        caching.free(first).unwrap();
        assert_eq!(caching.allocate(17 * MIB, STREAM).unwrap(), first);
        caching.allocate(MIB + 1, STREAM).unwrap();
        assert_eq!(reserved.bytes(), 40 * MIB, "1 MiB more is not split off");
    }

    #[test]
    fn neither_streams_nor_small_and_large_blocks_share() {
        let (mut caching, reserved) = caching();
        let block = caching.allocate(20 * MIB, STREAM).unwrap();
        caching.free(block).unwrap();
        caching.allocate(20 * MIB, StreamId::PER_THREAD).unwrap();
        caching.allocate(MIB, STREAM).unwrap();
        assert_eq!(reserved.bytes(), 42 * MIB);
    }

    #[test]
    fn only_whole_segments_are_given_back() {
        let (mut caching, reserved) = caching();
        let [first, second, third] =
            [MIB, MIB, MIB].map(|size| caching.allocate(size, STREAM).unwrap());
        caching.free(first).unwrap();
        caching.free(third).unwrap();
        caching.release_cached().unwrap();
        assert_eq!(reserved.bytes(), 2 * MIB, "half of a segment is live");
        caching.free(second).unwrap();
        caching.release_cached().unwrap();
        assert_eq!(reserved.bytes(), 0);
    }
}
