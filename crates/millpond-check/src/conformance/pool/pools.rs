//! Pools as CUDA defines them: their ends, the default and the current ones, attributes, what an
//! address belongs to, budgets. `docs/pools.md` says where ours do more than the driver's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::device::{Device, Pattern, Status};
use millpond::pool::{
    AttributeError, Budget, HandleTypes, PointerState, PoolAttribute, PoolError, PoolLocation,
    Reaper, Wall, reap, reap_waiting,
};
use millpond::pools::PoolsError;
use millpond::{AllocError, BlockError, Pool, Pools, Request};

use super::bench::Bench;
use super::{KIB, MIB};
use crate::conformance::{Fixture, Kind, Outcome, Skipped};

/// A device of its own object, so that no other case's pools are on it.
fn pools(fixture: &Fixture) -> (Pools, Arc<dyn Device>) {
    let observed = millpond::device::Observed::new(Arc::clone(fixture.device()), Vec::new());
    let device: Arc<dyn Device> = Arc::new(observed);
    (Pools::new([Arc::clone(&device)]).unwrap(), device)
}

fn here(device: &Arc<dyn Device>) -> PoolLocation {
    PoolLocation::Device(device.capabilities().ordinal)
}

/// A pool that goes while its memory is in use waits for nothing, and its memory stays under the
/// work that uses it; the checker would see it go too early.
pub(super) fn dropping_waits_for_nothing_and_takes_nothing_from_work(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 256 * MIB);
    let stream = bench.stream();
    drop(bench.allocate(16 * MIB, stream));
    let hold = fixture.hold(stream);
    let running = bench.recorded(stream);
    drop(bench.allocate(32 * MIB, stream));
    let device = Arc::clone(&bench.device);
    let bench = bench.drop_pool();
    // The work is held: whoever waited for it would be here for ever.
    assert!(!bench.is_done(running));
    assert_eq!(reap(&device), 1);
    drop(hold);
    assert_eq!(reap_waiting(&device), Ok(0));
    bench.end();
    Ok(())
}

/// DRV: cuMemPoolDestroy returns at once, allocations stay good, and the pool goes with the last.
pub(super) fn a_destroyed_pool_serves_its_blocks_and_no_requests(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let stream = fixture.stream();
    let pool = pools.create(pools.builder(here(&device)).unwrap()).unwrap();
    let raw = pool.allocate(4 * MIB, stream).unwrap().into_raw();
    let block = pool.allocate(4 * MIB, stream).unwrap();
    let idle = pool.allocate(32 * MIB, stream).unwrap();
    drop(idle);
    pool.synchronize().unwrap();
    let before = pool.usage().reserved_current;
    pool.destroy().unwrap();
    pool.destroy().unwrap();
    assert!(pool.is_destroyed());
    // What nothing uses goes at once.
    assert!(pool.usage().reserved_current <= before - 32 * MIB);
    let refused = pool.allocate(1, stream).unwrap_err();
    assert_eq!(refused, AllocError::Destroyed { requested: 1 });
    drop(pool);
    // The blocks can be used, found and freed.
    let pattern = Pattern(0x1234);
    device.fill(stream, raw, 4 * MIB, pattern).unwrap();
    device
        .fill(stream, block.address(), 4 * MIB, pattern)
        .unwrap();
    assert_eq!(fixture.wrong(stream, raw, 4 * MIB, pattern), 0);
    assert_eq!(pools.pointer(raw + 5).unwrap().start, raw);
    assert_eq!(reap_waiting(&device), Ok(1));
    pools.free(raw).unwrap();
    let twice = pools.free(raw).unwrap_err();
    assert_eq!(twice, BlockError::NotLive { address: raw });
    assert_eq!(reap_waiting(&device), Ok(1));
    drop(block);
    assert_eq!(reap_waiting(&device), Ok(0));
    assert_eq!(pools.all().len(), 0);
    assert_eq!(
        pools.pointer(raw).unwrap_err(),
        BlockError::Foreign { address: raw }
    );
    device.destroy_stream(stream).unwrap();
    Ok(())
}

