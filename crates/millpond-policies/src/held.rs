//! Blocks that were used on further streams, until the host has seen these uses completed.
//!
//! The rules are those of PyTorch's `record_stream` (reference: its allocator, versions 2.6 to
//! 2.11): nothing is recorded when a use begins. At the free one event is recorded on every
//! further stream that used the block; it covers everything queued there until then. Later
//! allocations look, stream by stream and oldest first, which of the events have completed.
//!
//! # Invariants
//!
//! - Every held block has at least one event outstanding; an event belongs to one block.
//! - The events of one stream stand in the order in which they were recorded.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond::device::{Device, DeviceError, EventId, StreamId};
use rustc_hash::FxHashMap;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Held {
    device: Arc<dyn Device>,
    /// Events outstanding for each held block, by its address.
    outstanding: FxHashMap<u64, usize>,
    /// In the order of the streams' first use, so that runs are alike.
    streams: Vec<(StreamId, VecDeque<(EventId, u64)>)>,
    /// Events to be used again.
    unused: Vec<EventId>,
    pub(crate) recorded: u64,
    pub(crate) queried: u64,
}

impl Held {
    pub(crate) fn new(device: Arc<dyn Device>) -> Held {
        Held {
            device,
            outstanding: FxHashMap::default(),
            streams: Vec::new(),
            unused: Vec::new(),
            recorded: 0,
            queried: 0,
        }
    }

    /// Holds a block until these streams have done what is queued on them now. There is at least
    /// one stream.
    pub(crate) fn hold(&mut self, address: u64, users: &[StreamId]) -> Result<(), DeviceError> {
        let mut events = Vec::with_capacity(users.len());
        for &user in users {
            let event = match self.unused.pop() {
                Some(event) => event,
                None => self.device.create_event()?,
            };
            self.device.record_event(event, user)?;
            self.recorded += 1;
            events.push((user, event));
        }
        for (user, event) in events {
            let known = self.streams.iter().position(|(stream, _)| *stream == user);
            let index = known.unwrap_or_else(|| {
                self.streams.push((user, VecDeque::new()));
                self.streams.len() - 1
            });
            self.streams[index].1.push_back((event, address));
            *self.outstanding.entry(address).or_default() += 1;
        }
        Ok(())
    }

    /// The blocks whose uses have completed, as the host sees now. They are held no more.
    pub(crate) fn completed(&mut self) -> Result<Vec<u64>, DeviceError> {
        let device = Arc::clone(&self.device);
        let mut queried = 0;
        let released = self.release(|event| {
            queried += 1;
            device.query_event(event)
        });
        self.queried += queried;
        released
    }

    /// Waits for all uses of all blocks, which are then held no more.
    pub(crate) fn await_all(&mut self) -> Result<Vec<u64>, DeviceError> {
        let device = Arc::clone(&self.device);
        self.release(|event| device.synchronize_event(event).map(|()| true))
    }

    fn release(
        &mut self,
        mut is_over: impl FnMut(EventId) -> Result<bool, DeviceError>,
    ) -> Result<Vec<u64>, DeviceError> {
        let mut released = Vec::new();
        for (_, queue) in &mut self.streams {
            while let Some(&(event, address)) = queue.front() {
                if !is_over(event)? {
                    break;
                }
                queue.pop_front();
                self.unused.push(event);
                if let Some(count) = self.outstanding.get_mut(&address) {
                    *count -= 1;
                    if *count == 0 {
                        self.outstanding.remove(&address);
                        released.push(address);
                    }
                }
            }
        }
        Ok(released)
    }

    /// Gives the events back. Nothing is held any more.
    pub(crate) fn close(self) -> Result<(), DeviceError> {
        for event in self.unused {
            self.device.destroy_event(event)?;
        }
        Ok(())
    }
}
