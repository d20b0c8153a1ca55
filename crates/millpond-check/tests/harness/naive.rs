//! A pool of one handle that is right, and slow; and that can be wrong on purpose.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use millpond::device::{
    AccessGrant, Accessor, Device, DeviceError, EventId, HandleId, HandleProperties, Pattern,
    Protection, StreamId,
};
use millpond_check::{Held, Refusal, TestedPool};

/// What is wrong with the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    Nothing,
    /// What is freed serves every stream at once.
    IgnoresOrder,
    /// Uses on further streams are forgotten.
    ForgetsUses,
    /// A use that is over is taken for one that is complete.
    EndsEarly,
    /// Memory is given back while it may be in use.
    UnmapsEarly,
    /// Blocks overlap their neighbours.
    Overlaps,
    /// Alignments are ignored.
    Misaligns,
    /// An event is never destroyed.
    Leaks,
    /// Rounding is counted as asked for.
    Miscounts,
    /// Addresses inside blocks are freed.
    AcceptsInterior,
    /// What is freed is wiped, on another stream.
    Wipes,
}

const GRAIN: u64 = 256;
const MOST_ALIGNMENT: u64 = 4 << 20;

pub(crate) struct NaivePool {
    device: Arc<dyn Device>,
    limit: u64,
    bug: Bug,
    wiper: Option<StreamId>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mapped: Option<(u64, HandleId)>,
    /// By offset: bytes that are complete.
    free: BTreeMap<u64, u64>,
    pending: Vec<Extent>,
    live: HashMap<u64, (Extent, u64)>,
    live_bytes: u64,
}

#[derive(Clone)]
struct Extent {
    offset: u64,
    length: u64,
    streams: Vec<StreamId>,
}

