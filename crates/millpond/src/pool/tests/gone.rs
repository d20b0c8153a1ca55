//! Streams that go: announced or not, with blocks still live, while others look on.

use super::*;
use crate::device::{CallRecord, DeviceError, StreamOrder};

const LONG: u64 = 1_000_000_000;

/// A sim that gives the handle values of destroyed streams out again, and a pool on it.
fn recurring(total: u64) -> (Arc<SimDevice>, Pool) {
    let builder = SimDevice::builder().total_memory(total);
    let sim = Arc::new(builder.stream_values_recur(true).build());
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    (sim, pool)
}

/// Whether work that a stream is given now runs after `time`.
fn runs_after(sim: &SimDevice, stream: StreamId, time: u64) -> bool {
    sim.now().max(sim.stream_ready_at(stream).unwrap()) >= time
}

#[test]
fn a_block_that_outlives_its_stream_waits_for_the_streams_work() {
    let bench = Bench::new(8 * MIB);
    let (owner, other) = (bench.stream(), bench.stream());
    let block = bench.allocate(6 * MIB, owner);
    // What was freed, and marked, before the stream's last work says nothing of that work.
    drop(bench.allocate(2 * MIB, owner));
    bench.pool.trim(u64::MAX).unwrap();
    bench.sim.enqueue_work(owner, LONG).unwrap();
    bench.pool.stream_destroyed(owner).unwrap();
    bench.sim.destroy_stream(owner).unwrap();
    drop(block);
    drop(bench.allocate(8 * MIB, other));
    assert!(runs_after(&bench.sim, other, LONG));
    bench.check();
    bench.pool.synchronize().unwrap();
    assert_eq!(bench.pool.trim(0).unwrap(), 8 * MIB);
}

#[test]
fn a_further_user_that_is_destroyed_is_waited_for() {
    let bench = Bench::new(8 * MIB);
    let (owner, user) = (bench.stream(), bench.stream());
    let block = bench.allocate(8 * MIB, owner);
    block.use_on(user).unwrap();
    bench.sim.enqueue_work(user, LONG).unwrap();
    bench.pool.stream_destroyed(user).unwrap();
    bench.sim.destroy_stream(user).unwrap();
    drop(block);
    drop(bench.allocate(8 * MIB, owner));
    assert!(runs_after(&bench.sim, owner, LONG));
    bench.check();
}

#[test]
fn a_block_of_a_stream_whose_value_went_to_another_waits_for_the_old_ones_work() {
    let (sim, pool) = recurring(8 * MIB);
    let old = sim.create_stream(StreamOrder::Independent).unwrap();
    let block = pool.allocate(6 * MIB, old).unwrap();
    sim.enqueue_work(old, LONG).unwrap();
    sim.destroy_stream(old).unwrap();
    let new = sim.create_stream(StreamOrder::Independent).unwrap();
    assert_eq!(new, old);
    // Here the pool sees that the old stream is gone; its block is freed later.
    drop(pool.allocate(2 * MIB, new).unwrap());
    drop(block);
    drop(pool.allocate(8 * MIB, new).unwrap());
    assert!(runs_after(&sim, new, LONG));
    pool.validate().unwrap();
}

#[test]
fn a_marker_is_not_taken_from_another_stream_with_the_same_value() {
    let (sim, pool) = recurring(8 * MIB);
    let create = || sim.create_stream(StreamOrder::Independent).unwrap();
    let (old, other) = (create(), create());
    let block = pool.allocate(6 * MIB, old).unwrap();
    sim.enqueue_work(old, LONG).unwrap();
    drop(block);
    // The pool has yet to hear of the new stream when it looks for a way to wait for the old one.
    sim.destroy_stream(old).unwrap();
    assert_eq!(create(), old);
    drop(pool.allocate(8 * MIB, other).unwrap());
    assert!(runs_after(&sim, other, LONG));
    pool.validate().unwrap();
}

#[test]
fn memory_of_a_stream_destroyed_without_a_word_is_not_lost() {
    let bench = Bench::new(8 * MIB);
    let (gone, other) = (bench.stream(), bench.stream());
    let block = bench.allocate(8 * MIB, gone);
    bench.sim.enqueue_work(gone, LONG).unwrap();
    drop(block);
    bench.sim.destroy_stream(gone).unwrap();
    drop(bench.allocate(8 * MIB, other));
    assert!(runs_after(&bench.sim, other, LONG));
    bench.check();
}

