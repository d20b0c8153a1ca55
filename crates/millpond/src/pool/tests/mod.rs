//! The pool on the sim device. What random sequences find is in the checker's crate; here are the
//! cases that somebody thought of, each under the name of what must not happen again.

mod access;
mod attributes;
mod drafts;
mod faults;
mod fronts;
mod gone;
mod graph_faults;
mod graph_limits;
mod graph_threads;
mod graphs;
mod growing;
mod holding;
mod life;
mod limits;
mod misuse;
mod never_wait;
mod placement;
mod sanitizer;
mod sanitizer_random;
mod small;
mod streams;
mod threads;
mod trim;
mod uses;

use std::sync::{Arc, Mutex};

use crate::device::sim::SimDevice;
use crate::device::{Call, CallRecord, Device, Faults, Observed, Observer, Outcome, StreamId};
use crate::pool::Waits;
use crate::{Block, Pool};

const MIB: u64 = 1 << 20;

/// A pool on a sim of this many bytes, everything that can be seen of it, and faults to inject.
struct Bench {
    sim: Arc<SimDevice>,
    device: Arc<dyn Device>,
    log: Arc<Log>,
    pool: Pool,
}

impl Bench {
    fn new(total: u64) -> Bench {
        Bench::with_faults(total, Faults::none()).0
    }

    fn with_faults(total: u64, faults: Faults) -> (Bench, Arc<Faults>) {
        let sim = Arc::new(SimDevice::builder().total_memory(total).build());
        let faults = Arc::new(faults);
        let log = Arc::new(Log::default());
        let observers: Vec<Arc<dyn Observer>> =
            vec![Arc::clone(&faults) as _, Arc::clone(&log) as _];
        let device: Arc<dyn Device> = Arc::new(Observed::new(Arc::clone(&sim) as _, observers));
        let builder = Pool::builder(Arc::clone(&device)).waits(Waits::TimeFirst);
        let pool = builder.build().unwrap();
        (
            Bench {
                sim,
                device,
                log,
                pool,
            },
            faults,
        )
    }

    fn stream(&self) -> StreamId {
        self.sim
            .create_stream(crate::device::StreamOrder::Independent)
            .unwrap()
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Block {
        self.pool.allocate(size, stream).unwrap()
    }

    fn check(&self) {
        self.pool.validate().unwrap();
    }
}

/// What is done before each call of a kind.
type Hook = Option<(Call, Box<dyn Fn() + Send + Sync>)>;

/// The calls that succeeded, in order.
#[derive(Default)]
struct Log {
    calls: Mutex<Vec<CallRecord>>,
    hook: Mutex<Hook>,
}

impl Log {
    fn count(&self, call: Call) -> usize {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|record| record.call() == call)
            .count()
    }

    fn total(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl Observer for Log {
    fn before(&self, call: &CallRecord) -> Result<(), crate::device::DeviceError> {
        if let Some((kind, hook)) = &*self.hook.lock().unwrap()
            && call.call() == *kind
        {
            hook();
        }
        Ok(())
    }

    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, _: u64, _: u64) {
        if !matches!(outcome, Outcome::Failed(_)) {
            self.calls.lock().unwrap().push(call.clone());
        }
    }
}
