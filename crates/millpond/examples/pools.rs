//! Pools as CUDA defines them, on real bytes of this machine: `cargo run --example pools`.
//!
//! Two tenants share a budget on a machine of two linked devices; what one frees the other gets, a
//! device reads the other's pool, and a pool is destroyed while its memory is in use.

use std::sync::Arc;

use millpond::Pools;
use millpond::device::{
    AccessGrant, Accessor, Device, Findings, HostDevice, Pattern, Protection, StreamOrder, Topology,
};
use millpond::pool::{Budget, PoolAttribute, PoolLocation, reap_waiting};

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let topology = Topology::new().link(0, 1);
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for ordinal in 0..2 {
        let builder = HostDevice::builder().total_memory(256 * MIB);
        devices.push(Arc::new(builder.in_topology(&topology, ordinal).build()?));
    }
    let pools = Pools::new(devices.iter().cloned())?;
    let here = PoolLocation::Device(0);
    let streams = [
        devices[0].create_stream(StreamOrder::Independent)?,
        devices[1].create_stream(StreamOrder::Independent)?,
    ];

    // Two tenants under one budget.
    let budget = Budget::new(64 * MIB);
    let first = pools.create(pools.builder(here)?.budget(&budget))?;
    let second = pools.create(pools.builder(here)?.budget(&budget))?;
    let block = first.allocate(40 * MIB, streams[0])?;
    if let Err(error) = second.allocate(40 * MIB, streams[0]) {
        println!("{error}");
    }
    drop(block);
    pools.synchronize_stream(0, streams[0])?;
    let block = second.allocate(40 * MIB, streams[0])?;
    println!("{:?}", budget.usage());

    // Any address inside leads back to the block.
    let pointer = pools.pointer(block.address() + 1000)?;
    assert_eq!((pointer.pool, pointer.offset), (second.clone(), 1000));

    // Device 1 reads the second tenant's memory.
    second.set_access(&[AccessGrant {
        accessor: Accessor::Device(1),
        protection: Protection::Read,
    }])?;
    let (address, size, findings) = (block.address(), block.size(), Findings::new());
    devices[0].fill(streams[0], address, size, Pattern(42))?;
    devices[0].synchronize_stream(streams[0])?;
    devices[1].verify(streams[1], address, size, Pattern(42), &findings)?;
    devices[1].synchronize()?;
    assert_eq!(findings.wrong_bytes(), 0);

    // Destroyed while in use: nobody waits, and the block stays good until it is freed.
    second.destroy()?;
    devices[0].fill(streams[0], address, size, Pattern(43))?;
    println!("{:#?}", second.trim_to(0)?);
    drop(block);
    assert_eq!(reap_waiting(&devices[0])?, 0);
    assert_eq!(second.attribute(PoolAttribute::ReservedMemCurrent), 0);
    println!("{:?}", budget.usage());
    Ok(())
}