pub(super) fn a_default_pool_cannot_be_destroyed(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let default = pools.default_pool(here(&device)).unwrap();
    assert_eq!(default.destroy(), Err(PoolError::DefaultPool));
    let stream = fixture.stream();
    drop(default.allocate(KIB, stream).unwrap());
    // Nothing of it was exportable, nor is it limited.
    assert_eq!(default.attribute(PoolAttribute::ExportHandleTypes), 0);
    assert_eq!(default.attribute(PoolAttribute::MaxPoolSize), 0);
    drop((default, pools));
    assert_eq!(reap_waiting(&device), Ok(0));
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Who reaps, first answer: whatever pool of the device calls it next.
pub(super) fn the_next_call_of_another_pool_reaps(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let stream = fixture.stream();
    let other = pools.default_pool(here(&device)).unwrap();
    for call in 0..4 {
        let pool = pools.create(pools.builder(here(&device)).unwrap()).unwrap();
        drop(pool.allocate(8 * MIB, stream).unwrap());
        let hold = fixture.hold(stream);
        device
            .fill(
                stream,
                pool.allocate(8 * MIB, stream).unwrap().address(),
                MIB,
                Pattern(1),
            )
            .unwrap();
        drop(pool);
        assert_eq!(reap(&device), 1, "call {call}");
        drop(hold);
        device.synchronize_stream(stream).unwrap();
        match call {
            0 => other.synchronize_stream(stream).unwrap(),
            1 => drop(other.trim_to(0).unwrap()),
            // Larger than anything before: the pool must grow.
            2 => drop(other.allocate(64 * MIB, stream).unwrap()),
            _ => drop(pools.create(pools.builder(here(&device)).unwrap()).unwrap()),
        }
        assert_eq!(pools.all().len(), 1, "call {call}");
    }
    drop((other, pools));
    assert_eq!(reap_waiting(&device), Ok(0));
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Who reaps, second answer: a thread.
pub(super) fn a_thread_reaps_where_one_is_wanted(fixture: &Fixture) -> Outcome {
    if fixture.kind() != Kind::Host {
        return Err(Skipped(
            "the thread looks at all devices of the process".into(),
        ));
    }
    let (pools, device) = pools(fixture);
    let stream = fixture.stream();
    let reaper = Reaper::start().unwrap();
    let pool = pools.create(pools.builder(here(&device)).unwrap()).unwrap();
    let raw = pool.allocate(8 * MIB, stream).unwrap().into_raw();
    let hold = fixture.hold(stream);
    device.fill(stream, raw, 8 * MIB, Pattern(1)).unwrap();
    pool.destroy().unwrap();
    drop(pool);
    assert_eq!(pools.all().len(), 1);
    pools.free(raw).unwrap();
    drop(hold);
    // It comes as soon as it can; a minute is for ever.
    let start = Instant::now();
    while !pools.all().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody reaps");
        std::thread::yield_now();
    }
    drop(reaper);
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// A default pool for each place, the current one set, asked for, and gone.
pub(super) fn default_and_current_pools(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let (place, stream) = (here(&device), fixture.stream());
    let PoolLocation::Device(ordinal) = place else {
        unreachable!("it is the device's")
    };
    let default = pools.default_pool(place).unwrap();
    assert_eq!(pools.default_pool(place).unwrap(), default);
    assert_eq!(pools.current_pool(place).unwrap(), default);
    let own = pools.create(pools.builder(place).unwrap()).unwrap();
    assert_ne!(own, default);
    pools.set_current_pool(place, &own).unwrap();
    assert_eq!(pools.current_pool(place).unwrap(), own);
    let block = pools.allocate(ordinal, MIB, stream).unwrap();
    assert_eq!(pools.pool_of(block.address()), Some(own.clone()));
    // From a named pool, whatever the current one is.
    let other = default.allocate(MIB, stream).unwrap();
    assert_eq!(pools.pool_of(other.address()), Some(default.clone()));
    // Threads may set and ask at once; all are one of the two.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (pools, own, default) = (&pools, &own, &default);
            scope.spawn(move || {
                for round in 0..50 {
                    let chosen = if (thread + round) % 2 == 0 {
                        own
                    } else {
                        default
                    };
                    pools.set_current_pool(place, chosen).unwrap();
                    let current = pools.current_pool(place).unwrap();
                    assert!(current == *own || current == *default);
                }
            });
        }
    });
    pools.set_current_pool(place, &own).unwrap();
    own.destroy().unwrap();
    assert_eq!(pools.current_pool(place).unwrap(), default);
    assert_eq!(
        pools.set_current_pool(place, &own),
        Err(PoolsError::Destroyed)
    );
    // What is not there, and what is elsewhere.
    let known = vec![ordinal];
    let missing = PoolsError::NoSuchDevice { ordinal: 99, known };
    assert_eq!(pools.default_pool(PoolLocation::Device(99)), Err(missing));
    let location = PoolLocation::Device(99);
    let wrong = PoolsError::WrongLocation {
        pool: place,
        location,
    };
    assert_eq!(pools.set_current_pool(location, &default), Err(wrong));
    let elsewhere = Pool::builder(Arc::clone(fixture.device())).build().unwrap();
    assert_eq!(pools.add(&elsewhere), Err(PoolsError::NotOurs));
    assert!(matches!(
        Pools::new([Arc::clone(&device), Arc::clone(&device)]).unwrap_err(),
        PoolsError::SameDevice { .. }
    ));
    drop((block, other, own, default, pools));
    assert_eq!(reap_waiting(&device), Ok(0));
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Any address inside a block leads to it: pool, device, size, stream, handle and offset.
pub(super) fn addresses_lead_to_their_blocks(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let (place, stream, other) = (here(&device), fixture.stream(), fixture.stream());
    let made = [0, 1].map(|_| pools.create(pools.builder(place).unwrap()).unwrap());
    let sizes = [1, 1000, 100 * KIB, 2 * MIB, 40 * MIB];
    let mut blocks = Vec::new();
    for pool in &made {
        for size in sizes {
            blocks.push((pool, pool.allocate(size, stream).unwrap()));
        }
    }
    for (pool, block) in &blocks {
        let (start, size) = (block.address(), block.size());
        for offset in [0, size / 2, size - 1] {
            let pointer = pools.pointer(start + offset).unwrap();
            assert_eq!(pointer.pool, **pool);
            assert_eq!(
                (pointer.start, pointer.size, pointer.offset),
                (start, size, offset)
            );
            assert_eq!((pointer.location, pointer.stream), (place, stream));
            assert_eq!(pointer.state, PointerState::Live);
            assert_eq!(pointer.users, [stream]);
            assert_eq!(pointer.handle.is_some(), device.capabilities().mapping);
            assert!(pointer.handle_offset < pointer.handle_size);
        }
        // Ranges in one handle are as far apart in it as their addresses are.
        let ends = [start, start + size - 1].map(|at| pools.pointer(at).unwrap());
        if ends[0].handle == ends[1].handle && size <= ends[0].handle_size {
            assert_eq!(ends[1].handle_offset - ends[0].handle_offset, size - 1);
        }
    }
    let (_, block) = &blocks[2];
    block.use_on(other).unwrap();
    assert_eq!(
        pools.pointer(block.address()).unwrap().users,
        [stream, other]
    );
    block.hand_over(other).unwrap();
    let pointer = pools.pointer(block.address()).unwrap();
    assert_eq!((pointer.stream, pointer.users), (other, vec![other]));
    drop(blocks);
    drop((made, pools));
    assert_eq!(reap_waiting(&device), Ok(0));
    for stream in [stream, other] {
        device.destroy_stream(stream).unwrap();
    }
    Ok(())
}

