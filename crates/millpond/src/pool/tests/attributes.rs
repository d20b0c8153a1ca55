//! Attributes: each is read back as it was set, each does what CUDA says it does, and what cannot
//! be set is refused. What a policy decides has a test that fails when it is ignored.

use super::*;
use crate::device::EventId;
use crate::pool::{AttributeError, HandleTypes, PoolAttribute, PoolError, PoolLocation};

const LONG: u64 = 1_000_000_000;
const KIB: u64 = 1 << 10;

fn event(bench: &Bench) -> EventId {
    bench.device.create_event().unwrap()
}

/// Sets an attribute that can be set.
fn set(bench: &Bench, attribute: PoolAttribute, value: u64) {
    bench.pool.set_attribute(attribute, value).unwrap();
}

#[test]
fn what_is_set_is_read_back_and_nothing_else_can_be() {
    use PoolAttribute as A;
    let bench = Bench::new(64 * MIB);
    let pool = &bench.pool;
    for flag in [
        A::ReuseFollowEventDependencies,
        A::ReuseAllowOpportunistic,
        A::ReuseAllowInternalDependencies,
    ] {
        assert_eq!(pool.attribute(flag), 1, "{flag:?}");
        for value in [0, 1, 0] {
            pool.set_attribute(flag, value).unwrap();
            assert_eq!(pool.attribute(flag), value, "{flag:?}");
        }
        let refused = pool.set_attribute(flag, 2).unwrap_err();
        let attribute = flag;
        assert_eq!(
            refused,
            AttributeError::NotABoolean {
                attribute,
                value: 2
            }
        );
        assert_eq!(pool.attribute(flag), 0, "{flag:?}");
    }
    assert_eq!(pool.attribute(A::ReleaseThreshold), u64::MAX);
    for value in [0, 5 * MIB, u64::MAX] {
        pool.set_attribute(A::ReleaseThreshold, value).unwrap();
        assert_eq!(pool.attribute(A::ReleaseThreshold), value);
    }
    for attribute in [
        A::ReservedMemCurrent,
        A::UsedMemCurrent,
        A::AllocationType,
        A::ExportHandleTypes,
        A::LocationId,
        A::LocationType,
        A::MaxPoolSize,
    ] {
        let before = pool.attribute(attribute);
        for value in [0, 1] {
            let refused = pool.set_attribute(attribute, value).unwrap_err();
            assert_eq!(refused, AttributeError::ReadOnly { attribute, value });
        }
        assert_eq!(pool.attribute(attribute), before);
    }
    for attribute in [A::ReservedMemHigh, A::UsedMemHigh] {
        let value = 1;
        let refused = pool.set_attribute(attribute, value).unwrap_err();
        assert_eq!(refused, AttributeError::OnlyReset { attribute, value });
    }
}

#[test]
fn the_numbers_are_the_drivers() {
    for (attribute, number) in PoolAttribute::ALL.into_iter().zip(1..) {
        assert_eq!(PoolAttribute::from_number(number), Ok(attribute));
    }
    for number in [0, 14, 15, 16, u32::MAX] {
        let refused = PoolAttribute::from_number(number).unwrap_err();
        assert_eq!(refused, AttributeError::NotOffered { number });
    }
}

#[test]
fn the_four_figures_are_exact_and_highs_begin_again_at_the_current_value() {
    use PoolAttribute as A;
    let bench = Bench::new(64 * MIB);
    let stream = bench.stream();
    let figures = || {
        let marks = [
            A::ReservedMemCurrent,
            A::ReservedMemHigh,
            A::UsedMemCurrent,
            A::UsedMemHigh,
        ];
        marks.map(|attribute| bench.pool.attribute(attribute))
    };
    assert_eq!(figures(), [0; 4]);
    let small = bench.allocate(8 * KIB, stream);
    assert_eq!(figures(), [2 * MIB, 2 * MIB, 8 * KIB, 8 * KIB]);
    let large = bench.allocate(10 * MIB, stream);
    let [reserved, _, used, _] = figures();
    assert_eq!(used, 10 * MIB + 8 * KIB);
    drop(large);
    bench.pool.synchronize().unwrap();
    bench.pool.trim(0).unwrap();
    assert_eq!(figures(), [2 * MIB, reserved, 8 * KIB, used]);
    // Each is reset on its own.
    bench.pool.set_attribute(A::UsedMemHigh, 0).unwrap();
    assert_eq!(figures(), [2 * MIB, reserved, 8 * KIB, 8 * KIB]);
    bench.pool.set_attribute(A::ReservedMemHigh, 0).unwrap();
    assert_eq!(figures(), [2 * MIB, 2 * MIB, 8 * KIB, 8 * KIB]);
    let usage = bench.pool.usage();
    assert_eq!(
        (usage.used_current, usage.reserved_high),
        (8 * KIB, 2 * MIB)
    );
    drop(small);
    assert_eq!(figures(), [2 * MIB, 2 * MIB, 0, 8 * KIB]);
}