/// Does something once, after a call of a kind that succeeded: what another thread could do at
/// that moment, since no lock is held while the device works.
pub(super) struct Meanwhile {
    call: Call,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Meanwhile {
    pub(super) fn after(call: Call) -> Arc<Meanwhile> {
        let act = Mutex::new(None);
        Arc::new(Meanwhile { call, act })
    }

    pub(super) fn act(&self, act: impl FnOnce() + Send + 'static) {
        *self.act.lock().unwrap() = Some(Box::new(act));
    }
}

impl Observer for Meanwhile {
    fn before(&self, _: &CallRecord) -> Result<(), DeviceError> {
        Ok(())
    }

    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, _: u64, _: u64) {
        if call.call() == self.call && !matches!(outcome, Outcome::Failed(_)) {
            let act = self.act.lock().unwrap().take();
            if let Some(act) = act {
                act();
            }
        }
    }
}

/// A pool on this sim, with something that happens meanwhile.
pub(super) fn watched(sim: &Arc<SimDevice>, call: Call) -> (Pool, Arc<Meanwhile>) {
    let meanwhile = Meanwhile::after(call);
    let observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&meanwhile) as _];
    let device = Arc::new(Observed::new(Arc::clone(sim) as _, observers));
    (Pool::builder(device as _).build().unwrap(), meanwhile)
}

#[test]
fn what_is_freed_while_its_stream_is_being_destroyed_is_not_lost() {
    let sim = Arc::new(SimDevice::builder().total_memory(32 * MIB).build());
    let (pool, meanwhile) = watched(&sim, Call::RecordEvent);
    let create = || sim.create_stream(StreamOrder::Independent).unwrap();
    let (gone, other) = (create(), create());
    let block = || pool.allocate(8 * MIB, gone).unwrap();
    let [first, keep, third, keep_too] = [block(), block(), block(), block()];
    sim.enqueue_work(gone, LONG).unwrap();
    drop(first);
    meanwhile.act(move || drop(third));
    pool.stream_destroyed(gone).unwrap();
    sim.destroy_stream(gone).unwrap();
    // Two free handles must be put together, and so be seen to be completed.
    let both = pool.allocate(16 * MIB, other).unwrap();
    pool.validate().unwrap();
    drop((keep, keep_too, both));
}

#[test]
fn a_stream_destroyed_while_a_request_on_it_is_served_confuses_nothing() {
    let sim = Arc::new(SimDevice::builder().total_memory(32 * MIB).build());
    let (pool, meanwhile) = watched(&sim, Call::Create);
    let create = || sim.create_stream(StreamOrder::Independent).unwrap();
    let (gone, next) = (create(), create());
    let inner = Arc::downgrade(&pool.inner);
    meanwhile.act(move || {
        let pool = Pool {
            inner: inner.upgrade().unwrap(),
        };
        pool.stream_destroyed(gone).unwrap();
    });
    let block = pool.allocate(8 * MIB, gone).unwrap();
    let other = pool.allocate(8 * MIB, next).unwrap();
    drop((block, other));
    pool.synchronize().unwrap();
    assert_eq!(pool.trim(0).unwrap(), 16 * MIB);
    pool.validate().unwrap();
}

#[test]
fn a_stream_that_is_captured_is_not_asked_who_it_is() {
    // The driver refuses to tell (900), and nothing may be asked of a captured stream anyway.
    let builder = SimDevice::builder().total_memory(64 * MIB);
    let sim = Arc::new(builder.stream_values_recur(true).build());
    let log = Arc::new(Log::default());
    let observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&log) as _];
    let device = Arc::new(Observed::new(Arc::clone(&sim) as _, observers));
    let pool = Pool::builder(device as _).build().unwrap();
    let stream = sim.create_stream(StreamOrder::Independent).unwrap();
    let memory = pool.graph_memory();
    let capture = memory.begin_capture(stream).unwrap();
    let before = log.count(Call::StreamIdentity);
    let block = pool.allocate(MIB, stream).unwrap();
    drop(block);
    assert_eq!(log.count(Call::StreamIdentity), before);
    capture.end();
    drop(memory);
    pool.validate().unwrap();
}
