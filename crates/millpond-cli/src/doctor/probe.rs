//! What the mapping calls cost here: a short measurement on an idle device.
//!
//! # Invariants
//!
//! - What a round creates it gives back, also where a call fails.
//! - The first round of each size only warms up.
//! - It ends: each size has a number of rounds, and a time after which no further one begins.

use millpond::device::{
    AccessGrant, Accessor, Device, DeviceError, HandleProperties, Protection, StreamOrder,
};

use super::{Probe, SizeCosts};

const MIB: u64 = 1 << 20;

/// Sizes of handles: the smallest, a usual one, the largest that a pool takes without need.
const SIZES: [u64; 3] = [2 * MIB, 32 * MIB, 256 * MIB];

const ROUNDS: usize = 64;

/// Nanoseconds for one size, so that all is over in about a second.
const TIME_PER_SIZE: u64 = 300_000_000;

/// Measures.
pub(super) fn probe(device: &dyn Device) -> Probe {
    let mut probe = Probe {
        sizes: SIZES.iter().map(|&size| costs_of(device, size)).collect(),
        ..Probe::default()
    };
    match events(device) {
        Ok([record, query]) => {
            probe.record_event_ns = Some(record);
            probe.query_event_ns = Some(query);
        }
        Err(error) => probe.problem = Some(error.to_string()),
    }
    probe
}

fn costs_of(device: &dyn Device, size: u64) -> SizeCosts {
    let bytes = size.next_multiple_of(device.capabilities().granularity);
    let mut costs = SizeCosts {
        bytes,
        ..SizeCosts::default()
    };
    if device.capabilities().mapping {
        match mapping(device, bytes) {
            Ok([create, map, set_access, unmap, release]) => {
                costs.create_ns = Some(create);
                costs.map_ns = Some(map);
                costs.set_access_ns = Some(set_access);
                costs.unmap_ns = Some(unmap);
                costs.release_ns = Some(release);
            }
            Err(error) => costs.problem = Some(error.to_string()),
        }
    }
    match medians(device, || plain_round(device, bytes)) {
        Ok([allocate, free]) => {
            costs.allocate_ns = Some(allocate);
            costs.free_ns = Some(free);
        }
        Err(error) => {
            costs.problem.get_or_insert_with(|| error.to_string());
        }
    }
    costs
}

fn mapping(device: &dyn Device, size: u64) -> Result<[u64; 5], DeviceError> {
    let base = device.reserve(size, 0)?;
    let measured = medians(device, || mapping_round(device, base, size));
    device.free_reservation(base, size)?;
    measured
}

fn mapping_round(device: &dyn Device, base: u64, size: u64) -> Result<[u64; 5], DeviceError> {
    let (create, handle) = timed(device, || device.create(size, HandleProperties::default()))?;
    let placed = (|| {
        let (map, ()) = timed(device, || device.map(base, size, handle))?;
        let grant = AccessGrant {
            accessor: Accessor::Device(device.capabilities().ordinal),
            protection: Protection::ReadWrite,
        };
        let set_access = timed(device, || device.set_access(base, size, &[grant]));
        let (unmap, ()) = timed(device, || device.unmap(base, size))?;
        Ok((map, set_access?.0, unmap))
    })();
    let (release, ()) = timed(device, || device.release(handle))?;
    let (map, set_access, unmap) = placed?;
    Ok([create, map, set_access, unmap, release])
}

fn plain_round(device: &dyn Device, size: u64) -> Result<[u64; 2], DeviceError> {
    let (allocate, address) = timed(device, || device.allocate(size))?;
    let (free, ()) = timed(device, || device.free(address))?;
    Ok([allocate, free])
}

/// Recording an event on an idle stream, and asking after it.
fn events(device: &dyn Device) -> Result<[u64; 2], DeviceError> {
    let stream = device.create_stream(StreamOrder::Independent)?;
    let measured = device.create_event().and_then(|event| {
        let measured = medians(device, || {
            let (record, ()) = timed(device, || device.record_event(event, stream))?;
            let (query, _) = timed(device, || device.query_event(event))?;
            Ok([record, query])
        });
        device.destroy_event(event)?;
        measured
    });
    device.destroy_stream(stream)?;
    measured
}