#[test]
fn location_type_size_and_handle_types_are_told() {
    use PoolAttribute as A;
    let sim = SimDevice::builder()
        .total_memory(64 * MIB)
        .host_memory(true);
    let device: Arc<dyn Device> = Arc::new(sim.build());
    let told = |pool: &Pool| {
        let asked = [
            A::AllocationType,
            A::ExportHandleTypes,
            A::LocationId,
            A::LocationType,
            A::MaxPoolSize,
        ];
        asked.map(|attribute| pool.attribute(attribute))
    };
    let builder = || Pool::builder(Arc::clone(&device));
    assert_eq!(told(&builder().build().unwrap()), [1, 0, 0, 1, 0]);
    let numa = builder().location(PoolLocation::HostNuma(0)).limit(4 * MIB);
    assert_eq!(told(&numa.build().unwrap()), [1, 0, 0, 3, 4 * MIB]);
    let host = builder().location(PoolLocation::Host).build().unwrap();
    assert_eq!(told(&host), [1, 0, 0, 2, 0]);
    let host_device = crate::device::HostDevice::new(64 * MIB).unwrap();
    let shared = Pool::builder(Arc::new(host_device)).handle_types(HandleTypes::POSIX_FD);
    assert_eq!(told(&shared.build().unwrap()), [1, 1, 0, 1, 0]);
}

#[test]
fn a_pool_that_the_device_cannot_have_is_refused() {
    let build = |sim: crate::device::sim::SimDeviceBuilder, location, handle_types| {
        let device: Arc<dyn Device> = Arc::new(sim.total_memory(64 * MIB).build());
        let builder = Pool::builder(device).handle_types(handle_types);
        builder.location(location).build().map(drop)
    };
    let none = HandleTypes::NONE;
    for location in [PoolLocation::Host, PoolLocation::HostNuma(0)] {
        let refused = build(SimDevice::builder(), location, none).unwrap_err();
        assert_eq!(refused, PoolError::LocationNotOffered { location });
        // Without mapping there are no handles to lie anywhere.
        let unmapped = SimDevice::builder().host_memory(true).mapping(false);
        let refused = build(unmapped, location, none).unwrap_err();
        assert_eq!(refused, PoolError::LocationNotOffered { location });
    }
    let refused = build(SimDevice::builder(), PoolLocation::Device(1), none).unwrap_err();
    let (asked, device) = (1, 0);
    assert_eq!(refused, PoolError::WrongDevice { asked, device });
    let location = PoolLocation::Device(0);
    for handle_types in [HandleTypes::POSIX_FD, HandleTypes::FABRIC] {
        let refused = build(SimDevice::builder(), location, handle_types).unwrap_err();
        let expected = PoolError::HandleTypesNotOffered {
            handle_types,
            location,
        };
        assert_eq!(refused, expected);
    }
    // DRV: a pool of the host at large has no handle types.
    let device = crate::device::HostDevice::builder()
        .host_memory(true)
        .build();
    let builder = Pool::builder(Arc::new(device.unwrap())).location(PoolLocation::Host);
    let refused = builder
        .handle_types(HandleTypes::POSIX_FD)
        .build()
        .unwrap_err();
    assert!(matches!(refused, PoolError::HandleTypesNotOffered { .. }));
}

