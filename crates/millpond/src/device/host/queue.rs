//! One stream's queue of operations, and marks in it.
//!
//! Operations are numbered from 1 in the order they were queued, and completed in that order by
//! one worker thread. A [`Mark`] is a queue and a number: the work up to there. Since a mark only
//! ever names work queued earlier, waiting for marks cannot close a circle.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::{Findings, HostFunction, Pattern, StreamId};

/// Something for a stream to do.
pub(super) enum Operation {
    /// Wait for work of another stream.
    Wait(Mark),
    /// Fill a range.
    Fill {
        address: u64,
        size: u64,
        pattern: Pattern,
    },
    /// Compare a range with a pattern.
    Verify {
        address: u64,
        size: u64,
        pattern: Pattern,
        findings: Arc<Findings>,
    },
    /// Copy one range to another.
    Copy {
        destination: u64,
        source: u64,
        size: u64,
    },
    /// Call back.
    Function(HostFunction),
}

/// An operation in its queue.
pub(super) struct Queued {
    /// What to do.
    pub(super) operation: Operation,
    /// Which of the stream's operations it is, waits not counted: whether a wait is needed at all
    /// can depend on timing.
    pub(super) index: Option<u64>,
}

/// A stream's operations that are not done yet.
pub(super) struct Queue {
    /// The stream's handle value, for messages.
    pub(super) stream: StreamId,
    /// Which of the device's streams it is, in order of creation.
    pub(super) ordinal: u64,
    state: Mutex<State>,
    /// Told when an operation is queued, or the queue is closed.
    work: Condvar,
    /// Told when an operation is completed.
    progress: Condvar,
    /// Operations completed.
    completed: AtomicU64,
}

struct State {
    operations: VecDeque<Queued>,
    /// Operations queued so far.
    queued: u64,
    /// Of these, all but the waits.
    indexed: u64,
    /// A worker was started.
    worker: bool,
    /// The worker waits for work. (Telling nobody costs a system call as well.)
    idle: bool,
    /// How many wait for progress.
    waiting: usize,
    /// Nothing more will be queued.
    closed: bool,
}

impl Queue {
    pub(super) fn new(stream: StreamId, ordinal: u64) -> Arc<Queue> {
        Arc::new(Queue {
            stream,
            ordinal,
            state: Mutex::new(State {
                operations: VecDeque::new(),
                queued: 0,
                indexed: 0,
                worker: false,
                idle: false,
                waiting: 0,
                closed: false,
            }),
            work: Condvar::new(),
            progress: Condvar::new(),
            completed: AtomicU64::new(0),
        })
    }

    /// Nobody panics while holding the lock, so a poisoned one is as good as any.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no worker was started yet. The caller starts one, then says so.
    pub(super) fn needs_worker(&self) -> bool {
        !self.state().worker
    }

    /// A worker was started.
    pub(super) fn has_worker(&self) {
        self.state().worker = true;
    }

    /// Queues an operation.
    pub(super) fn push(&self, operation: Operation) {
        let mut state = self.state();
        let index = match operation {
            Operation::Wait(_) => None,
            _ => {
                state.indexed += 1;
                Some(state.indexed - 1)
            }
        };
        state.queued += 1;
        state.operations.push_back(Queued { operation, index });
        let idle = state.idle;
        drop(state);
        if idle {
            self.work.notify_one();
        }
    }

    /// Says that nothing more will be queued: the worker ends when all is done.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.work.notify_one();
    }

    /// The next operation for the worker; waits for one. `None`: closed, and all is done.
    pub(super) fn next(&self) -> Option<Queued> {
        let mut state = self.state();
        loop {
            if let Some(queued) = state.operations.pop_front() {
                return Some(queued);
            }
            if state.closed {
                return None;
            }
            state.idle = true;
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle = false;
        }
    }

    /// The worker did the operation that [`Queue::next`] gave.
    pub(super) fn complete(&self) {
        let state = self.state();
        self.completed.fetch_add(1, Ordering::Release);
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.progress.notify_all();
        }
    }

    /// Everything queued so far.
    pub(super) fn mark(self: &Arc<Self>) -> Mark {
        Mark {
            position: self.state().queued,
            queue: Arc::clone(self),
        }
    }
}

/// Work of one stream: everything up to a place in its queue.
#[derive(Clone)]
pub(super) struct Mark {
    queue: Arc<Queue>,
    position: u64,
}

impl Mark {
    /// The place, as the number of the last operation that belongs to it.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether all of it is done.
    pub(super) fn is_completed(&self) -> bool {
        self.queue.completed.load(Ordering::Acquire) >= self.position
    }

    /// Waits until all of it is done.
    pub(super) fn wait(&self) {
        if self.is_completed() {
            return;
        }
        let mut state = self.queue.state();
        state.waiting += 1;
        while !self.is_completed() {
            state = self
                .queue
                .progress
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }
}