impl NaivePool {
    pub(crate) fn new(device: Arc<dyn Device>, limit: u64, bug: Bug) -> NaivePool {
        let order = millpond::device::StreamOrder::Independent;
        let wiper = (bug == Bug::Wipes).then(|| device.create_stream(order).expect("a stream"));
        NaivePool {
            device,
            limit,
            bug,
            wiper,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    fn map(&self, state: &mut State) -> Result<u64, DeviceError> {
        if let Some((base, _)) = state.mapped {
            return Ok(base);
        }
        if self.bug == Bug::Leaks {
            self.device.create_event()?;
        }
        let base = self.device.reserve(self.limit, MOST_ALIGNMENT)?;
        let handle = self
            .device
            .create(self.limit, HandleProperties::default())?;
        self.device.map(base, self.limit, handle)?;
        let grant = AccessGrant {
            accessor: Accessor::Device(self.device.capabilities().ordinal),
            protection: Protection::ReadWrite,
        };
        self.device.set_access(base, self.limit, &[grant])?;
        state.mapped = Some((base, handle));
        state.free = BTreeMap::from([(0, self.limit)]);
        Ok(base)
    }

    fn unmap(&self, state: &mut State) -> Result<u64, DeviceError> {
        let Some((base, handle)) = state.mapped.take() else {
            return Ok(0);
        };
        self.device.unmap(base, self.limit)?;
        self.device.release(handle)?;
        self.device.free_reservation(base, self.limit)?;
        state.free.clear();
        state.pending.clear();
        Ok(self.limit)
    }

    /// Takes bytes off the pending extents of this stream alone, or off the free ones.
    fn take(
        &self,
        state: &mut State,
        length: u64,
        alignment: u64,
        stream: StreamId,
    ) -> Option<u64> {
        let own = |extent: &Extent| {
            // One value is another stream in every thread.
            stream != StreamId::PER_THREAD
                && extent.streams.iter().all(|&used_on| used_on == stream)
                && extent.length >= length
                && extent.offset.is_multiple_of(alignment)
        };
        if let Some(place) = state.pending.iter().position(own) {
            let mut extent = state.pending.swap_remove(place);
            let offset = extent.offset;
            extent.offset += length;
            extent.length -= length;
            if extent.length > 0 {
                state.pending.push(extent);
            }
            return Some(offset);
        }
        let (&start, &free) = state
            .free
            .iter()
            .find(|&(&start, &free)| start.next_multiple_of(alignment) + length <= start + free)?;
        let offset = start.next_multiple_of(alignment);
        state.free.remove(&start);
        let mut put = |from: u64, to: u64| {
            if from < to {
                state.free.insert(from, to - from);
            }
        };
        put(start, offset);
        let taken = match self.bug {
            Bug::Overlaps => length - GRAIN,
            _ => length,
        };
        put(offset + taken, start + free);
        Some(offset)
    }

    /// Everything pending is free.
    fn settle(&self, state: &mut State) {
        for extent in std::mem::take(&mut state.pending) {
            add_free(&mut state.free, extent.offset, extent.length);
        }
    }
}

fn add_free(free: &mut BTreeMap<u64, u64>, offset: u64, length: u64) {
    let (mut start, mut end) = (offset, offset + length);
    if let Some((&below, &bytes)) = free.range(..start).next_back()
        && below + bytes == start
    {
        free.remove(&below);
        start = below;
    }
    if let Some(bytes) = free.remove(&end) {
        end += bytes;
    }
    free.insert(start, end - start);
}

impl TestedPool for NaivePool {
    fn allocate(&self, size: u64, alignment: u64, stream: StreamId) -> Result<u64, Refusal> {
        if !alignment.is_power_of_two() {
            return Err(Refusal::Argument("alignment".to_owned()));
        }
        if size > self.limit {
            return Err(Refusal::Memory("more than the limit".to_owned()));
        }
        let alignment = match self.bug {
            Bug::Misaligns => GRAIN,
            _ => alignment.max(GRAIN),
        };
        let length = size.max(1).next_multiple_of(GRAIN);
        let mut state = self.lock();
        let base = self.map(&mut state)?;
        let mut offset = self.take(&mut state, length, alignment, stream);
        if offset.is_none() {
            self.device.synchronize()?;
            self.settle(&mut state);
            offset = self.take(&mut state, length, alignment, stream);
        }
        let Some(offset) = offset else {
            return Err(Refusal::Memory("nothing large enough".to_owned()));
        };
        let extent = Extent {
            offset,
            length,
            streams: vec![stream],
        };
        let counted = match self.bug {
            Bug::Miscounts => length,
            _ => size,
        };
        state.live.insert(base + offset, (extent, counted));
        state.live_bytes += counted;
        Ok(base + offset)
    }

    fn free(&self, address: u64) -> Result<(), Refusal> {
        let mut state = self.lock();
        let address = match self.bug {
            Bug::AcceptsInterior => address & !(GRAIN - 1),
            _ => address,
        };
        let Some((extent, counted)) = state.live.remove(&address) else {
            return Err(Refusal::Argument("no block begins there".to_owned()));
        };
        state.live_bytes -= counted;
        if let Some(wiper) = self.wiper {
            // Late enough to meet the next block.
            self.device
                .fill(wiper, address, extent.length, Pattern(!0))?;
        }
        match self.bug {
            Bug::IgnoresOrder => add_free(&mut state.free, extent.offset, extent.length),
            _ => state.pending.push(extent),
        }
        Ok(())
    }

    fn use_on(&self, address: u64, stream: StreamId) -> Result<(), Refusal> {
        let mut state = self.lock();
        let Some((extent, _)) = state.live.get_mut(&address) else {
            return Err(Refusal::Argument("no block begins there".to_owned()));
        };
        if self.bug != Bug::ForgetsUses {
            extent.streams.push(stream);
        }
        Ok(())
    }

    fn use_ended(&self, address: u64, stream: StreamId) -> Result<(), Refusal> {
        let mut state = self.lock();
        if self.bug == Bug::EndsEarly
            && let Some((extent, _)) = state.live.get_mut(&address)
        {
            extent.streams.retain(|user| *user != stream);
        }
        Ok(())
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), DeviceError> {
        self.device.record_event(event, stream)
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), DeviceError> {
        self.device.wait_event(stream, event)
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), DeviceError> {
        self.device.synchronize_stream(stream)
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let mut state = self.lock();
        self.device.synchronize()?;
        self.settle(&mut state);
        Ok(())
    }

    fn stream_destroyed(&self, _: StreamId) -> Result<(), DeviceError> {
        // The handle's value may come again.
        self.synchronize()
    }

    fn trim(&self, keep: u64) -> Result<u64, DeviceError> {
        let mut state = self.lock();
        if keep >= self.limit || !state.live.is_empty() {
            return Ok(0);
        }
        if self.bug != Bug::UnmapsEarly {
            self.device.synchronize()?;
        }
        self.unmap(&mut state)
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn held(&self) -> Held {
        let state = self.lock();
        Held {
            live_blocks: state.live.len() as u64,
            live_bytes: state.live_bytes,
            reserved_bytes: state.mapped.map_or(0, |_| self.limit),
        }
    }

    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Drop for NaivePool {
    fn drop(&mut self) {
        let mut state = self.lock();
        // A device that is lost takes its memory with it.
        if self.device.synchronize().is_ok() {
            self.unmap(&mut state).expect("the device is well");
        }
        if let Some(wiper) = self.wiper {
            self.device.destroy_stream(wiper).expect("a stream");
        }
    }
}