#[test]
fn memory_of_the_host_takes_none_of_the_devices() {
    let sim = SimDevice::builder()
        .total_memory(64 * MIB)
        .host_memory(true);
    let device: Arc<dyn Device> = Arc::new(sim.build());
    let free = || device.memory_info().unwrap().free;
    let stream = device
        .create_stream(crate::device::StreamOrder::Independent)
        .unwrap();
    let builder = Pool::builder(Arc::clone(&device)).location(PoolLocation::HostNuma(0));
    let pool = builder.build().unwrap();
    let block = pool.allocate(16 * MIB, stream).unwrap();
    assert_eq!(free(), 64 * MIB);
    assert_eq!(pool.usage().reserved_current, 16 * MIB);
    drop(block);
    // A node that is not there is the driver's error, at the first memory.
    let builder = Pool::builder(Arc::clone(&device)).location(PoolLocation::HostNuma(7));
    let refused = builder.build().unwrap().allocate(MIB, stream).unwrap_err();
    assert!(refused.to_string().contains("no NUMA node 7"), "{refused}");
}

#[test]
fn event_dependencies_are_followed_only_where_that_is_allowed() {
    for follow in [1, 0] {
        let bench = Bench::new(64 * MIB);
        let (a, b) = (bench.stream(), bench.stream());
        // Nothing else may explain the reuse.
        set(&bench, PoolAttribute::ReuseAllowOpportunistic, 0);
        set(&bench, PoolAttribute::ReuseAllowInternalDependencies, 0);
        set(&bench, PoolAttribute::ReuseFollowEventDependencies, follow);
        let block = bench.allocate(8 * MIB, a);
        let address = block.address();
        bench.sim.enqueue_work(a, LONG).unwrap();
        drop(block);
        let ready = event(&bench);
        bench.pool.record_event(ready, a).unwrap();
        bench.pool.wait_event(b, ready).unwrap();
        let next = bench.allocate(8 * MIB, b);
        assert_eq!(next.address() == address, follow == 1);
        assert_eq!(bench.pool.usage().reserved_current, (2 - follow) * 8 * MIB);
    }
}

#[test]
fn completed_memory_is_taken_only_where_that_is_allowed() {
    for opportunistic in [1, 0] {
        let bench = Bench::new(64 * MIB);
        let (a, b) = (bench.stream(), bench.stream());
        set(&bench, PoolAttribute::ReuseFollowEventDependencies, 0);
        set(&bench, PoolAttribute::ReuseAllowInternalDependencies, 0);
        set(
            &bench,
            PoolAttribute::ReuseAllowOpportunistic,
            opportunistic,
        );
        drop(bench.allocate(MIB, b));
        let block = bench.allocate(8 * MIB, a);
        let address = block.address();
        drop(block);
        bench.sim.advance_host_by(LONG);
        let next = bench.allocate(8 * MIB, b);
        assert_eq!(next.address() == address, opportunistic == 1);
    }
}

#[test]
fn a_wait_is_inserted_only_where_that_is_allowed() {
    for internal in [1, 0] {
        // Room for one of the two blocks.
        let bench = Bench::new(8 * MIB);
        let (a, b) = (bench.stream(), bench.stream());
        set(&bench, PoolAttribute::ReuseAllowOpportunistic, 0);
        set(
            &bench,
            PoolAttribute::ReuseAllowInternalDependencies,
            internal,
        );
        let block = bench.allocate(8 * MIB, a);
        bench.sim.enqueue_work(a, LONG).unwrap();
        drop(block);
        let next = bench.allocate(8 * MIB, b);
        assert_eq!(bench.pool.statistics().waits_inserted, internal);
        // Without it the last resort is to wait on the host.
        assert_eq!(bench.sim.now() >= LONG, internal == 0);
        drop(next);
    }
}

#[test]
fn what_a_synchronisation_covers_is_free_for_all_whatever_the_policies() {
    for flags in [[0, 0, 0], [1, 1, 1]] {
        let bench = Bench::new(64 * MIB);
        let (a, b) = (bench.stream(), bench.stream());
        for (attribute, value) in PoolAttribute::ALL.into_iter().zip(flags) {
            bench.pool.set_attribute(attribute, value).unwrap();
        }
        for round in 0..3 {
            let block = bench.allocate(8 * MIB, a);
            let address = block.address();
            bench.sim.enqueue_work(a, LONG).unwrap();
            drop(block);
            let done = event(&bench);
            bench.pool.record_event(done, a).unwrap();
            match round {
                0 => bench.pool.synchronize_event(done).unwrap(),
                1 => bench.pool.synchronize_stream(a).unwrap(),
                _ => bench.pool.synchronize().unwrap(),
            }
            let next = bench.allocate(8 * MIB, b);
            assert_eq!(next.address(), address, "round {round}");
            drop(next);
            bench.pool.synchronize().unwrap();
        }
        bench.check();
    }
}

