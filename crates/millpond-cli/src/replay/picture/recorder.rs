//! What is drawn: where memory was mapped, from when to when, and which blocks stood there.
//!
//! Time is counted in operations: what an operation begins is there from its number on, what it
//! ends is there up to its number.
//!
//! # Invariants
//!
//! - Bands of one memory are the mappings of one handle, one plain allocation a memory of its own.
//! - At any time, no two bands share an address, and no two blocks do.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond::device::{Call, CallRecord, HandleId, Observer, Outcome};

/// Addresses that had memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Band {
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// The same for all mappings of one handle.
    pub(crate) memory: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A block of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// As the workload numbers it.
    pub(crate) stream: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Everything that was there, up to the last operation.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Recording {
    pub(crate) operations: u64,
    pub(crate) bands: Vec<Band>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) calls: Vec<DriverCall>,
}

/// A call that made, placed or took away memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DriverCall {
    /// The operation in which it was made.
    pub(crate) at: u64,
    pub(crate) call: Call,
    /// By the device's clock.
    pub(crate) nanoseconds: u64,
    /// The bytes of all handles and plain allocations after it.
    pub(crate) reserved: u64,
}

/// Has no end yet.
const OPEN: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Log {
    recording: Recording,
    memories: usize,
    /// What a handle's value stands for now.
    handles: HashMap<HandleId, (usize, u64)>,
    /// The bands that are there now, by address.
    mapped: BTreeMap<u64, usize>,
    /// The blocks that are there now, by address.
    live: HashMap<u64, usize>,
    /// Bytes of all handles and plain allocations.
    reserved: u64,
}

impl Log {
    fn new_memory(&mut self) -> usize {
        self.memories += 1;
        self.memories - 1
    }

    fn mapped(&mut self, address: u64, size: u64, memory: usize) {
        self.mapped.insert(address, self.recording.bands.len());
        self.recording.bands.push(Band {
            address,
            size,
            memory,
            from: self.recording.operations,
            to: OPEN,
        });
    }

    /// All that is mapped in a range is no longer there; gives its bytes.
    fn unmapped(&mut self, start: u64, end: u64) -> u64 {
        let mut bytes = 0;
        let gone: Vec<u64> = self.mapped.range(start..end).map(|(&at, _)| at).collect();
        for address in gone {
            if let Some(band) = self.mapped.remove(&address) {
                let operations = self.recording.operations;
                let band = &mut self.recording.bands[band];
                band.to = operations;
                bytes += band.size;
            }
        }
        bytes
    }

    fn called(&mut self, call: Call, nanoseconds: u64) {
        let counts = matches!(
            call,
            Call::Create
                | Call::Map
                | Call::SetAccess
                | Call::Unmap
                | Call::Release
                | Call::Allocate
                | Call::Free
        );
        if counts {
            self.recording.calls.push(DriverCall {
                at: self.recording.operations,
                call,
                nanoseconds,
                reserved: self.reserved,
            });
        }
    }
}

/// Observes the device of a replay, and is told what its job does.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    log: Mutex<Log>,
}

impl Recorder {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job has made one more operation.
    pub(in crate::replay) fn operation_done(&self) {
        self.log().recording.operations += 1;
    }

    /// The job was given a block.
    pub(in crate::replay) fn allocated(&self, address: u64, size: u64, stream: u32) {
        let mut log = self.log();
        let block = log.recording.blocks.len();
        log.live.insert(address, block);
        let from = log.recording.operations;
        log.recording.blocks.push(Block {
            address,
            size,
            stream,
            from,
            to: OPEN,
        });
    }

    /// The job gives a block back.
    pub(in crate::replay) fn freeing(&self, address: u64) {
        let mut log = self.log();
        if let Some(block) = log.live.remove(&address) {
            log.recording.blocks[block].to = log.recording.operations;
        }
    }

