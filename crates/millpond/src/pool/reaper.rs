//! Pools that are gone for the program, and whose memory may still be in use: who gives it back,
//! and when.
//!
//! A pool goes when its last clone and its last block do, or earlier when it is destroyed
//! ([`Pool::destroy`]). Nobody waits for the work that may still use its memory (DRV
//! `cuMemPoolDestroy`: it returns at once). What cannot be given back at that moment is kept here,
//! and given back piece by piece, as uses are seen to be completed, by
//!
//! - the next call of any pool of the same device that calls the device itself: one that grows,
//!   waits, synchronises, trims, builds a pool or ends one;
//! - [`reap`], whenever the program likes;
//! - a thread, for those who ask for one ([`Reaper`]).
//!
//! What only a synchronisation of the whole device can settle (work of streams that were destroyed
//! unannounced, memory of graphs) waits for the next [`Pool::synchronize`] on the device, for
//! [`reap_waiting`], or for the thread.
//!
//! # Invariants
//!
//! 1. Memory of a pool in the list is taken away by the same steps, and for the same reasons, as in
//!    a trim: nothing is unmapped that is not known to be done with.
//! 2. The list's lock is held while nothing else is locked and no device is called.
//! 3. Where the device can no longer be asked (the driver is gone with the process, the process is
//!    a fork, or the device is lost), nothing is called any more: the process's end takes the
//!    memory.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::graphs::Arena;
use super::streams::Marking;
use super::{Inner, Pool};
use crate::device::{Device, DeviceError, Status};
use crate::order::Clock;

/// Pools whose memory is to be given back. Not of `sync`: it is touched by whoever comes by, and
/// nothing of a pool is touched under its lock.
static GOING: Mutex<Vec<Arc<Inner>>> = Mutex::new(Vec::new());

/// How many they are, for those who only want to know if there are any.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Told when there are more of them.
static MORE: Condvar = Condvar::new();

/// How often a thread looks whether the last blocks of a destroyed pool were freed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn list() -> MutexGuard<'static, Vec<Arc<Inner>>> {
    GOING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn same_device(one: &Arc<dyn Device>, other: &Arc<dyn Device>) -> bool {
    Arc::as_ptr(one).cast::<()>() == Arc::as_ptr(other).cast::<()>()
}

/// Those of a device.
fn going(device: &Arc<dyn Device>) -> Vec<Arc<Inner>> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let list = list();
    let of_device = list
        .iter()
        .filter(|inner| same_device(&inner.device, device));
    of_device.map(Arc::clone).collect()
}

/// Whether the device will not answer this process any more.
fn is_beyond(error: &DeviceError) -> bool {
    error.status.is_sticky() || error.status == Status::NOT_INITIALIZED
}

/// Takes a pool that is gone for the program.
pub(super) fn take(inner: Arc<Inner>) {
    if inner.settle() {
        return;
    }
    let mut list = list();
    list.push(inner);
    COUNT.store(list.len(), Ordering::Relaxed);
    MORE.notify_all();
}

/// Gives back what pools of this device that are gone have left, as far as it is known to be done
/// with. Waits for nothing. Gives how many such pools still have memory.
pub fn reap(device: &Arc<dyn Device>) -> usize {
    let going = going(device);
    let (settled, left): (Vec<_>, Vec<_>) = going.into_iter().partition(|inner| inner.settle());
    remove(&settled);
    left.len()
}

/// As [`reap`], after waiting for the device's work. What is left are destroyed pools with live
/// blocks, and what the device refuses to take.
///
/// # Errors
///
/// What the device said when it was waited for.
pub fn reap_waiting(device: &Arc<dyn Device>) -> Result<usize, DeviceError> {
    let awaited = Awaited::before(device, None);
    if !awaited.0.is_empty() {
        device.synchronize()?;
        awaited.over();
    }
    Ok(reap(device))
}

fn remove(settled: &[Arc<Inner>]) {
    if settled.is_empty() {
        return;
    }
    let mut list = list();
    let (gone, kept) = std::mem::take(&mut *list)
        .into_iter()
        .partition::<Vec<_>, _>(|inner| settled.iter().any(|s| Arc::ptr_eq(s, inner)));
    *list = kept;
    COUNT.store(list.len(), Ordering::Relaxed);
    drop(list);
    // Their end may call the device.
    drop(gone);
}

/// What pools that are gone know to be over when a synchronisation of their device is.
pub(super) struct Awaited(Vec<(Arc<Inner>, Clock, Vec<Arc<Arena>>)>);

impl Awaited {
    /// To be taken before the device is waited for. Not of the pool that waits itself.
    pub(super) fn before(device: &Arc<dyn Device>, waits: Option<&Inner>) -> Awaited {
        let others = going(device)
            .into_iter()
            .filter(|inner| waits.is_none_or(|waits| !std::ptr::eq(Arc::as_ptr(inner), waits)));
        Awaited(
            others
                .map(|inner| {
                    let graphs = inner.take_unused_graphs();
                    let everything = inner.lock().order.everything();
                    (inner, everything, graphs)
                })
                .collect(),
        )
    }

