//! The threads that do the streams' work, and the failure that ends it.
//!
//! Work that touches what it may not fails the device for good: what is queued then is not done,
//! only counted as over, so that nobody waits for ever; and every later call says why.
#![forbid(unsafe_code)]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::delays::Delays;
use super::queue::{Operation, Queue};
use super::space::AddressSpace;
use super::work::{self, Reach};
use crate::device::{Call, DeviceError, Status, Topology};

/// Host functions are the program's own and run on these stacks.
const STACK: usize = 1 << 20;

/// What all workers of a device share.
pub(super) struct Worker {
    pub(super) space: AddressSpace,
    pub(super) delays: Option<Delays>,
    /// The other devices, and this one's ordinal among them.
    place: Option<(Topology, u32)>,
    failure: OnceLock<Failure>,
}

struct Failure {
    status: Status,
    detail: String,
}

impl Worker {
    pub(super) fn new(
        space: AddressSpace,
        delays: Option<Delays>,
        place: Option<(Topology, u32)>,
    ) -> Worker {
        Worker {
            space,
            delays,
            place,
            failure: OnceLock::new(),
        }
    }

    /// Lets other devices reach this one's bytes.
    pub(super) fn join_topology(self: &Arc<Worker>) {
        if let Some((topology, ordinal)) = &self.place {
            let worker: Weak<Worker> = Arc::downgrade(self);
            topology.keep(*ordinal, worker);
        }
    }

    /// Where the bytes at an address are: with another device, if they are mapped there for this
    /// one, else here.
    fn reach(&self, address: u64) -> Reach<'_> {
        let peer = self.place.as_ref().and_then(|(topology, ordinal)| {
            let keeper = topology.keeper_of(address)?.downcast::<Worker>().ok()?;
            let own = std::ptr::eq(Arc::as_ptr(&keeper), self);
            (!own).then_some(Reach::Peer(keeper, *ordinal))
        });
        peer.unwrap_or(Reach::Own(&self.space))
    }

    /// Fails if work failed earlier (rules 4 and 10).
    pub(super) fn check(&self, call: Call) -> Result<(), DeviceError> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(DeviceError::new(
                call,
                failure.status,
                failure.detail.clone(),
            )),
        }
    }

    fn fail(&self, queue: &Queue, error: &DeviceError) {
        let DeviceError {
            call,
            status,
            detail,
        } = error;
        let detail = format!(
            "earlier work failed, and the device is lost: {call} on stream {}: {detail}",
            queue.stream
        );
        // The first failure is the one that is told.
        let _ = self.failure.set(Failure {
            status: *status,
            detail,
        });
    }

    fn run(&self, queue: &Queue) {
        while let Some(queued) = queue.next() {
            if let (Some(delays), Some(index)) = (&self.delays, queued.index) {
                let delay = delays.of(queue.ordinal, index);
                if delay > Duration::ZERO {
                    thread::sleep(delay);
                }
            }
            // The program's own code may panic, where it is called and where it is dropped.
            let done = catch_unwind(AssertUnwindSafe(|| self.perform(queued.operation)));
            let done = done.unwrap_or_else(|_| {
                let detail = "the host function panicked";
                Err(DeviceError::new(
                    Call::HostFunction,
                    Status::LAUNCH_FAILED,
                    detail,
                ))
            });
            if let Err(error) = done {
                self.fail(queue, &error);
            }
            queue.complete();
        }
    }

    fn perform(&self, operation: Operation) -> Result<(), DeviceError> {
        if self.failure.get().is_some() {
            return Ok(());
        }
        match operation {
            Operation::Wait(mark) => {
                mark.wait();
                Ok(())
            }
            Operation::Fill {
                address,
                size,
                pattern,
            } => work::fill(&self.reach(address), address, size, pattern),
            Operation::Verify {
                address,
                size,
                pattern,
                findings,
            } => work::verify(&self.reach(address), address, size, pattern, &findings),
            Operation::Copy {
                destination,
                source,
                size,
            } => {
                let (from, to) = (self.reach(source), self.reach(destination));
                work::copy((&to, destination), (&from, source), size)
            }
            Operation::Function(function) => {
                function();
                Ok(())
            }
        }
    }
}

/// Starts the thread of a stream. It ends when the queue is closed and empty.
pub(super) fn start(worker: &Arc<Worker>, queue: &Arc<Queue>) -> io::Result<JoinHandle<()>> {
    let worker = Arc::clone(worker);
    let queue = Arc::clone(queue);
    thread::Builder::new()
        .name(format!("stream-{}", queue.ordinal))
        .stack_size(STACK)
        .spawn(move || worker.run(&queue))
}