/// A call and its time on the device's host clock.
fn timed<T>(
    device: &dyn Device,
    call: impl FnOnce() -> Result<T, DeviceError>,
) -> Result<(u64, T), DeviceError> {
    let started = device.now();
    let result = call()?;
    Ok((device.now().saturating_sub(started), result))
}

/// The median of each time over the rounds.
fn medians<const N: usize>(
    device: &dyn Device,
    mut round: impl FnMut() -> Result<[u64; N], DeviceError>,
) -> Result<[u64; N], DeviceError> {
    round()?;
    let ends = device.now().saturating_add(TIME_PER_SIZE / 2);
    let mut rounds = vec![round()?];
    while rounds.len() < ROUNDS && device.now() < ends {
        rounds.push(round()?);
    }
    Ok(std::array::from_fn(|call| {
        let mut times: Vec<u64> = rounds.iter().map(|round| round[call]).collect();
        times.sort_unstable();
        times[times.len() / 2]
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond::device::{Call, Faults, Observed, SimDevice};

    use super::*;

    #[test]
    fn on_the_sim_the_medians_are_its_costs() {
        let probe = probe(&SimDevice::new());
        let sizes: Vec<u64> = probe.sizes.iter().map(|costs| costs.bytes).collect();
        assert_eq!(sizes, SIZES);
        for costs in &probe.sizes {
            assert_eq!(costs.problem, None);
            let mapping = [costs.create_ns, costs.map_ns, costs.set_access_ns];
            assert_eq!(mapping, [15_000, 1_000, 47_000].map(Some));
            assert_eq!(costs.unmap_ns, Some(27_000));
            let plain = [costs.allocate_ns, costs.free_ns];
            assert_eq!(plain, [35_000, 45_000].map(Some));
        }
        // Releasing clears, by the byte.
        assert!(probe.sizes[2].release_ns > probe.sizes[0].release_ns);
        let events = [probe.record_event_ns, probe.query_event_ns];
        assert_eq!(events, [540, 440].map(Some));
    }

    #[test]
    fn without_mapping_the_plain_calls_are_measured() {
        let device = SimDevice::builder().mapping(false).build();
        for costs in probe(&device).sizes {
            assert_eq!((costs.create_ns, costs.unmap_ns), (None, None));
            assert_eq!(costs.allocate_ns, Some(35_000));
            assert_eq!(costs.problem, None);
        }
    }

    #[test]
    fn a_call_that_fails_is_told_and_everything_is_given_back() {
        let calls = [Call::Create, Call::Map, Call::SetAccess, Call::Allocate];
        for call in calls {
            let faults = Arc::new(Faults::number(5).only(&[call]));
            let device = Arc::new(SimDevice::new());
            let observers = vec![Arc::clone(&faults) as _];
            let observed = Observed::new(Arc::clone(&device) as _, observers);
            let probe = probe(&observed);
            let memory = device.memory_info().unwrap();
            assert_eq!(memory.free, memory.total, "{call}");
            assert_eq!(faults.failed(), 1);
            let problem = probe.sizes[0].problem.as_ref().unwrap();
            assert!(problem.contains(call.driver_name()), "{problem}");
            assert_eq!(probe.sizes[1].problem, None);
        }
    }

    #[test]
    fn a_size_that_does_not_fit_is_told() {
        let device = SimDevice::builder().total_memory(64 * MIB).build();
        let probe = probe(&device);
        assert_eq!(probe.sizes[1].problem, None);
        assert_eq!(probe.sizes[2].create_ns, None);
        let problem = probe.sizes[2].problem.as_ref().unwrap();
        assert!(problem.contains("out of memory"), "{problem}");
    }
}
