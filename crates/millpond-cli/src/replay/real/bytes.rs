//! The bytes of the blocks: filled when a block is handed out, verified on every stream that used
//! it, all in the streams' own order, as a program's kernels would.
//!
//! # Invariants
//!
//! - A block is filled on its own stream. Other streams wait for an event that comes after the
//!   fill before they look. The looking on its own stream is queued before the pool gets the
//!   block back; that on others too, and the pool was told of them.
//! - What is queued is bounded: at most two windows of verifications are not yet looked through.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use millpond::device::{Device, DeviceError, EventId, Findings as Verified, StreamId};

use super::pattern::{block_of, pattern_of};
use crate::replay::findings::Findings;
use crate::replay::session::LiveBlock;
use crate::replay::workload::{BlockFacts, Workload};

/// Verifications that end a window.
const WINDOW_VERIFICATIONS: usize = 4096;

/// One look at a block.
struct Verification {
    block: u32,
    stream: u32,
    verified: Arc<Verified>,
}

/// Verifications that were queued, and the events that come after them, one for each stream.
struct Window {
    verifications: Vec<Verification>,
    bytes: u64,
    ends: Vec<EventId>,
}

/// See the [module](self).
pub(super) struct Bytes<'a> {
    device: Arc<dyn Device>,
    workload: &'a Workload,
    streams: Vec<StreamId>,
    /// Bytes filled or verified that end a window.
    window_bytes: u64,
    /// For each stream, an event to order others after it.
    order: Vec<EventId>,
    open: Window,
    /// The window before, queued as a whole.
    queued: Window,
    corrupt: BTreeSet<u32>,
    corruptions: Findings,
}

