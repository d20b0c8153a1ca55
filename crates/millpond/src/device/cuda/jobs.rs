//! Host functions on their way through a stream.
//!
//! The driver is given a number, never a pointer: the function itself waits in a table of this
//! process until the driver calls with its number, or until its device gives it up.
//!
//! Invariants: a function is run once or dropped once, whoever comes first; the table's lock is
//! not held while one is run or dropped; no panic leaves a host function.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::device::HostFunction;

/// The host functions of one device.
pub(super) struct Jobs {
    owner: u64,
    unfinished: Arc<AtomicUsize>,
}

struct Job {
    owner: u64,
    function: HostFunction,
    unfinished: Unfinished,
}

/// Counts as an unfinished function until it is dropped.
struct Unfinished(Arc<AtomicUsize>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

static WAITING: LazyLock<Mutex<FxHashMap<u64, Job>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn waiting() -> MutexGuard<'static, FxHashMap<u64, Job>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the calling thread is running a host function.
pub(super) fn inside_host_function() -> bool {
    INSIDE.get()
}

impl Jobs {
    pub(super) fn new() -> Jobs {
        Jobs {
            owner: NEXT.fetch_add(1, Ordering::Relaxed),
            unfinished: Arc::default(),
        }
    }

    /// Puts a function into the table and gives what the driver is to call [`run`] with.
    pub(super) fn add(&self, function: HostFunction) -> Ticket {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let job = Job {
            owner: self.owner,
            function,
            unfinished: Unfinished(Arc::clone(&self.unfinished)),
        };
        waiting().insert(number, job);
        Ticket(number)
    }

    /// Takes a function back that the driver was not given after all.
    pub(super) fn cancel(&self, ticket: Ticket) {
        let job = waiting().remove(&ticket.0);
        drop(job);
    }

    /// Functions that are waiting or running.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::Acquire)
    }

    /// Drops all functions that still wait: in a context that failed, or with a driver that is
    /// gone, nobody will call them.
    pub(super) fn abandon(&self) {
        let abandoned: Vec<Job> = {
            let mut waiting = waiting();
            waiting
                .extract_if(|_, job| job.owner == self.owner)
                .map(|(_, job)| job)
                .collect()
        };
        drop(abandoned);
    }
}

/// The number of a waiting function.
#[derive(Clone, Copy)]
pub(super) struct Ticket(u64);

impl Ticket {
    /// The number as the driver carries it.
    pub(super) fn user_data(self) -> *mut c_void {
        // Pointers are 64 bits wide here (see `types`), and this one is never followed.
        ptr::without_provenance_mut(self.0 as usize)
    }
}

/// What the driver calls on a thread of its own.
pub(super) unsafe extern "C" fn run(user_data: *mut c_void) {
    let job = waiting().remove(&(user_data.addr() as u64));
    let Some(job) = job else {
        return;
    };
    let outer = INSIDE.replace(true);
    let Job {
        function,
        unfinished,
        ..
    } = job;
    if let Err(payload) = catch_unwind(AssertUnwindSafe(function)) {
        tracing::error!("a host function panicked; the stream goes on");
        // Dropping the payload could panic again, and no panic may reach the driver.
        mem::forget(payload);
    }
    INSIDE.set(outer);
    drop(unfinished);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Says when it is dropped.
    struct Witness(Arc<AtomicUsize>);

    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_function_runs_once_however_often_it_is_called() {
        let jobs = Jobs::new();
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let ticket = jobs.add(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(jobs.unfinished(), 1);
        for _ in 0..2 {
            // SAFETY: `run` follows no pointer.
            unsafe { run(ticket.user_data()) };
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        assert_eq!(jobs.unfinished(), 0);
    }

    #[test]
    fn an_abandoned_function_is_dropped_and_never_runs() {
        let (jobs, other) = (Jobs::new(), Jobs::new());
        let dropped = Arc::new(AtomicUsize::new(0));
        let ran = Arc::new(AtomicBool::new(false));
        let mut tickets = Vec::new();
        for owner in [&jobs, &jobs, &other] {
            let (witness, ran) = (Witness(Arc::clone(&dropped)), Arc::clone(&ran));
            tickets.push(owner.add(Box::new(move || {
                let _witness = &witness;
                ran.store(true, Ordering::Relaxed);
            })));
        }
        jobs.abandon();
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
        assert_eq!((jobs.unfinished(), other.unfinished()), (0, 1));
        // SAFETY: `run` follows no pointer.
        unsafe { run(tickets[0].user_data()) };
        assert!(!ran.load(Ordering::Relaxed));
        other.cancel(tickets[2]);
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        assert_eq!(other.unfinished(), 0);
    }

    #[test]
    fn a_panic_stays_inside() {
        let jobs = Jobs::new();
        let ticket = jobs.add(Box::new(|| panic!("on purpose")));
        // SAFETY: `run` follows no pointer.
        unsafe { run(ticket.user_data()) };
        assert_eq!(jobs.unfinished(), 0);
        assert!(!inside_host_function());
    }

    #[test]
    fn a_function_knows_that_it_is_one() {
        let jobs = Jobs::new();
        let seen = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&seen);
        let ticket = jobs.add(Box::new(move || {
            told.store(inside_host_function(), Ordering::Relaxed);
        }));
        // SAFETY: `run` follows no pointer.
        unsafe { run(ticket.user_data()) };
        assert!(seen.load(Ordering::Relaxed));
        assert!(!inside_host_function());
    }
}
