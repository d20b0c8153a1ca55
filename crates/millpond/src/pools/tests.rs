//! Pools on sims: what needs virtual time, faults, or devices that can do less. What all devices
//! have in common is in the conformance suite.

use std::sync::Arc;

use super::{Pools, PoolsError};
use crate::device::sim::SimDevice;
use crate::device::{Device, StreamId, StreamOrder};
use crate::pool::{Budget, Pool, PoolLocation, reap, reap_waiting};
use crate::{AllocError, Request};

const MIB: u64 = 1 << 20;
const LONG: u64 = 1_000_000_000;
const HERE: PoolLocation = PoolLocation::Device(0);

struct World {
    sim: Arc<SimDevice>,
    device: Arc<dyn Device>,
    pools: Pools,
}

fn world(host_memory: bool) -> World {
    let builder = SimDevice::builder().total_memory(256 * MIB);
    let sim = Arc::new(builder.host_memory(host_memory).build());
    let device: Arc<dyn Device> = Arc::clone(&sim) as _;
    let pools = Pools::new([Arc::clone(&device)]).unwrap();
    World { sim, device, pools }
}

impl World {
    fn stream(&self) -> StreamId {
        self.sim.create_stream(StreamOrder::Independent).unwrap()
    }

    fn pool(&self) -> Pool {
        self.pools
            .create(self.pools.builder(HERE).unwrap())
            .unwrap()
    }

    fn taken(&self) -> u64 {
        let info = self.sim.memory_info().unwrap();
        info.total - info.free
    }
}

#[test]
fn memory_goes_back_piece_by_piece_as_uses_are_over() {
    let world = world(false);
    let (a, b) = (world.stream(), world.stream());
    let pool = world.pool();
    let (first, second) = (
        pool.allocate(8 * MIB, a).unwrap(),
        pool.allocate(16 * MIB, b).unwrap(),
    );
    world.sim.enqueue_work(a, LONG).unwrap();
    world.sim.enqueue_work(b, 2 * LONG).unwrap();
    drop((first, second));
    let before = world.sim.now();
    drop(pool);
    assert!(world.sim.now() < before + LONG);
    assert_eq!(world.taken(), 24 * MIB);
    world.sim.advance_host_to(LONG + LONG / 2);
    assert_eq!((reap(&world.device), world.taken()), (1, 16 * MIB));
    world.sim.advance_host_to(3 * LONG);
    assert_eq!((reap(&world.device), world.taken()), (0, 0));
}

#[test]
fn work_of_a_stream_that_went_unannounced_waits_for_a_synchronisation() {
    let world = world(false);
    let stream = world.stream();
    let pool = world.pool();
    let block = pool.allocate(8 * MIB, stream).unwrap();
    world.sim.enqueue_work(stream, LONG).unwrap();
    world.sim.destroy_stream(stream).unwrap();
    drop(block);
    drop(pool);
    world.sim.advance_host_by(2 * LONG);
    // Nothing tells that it is over.
    assert_eq!((reap(&world.device), world.taken()), (1, 8 * MIB));
    // A synchronisation of any pool of the device does.
    world
        .pools
        .default_pool(HERE)
        .unwrap()
        .synchronize()
        .unwrap();
    assert_eq!(world.taken(), 0);
}

#[test]
fn what_a_lost_device_has_is_left_to_the_processs_end() {
    let world = world(false);
    let stream = world.stream();
    let pool = world.pool();
    let block = pool.allocate(8 * MIB, stream).unwrap();
    world
        .sim
        .fill(stream, 64, 8, crate::device::Pattern(1))
        .unwrap();
    world.sim.advance_host_by(LONG);
    assert!(world.sim.synchronize().is_err());
    drop(block);
    drop(pool);
    assert_eq!(reap(&world.device), 0);
    // A later failure is the next call's that reaches the device.
    let pool = Pool::builder(Arc::clone(&world.device)).build().unwrap();
    let refused = pool.allocate(8 * MIB, stream).unwrap_err();
    assert!(matches!(&refused, AllocError::Device { error, .. } if error.status.is_sticky()));
}

#[test]
fn raw_blocks_of_a_dropped_pool_wait_for_their_streams() {
    let world = world(false);
    let stream = world.stream();
    let pool = world.pool();
    let _leaked = pool.allocate(8 * MIB, stream).unwrap().into_raw();
    world.sim.enqueue_work(stream, LONG).unwrap();
    drop(pool);
    assert_eq!((reap(&world.device), world.taken()), (1, 8 * MIB));
    world.sim.advance_host_by(2 * LONG);
    assert_eq!((reap(&world.device), world.taken()), (0, 0));
}

#[test]
fn a_destroyed_pool_shrinks_as_its_blocks_go() {
    let world = world(false);
    let stream = world.stream();
    let pool = world.pool();
    let [first, second] = [(); 2].map(|()| pool.allocate(8 * MIB, stream).unwrap());
    pool.destroy().unwrap();
    drop(pool);
    drop(first);
    world.sim.advance_host_by(LONG);
    assert_eq!((reap(&world.device), world.taken()), (1, 8 * MIB));
    drop(second);
    world.sim.advance_host_by(LONG);
    assert_eq!((reap(&world.device), world.taken()), (0, 0));
}

