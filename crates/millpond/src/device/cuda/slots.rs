//! Result slots for verifications: two words each, in pinned host memory that the device writes.
//!
//! Invariants: a slot is with one verification at a time; a slot whose verification may still run
//! is never given out; the memory is freed only when no kernel that writes it can still run.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::context::Entered;
use super::types::{HOST_ALLOC_DEVICE_MAP, HOST_ALLOC_PORTABLE};
use crate::device::{Call, DeviceError};

/// What the verifying kernel writes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Verdict {
    pub(super) wrong_bytes: u64,
    pub(super) found_word: u64,
}

/// Slots made at a time: 64 KiB of pinned memory.
const SLOTS_PER_CHUNK: usize = 4096;

/// One slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    host: NonNull<Verdict>,
    /// Its address for the device.
    pub(super) device: u64,
}

// SAFETY: the memory belongs to whoever holds the slot, and is used through volatile accesses.
unsafe impl Send for Slot {}

impl Slot {
    /// Clears the slot, before its kernel is launched.
    pub(super) fn clear(self) {
        // SAFETY: the memory is live (the chunk is freed after the last verification) and belongs
        // to the holder alone.
        unsafe { self.host.as_ptr().write_volatile(Verdict::default()) };
    }

    /// Writes the slot's first word, for a stream that waits for it.
    pub(super) fn set(self, word: u64) {
        // SAFETY: as in `clear`; the device only reads.
        unsafe { self.host.as_ptr().cast::<u64>().write_volatile(word) };
    }

    /// What the kernel wrote. Called when the kernel is done.
    pub(super) fn read(self) -> Verdict {
        // SAFETY: as in `clear`; the device no longer writes.
        unsafe { self.host.as_ptr().read_volatile() }
    }
}

/// A chunk of pinned memory.
struct Chunk(NonNull<c_void>);

// SAFETY: the address of memory that belongs to the process, not to a thread.
unsafe impl Send for Chunk {}

/// All slots of one device.
#[derive(Default)]
pub(super) struct Slots {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<Slot>,
    chunks: Vec<Chunk>,
}

impl Slots {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a cleared slot; makes new ones if none is free.
    pub(super) fn take(&self, entered: &Entered<'_>) -> Result<Slot, DeviceError> {
        let free = self.state().free.pop();
        let slot = match free {
            Some(slot) => slot,
            None => self.grow(entered)?,
        };
        slot.clear();
        Ok(slot)
    }

    /// Takes a slot back whose verification is over.
    pub(super) fn give_back(&self, slot: Slot) {
        self.state().free.push(slot);
    }

    /// Frees the memory. No verification may be under way, and none may follow.
    pub(super) fn free(&self, entered: &Entered<'_>) {
        let state = std::mem::take(&mut *self.state());
        for chunk in state.chunks {
            // SAFETY: the memory came from `cuMemHostAlloc`, and its slots are gone. A failure
            // (the context is lost) leaves nothing to do.
            unsafe { (entered.driver.functions.mem_free_host)(chunk.0.as_ptr()) };
        }
    }

    fn grow(&self, entered: &Entered<'_>) -> Result<Slot, DeviceError> {
        let size = SLOTS_PER_CHUNK * size_of::<Verdict>();
        let asked = || format!("asked for {size} bytes of pinned host memory for results");
        let driver = entered.driver;
        let mut memory = ptr::null_mut();
        // SAFETY: a context is current; `memory` outlives the call.
        let code = unsafe {
            (driver.functions.mem_host_alloc)(
                &raw mut memory,
                size,
                HOST_ALLOC_DEVICE_MAP | HOST_ALLOC_PORTABLE,
            )
        };
        driver.check(Call::Verify, code, asked)?;
        let mut device = 0;
        // SAFETY: a context is current, `memory` was just allocated as mapped, and `device`
        // outlives the call.
        let code =
            unsafe { (driver.functions.mem_host_get_device_pointer)(&raw mut device, memory, 0) };
        let host = driver
            .check(Call::Verify, code, asked)
            .map(|()| NonNull::new(memory.cast::<Verdict>()));
        let Ok(Some(host)) = host else {
            // SAFETY: the memory was just allocated and nobody else has it.
            unsafe { (driver.functions.mem_free_host)(memory) };
            return Err(host.err().unwrap_or_else(|| {
                DeviceError::new(Call::Verify, crate::device::Status::UNKNOWN, asked())
            }));
        };
        let slot = |index: usize| Slot {
            // SAFETY: the index is within the memory just allocated.
            host: unsafe { host.add(index) },
            device: device + (index * size_of::<Verdict>()) as u64,
        };
        let mut state = self.state();
        state.chunks.push(Chunk(host.cast()));
        state.free.extend((1..SLOTS_PER_CHUNK).map(slot));
        Ok(slot(0))
    }
}
