//! On the sim: quick enough for many, and it faults whatever unmaps memory in use.

use std::sync::Arc;

use millpond::device::Device;
use millpond::device::sim::{SimDevice, SimDeviceBuilder};
use millpond::pool::{ReusePolicies, Waits};
use millpond_check::{Sequence, Shape};
use proptest::test_runner::{Config, TestRunner};

use super::{Kind, MIB, USUAL, from_environment};

const KIND: Kind = Kind {
    shape: Shape {
        threads: 1,
        streams: 8,
        operations: 200,
        largest: 64 * MIB,
        faults: false,
        undeclared: false,
    },
    limit: 256 * MIB,
    streams_declared: false,
    waits: Waits::Balanced,
    reuse: USUAL,
};

fn sim(build: impl Fn(SimDeviceBuilder) -> SimDeviceBuilder) -> impl Fn(u64) -> Arc<dyn Device> {
    move |_| Arc::new(build(SimDevice::builder().total_memory(512 * MIB)).build())
}

fn with(change: impl FnOnce(&mut Shape)) -> Kind {
    let mut shape = KIND.shape;
    change(&mut shape);
    Kind { shape, ..KIND }
}

#[test]
fn one_thread() {
    let all = KIND.run_seeds(1500, sim(|device| device));
    // The limit is reached now and then.
    assert!(all.refused > 100, "{all:?}");
}

#[test]
fn one_thread_with_failing_calls() {
    with(|shape| shape.faults = true).run_seeds(1500, sim(|device| device));
}

#[test]
fn one_thread_where_values_of_streams_recur() {
    let recur = sim(|device| device.stream_values_recur(true));
    KIND.run_seeds(500, &recur);
    let declared = Kind {
        streams_declared: true,
        ..KIND
    };
    declared.run_seeds(500, &recur);
}

#[test]
fn streams_destroyed_behind_the_pools_back() {
    let undeclared = with(|shape| shape.undeclared = true);
    undeclared.run_seeds(500, sim(|device| device));
    undeclared.run_seeds(500, sim(|device| device.stream_values_recur(true)));
}

#[test]
fn threads() {
    with(|shape| shape.threads = 8).run_seeds(1500, sim(|device| device));
}

#[test]
fn threads_where_values_of_streams_recur() {
    let threads = with(|shape| shape.threads = 8);
    let declared = Kind {
        streams_declared: true,
        ..threads
    };
    declared.run_seeds(500, sim(|device| device.stream_values_recur(true)));
}

#[test]
fn threads_with_everything() {
    let everything = with(|shape| {
        shape.threads = 8;
        shape.faults = true;
        shape.undeclared = true;
    });
    everything.run_seeds(1000, sim(|device| device.stream_values_recur(true)));
}

#[test]
fn where_nothing_can_be_mapped() {
    let plain = sim(|device| device.mapping(false));
    with(|shape| shape.faults = true).run_seeds(500, &plain);
    with(|shape| shape.threads = 8).run_seeds(500, &plain);
}

#[test]
fn sizes_that_share_handles() {
    let small = Kind {
        limit: 16 * MIB,
        ..with(|shape| {
            shape.largest = 512 << 10;
            shape.operations = 600;
            shape.faults = true;
        })
    };
    small.run_seeds(300, sim(|device| device));
}

/// Policies decide when memory is used again, never whether that is safe.
#[test]
fn whatever_the_policy() {
    for waits in [Waits::MemoryFirst, Waits::Balanced, Waits::TimeFirst] {
        for policies in 0..8 {
            let reuse = ReusePolicies {
                follow_event_dependencies: policies & 1 > 0,
                allow_opportunistic: policies & 2 > 0,
                allow_internal_dependencies: policies & 4 > 0,
            };
            for threads in [1, 8] {
                let kind = with(|shape| {
                    shape.threads = threads;
                    shape.faults = true;
                });
                let kind = Kind {
                    waits,
                    reuse,
                    ..kind
                };
                kind.run_seeds(40, sim(|device| device.stream_values_recur(true)));
            }
        }
    }
}

/// A long run: what is kept must not grow with what was done.
#[test]
fn a_long_run() {
    let long = Kind {
        limit: 1024 * MIB,
        ..with(|shape| shape.operations = 40_000)
    };
    let device = |_| {
        let builder = SimDevice::builder().total_memory(2048 * MIB);
        Arc::new(builder.build()) as Arc<dyn Device>
    };
    long.run_seeds(4, device);
}

/// The same as the seeds, but a sequence that fails is made as short as it can be.
#[test]
fn shrinkable() {
    let kind = with(|shape| shape.faults = true);
    let config = Config {
        cases: 500 * from_environment("MILLPOND_SEQUENCES", 1) as u32,
        failure_persistence: None,
        ..Config::default()
    };
    let device = sim(|device| device.stream_values_recur(true));
    let result =
        TestRunner::new(config).run(&Sequence::strategy(kind.shape), |sequence| {
            match kind.run(device(0), &sequence) {
                Ok(_) => Ok(()),
                Err(failed) => Err(proptest::test_runner::TestCaseError::fail(
                    failed.to_string(),
                )),
            }
        });
    if let Err(error) = result {
        panic!("{error}");
    }
}
