//! What is the same for all policies: live blocks, their uses on further streams, and what is
//! done when memory has run out.
//!
//! # Invariants
//!
//! - A block is live, held ([`held`](crate::held)), or the policy's; never two of these.
//! - The policy gets a block back when all its uses on further streams have completed, as the host
//!   has seen; those on its own stream come before what that stream runs next.

use std::sync::Arc;

use millpond::device::{Device, StreamId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::held::Held;
use crate::policy::Policy;
use crate::{PolicyError, PolicyName};

/// A live block.
#[derive(Debug)]
struct Live {
    size: u64,
    stream: StreamId,
    /// The further streams that it is used on.
    users: SmallVec<[StreamId; 2]>,
}

/// An allocator with a policy of this crate, for one thread.
#[derive(Debug)]
pub struct Allocator {
    policy: Box<dyn Policy>,
    device: Arc<dyn Device>,
    live: FxHashMap<u64, Live>,
    held: Held,
    live_bytes: u64,
    peak_live_bytes: u64,
}

impl Allocator {
    /// An allocator that has nothing yet. The device belongs to whoever calls; it must have
    /// mapped memory for [`PolicyName::Expandable`].
    pub fn new(policy: PolicyName, device: Arc<dyn Device>) -> Allocator {
        Allocator {
            policy: policy.policy(Arc::clone(&device)),
            held: Held::new(Arc::clone(&device)),
            device,
            live: FxHashMap::default(),
            live_bytes: 0,
            peak_live_bytes: 0,
        }
    }

    /// Gives `size` bytes, for work that is queued on `stream` from now on; the address is a
    /// multiple of 256. A block of no bytes is address 0, and nothing.
    ///
    /// When the device has no room, all held blocks are waited for and everything cached is given
    /// back, and the policy is asked once more. (PyTorch does not search what it has again after
    /// that, which is a known defect.)
    ///
    /// # Errors
    ///
    /// [`PolicyError::OutOfMemory`] if that did not help, [`PolicyError::TooLarge`] if nothing
    /// could, and [`PolicyError::Device`] if the device fails.
    pub fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64, PolicyError> {
        if size == 0 {
            return Ok(0);
        }
        for address in self.held.completed()? {
            self.policy.free(address)?;
        }
        let address = match self.policy.allocate(size, stream) {
            Err(error) if error.is_out_of_memory() => {
                for address in self.held.await_all()? {
                    self.policy.free(address)?;
                }
                self.policy.release_cached()?;
                self.policy.allocate(size, stream)?
            }
            result => result?,
        };
        let users = SmallVec::new();
        let block = Live {
            size,
            stream,
            users,
        };
        self.live.insert(address, block);
        self.live_bytes += size;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        Ok(address)
    }

    /// The block is used on this stream as well, up to its free.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NotLive`] if no live block begins there.
    pub fn use_on(&mut self, address: u64, stream: StreamId) -> Result<(), PolicyError> {
        if address == 0 {
            return Ok(());
        }
        let block = self
            .live
            .get_mut(&address)
            .ok_or(PolicyError::NotLive(address))?;
        if stream != block.stream && !block.users.contains(&stream) {
            block.users.push(stream);
        }
        Ok(())
    }

    /// Frees a block: all its uses are queued.
    ///
    /// # Errors
    ///
    /// [`PolicyError::NotLive`] if no live block begins there; [`PolicyError::Device`] if the
    /// device fails.
    pub fn free(&mut self, address: u64) -> Result<(), PolicyError> {
        if address == 0 {
            return Ok(());
        }
        let block = self
            .live
            .remove(&address)
            .ok_or(PolicyError::NotLive(address))?;
        self.live_bytes -= block.size;
        if block.users.is_empty() || self.policy.free_waits() {
            return self.policy.free(address);
        }
        Ok(self.held.hold(address, &block.users)?)
    }

    /// Gives back to the device what is cached and can be given back, after waiting for it.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Device`] if the device fails.
    pub fn release_cached(&mut self) -> Result<(), PolicyError> {
        for address in self.held.await_all()? {
            self.policy.free(address)?;
        }
        self.policy.release_cached()
    }

    /// Frees what is live, and gives everything back to the device.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Device`] if the device fails.
    pub fn close(mut self) -> Result<(), PolicyError> {
        self.device.synchronize()?;
        let mut live: Vec<u64> = self.live.keys().copied().collect();
        live.sort_unstable();
        for address in live {
            self.free(address)?;
        }
        self.release_cached()?;
        Ok(self.held.close()?)
    }

    /// Bytes that were asked for and are not freed.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The most that [`live_bytes`](Allocator::live_bytes) was, since the peak was reset.
    pub fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }
    /// From now on the peak is that of what comes, and begins with what is live.
    pub fn reset_peak(&mut self) {
        self.peak_live_bytes = self.live_bytes;
    }

    /// Events recorded so far, at frees of blocks used on several streams.
    pub fn events_recorded(&self) -> u64 {
        self.held.recorded
    }

    /// Looks so far at whether such an event has completed.
    pub fn event_queries(&self) -> u64 {
        self.held.queried
    }
}