    /// The device had nothing left to do.
    pub(super) fn over(mut self) {
        for (inner, everything, graphs) in self.0.drain(..) {
            {
                let mut state = inner.lock();
                state.order.synchronized_knowledge(&everything);
                state.settle_finished_streams();
            }
            inner.close_graphs(graphs);
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        for (inner, _, graphs) in self.0.drain(..) {
            inner.keep_graphs(graphs);
        }
    }
}

impl Inner {
    /// Memory of graphs that can be closed when the device was synchronised: of a pool that is
    /// gone, all of it.
    pub(super) fn take_unused_graphs(&self) -> Vec<Arc<Arena>> {
        if self.abandoned {
            self.graphs.take_all()
        } else {
            self.graphs.take_closable()
        }
    }

    /// Gives back what is known to be done with. Whether that was all, or all that ever will be.
    fn settle(&self) -> bool {
        self.observe(Marking::All);
        if let Err(error) = self.trim_to(0) {
            tracing::debug!(%error, "memory of a pool that is gone could not be given back yet");
        }
        let blocks = {
            let state = self.lock();
            if state.pages.reserved() == 0 && !self.graphs.any() {
                return true;
            }
            state.blocks.count() + state.in_fronts().live.blocks
        };
        if blocks > 0 {
            return false;
        }
        // A device that is lost answers no question; nothing of it will ever be over.
        match self.device.memory_info() {
            Err(error) if is_beyond(&error) => {
                if error.status != Status::DEINITIALIZED {
                    tracing::warn!(%error, "a pool's memory stays until the process ends");
                }
                self.lock().given_up = true;
                true
            }
            _ => false,
        }
    }

    /// Waits on the host for something that keeps memory of a pool that is gone. Whether there was
    /// anything.
    fn wait_for_something(&self) -> Result<bool, DeviceError> {
        let (oldest, lost) = {
            let state = self.lock();
            (state.order.oldest_markers(), state.order.has_lost_work())
        };
        if let Some(marker) = oldest.first() {
            self.await_marker(marker)?;
            return Ok(true);
        }
        let needs_all = lost || (self.abandoned && self.graphs.any()) || self.graphs.any_closable();
        if needs_all {
            self.synchronize()?;
        }
        Ok(needs_all)
    }
}

/// A thread that gives back the memory of pools that are gone, on all devices, as soon as the work
/// that may use it is over. Dropping it ends the thread, after the wait that it is in.
#[derive(Debug)]
pub struct Reaper {
    stop: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// What the system said if it gives no thread.
    pub fn start() -> io::Result<Reaper> {
        let stop = Arc::new(AtomicUsize::new(0));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("millpond-reaper".to_owned())
            .spawn(move || run(&told))?;
        Ok(Reaper {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        {
            // Under the lock, so that the thread cannot miss it between looking and sleeping.
            let _list = list();
            self.stop.store(1, Ordering::Release);
            MORE.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            // A panic there was told when it happened.
            let _ = thread.join();
        }
    }
}

fn run(stop: &AtomicUsize) {
    loop {
        let all: Vec<Arc<Inner>> = {
            let mut list = list();
            loop {
                if stop.load(Ordering::Acquire) > 0 {
                    return;
                }
                if !list.is_empty() {
                    break list.clone();
                }
                list = MORE.wait(list).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let mut moved = false;
        for inner in all {
            if inner.settle() {
                remove(&[inner]);
                moved = true;
            } else if stop.load(Ordering::Acquire) == 0 {
                // An error is the next look's to judge.
                moved |= inner.wait_for_something().unwrap_or(false);
            }
        }
        if !moved {
            let list = list();
            if stop.load(Ordering::Acquire) == 0 {
                let waited = MORE.wait_timeout(list, LOOK_AGAIN);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

impl Pool {
    /// Destroys the pool (`cuMemPoolDestroy`): returns at once. Requests to any clone of it fail
    /// from now on ([`AllocError::Destroyed`](super::AllocError::Destroyed)); its blocks stay as
    /// they are, can be used, and are freed as ever: by dropping them, through a clone, or through
    /// the [`Pools`](crate::pools::Pools) that it belongs to. Its memory goes back to the device as
    /// they are freed and done with, by whoever reaps: see [`reap`]. To destroy it again does
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`PoolError::DefaultPool`](super::PoolError::DefaultPool): a device's default pool stays.
    pub fn destroy(&self) -> Result<(), super::PoolError> {
        if self.inner.is_default {
            return Err(super::PoolError::DefaultPool);
        }
        if !self.inner.destroyed.swap(true, Ordering::AcqRel) {
            take(Arc::clone(&self.inner));
        }
        Ok(())
    }

    /// Whether the pool was destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.inner.destroyed.load(Ordering::Acquire)
    }
}
