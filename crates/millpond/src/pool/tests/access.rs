//! Access for other devices: whole pools, past and future memory, given, taken back and asked for;
//! on sims that are linked, or not.

use super::gone::Meanwhile;
use super::*;
use crate::device::sim::SimDevice;
use crate::device::{AccessGrant, Accessor, Pattern, Protection, Status, StreamOrder, Topology};
use crate::pool::{AccessError, PoolLocation};

const LONG: u64 = 1_000_000_000;

/// Devices 0 and 1 linked, device 2 alone; a pool on device 0.
struct Machine {
    devices: Vec<Arc<SimDevice>>,
    pool: Pool,
    stream: StreamId,
}

fn machine(observers: Vec<Arc<dyn Observer>>) -> Machine {
    let topology = Topology::new().link(0, 1);
    let devices: Vec<Arc<SimDevice>> = (0..3)
        .map(|ordinal| {
            let builder = SimDevice::builder().total_memory(256 * MIB);
            Arc::new(builder.in_topology(&topology, ordinal).build())
        })
        .collect();
    let first: Arc<dyn Device> = Arc::new(Observed::new(Arc::clone(&devices[0]) as _, observers));
    let stream = first.create_stream(StreamOrder::Independent).unwrap();
    let pool = Pool::builder(first)
        .waits(Waits::TimeFirst)
        .build()
        .unwrap();
    Machine {
        devices,
        pool,
        stream,
    }
}

fn grant(ordinal: u32, protection: Protection) -> AccessGrant {
    AccessGrant {
        accessor: Accessor::Device(ordinal),
        protection,
    }
}

impl Machine {
    /// Whether work of a device on a range goes well. A fault would lose the device, so one that
    /// fails is replaced by the caller's next machine.
    fn touches(&self, device: usize, address: u64, write: bool) -> bool {
        let device = &self.devices[device];
        let stream = device.create_stream(StreamOrder::Independent).unwrap();
        let findings = crate::device::Findings::new();
        if write {
            device.fill(stream, address, 8, Pattern(1)).unwrap();
        } else {
            device
                .verify(stream, address, 8, Pattern(1), &findings)
                .unwrap();
        }
        device.advance_host_by(LONG);
        device.synchronize().is_ok()
    }
}

#[test]
fn past_and_future_allocations_become_visible_and_invisible_again() {
    for (step, visible) in [(0, false), (1, true), (2, true), (3, false)] {
        let machine = machine(Vec::new());
        let past = machine.pool.allocate(4 * MIB, machine.stream).unwrap();
        if step >= 1 {
            machine
                .pool
                .set_access(&[grant(1, Protection::ReadWrite)])
                .unwrap();
        }
        // Too large for what is there.
        let future = machine.pool.allocate(32 * MIB, machine.stream).unwrap();
        if step == 3 {
            machine
                .pool
                .set_access(&[grant(1, Protection::None)])
                .unwrap();
        }
        let block = if step == 2 { &future } else { &past };
        let expected = if visible {
            Protection::ReadWrite
        } else {
            Protection::None
        };
        assert_eq!(machine.pool.access_of(Accessor::Device(1)), expected);
        assert_eq!(
            machine.touches(1, block.address(), true),
            visible,
            "step {step}"
        );
        assert!(machine.touches(0, block.address(), true));
        machine.pool.validate().unwrap();
    }
}

#[test]
fn reading_is_not_writing() {
    for write in [false, true] {
        let machine = machine(Vec::new());
        let block = machine.pool.allocate(4 * MIB, machine.stream).unwrap();
        machine
            .pool
            .set_access(&[grant(1, Protection::Read)])
            .unwrap();
        assert_eq!(
            machine.pool.access_of(Accessor::Device(1)),
            Protection::Read
        );
        assert_eq!(machine.touches(1, block.address(), write), !write);
    }
}

#[test]
fn what_cannot_be_is_an_error_at_once_and_changes_nothing() {
    let machine = machine(Vec::new());
    let set = |changes: &[AccessGrant]| machine.pool.set_access(changes).unwrap_err();
    for accessor in [2, 7] {
        // The pool is empty: the driver might only tell at the next allocation.
        let refused = set(&[
            grant(1, Protection::Read),
            grant(accessor, Protection::Read),
        ]);
        let device = 0;
        assert_eq!(refused, AccessError::NoPeerAccess { accessor, device });
        assert_eq!(
            machine.pool.access_of(Accessor::Device(1)),
            Protection::None
        );
    }
    let refused = set(&[grant(0, Protection::None)]);
    assert!(matches!(refused, AccessError::OwnPlace { .. }));
    let refused = set(&[grant(1, Protection::Read), grant(1, Protection::None)]);
    assert!(matches!(refused, AccessError::NamedTwice { .. }));
    for accessor in [Accessor::Host, Accessor::HostNuma(0)] {
        let protection = Protection::Read;
        let refused = set(&[AccessGrant {
            accessor,
            protection,
        }]);
        assert_eq!(refused, AccessError::HostCannot { accessor });
    }
    let plain = SimDevice::builder().mapping(false).build();
    let plain = Pool::builder(Arc::new(plain)).build().unwrap();
    let refused = plain
        .set_access(&[grant(0, Protection::ReadWrite)])
        .unwrap_err();
    assert_eq!(refused, AccessError::NotSupported);
    machine.pool.set_access(&[]).unwrap();
    machine
        .pool
        .set_access(&[grant(0, Protection::ReadWrite)])
        .unwrap();
}

