//! What a pool must offer to be tested by sequences.
//!
//! The tests of the tests stand behind the same trait: pools that break a rule on purpose, which
//! the driver must find.

use millpond::device::{DeviceError, EventId, StreamId};

/// Why a pool refused a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no memory for it.
    #[error("no memory: {0}")]
    Memory(String),
    /// What was asked for makes no sense: an alignment, an address.
    #[error("bad argument: {0}")]
    Argument(String),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What a pool says it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Blocks handed out and not freed.
    pub live_blocks: u64,
    /// The bytes that were asked for with them.
    pub live_bytes: u64,
    /// Bytes that it has from the device.
    pub reserved_bytes: u64,
}

/// A pool under test. Each method is the pool's call of that name; dropping it is the pool's end.
#[expect(
    missing_docs,
    reason = "each is the call of the same name of `millpond::Pool`"
)]
pub trait TestedPool: Send + Sync {
    fn allocate(&self, size: u64, alignment: u64, stream: StreamId) -> Result<u64, Refusal>;
    fn free(&self, address: u64) -> Result<(), Refusal>;
    fn use_on(&self, address: u64, stream: StreamId) -> Result<(), Refusal>;
    /// A pool may ignore that a use is over.
    fn use_ended(&self, _address: u64, _stream: StreamId) -> Result<(), Refusal> {
        Ok(())
    }
    /// A pool may ignore that a use is over.
    fn use_ends_at(&self, _address: u64, _stream: StreamId, _at: EventId) -> Result<(), Refusal> {
        Ok(())
    }
    /// A pool may take it for a mere use.
    fn hand_over(&self, address: u64, stream: StreamId) -> Result<(), Refusal> {
        self.use_on(address, stream)
    }
    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError>;
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError>;
    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError>;
    fn synchronize(&self) -> Result<(), DeviceError>;
    fn stream_destroyed(&self, stream: StreamId) -> Result<(), DeviceError>;
    fn trim(&self, keep: u64) -> Result<u64, DeviceError>;
    fn limit(&self) -> u64;
    fn held(&self) -> Held;
    /// Whether the pool's own books agree.
    fn validate(&self) -> Result<(), String>;
}
