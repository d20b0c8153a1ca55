//! A pool that was dropped leaves nothing behind, however often: looked at from outside, in a
//! process of its own.

use std::fs;

use millpond::Pool;
use millpond::device::{Findings, Pattern, ShareKind, StreamId, StreamOrder};

use super::MIB;
use crate::conformance::{Fixture, Kind, Outcome};

/// Rounds before the first look: caches of the process and of the driver fill.
const WARM_UP: u32 = 100;
const ROUNDS: u32 = 1000;

/// What the process holds. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
struct Held {
    resident: u64,
    address_space: u64,
    mappings: u64,
    descriptors: u64,
    device_memory: u64,
}

impl Held {
    fn now(fixture: &Fixture) -> Held {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let field = |name: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            let number = line.split_whitespace().nth(1).unwrap();
            number.parse::<u64>().unwrap() << 10
        };
        let info = fixture.device().memory_info().unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Held {
            resident: field("VmRSS:"),
            address_space: field("VmSize:"),
            mappings: maps.lines().count() as u64,
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            device_memory: info.total - info.free,
        }
    }

    /// How much more of each a thousand rounds may leave: less than one page, one mapping or one
    /// reservation a round would add up to.
    fn tolerance(kind: Kind) -> Held {
        let gpu = kind == Kind::Cuda;
        Held {
            resident: if gpu { 8 * MIB } else { 2 * MIB },
            address_space: if gpu { 256 * MIB } else { 32 * MIB },
            mappings: if gpu { 64 } else { 16 },
            descriptors: if gpu { 2 } else { 0 },
            device_memory: if gpu { 8 * MIB } else { 0 },
        }
    }
}

/// 1,000 rounds of create a pool, allocate, use, drop: after a warm-up no growth in host memory,
/// device memory, file descriptors or address space.
pub(super) fn a_thousand_pools_leave_nothing(fixture: &Fixture) -> Outcome {
    let streams = [
        fixture.stream(),
        fixture.stream(),
        StreamId::DEFAULT,
        StreamId::PER_THREAD,
    ];
    let findings = Findings::new();
    for round in 0..WARM_UP {
        use_a_pool(fixture, &streams, round, &findings);
    }
    assert_eq!(millpond::pool::reap_waiting(fixture.device()), Ok(0));
    let before = Held::now(fixture);
    for round in 0..ROUNDS {
        use_a_pool(fixture, &streams, round, &findings);
    }
    assert_eq!(millpond::pool::reap_waiting(fixture.device()), Ok(0));
    let after = Held::now(fixture);
    println!("after {WARM_UP} rounds {before:?}, after {ROUNDS} more {after:?}");
    let most = Held::tolerance(fixture.kind());
    for (what, before, after, most) in [
        ("resident", before.resident, after.resident, most.resident),
        (
            "address space",
            before.address_space,
            after.address_space,
            most.address_space,
        ),
        ("mappings", before.mappings, after.mappings, most.mappings),
        (
            "descriptors",
            before.descriptors,
            after.descriptors,
            most.descriptors,
        ),
        (
            "device memory",
            before.device_memory,
            after.device_memory,
            most.device_memory,
        ),
    ] {
        assert!(
            after <= before + most,
            "{what}: {before}, then {after}; {most} more are allowed"
        );
    }
    assert_eq!(findings.wrong_bytes(), 0);
    Ok(())
}

/// One round: blocks of several sizes on several streams, reuse across them, a stream that comes
/// and goes, and now and then blocks that are never freed.
fn use_a_pool(
    fixture: &Fixture,
    streams: &[StreamId],
    round: u32,
    findings: &std::sync::Arc<Findings>,
) {
    let device = fixture.device();
    let pool = Pool::builder(device.clone())
        .limit(64 * MIB)
        .build()
        .unwrap();
    let passing = device.create_stream(StreamOrder::Independent).unwrap();
    let all = streams.iter().chain([&passing]);
    for (&stream, number) in all.zip(1_u64..) {
        let pattern = Pattern(number << 32 | u64::from(round));
        for size in [100, 70_000, 3 * MIB] {
            let block = pool.allocate(size, stream).unwrap();
            let size = size.min(70_000);
            device.fill(stream, block.address(), size, pattern).unwrap();
            device
                .verify(stream, block.address(), size, pattern, findings)
                .unwrap();
            if round.is_multiple_of(10) && number == 1 {
                let _: u64 = block.into_raw();
            }
        }
    }
    let shared = pool.allocate(MIB, streams[0]).unwrap();
    device.synchronize_stream(streams[0]).unwrap();
    shared.use_on(streams[1]).unwrap();
    drop(shared);
    if round.is_multiple_of(3) {
        pool.synchronize().unwrap();
        pool.trim(0).unwrap();
    }
    pool.stream_destroyed(passing).unwrap();
    device.destroy_stream(passing).unwrap();
    drop(pool);
    // What is in use still goes here, or in a later round.
    if round.is_multiple_of(50) {
        assert_eq!(millpond::pool::reap_waiting(device), Ok(0));
    }
    let capabilities = device.capabilities();
    if capabilities.mapping && capabilities.share_posix_fd {
        // Exports leave descriptors if anything does.
        let properties = millpond::device::HandleProperties {
            share: Some(ShareKind::PosixFd),
            ..Default::default()
        };
        let handle = device.create(capabilities.granularity, properties).unwrap();
        drop(device.export(handle, ShareKind::PosixFd).unwrap());
        device.release(handle).unwrap();
    }
}