impl<'a> Bytes<'a> {
    pub(super) fn new(
        device: Arc<dyn Device>,
        workload: &'a Workload,
        streams: Vec<StreamId>,
        window_bytes: u64,
    ) -> Result<Bytes<'a>, DeviceError> {
        let events = || -> Result<Vec<EventId>, DeviceError> {
            streams.iter().map(|_| device.create_event()).collect()
        };
        let window = || -> Result<Window, DeviceError> {
            Ok(Window {
                verifications: Vec::new(),
                bytes: 0,
                ends: events()?,
            })
        };
        Ok(Bytes {
            order: events()?,
            open: window()?,
            queued: window()?,
            device,
            workload,
            streams,
            window_bytes,
            corrupt: BTreeSet::new(),
            corruptions: Findings::default(),
        })
    }

    /// Queues the fill of a new block.
    pub(super) fn fill(&mut self, block: LiveBlock) -> Result<(), DeviceError> {
        let BlockFacts { size, stream } = self.facts(block.number);
        self.open.bytes += size;
        let stream = self.streams[stream as usize];
        self.device
            .fill(stream, block.address, size, pattern_of(block.number))
    }

    /// Orders another stream after what was done to the block on its own.
    pub(super) fn order(&self, block: LiveBlock, user: u32) -> Result<(), DeviceError> {
        let owner = self.facts(block.number).stream as usize;
        self.device
            .record_event(self.order[owner], self.streams[owner])?;
        self.device
            .wait_event(self.streams[user as usize], self.order[owner])
    }

    /// Queues a look at the block on a stream.
    pub(super) fn verify(&mut self, block: LiveBlock, stream: u32) -> Result<(), DeviceError> {
        let verified = Verified::new();
        let BlockFacts { size, .. } = self.facts(block.number);
        self.device.verify(
            self.streams[stream as usize],
            block.address,
            size,
            pattern_of(block.number),
            &verified,
        )?;
        self.open.bytes += size;
        self.open.verifications.push(Verification {
            block: block.number,
            stream,
            verified,
        });
        if self.open.bytes >= self.window_bytes
            || self.open.verifications.len() >= WINDOW_VERIFICATIONS
        {
            self.close_window()?;
        }
        Ok(())
    }

    /// Waits for everything, looks through it, and gives the number of corrupt blocks and what
    /// was found.
    pub(super) fn finish(mut self) -> Result<(u64, Findings), DeviceError> {
        self.close_window()?;
        self.close_window()?;
        let ends = self.open.ends.iter().chain(&self.queued.ends);
        for &event in self.order.iter().chain(ends) {
            self.device.destroy_event(event)?;
        }
        Ok((self.corrupt.len() as u64, self.corruptions))
    }

    /// Ends the open window, and looks through the one before it.
    fn close_window(&mut self) -> Result<(), DeviceError> {
        for (&event, &stream) in self.open.ends.iter().zip(&self.streams) {
            self.device.record_event(event, stream)?;
        }
        mem::swap(&mut self.open, &mut self.queued);
        for &event in &self.open.ends {
            self.device.synchronize_event(event)?;
        }
        self.open.bytes = 0;
        for seen in mem::take(&mut self.open.verifications) {
            if let Some(word) = seen.verified.found_word() {
                self.corrupt.insert(seen.block);
                let message = self.describe(&seen, word);
                self.corruptions.add(|| message);
            }
        }
        Ok(())
    }

    fn describe(&self, seen: &Verification, word: u64) -> String {
        let blocks = self.workload.blocks.len() as u32;
        let found = match block_of(word, pattern_of(seen.block), blocks) {
            Some(other) => format!("what {} was filled with", self.name(other)),
            None => format!("{word:#018x}, which no block was filled with"),
        };
        format!(
            "{} had {} bytes changed when stream {} had used it; there is now {found}",
            self.name(seen.block),
            seen.verified.wrong_bytes(),
            seen.stream,
        )
    }

    fn name(&self, block: u32) -> String {
        let BlockFacts { size, stream } = self.facts(block);
        format!("block {block} ({size} bytes, stream {stream})")
    }

    fn facts(&self, block: u32) -> BlockFacts {
        self.workload.blocks[block as usize]
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::{
        AccessGrant, Accessor, HandleProperties, HostDevice, Protection, StreamOrder,
    };
    use millpond_trace::{Limits, read_bytes};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Two blocks of 1000 and 500 bytes on two streams, and memory for them.
    fn with_memory(test: impl FnOnce(Bytes<'_>, u64)) {
        let text = "op,block,size,stream,event,host_us,device_us\nalloc,0,1000,0,,0,\n\
                    alloc,1,500,1,,0,\n";
        let trace = read_bytes("test.csv", text.as_bytes(), &Limits::default()).unwrap();
        let workload = Workload::new(trace, 1.0);
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(4 * MIB).unwrap());
        let base = device.reserve(2 * MIB, 0).unwrap();
        let handle = device.create(2 * MIB, HandleProperties::default()).unwrap();
        device.map(base, 2 * MIB, handle).unwrap();
        let grant = AccessGrant {
            accessor: Accessor::Device(0),
            protection: Protection::ReadWrite,
        };
        device.set_access(base, 2 * MIB, &[grant]).unwrap();
        let streams = (0..2)
            .map(|_| device.create_stream(StreamOrder::Independent).unwrap())
            .collect();
        let bytes = Bytes::new(Arc::clone(&device), &workload, streams, MIB).unwrap();
        test(bytes, base);
    }

    fn block(number: u32, address: u64) -> LiveBlock {
        LiveBlock { number, address }
    }

    #[test]
    fn blocks_of_their_own_are_clean() {
        with_memory(|mut bytes, base| {
            let (first, second) = (block(0, base), block(1, base + 1024));
            bytes.fill(first).unwrap();
            bytes.fill(second).unwrap();
            bytes.order(first, 1).unwrap();
            bytes.verify(first, 1).unwrap();
            bytes.verify(first, 0).unwrap();
            bytes.verify(second, 1).unwrap();
            assert_eq!(bytes.finish().unwrap(), (0, Findings::default()));
        });
    }

    #[test]
    fn a_block_that_another_one_was_put_over_is_found_and_both_are_named() {
        with_memory(|mut bytes, base| {
            let (first, second) = (block(0, base), block(1, base + 256));
            bytes.fill(first).unwrap();
            bytes.order(first, 1).unwrap();
            bytes.fill(second).unwrap();
            bytes.order(second, 0).unwrap();
            bytes.verify(second, 1).unwrap();
            bytes.verify(first, 0).unwrap();
            let (corrupt, findings) = bytes.finish().unwrap();
            assert_eq!(corrupt, 1);
            let [message] = findings.messages() else {
                panic!("{findings:?}")
            };
            assert!(message.starts_with("block 0 (1000 bytes, stream 0) had 500 bytes changed"));
            assert!(message.ends_with("what block 1 (500 bytes, stream 1) was filled with"));
        });
    }

    #[test]
    fn a_fill_that_never_came_is_found() {
        with_memory(|mut bytes, base| {
            bytes.verify(block(0, base), 0).unwrap();
            let (corrupt, findings) = bytes.finish().unwrap();
            assert_eq!(corrupt, 1);
            assert!(findings.messages()[0].contains("no block was filled with"));
        });
    }
}
