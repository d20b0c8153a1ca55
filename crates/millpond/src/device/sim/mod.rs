//! The sim: a device without bytes, in virtual time.
//!
//! It keeps every rule of the [contract](super), costs the host tens of nanoseconds a call, and
//! takes no memory for what it pretends to have. Its clock is virtual, so the same calls in the
//! same order give the same answers and the same times, run after run.
//!
//! # Virtual time
//!
//! - The host's clock ([`Device::now`]) stands still between calls; each call moves it by what the
//!   [`CostTable`] says, and then takes effect. A call that is refused costs nothing.
//! - Queued work begins when its stream has done everything before it, but not before the call
//!   that queued it; it lasts as long as its bytes take at the table's speed. An event completes
//!   when its stream has come to its record. A query looks at the host's clock; a wait on the host
//!   moves it.
//! - The legacy stream's work begins after all that was queued on the streams ordered with it, and
//!   theirs after its own.
//! - Host functions take no time. They run on the thread whose call brings the clock to their
//!   time, before that call returns, in order of time and then of queueing. Those that are not due
//!   when the device is dropped never run.
//! - A replay can drive the clock and the streams itself: [`SimDevice::advance_host_to`],
//!   [`SimDevice::enqueue_work`].
//!
//! # Faults
//!
//! Work that touches what it may not faults when it begins. Unmapping a range faults at once if
//! work that was queued through it is not over. From that time on every call fails with illegal
//! address (700). Other failures are injected from outside, see [`Faults`](super::Faults).
//!
//! # Invariants
//!
//! - One lock guards all state; it is never held while a host function runs, and no other call
//!   goes on while one does.
//! - `clock` is the state's clock as the last call left it.

mod calls;
mod costs;
mod state;
mod streams;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

pub use costs::{CostTable, CostTableError};
use state::State;

use super::{
    Call, Capabilities, Device, DeviceError, DeviceKind, EventId, Status, StreamId, Topology,
};

/// The granularity of every known NVIDIA device.
const GRANULARITY: u64 = 2 << 20;
/// What an H200 has, in round figures.
const DEFAULT_MEMORY: u64 = 141_000_000_000;

/// Numbers the sims of the process, so that no two streams have the same identity.
static DEVICES: AtomicU64 = AtomicU64::new(1);

/// A device without bytes, in virtual time. See the [module](self).
///
/// ```
/// use millpond::device::sim::SimDevice;
/// use millpond::device::{Device, StreamOrder};
///
/// let device = SimDevice::new();
/// let stream = device.create_stream(StreamOrder::Independent)?;
/// let event = device.create_event()?;
///
/// // A stream that is busy for a millisecond of virtual time.
/// device.enqueue_work(stream, 1_000_000)?;
/// device.record_event(event, stream)?;
/// assert!(!device.query_event(event)?);
///
/// device.advance_host_by(1_000_000);
/// assert!(device.query_event(event)?);
/// # Ok::<(), millpond::device::DeviceError>(())
/// ```
pub struct SimDevice {
    capabilities: Capabilities,
    clock: AtomicU64,
    state: Mutex<State>,
    /// Told when a host function has ended.
    function_ended: Condvar,
}

/// What a [`SimDevice`] is to be like.
#[derive(Clone, Debug)]
#[must_use]
pub struct SimDeviceBuilder {
    total_memory: u64,
    costs: CostTable,
    mapping: bool,
    stream_values_recur: bool,
    host_memory: bool,
    place: Option<(Topology, u32)>,
}

impl SimDeviceBuilder {
    /// Bytes of memory, rounded down to a multiple of 2 MiB. By default 141 GB.
    pub fn total_memory(mut self, bytes: u64) -> SimDeviceBuilder {
        self.total_memory = bytes;
        self
    }

    /// What calls cost. By default [`CostTable::default`].
    pub fn costs(mut self, costs: CostTable) -> SimDeviceBuilder {
        self.costs = costs;
        self
    }

    /// Whether memory can be mapped. By default it can; without it there is only
    /// [`Device::allocate`], as on some virtual GPUs.
    pub fn mapping(mut self, mapping: bool) -> SimDeviceBuilder {
        self.mapping = mapping;
        self
    }

    /// Whether a destroyed stream's handle value is given to the next stream that is created, as
    /// the driver may do. By default it is not.
    pub fn stream_values_recur(mut self, recur: bool) -> SimDeviceBuilder {
        self.stream_values_recur = recur;
        self
    }

    /// Whether handles can lie in host memory: NUMA node 0, or the host at large. Such handles take
    /// none of the device's memory. By default they cannot.
    pub fn host_memory(mut self, offered: bool) -> SimDeviceBuilder {
        self.host_memory = offered;
        self
    }

    /// Puts the device among others, under this ordinal. By default it stands alone, as device 0.
    /// The devices of a topology share the address space: each has a sixteenth of it.
    pub fn in_topology(mut self, topology: &Topology, ordinal: u32) -> SimDeviceBuilder {
        self.place = Some((topology.clone(), ordinal));
        self
    }