#[test]
fn a_change_that_the_device_refuses_is_undone() {
    let faults = Arc::new(Faults::number(4).only(&[Call::SetAccess]));
    let machine = machine(vec![Arc::clone(&faults) as _]);
    // Three ranges apart from each other, so that access takes several calls.
    let mut blocks = Vec::new();
    for size in [4, 96, 64] {
        blocks.push(machine.pool.allocate(size * MIB, machine.stream).unwrap());
    }
    let calls = faults.seen();
    assert!(calls < 4, "{calls}");
    let outcome = machine.pool.set_access(&[grant(1, Protection::ReadWrite)]);
    let told = machine.pool.access_of(Accessor::Device(1));
    let expected = match &outcome {
        Ok(()) => Protection::ReadWrite,
        Err(AccessError::Device(error)) => {
            assert_eq!(error.status, Status::OUT_OF_MEMORY);
            Protection::None
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(told, expected);
    faults.stop();
    if outcome.is_err() {
        assert!(!machine.touches(1, blocks[0].address(), true));
    }
    machine.pool.validate().unwrap();
    drop(blocks);
    machine.pool.synchronize().unwrap();
    machine.pool.trim(0).unwrap();
    assert_eq!(machine.pool.usage().reserved_current, 0);
}

#[test]
fn every_call_that_can_fail_leaves_access_as_it_was_or_as_it_was_asked() {
    for number in 0..6 {
        let faults = Arc::new(Faults::number(number).only(&[Call::SetAccess]));
        let machine = machine(vec![Arc::clone(&faults) as _]);
        let block = machine.pool.allocate(4 * MIB, machine.stream);
        let changed = machine.pool.set_access(&[grant(1, Protection::ReadWrite)]);
        let other = machine.pool.allocate(64 * MIB, machine.stream);
        machine.pool.validate().unwrap();
        let told = machine.pool.access_of(Accessor::Device(1)) == Protection::ReadWrite;
        assert_eq!(told, changed.is_ok());
        let blocks = block.iter().chain(&other);
        let seen: Vec<u64> = blocks.map(|block| block.address()).collect();
        if let (Some(&address), true) = (seen.first(), told) {
            assert!(machine.touches(1, address, true), "fault {number}");
        }
    }
}

#[test]
fn a_growth_that_was_under_way_gets_the_new_access_too() {
    // After the growth's own set_access, and before it settles.
    let meanwhile = Meanwhile::after(Call::SetAccess);
    let machine = machine(vec![Arc::clone(&meanwhile) as _]);
    let inner = Arc::downgrade(&machine.pool.inner);
    meanwhile.act(move || {
        let pool = Pool {
            inner: inner.upgrade().unwrap(),
        };
        pool.set_access(&[grant(1, Protection::ReadWrite)]).unwrap();
    });
    let block = machine.pool.allocate(8 * MIB, machine.stream).unwrap();
    assert!(machine.touches(1, block.address(), true));
    machine.pool.validate().unwrap();
}

#[test]
fn a_growth_that_was_under_way_loses_what_was_revoked() {
    let meanwhile = Meanwhile::after(Call::Map);
    let machine = machine(vec![Arc::clone(&meanwhile) as _]);
    machine
        .pool
        .set_access(&[grant(1, Protection::ReadWrite)])
        .unwrap();
    let inner = Arc::downgrade(&machine.pool.inner);
    meanwhile.act(move || {
        let pool = Pool {
            inner: inner.upgrade().unwrap(),
        };
        pool.set_access(&[grant(1, Protection::None)]).unwrap();
    });
    let block = machine.pool.allocate(8 * MIB, machine.stream).unwrap();
    assert!(!machine.touches(1, block.address(), true));
}

/// Two host devices: real bytes, in both directions at once, and through the host where there is
/// no link.
#[test]
fn linked_devices_copy_from_each_others_pools_and_others_through_the_host() {
    use crate::device::{Findings, HostDevice};
    let topology = Topology::new().link(0, 1);
    let devices: Vec<Arc<HostDevice>> = (0..3)
        .map(|ordinal| {
            let builder = HostDevice::builder().total_memory(64 * MIB);
            Arc::new(builder.in_topology(&topology, ordinal).build().unwrap())
        })
        .collect();
    let pools: Vec<Pool> = devices
        .iter()
        .map(|d| Pool::builder(Arc::clone(d) as _).build().unwrap())
        .collect();
    let streams: Vec<StreamId> = devices
        .iter()
        .map(|d| d.create_stream(StreamOrder::Independent).unwrap())
        .collect();
    assert_ne!(streams[0], streams[1]);
    let size = 3 * MIB + 40;
    let blocks: Vec<[Block; 2]> = (0..3)
        .map(|n| [(); 2].map(|()| pools[n].allocate(size, streams[n]).unwrap()))
        .collect();
    pools[0].set_access(&[grant(1, Protection::Read)]).unwrap();
    pools[1].set_access(&[grant(0, Protection::Read)]).unwrap();
    let sources: Vec<u64> = blocks.iter().map(|[source, _]| source.address()).collect();
    for (n, device) in devices.iter().enumerate() {
        device
            .fill(streams[n], sources[n], size, Pattern(n as u64 + 7))
            .unwrap();
        device.synchronize().unwrap();
    }
    let findings = Findings::new();
    for (n, device) in devices.iter().enumerate().take(2) {
        let (other, copy) = (1 - n, blocks[n][1].address());
        device.copy(streams[n], copy, sources[other], size).unwrap();
        let pattern = Pattern(other as u64 + 7);
        device
            .verify(streams[n], copy, size, pattern, &findings)
            .unwrap();
        device
            .verify(streams[n], sources[other], size, pattern, &findings)
            .unwrap();
    }
    // Staged: device 2 reaches nobody.
    let mut bytes = vec![0; size as usize];
    devices[0].read(sources[0], &mut bytes).unwrap();
    devices[2].write(blocks[2][1].address(), &bytes).unwrap();
    devices[2]
        .verify(
            streams[2],
            blocks[2][1].address(),
            size,
            Pattern(7),
            &findings,
        )
        .unwrap();
    for device in &devices {
        device.synchronize().unwrap();
    }
    assert_eq!(findings.wrong_bytes(), 0);
    // What is only to be read is not written, and what is not granted is not touched.
    for (device, write) in [(1, true), (2, false)] {
        let stream = streams[device];
        let device = &devices[device];
        match write {
            true => device.fill(stream, sources[0], 8, Pattern(1)).unwrap(),
            false => device
                .verify(stream, sources[0], 8, Pattern(7), &findings)
                .unwrap(),
        }
        let refused = device.synchronize().unwrap_err();
        assert_eq!(refused.status, Status::ILLEGAL_ADDRESS);
    }
    assert!(pools[0].set_access(&[grant(2, Protection::Read)]).is_err());
    assert!(devices[0].synchronize().is_ok());
}

#[test]
fn further_mappings_and_reuse_keep_the_access() {
    let machine = machine(Vec::new());
    machine.pool.set_limit(32 * MIB);
    machine
        .pool
        .set_access(&[grant(1, Protection::ReadWrite)])
        .unwrap();
    let blocks: Vec<Block> = (0..8)
        .map(|_| machine.pool.allocate(4 * MIB, machine.stream).unwrap())
        .collect();
    let (odd, even): (Vec<_>, Vec<_>) = blocks.into_iter().zip(0..).partition(|(_, n)| n % 2 == 1);
    drop(odd);
    // Put together from pieces, at a further address.
    let half = machine.pool.allocate(16 * MIB, machine.stream).unwrap();
    for offset in [0, 5 * MIB, 16 * MIB - 8] {
        assert!(machine.touches(1, half.address() + offset, true));
    }
    drop(even);
}

#[test]
fn memory_of_the_host_is_the_hosts_until_a_device_is_given_it() {
    let build = || {
        let sim = SimDevice::builder()
            .total_memory(64 * MIB)
            .host_memory(true);
        let sim = Arc::new(sim.build());
        let pool = Pool::builder(Arc::clone(&sim) as _).location(PoolLocation::HostNuma(0));
        let stream = sim.create_stream(StreamOrder::Independent).unwrap();
        (sim, pool.build().unwrap(), stream)
    };
    for given in [false, true] {
        let (sim, pool, stream) = build();
        let block = pool.allocate(2 * MIB, stream).unwrap();
        assert_eq!(pool.access_of(Accessor::HostNuma(0)), Protection::ReadWrite);
        assert_eq!(pool.access_of(Accessor::Device(0)), Protection::None);
        if given {
            pool.set_access(&[grant(0, Protection::ReadWrite)]).unwrap();
        }
        sim.fill(stream, block.address(), 8, Pattern(1)).unwrap();
        sim.advance_host_by(LONG);
        assert_eq!(sim.synchronize().is_ok(), given);
        let host = AccessGrant {
            accessor: Accessor::HostNuma(0),
            protection: Protection::None,
        };
        let refused = pool.set_access(&[host]).unwrap_err();
        assert!(matches!(refused, AccessError::OwnPlace { .. }));
    }
}