    /// What was seen so far. What is still there ends with the last operation.
    pub(crate) fn recording(&self) -> Recording {
        let mut recording = self.log().recording.clone();
        let last = recording.operations;
        for band in &mut recording.bands {
            band.to = band.to.min(last);
        }
        for block in &mut recording.blocks {
            block.to = block.to.min(last);
        }
        recording
    }
}

impl Observer for Recorder {
    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, started: u64, ended: u64) {
        if let Outcome::Failed(_) = outcome {
            return;
        }
        let mut log = self.log();
        match (call, outcome) {
            (&CallRecord::Create { size, .. }, Outcome::Value(handle)) => {
                let memory = log.new_memory();
                log.handles.insert(HandleId(handle), (memory, size));
                log.reserved += size;
            }
            (CallRecord::Release { handle }, _) => {
                if let Some((_, size)) = log.handles.remove(handle) {
                    log.reserved -= size;
                }
            }
            (
                &CallRecord::Map {
                    address,
                    size,
                    handle,
                },
                _,
            ) => {
                if let Some(&(memory, _)) = log.handles.get(&handle) {
                    log.mapped(address, size, memory);
                }
            }
            (&CallRecord::Unmap { address, size }, _) => {
                log.unmapped(address, address.saturating_add(size));
            }
            (&CallRecord::Allocate { size }, Outcome::Value(address)) => {
                let memory = log.new_memory();
                log.mapped(address, size, memory);
                log.reserved += size;
            }
            (&CallRecord::Free { address }, _) => {
                let bytes = log.unmapped(address, address.saturating_add(1));
                log.reserved -= bytes;
            }
            _ => {}
        }
        log.called(call.call(), ended.saturating_sub(started));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::device::{Device, HandleProperties, HostDevice, Observed};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn mappings_of_a_handle_are_one_memory_and_end_when_they_are_unmapped() {
        let recorder = Arc::new(Recorder::default());
        let device = Arc::new(HostDevice::new(64 * MIB).unwrap());
        let device = Observed::new(device, vec![Arc::clone(&recorder) as _]);
        let base = device.reserve(16 * MIB, 2 * MIB).unwrap();
        let size = 2 * MIB;
        let create = || device.create(size, HandleProperties::default()).unwrap();
        let (one, other) = (create(), create());
        device.map(base, size, one).unwrap();
        device.map(base + size, size, other).unwrap();
        recorder.operation_done();
        device.map(base + 8 * MIB, size, one).unwrap();
        recorder.operation_done();
        device.unmap(base, size).unwrap();
        assert!(device.map(base + size, size, one).is_err());
        recorder.operation_done();

        let band = |address, memory, from, to| Band {
            address,
            size,
            memory,
            from,
            to,
        };
        let bands = [
            band(base, 0, 0, 2),
            band(base + size, 1, 0, 3),
            band(base + 8 * MIB, 0, 1, 3),
        ];
        assert_eq!(recorder.recording().bands, bands);
        device.unmap(base + size, size).unwrap();
        device.unmap(base + 8 * MIB, size).unwrap();
        for handle in [one, other] {
            device.release(handle).unwrap();
        }
        device.free_reservation(base, 16 * MIB).unwrap();
        // After the last operation there is nothing to be seen.
        assert_eq!(recorder.recording().bands, bands);
    }

    #[test]
    fn a_block_is_there_between_its_operations_and_an_address_may_serve_again() {
        let recorder = Recorder::default();
        recorder.allocated(512, 100, 3);
        recorder.operation_done();
        recorder.freeing(512);
        recorder.operation_done();
        recorder.allocated(512, 200, 4);
        recorder.operation_done();
        let block = |size, stream, from, to| Block {
            address: 512,
            size,
            stream,
            from,
            to,
        };
        let recording = recorder.recording();
        assert_eq!(recording.operations, 3);
        assert_eq!(recording.blocks, [block(100, 3, 0, 1), block(200, 4, 2, 3)]);
    }
}