    /// Builds the device.
    pub fn build(self) -> SimDevice {
        let capabilities = Capabilities {
            kind: DeviceKind::Sim,
            name: "sim".to_owned(),
            ordinal: self.place.as_ref().map_or(0, |(_, ordinal)| *ordinal),
            total_memory: self.total_memory - self.total_memory % GRANULARITY,
            granularity: GRANULARITY,
            mapping: self.mapping,
            share_posix_fd: false,
            share_fabric: false,
            rdma: false,
            host: self.host_memory,
            host_numa: self.host_memory,
            stream_values_recur: self.stream_values_recur,
        };
        let first_identity = DEVICES.fetch_add(1, Ordering::Relaxed) << 32;
        let topology = self.place.as_ref().map(|(topology, _)| topology);
        let state = State::new(&capabilities, topology, self.costs, first_identity);
        SimDevice {
            capabilities,
            clock: AtomicU64::new(0),
            state: Mutex::new(state),
            function_ended: Condvar::new(),
        }
    }
}

impl SimDevice {
    /// A device with 141 GB and the default costs.
    pub fn new() -> SimDevice {
        SimDevice::builder().build()
    }

    /// A device of another kind.
    pub fn builder() -> SimDeviceBuilder {
        SimDeviceBuilder {
            total_memory: DEFAULT_MEMORY,
            costs: CostTable::default(),
            mapping: true,
            stream_values_recur: false,
            host_memory: false,
            place: None,
        }
    }

    // --- Doors for replays -------------------------------------------------------------------

    /// Moves the host's clock to this time, in nanoseconds, unless it is past it: the host did
    /// something else. Runs the host functions that become due.
    pub fn advance_host_to(&self, time: u64) {
        let mut state = self.lock_idle();
        state.now = state.now.max(time);
        self.leave(state);
    }

    /// Moves the host's clock by this time, in nanoseconds. Runs the host functions that become
    /// due.
    pub fn advance_host_by(&self, duration: u64) {
        let mut state = self.lock_idle();
        state.advance(duration);
        self.leave(state);
    }

    /// Queues work that lasts `duration` nanoseconds and touches no memory; gives the time at which
    /// it ends. Costs the host nothing.
    ///
    /// To bring a stream to a recorded point, queue what is left to it: the recorded time, less the
    /// latest of the stream's previous point, the event it waited for, and the host's time then.
    ///
    /// # Errors
    ///
    /// Invalid handle (400) if there is no such stream; illegal address (700) after a fault.
    pub fn enqueue_work(&self, stream: StreamId, duration: u64) -> Result<u64, DeviceError> {
        self.call(LAUNCH, |state| {
            let slot = state.streams.find(LAUNCH, stream)?;
            let (_, end) = state.streams.enqueue(slot, state.now, duration);
            Ok(end)
        })
    }

    /// When all that is queued on the stream is over, in nanoseconds of the host's clock; in the
    /// past, or 0, if it is. `None` if there is no such stream.
    pub fn stream_ready_at(&self, stream: StreamId) -> Option<u64> {
        let mut state = self.lock_idle();
        let slot = state.streams.find(LAUNCH, stream).ok()?;
        Some(state.streams.ready_at(slot))
    }

    /// When the event's last record completes, in nanoseconds of the host's clock. `None` if it was
    /// never recorded, or there is no such event.
    pub fn event_completed_at(&self, event: EventId) -> Option<u64> {
        let state = self.lock_idle();
        state.completes(Call::QueryEvent, event).ok().flatten()
    }

    // --- Going in and out --------------------------------------------------------------------

    /// Makes a call: refuses it on a lost device, and runs what became due by it.
    #[inline]
    fn call<T>(
        &self,
        call: Call,
        make: impl FnOnce(&mut State) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        let mut state = self.lock();
        if state.running.is_some() {
            state = self.wait_for_function(call, state)?;
        }
        let result = state.check_fault(call).and_then(|()| make(&mut state));
        self.leave(state);
        result
    }

    #[inline]
    fn leave<'a>(&'a self, state: MutexGuard<'a, State>) {
        self.clock.store(state.now, Ordering::Release);
        if state.function_is_due() {
            self.run_due_functions(state);
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the host function that runs, so that no other thread sees its stream past it.
    #[cold]
    fn wait_for_function<'a>(
        &self,
        call: Call,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, DeviceError> {
        while let Some(thread) = state.running {
            if thread == thread::current().id() {
                return Err(DeviceError::new(
                    call,
                    Status::NOT_PERMITTED,
                    "a host function must not call the device",
                ));
            }
            state = self
                .function_ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    /// For the doors that are no calls: waits for a host function, unless it is the caller.
    fn lock_idle(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        if state.running.is_none() {
            return state;
        }
        match self.wait_for_function(LAUNCH, state) {
            Ok(state) => state,
            Err(_) => self.lock(),
        }
    }

    #[cold]
    fn run_due_functions<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        let me = thread::current().id();
        loop {
            while state.running.is_some_and(|thread| thread != me) {
                state = self
                    .function_ended
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if state.running.is_some() {
                // A host function moved the clock itself; the loop that runs it goes on with what
                // became due.
                return;
            }
            let Some(function) = state.take_due_function() else {
                return;
            };
            state.running = Some(me);
            drop(state);
            let running = Running(self);
            function();
            drop(running);
            state = self.lock();
        }
    }
}

/// A kernel launch, as what work without bytes is reported.
const LAUNCH: Call = Call::Verify;

/// While it lives, a host function runs; a function that panics ends, too.
struct Running<'a>(&'a SimDevice);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running = None;
        self.0.function_ended.notify_all();
    }
}

impl Default for SimDevice {
    fn default() -> SimDevice {
        SimDevice::new()
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("total_memory", &self.capabilities.total_memory)
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
