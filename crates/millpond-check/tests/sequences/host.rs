//! On the host device: real bytes, real threads behind the streams, held back at random. Every
//! block's content is verified.

use std::sync::Arc;
use std::time::Duration;

use millpond::device::Device;
use millpond::device::host::HostDevice;
use millpond::pool::Waits;
use millpond_check::Shape;

use super::{Kind, MIB, USUAL};

const KIND: Kind = Kind {
    shape: Shape {
        threads: 1,
        streams: 8,
        operations: 100,
        largest: 4 * MIB,
        faults: false,
        undeclared: false,
    },
    limit: 24 * MIB,
    streams_declared: false,
    waits: Waits::Balanced,
    reuse: USUAL,
};

fn host(recur: bool) -> impl Fn(u64) -> Arc<dyn Device> {
    move |seed| {
        let device = HostDevice::builder()
            .total_memory(64 * MIB)
            .stream_values_recur(recur)
            .delays(seed, Duration::from_micros(200))
            .build();
        Arc::new(device.expect("a host device"))
    }
}

fn with(change: impl FnOnce(&mut Shape)) -> Kind {
    let mut shape = KIND.shape;
    change(&mut shape);
    Kind { shape, ..KIND }
}

#[test]
fn one_thread() {
    KIND.run_seeds(500, host(false));
}

#[test]
fn one_thread_with_failing_calls() {
    with(|shape| shape.faults = true).run_seeds(500, host(true));
}

#[test]
fn memory_before_time() {
    let threads = with(|shape| shape.threads = 4);
    let memory_first = Kind {
        waits: Waits::MemoryFirst,
        ..threads
    };
    memory_first.run_seeds(300, host(false));
}

#[test]
fn threads() {
    with(|shape| shape.threads = 8).run_seeds(500, host(false));
}

#[test]
fn threads_with_everything() {
    let everything = with(|shape| {
        shape.threads = 8;
        shape.faults = true;
        shape.undeclared = true;
    });
    everything.run_seeds(500, host(true));
}