#[test]
fn an_event_that_was_recorded_before_the_free_covers_it_not() {
    let bench = Bench::new(64 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    bench.pool.set_reuse_policies(crate::pool::ReusePolicies {
        follow_event_dependencies: false,
        allow_opportunistic: false,
        allow_internal_dependencies: false,
    });
    let block = bench.allocate(8 * MIB, a);
    let early = event(&bench);
    bench.pool.record_event(early, a).unwrap();
    bench.sim.enqueue_work(a, LONG).unwrap();
    let address = block.address();
    drop(block);
    bench.pool.synchronize_event(early).unwrap();
    assert_ne!(bench.allocate(8 * MIB, b).address(), address);
}

#[test]
fn the_threshold_is_applied_at_every_kind_of_synchronisation_and_at_no_other_time() {
    for sync in 0..3 {
        for threshold in [0, 8 * MIB, u64::MAX] {
            let bench = Bench::new(256 * MIB);
            let stream = bench.stream();
            bench.pool.set_release_threshold(threshold);
            let done = event(&bench);
            for _ in 0..2 {
                let blocks: Vec<Block> = (0..6).map(|_| bench.allocate(4 * MIB, stream)).collect();
                let reserved = bench.pool.usage().reserved_current;
                drop(blocks);
                bench.pool.record_event(done, stream).unwrap();
                bench.sim.advance_host_by(LONG);
                // Freed and completed, and nobody has synchronised.
                assert_eq!(bench.pool.usage().reserved_current, reserved);
                match sync {
                    0 => bench.pool.synchronize_stream(stream).unwrap(),
                    1 => bench.pool.synchronize_event(done).unwrap(),
                    _ => bench.pool.synchronize().unwrap(),
                }
                let left = bench.pool.usage().reserved_current;
                assert_eq!(left, reserved.min(threshold), "{sync}");
                let info = bench.device.memory_info().unwrap();
                assert_eq!(info.total - info.free, left);
                bench.check();
            }
        }
    }
}

#[test]
fn the_threshold_takes_nothing_that_is_in_use() {
    let bench = Bench::new(256 * MIB);
    let (a, b) = (bench.stream(), bench.stream());
    bench.pool.set_release_threshold(0);
    let live = bench.allocate(4 * MIB, a);
    let pending = bench.allocate(8 * MIB, b);
    bench.sim.enqueue_work(b, LONG).unwrap();
    drop(pending);
    bench.pool.synchronize_stream(a).unwrap();
    assert_eq!(bench.pool.usage().reserved_current, 12 * MIB);
    bench.pool.synchronize_stream(b).unwrap();
    assert_eq!(bench.pool.usage().reserved_current, 4 * MIB);
    drop(live);
}

#[test]
fn an_exportable_pool_gives_memory_back_like_any_other() {
    let device: Arc<dyn Device> = Arc::new(crate::device::HostDevice::new(256 * MIB).unwrap());
    let stream = device
        .create_stream(crate::device::StreamOrder::Independent)
        .unwrap();
    let builder = Pool::builder(Arc::clone(&device)).handle_types(HandleTypes::POSIX_FD);
    let pool = builder.build().unwrap();
    let free = || device.memory_info().unwrap().free;
    drop(pool.allocate(32 * MIB, stream).unwrap());
    assert_eq!(free(), 224 * MIB);
    pool.synchronize_stream(stream).unwrap();
    assert_eq!(pool.trim_to(0).unwrap().released_bytes, 32 * MIB);
    assert_eq!(free(), 256 * MIB);
    pool.set_release_threshold(0);
    drop(pool.allocate(32 * MIB, stream).unwrap());
    pool.synchronize_stream(stream).unwrap();
    assert_eq!(free(), 256 * MIB);
}

#[test]
fn a_refusal_at_a_synchronisation_is_no_failure_of_it() {
    let faults = Faults::number(0).only(&[Call::Unmap]);
    let (bench, _) = Bench::with_faults(64 * MIB, faults);
    let stream = bench.stream();
    bench.pool.set_release_threshold(0);
    drop(bench.allocate(4 * MIB, stream));
    bench.pool.synchronize().unwrap();
    assert_eq!(bench.pool.usage().reserved_current, 4 * MIB);
    bench.check();
    bench.pool.synchronize().unwrap();
    assert_eq!(bench.pool.usage().reserved_current, 0);
}