/// Destroyed, and seen to be empty, between a request's beginning and its end: a raw block that
/// came of it would have nobody to keep its pool.
#[test]
fn a_request_that_is_overtaken_by_the_pools_end_is_refused() {
    use crate::device::{Call, CallRecord, DeviceError, Observed, Observer, Outcome};
    use crate::pool::Pool;
    use std::sync::Mutex;

    #[derive(Default)]
    struct AtReserve(Mutex<Option<Pool>>);
    impl Observer for AtReserve {
        fn before(&self, call: &CallRecord) -> Result<(), DeviceError> {
            if call.call() == Call::Reserve {
                let pool = self.0.lock().unwrap().take();
                pool.map_or(Ok(()), |pool| {
                    pool.destroy().unwrap();
                    Ok(())
                })?;
            }
            Ok(())
        }
        fn after(&self, _: &CallRecord, _: Outcome<'_>, _: u64, _: u64) {}
    }

    let sim = Arc::new(SimDevice::builder().total_memory(64 * MIB).build());
    let stream = sim.create_stream(StreamOrder::Independent).unwrap();
    let destroyer = Arc::new(AtReserve::default());
    let observers = vec![Arc::clone(&destroyer) as Arc<dyn Observer>];
    let device: Arc<dyn Device> = Arc::new(Observed::new(sim, observers));
    let pool = Pool::builder(Arc::clone(&device)).build().unwrap();
    *destroyer.0.lock().unwrap() = Some(pool.clone());
    let refused = pool.allocate(MIB, stream).unwrap_err();
    assert_eq!(refused, AllocError::Destroyed { requested: MIB });
    drop(pool);
    reap_waiting(&device).unwrap();
    let info = device.memory_info().unwrap();
    assert_eq!(info.free, info.total);
}

#[test]
fn a_stream_of_nobody_is_refused_where_a_device_is_named() {
    let world = world(false);
    let stream = StreamId(0xdead_0000);
    let refused = world.pools.allocate(0, MIB, stream).unwrap_err();
    assert_eq!(refused, PoolsError::WrongStream { stream, device: 0 });
    let stream = world.stream();
    drop(world.pools.allocate(0, MIB, stream).unwrap());
    for stream in [StreamId::DEFAULT, StreamId::LEGACY, StreamId::PER_THREAD] {
        drop(world.pools.allocate(0, MIB, stream).unwrap());
    }
}

#[test]
fn a_captured_stream_is_not_asked_who_it_is() {
    let world = world(false);
    let stream = world.stream();
    let pool = world.pools.default_pool(HERE).unwrap();
    let memory = pool.graph_memory();
    let capture = memory.begin_capture(stream).unwrap();
    let block = world.pools.allocate(0, MIB, stream).unwrap();
    let pointer = world.pools.pointer(block.address() + 7).unwrap();
    assert_eq!(pointer.state, crate::pool::PointerState::Graph);
    assert_eq!((pointer.start, pointer.offset), (block.address(), 7));
    assert_eq!((pointer.size, pointer.stream), (MIB, stream));
    assert!(pointer.handle.is_some() && pointer.handle_offset < pointer.handle_size);
    capture.end();
    let address = block.address();
    drop(block);
    assert!(world.pools.pointer(address).is_err());
}

#[test]
fn the_hosts_places_have_pools_of_their_own_where_a_device_offers_them() {
    for location in [PoolLocation::Host, PoolLocation::HostNuma(0)] {
        let without = world(false);
        let refused = without.pools.default_pool(location).unwrap_err();
        assert_eq!(refused, PoolsError::NoSuchLocation { location });
        let world = world(true);
        let pool = world.pools.default_pool(location).unwrap();
        assert_eq!(pool.location(), location);
        assert_eq!(world.pools.current_pool(location).unwrap(), pool);
        let stream = world.stream();
        let block = world
            .pools
            .allocate_with(location, Request::new(MIB, stream))
            .unwrap();
        assert_eq!(
            world.pools.pointer(block.address()).unwrap().location,
            location
        );
        assert_eq!(world.taken(), 0);
        // It is no current pool of the device's.
        let refused = world.pools.set_current_pool(HERE, &pool).unwrap_err();
        let pool = location;
        let expected = PoolsError::WrongLocation {
            pool,
            location: HERE,
        };
        assert_eq!(refused, expected);
    }
}

#[test]
fn a_budget_is_never_passed_whoever_asks_at_once() {
    let world = world(false);
    let budget = Budget::new(32 * MIB);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (world, budget) = (&world, &budget);
            scope.spawn(move || {
                let builder = world.pools.builder(HERE).unwrap().budget(budget);
                let pool = world.pools.create(builder).unwrap();
                let stream = world.stream();
                let mut kept = Vec::new();
                for round in 0..200 {
                    if let Ok(block) = pool.allocate((1 + round % 7) * MIB, stream) {
                        kept.push(block);
                    }
                    if round % 3 == 0 {
                        kept.clear();
                    }
                }
                pool.validate().unwrap();
            });
        }
    });
    let usage = budget.usage();
    assert!(usage.reserved_high <= 32 * MIB && usage.reserved_high > 0);
    reap_waiting(&world.device).unwrap();
    assert_eq!(budget.usage().reserved_current, 0);
    assert_eq!(world.taken(), 0);
}

#[test]
fn a_request_larger_than_the_budget_can_never_succeed_and_says_so() {
    let world = world(false);
    let budget = Budget::new(16 * MIB);
    let pool = Pool::builder(Arc::clone(&world.device)).budget(&budget.within(8 * MIB));
    let pool = pool.build().unwrap();
    let stream = world.stream();
    let refused = pool.allocate(9 * MIB, stream).unwrap_err();
    assert!(refused.to_string().contains("budget"), "{refused}");
    assert_eq!(budget.usage().reserved_high, 0);
    drop(pool.allocate(8 * MIB, stream).unwrap());
}
