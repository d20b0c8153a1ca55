//! Calls that are overtaken: while the device is called the pool holds no lock, and whatever
//! happens then, the pool must not take it for something else afterwards. Each test lets one
//! thing happen in the middle of one call.

use std::sync::{Arc, Mutex};
use std::thread;

use millpond::Pool;
use millpond::device::sim::SimDevice;
use millpond::device::{
    Call, CallRecord, Device, DeviceError, Observed, Observer, Outcome, Pattern, StreamId,
    StreamOrder,
};
use millpond_check::{Checker, Violation};

use super::MIB;

type Interruption = Box<dyn FnOnce() + Send>;

/// Runs something on another thread in the middle of the next call of one kind: after the device
/// has done it, before the pool sees that.
#[derive(Default)]
struct Interrupt(Mutex<Option<(Call, Interruption)>>);

impl Interrupt {
    fn next(&self, call: Call, happens: impl FnOnce() + Send + 'static) {
        *self.0.lock().expect("no panic under the lock") = Some((call, Box::new(happens)));
    }

    fn happened(&self) -> bool {
        self.0.lock().expect("no panic under the lock").is_none()
    }
}

impl Observer for Interrupt {
    fn before(&self, _: &CallRecord) -> Result<(), DeviceError> {
        Ok(())
    }

    fn after(&self, record: &CallRecord, _: Outcome<'_>, _: u64, _: u64) {
        let taken = {
            let mut next = self.0.lock().expect("no panic under the lock");
            next.take_if(|(call, _)| *call == record.call())
        };
        if let Some((_, happens)) = taken {
            thread::spawn(happens).join().expect("no panic");
        }
    }
}

/// A pool on a sim, with the checker and an interruption between them and it.
#[derive(Clone)]
struct Watched {
    device: Arc<dyn Device>,
    checker: Arc<Checker>,
    interrupt: Arc<Interrupt>,
    pool: Pool,
}

impl Watched {
    fn new(stream_values_recur: bool) -> Watched {
        let builder = SimDevice::builder().total_memory(512 * MIB);
        let sim = builder.stream_values_recur(stream_values_recur).build();
        let checker = Arc::new(Checker::new(sim.capabilities()));
        let interrupt = Arc::new(Interrupt::default());
        let observers: [Arc<dyn Observer>; 2] =
            [Arc::clone(&checker) as _, Arc::clone(&interrupt) as _];
        let device: Arc<dyn Device> = Arc::new(Observed::new(Arc::new(sim), observers.into()));
        let pool = Pool::builder(Arc::clone(&device)).streams_declared();
        Watched {
            device,
            checker,
            interrupt,
            pool: pool.build().expect("a pool"),
        }
    }

    fn stream(&self) -> StreamId {
        let stream = self.device.create_stream(StreamOrder::Independent);
        stream.expect("a stream")
    }

    /// Allocates, and queues work that uses the block. Fails if a rule is broken.
    fn block(&self, size: u64, stream: StreamId) -> u64 {
        let block = self.pool.allocate(size, stream).expect("memory");
        let address = block.into_raw();
        let broken: Vec<Violation> = self.checker.allocated(address, size, 256, stream);
        assert_eq!(broken, []);
        // Enough that it is not over when the test asks.
        for _ in 0..100 {
            let filled = self.device.fill(stream, address, size, Pattern(1));
            filled.expect("work");
        }
        address
    }

    fn free(&self, address: u64) {
        self.checker.freeing(address).expect("a live block");
        self.pool.free(address).expect("a free");
    }

    fn end(&self, stream: StreamId) {
        self.checker.stream_ends(stream);
        self.pool.stream_destroyed(stream).expect("declared");
        self.device.destroy_stream(stream).expect("destroyed");
    }
}

/// Work that a live block's stream was given before it was destroyed is not over because the
/// stream had freed nothing by then.
#[test]
fn a_block_that_outlives_its_stream_is_still_in_use() {
    let watched = Watched::new(false);
    let (gone, other) = (watched.stream(), watched.stream());
    let address = watched.block(64 * MIB, gone);
    watched.end(gone);
    watched.free(address);
    watched.block(64 * MIB, other);
}

/// A synchronisation covers the streams that were there when it began, not one that has taken the
/// place of such a stream meanwhile.
#[test]
fn a_synchronisation_covers_no_stream_that_came_later() {
    let watched = Watched::new(false);
    let (gone, other) = (watched.stream(), watched.stream());
    for _ in 0..8 {
        let address = watched.block(64 * MIB, gone);
        watched.free(address);
    }
    let meanwhile = watched.clone();
    watched.interrupt.next(Call::Synchronize, move || {
        let watched = meanwhile;
        watched.end(gone);
        watched.pool.synchronize().expect("synchronised");
        let later = watched.stream();
        let address = watched.block(64 * MIB, later);
        watched.free(address);
    });
    watched.pool.synchronize().expect("synchronised");
    assert!(watched.interrupt.happened());
    watched.block(64 * MIB, other);
}

/// A record that was on its way when its stream was destroyed, and made on the stream that has the
/// same value now, stands for nothing that the old one did.
#[test]
fn a_record_on_a_successor_stands_for_nothing() {
    let watched = Watched::new(true);
    let (gone, other) = (watched.stream(), watched.stream());
    let small = watched.block(256, gone);
    let first = watched.block(4 * MIB, gone);
    // A live block between the two, so that they do not become one when they are free.
    watched.block(4 * MIB, other);
    let large = watched.block(64 * MIB, gone);
    let meanwhile = watched.clone();
    watched.free(first);
    // After so much, the next free wants a marker, and is held up before it records it.
    watched.interrupt.next(Call::CreateEvent, move || {
        let watched = meanwhile;
        // One more free, so that the stream's last marker is a later one.
        watched.free(small);
        watched.end(gone);
        assert_eq!(watched.stream(), gone, "the value comes again");
    });
    watched.free(large);
    assert!(watched.interrupt.happened());
    watched.block(64 * MIB, other);
}