/// After its free an address is an error, not a guess; so is one that never was anybody's.
pub(super) fn after_a_free_an_address_is_nobodys(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let (place, stream) = (here(&device), fixture.stream());
    let pool = pools.default_pool(place).unwrap();
    for size in [1000, 100 * KIB, 8 * MIB] {
        let block = pool.allocate(size, stream).unwrap();
        let address = block.address();
        block.free().unwrap();
        for at in [address, address + size / 2] {
            let error = BlockError::NotLive { address: at };
            assert_eq!(pools.pointer(at).unwrap_err(), error);
            assert_eq!(pools.free(at), Err(error));
        }
    }
    for address in [0, 1, u64::MAX] {
        let error = BlockError::Foreign { address };
        assert_eq!(pools.pointer(address).unwrap_err(), error);
        assert_eq!(pools.free(address), Err(error));
    }
    let block = pool.allocate(8 * MIB, stream).unwrap();
    let inside = pools.free(block.address() + 256).unwrap_err();
    assert!(matches!(inside, BlockError::Interior { .. }), "{inside}");
    drop(block);
    drop((pool, pools));
    assert_eq!(reap_waiting(&device), Ok(0));
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// CCCL: each flag is read back, read-only ones are refused, high ones are reset by 0 alone, and
/// 8 KiB are 8 KiB.
pub(super) fn attributes_round_trip_and_refuse(fixture: &Fixture) -> Outcome {
    use PoolAttribute as A;
    let bench = Bench::new(fixture, 64 * MIB);
    let (pool, stream) = (bench.pool(), bench.stream());
    for attribute in A::ALL {
        let before = pool.attribute(attribute);
        let settable = matches!(
            attribute,
            A::ReuseFollowEventDependencies
                | A::ReuseAllowOpportunistic
                | A::ReuseAllowInternalDependencies
                | A::ReleaseThreshold
        );
        let high = matches!(attribute, A::ReservedMemHigh | A::UsedMemHigh);
        for value in [0, 1] {
            match pool.set_attribute(attribute, value) {
                Ok(()) if settable => assert_eq!(pool.attribute(attribute), value),
                Ok(()) => assert!(high && value == 0, "{attribute:?} was set to {value}"),
                Err(AttributeError::OnlyReset { .. }) => assert!(high && value == 1),
                Err(AttributeError::ReadOnly { .. }) => assert!(!high && !settable),
                Err(error) => panic!("{error}"),
            }
        }
        if settable {
            pool.set_attribute(attribute, before).unwrap();
        }
        assert_eq!(pool.attribute(attribute), before);
    }
    let block = bench.allocate(8 * KIB, stream);
    assert_eq!(pool.attribute(A::UsedMemCurrent), 8 * KIB);
    let large = bench.allocate(20 * MIB, stream);
    drop(large);
    let usage = pool.usage();
    assert_eq!(
        (usage.used_current, usage.used_high),
        (8 * KIB, 20 * MIB + 8 * KIB)
    );
    assert!(usage.reserved_high >= usage.reserved_current);
    assert!(usage.reserved_current >= usage.used_current);
    pool.set_attribute(A::UsedMemHigh, 0).unwrap();
    assert_eq!(pool.attribute(A::UsedMemHigh), 8 * KIB);
    drop(block);
    bench.end();
    Ok(())
}

/// CCCL: two blocks of 8 KiB, one freed; what is left is explained to the byte.
pub(super) fn trims_account_for_the_rest(fixture: &Fixture) -> Outcome {
    let bench = Bench::new(fixture, 256 * MIB);
    let stream = bench.stream();
    let (first, second) = (
        bench.allocate(8 * KIB, stream),
        bench.allocate(8 * KIB, stream),
    );
    drop(first);
    bench.pool().synchronize_stream(stream).unwrap();
    let trim = |keep| {
        let report = bench.pool().trim_to(keep).unwrap();
        let parts = report.in_live_blocks
            + report.beside_live_blocks
            + report.pending
            + report.kept_as_asked
            + report.in_graphs
            + report.withheld;
        assert_eq!(report.reserved_bytes, parts, "{report:?}");
        assert_eq!(bench.pool().usage().reserved_current, report.reserved_bytes);
        bench.check();
        report
    };
    for keep in [KIB, 192 * KIB, 10 * KIB] {
        let report = trim(keep);
        assert_eq!((report.released_bytes, report.in_live_blocks), (0, 8 * KIB));
    }
    let large = bench.allocate(32 * MIB, stream);
    let hold = fixture.hold(stream);
    drop(large);
    let report = trim(0);
    assert!(report.pending >= 32 * MIB, "{report:?}");
    drop(hold);
    drop(second);
    bench.pool().synchronize_stream(stream).unwrap();
    // Nothing goes without a trim.
    let reserved = bench.pool().usage().reserved_current;
    assert!(reserved >= 32 * MIB);
    let report = trim(reserved - 1);
    assert_eq!((report.released_bytes, report.kept_as_asked), (0, reserved));
    assert_eq!(trim(0).released_bytes, reserved);
    bench.end();
    Ok(())
}

/// streamOrderedAllocation, part b, and its opposite: with the threshold at the most nothing is
/// given back over the rounds, with none all of it is.
pub(super) fn the_threshold_gives_memory_back_at_synchronisations(fixture: &Fixture) -> Outcome {
    for threshold in [u64::MAX, 0] {
        let bench = Bench::with(fixture, |builder| {
            builder.limit(512 * MIB).release_threshold(threshold)
        });
        let stream = bench.stream();
        let mut first = None;
        for _ in 0..20 {
            let blocks = [4, 4, 4].map(|size| bench.allocate(size * MIB, stream));
            drop(blocks);
            let before = bench.pool().usage().reserved_current;
            assert!(before >= 12 * MIB);
            bench.pool().synchronize_stream(stream).unwrap();
            let after = bench.pool().usage();
            assert_eq!(after.used_current, 0);
            assert_eq!(after.reserved_current, before.min(threshold));
            assert_eq!(*first.get_or_insert(before), before);
        }
        bench.check();
        bench.end();
    }
    Ok(())
}

/// A stream is waited for once, and every pool of the device knows.
pub(super) fn a_synchronisation_is_told_to_all_pools(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let (place, stream) = (here(&device), fixture.stream());
    let ordinal = device.capabilities().ordinal;
    let event = device.create_event().unwrap();
    let made = [0, 1, 2].map(|_| pools.create(pools.builder(place).unwrap()).unwrap());
    for wait in 0..3 {
        for pool in &made {
            pool.set_release_threshold(0);
            drop(pool.allocate(4 * MIB, stream).unwrap());
            pool.record_event(event, stream).unwrap();
        }
        match wait {
            0 => pools.synchronize_stream(ordinal, stream).unwrap(),
            1 => pools.synchronize_event(ordinal, event).unwrap(),
            _ => pools.synchronize(ordinal).unwrap(),
        }
        // An event is known to the pool that recorded it last; the others see by asking.
        for pool in &made {
            assert_eq!(pool.usage().reserved_current, 0, "wait {wait}");
        }
    }
    assert!(matches!(
        pools.synchronize(ordinal + 1),
        Err(PoolsError::NoSuchDevice { .. })
    ));
    drop((made, pools));
    assert_eq!(reap_waiting(&device), Ok(0));
    device.destroy_event(event).unwrap();
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// Pools of two tenants, of which one has two models, under one budget: limits on every level, and
/// what one does not use another gets.
pub(super) fn pools_under_one_budget_share_it(fixture: &Fixture) -> Outcome {
    let (pools, device) = pools(fixture);
    let (place, stream) = (here(&device), fixture.stream());
    let machine = Budget::new(64 * MIB);
    let tenant = machine.within(48 * MIB);
    let build = |budget: &Budget| {
        let builder = pools.builder(place).unwrap().budget(budget);
        pools.create(builder).unwrap()
    };
    let (first, second, other) = (build(&tenant), build(&tenant), build(&machine));
    let block = first.allocate(32 * MIB, stream).unwrap();
    // 16 MiB are left to the tenant, 32 to the machine.
    let refused = second.allocate(24 * MIB, stream).unwrap_err();
    let AllocError::OutOfMemory(told) = &refused else {
        panic!("{refused}")
    };
    assert_eq!(told.wall, Wall::BudgetReached);
    assert!(refused.to_string().contains("budget"), "{refused}");
    let small = second.allocate(8 * MIB, stream).unwrap();
    let large = other.allocate(16 * MIB, stream).unwrap();
    for (budget, used, count) in [(&tenant, 40 * MIB, 2), (&machine, 56 * MIB, 3)] {
        let usage = budget.usage();
        assert_eq!((usage.used_current, usage.pools), (used, count));
        assert!(usage.reserved_current >= used && usage.reserved_current <= usage.limit);
        assert_eq!(usage.reserved_high, usage.reserved_current);
    }
    let sum: u64 = [&first, &second, &other]
        .map(|p| p.usage().reserved_current)
        .iter()
        .sum();
    assert_eq!(machine.usage().reserved_current, sum);
    // What the first has freed and is done with serves the second.
    drop(block);
    first.synchronize().unwrap();
    let moved = second.allocate(32 * MIB, stream).unwrap();
    assert!(first.usage().reserved_current <= 16 * MIB);
    assert!(tenant.usage().reserved_high <= 48 * MIB);
    assert!(machine.usage().reserved_high <= 64 * MIB);
    // Lowered at run time: what is there stays, and nothing grows.
    drop((small, moved));
    second.synchronize().unwrap();
    first.trim(0).unwrap();
    tenant.set_limit(4 * MIB);
    assert!(first.allocate(8 * MIB, stream).is_err());
    drop(first.allocate(2 * MIB, stream).unwrap());
    drop(large);
    for pool in [&first, &second, &other] {
        pool.synchronize().unwrap();
        pool.trim(0).unwrap();
    }
    let usage = machine.usage();
    assert_eq!((usage.reserved_current, usage.used_current), (0, 0));
    machine.reset_high();
    assert_eq!(machine.usage().reserved_high, 0);
    drop((first, second, other, pools));
    assert_eq!(reap_waiting(&device), Ok(0));
    assert_eq!(machine.usage().pools, 0);
    device.destroy_stream(stream).unwrap();
    Ok(())
}

/// CCCL: a pool of 1 MiB refuses what is more; ours is exact, where the driver rounds to 32 MiB.
pub(super) fn a_largest_size_is_kept_and_the_result_untouched(fixture: &Fixture) -> Outcome {
    let granularity = fixture.device().capabilities().granularity;
    let bench = Bench::new(fixture, granularity);
    let stream = bench.stream();
    let size = granularity + 1;
    let refused = bench.try_allocate(Request::new(size, stream), size, 256, stream);
    assert!(matches!(refused.unwrap_err(), AllocError::OutOfMemory(_)));
    let usage = bench.pool().usage();
    assert_eq!((usage.used_current, usage.reserved_high), (0, 0));
    let max = bench.pool().attribute(PoolAttribute::MaxPoolSize);
    assert_eq!(max, granularity);
    drop(bench.allocate(granularity, stream));
    bench.end();
    Ok(())
}

/// The driver's pools that can be exported never give memory back; ours do.
pub(super) fn exportable_pools_give_memory_back(fixture: &Fixture) -> Outcome {
    let capabilities = fixture.device().capabilities();
    if !capabilities.mapping || !capabilities.share_posix_fd {
        let (_, device) = pools(fixture);
        let builder = Pool::builder(device).handle_types(HandleTypes::POSIX_FD);
        let refused = builder.build().unwrap_err();
        assert!(matches!(refused, PoolError::HandleTypesNotOffered { .. }));
        return Ok(());
    }
    let bench = Bench::with(fixture, |builder| {
        builder.limit(256 * MIB).handle_types(HandleTypes::POSIX_FD)
    });
    let stream = bench.stream();
    assert_eq!(bench.pool().attribute(PoolAttribute::ExportHandleTypes), 1);
    let block = bench.allocate(32 * MIB, stream);
    let handle = bench.pool().pointer(block.address()).unwrap().handle;
    let kind = millpond::device::ShareKind::PosixFd;
    drop(bench.device.export(handle.unwrap(), kind).unwrap());
    drop(block);
    bench.pool().synchronize_stream(stream).unwrap();
    assert_eq!(bench.pool().trim(0).unwrap(), 32 * MIB);
    bench.pool().set_release_threshold(0);
    drop(bench.allocate(32 * MIB, stream));
    bench.pool().synchronize_stream(stream).unwrap();
    assert_eq!(bench.pool().usage().reserved_current, 0);
    // One that is not exportable says so when it is asked.
    let plain = Pool::builder(Arc::clone(&bench.device)).build().unwrap();
    let block = plain.allocate(MIB, stream).unwrap();
    let handle = plain.pointer(block.address()).unwrap().handle.unwrap();
    let refused = bench.device.export(handle, kind).unwrap_err();
    assert_eq!(refused.status, Status::NOT_SUPPORTED);
    drop((block, plain));
    bench.end();
    Ok(())
}
