//! Everything that changes on a sim: the host's clock, memory, streams, events, and what is due.
//!
//! # Invariants
//!
//! - The host's clock never goes back.
//! - An event is the time at which its last record completes. So a wait resolves when it is
//!   queued, as rule 9 asks.
//! - `next_function_at` is the time of the first of `functions`, or `u64::MAX`.
//! - `fault` is there exactly if `fault_at` is not `u64::MAX`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::ThreadId;

use rustc_hash::FxHashMap;

use super::calls::address_space;
use super::costs::{Cost, CostTable};
use super::streams::{Slot, Streams};
use crate::device::emulation::MemoryRules;
use crate::device::{
    Call, Capabilities, DeviceError, EventId, HandleId, HostFunction, Status, Topology,
};

/// See the [module](self).
pub(super) struct State {
    pub(super) costs: CostTable,
    pub(super) memory: MemoryRules,
    pub(super) streams: Streams,
    /// The host's clock, in nanoseconds.
    pub(super) now: u64,
    /// The thread that runs a host function now.
    pub(super) running: Option<ThreadId>,

    /// Where plain allocations, and reservations, may lie.
    pub(super) allocations: Range<u64>,
    pub(super) reservations: Range<u64>,
    next_handle: u64,
    /// When each event's last record completes; `None` before its first.
    events: FxHashMap<EventId, Option<u64>>,
    next_event: u64,
    /// By time, then by the order in which they were queued.
    functions: BTreeMap<(u64, u64), HostFunction>,
    next_function: u64,
    next_function_at: u64,
    /// When the last work through a mapping or an allocation ends, by the address it begins at.
    last_use_end: FxHashMap<u64, u64>,
    fault_at: u64,
    fault: Option<DeviceError>,
}

impl State {
    pub(super) fn new(
        capabilities: &Capabilities,
        topology: Option<&Topology>,
        costs: CostTable,
        first_identity: u64,
    ) -> State {
        let part = topology.map(|_| capabilities.ordinal);
        let (allocations, reservations) = address_space(part);
        let first_value = u64::from(part.unwrap_or(0)) << 32;
        State {
            allocations,
            reservations,
            costs,
            memory: MemoryRules::new(capabilities).in_topology(topology),
            streams: Streams::new(
                capabilities.stream_values_recur,
                first_value,
                first_identity,
            ),
            now: 0,
            running: None,
            next_handle: 1,
            events: FxHashMap::default(),
            next_event: 1,
            functions: BTreeMap::new(),
            next_function: 0,
            next_function_at: u64::MAX,
            last_use_end: FxHashMap::default(),
            fault_at: u64::MAX,
            fault: None,
        }
    }

    // --- The host's clock --------------------------------------------------------------------

    pub(super) fn pay(&mut self, cost: Cost) {
        self.advance(cost.0);
    }

    pub(super) fn advance(&mut self, ns: u64) {
        self.now = self.now.saturating_add(ns);
    }

    /// The host waits for work that ends at this time; fails if the device is lost before.
    pub(super) fn wait_until(&mut self, call: Call, time: u64) -> Result<(), DeviceError> {
        self.now = self.now.max(time);
        self.check_fault(call)
    }

    // --- Faults ------------------------------------------------------------------------------

    /// Fails if the host's clock has come to the time of a fault.
    pub(super) fn check_fault(&self, call: Call) -> Result<(), DeviceError> {
        match &self.fault {
            Some(fault) if self.fault_at <= self.now => Err(DeviceError::new(
                call,
                fault.status,
                format!(
                    "the device is lost, since {} failed: {}",
                    fault.call, fault.detail
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Work faults at this time. The earliest fault is the one that is told.
    pub(super) fn fault(&mut self, at: u64, error: DeviceError) {
        if at < self.fault_at {
            self.fault_at = at;
            self.fault = Some(error);
        }
    }

    // --- Handles and uses of memory ----------------------------------------------------------

    pub(super) fn new_handle(&mut self) -> HandleId {
        let handle = HandleId(self.next_handle);
        self.next_handle += 1;
        handle
    }

    /// Work through this mapping or allocation ends at this time.
    pub(super) fn note_use(&mut self, base: u64, end: u64) {
        let last = self.last_use_end.entry(base).or_insert(0);
        *last = end.max(*last);
    }

    /// Forgets a mapping's or an allocation's uses; gives when the last one ends.
    pub(super) fn take_last_use_end(&mut self, base: u64) -> u64 {
        self.last_use_end.remove(&base).unwrap_or(0)
    }

    // --- Events ------------------------------------------------------------------------------

    pub(super) fn create_event(&mut self) -> EventId {
        let event = EventId(self.next_event);
        self.next_event += 1;
        self.events.insert(event, None);
        event
    }

    pub(super) fn destroy_event(&mut self, event: EventId) -> Result<(), DeviceError> {
        match self.events.remove(&event) {
            Some(_) => Ok(()),
            None => Err(no_event(Call::DestroyEvent, event)),
        }
    }

    /// Pays for a record and makes it.
    pub(super) fn record(&mut self, event: EventId, slot: Slot) -> Result<(), DeviceError> {
        let completes = self
            .events
            .get_mut(&event)
            .ok_or_else(|| no_event(Call::RecordEvent, event))?;
        self.now = self.now.saturating_add(self.costs.record_event.0);
        let (_, end) = self.streams.enqueue(slot, self.now, 0);
        *completes = Some(end);
        Ok(())
    }

    /// When the event's last record completes; `None` if it was never recorded.
    pub(super) fn completes(&self, call: Call, event: EventId) -> Result<Option<u64>, DeviceError> {
        match self.events.get(&event) {
            Some(&completes) => Ok(completes),
            None => Err(no_event(call, event)),
        }
    }

    // --- Host functions ----------------------------------------------------------------------

    pub(super) fn add_function(&mut self, slot: Slot, function: HostFunction) {
        let (_, at) = self.streams.enqueue(slot, self.now, 0);
        self.functions.insert((at, self.next_function), function);
        self.next_function += 1;
        self.next_function_at = self.next_function_at.min(at);
    }

    pub(super) fn function_is_due(&self) -> bool {
        self.next_function_at <= self.now
    }

    /// The next host function whose time has come. From a fault on none is called (DRV
    /// `cuLaunchHostFunc`: not called in the event of an error).
    pub(super) fn take_due_function(&mut self) -> Option<HostFunction> {
        let next = self.functions.first_entry()?;
        let at = next.key().0;
        if at > self.now || at >= self.fault_at {
            return None;
        }
        let function = next.remove();
        self.next_function_at = self
            .functions
            .first_key_value()
            .map_or(u64::MAX, |(key, _)| key.0);
        Some(function)
    }
}

fn no_event(call: Call, event: EventId) -> DeviceError {
    DeviceError::new(
        call,
        Status::INVALID_HANDLE,
        format!(
            "{} is not an event of this device, or was destroyed",
            event.0
        ),
    )
}
