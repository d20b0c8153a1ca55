//! Tests of the tests: a right pool passes, and each wrong one is found out.

mod naive;

use std::sync::Arc;
use std::time::Duration;

use millpond::device::Device;
use millpond::device::host::HostDevice;
use millpond::device::sim::SimDevice;
use millpond_check::{Driver, FailedRun, Failure, Report, Rule, Sequence, Shape};
use naive::{Bug, NaivePool};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 32 * MIB;

const SHAPE: Shape = Shape {
    threads: 1,
    streams: 4,
    operations: 120,
    largest: 2 * MIB,
    faults: false,
    undeclared: false,
};

fn sim() -> Arc<dyn Device> {
    Arc::new(SimDevice::builder().total_memory(64 * MIB).build())
}

fn run(device: Arc<dyn Device>, bug: Bug, seed: u64, shape: &Shape) -> Result<Report, FailedRun> {
    let driver = Driver::new(device);
    let pool = NaivePool::new(driver.device(), LIMIT, bug);
    driver.run(pool, &Sequence::from_seed(seed, shape))
}

/// The first failure among many sequences.
fn found(bug: Bug) -> Failure {
    let failed = (0..3000).find_map(|seed| run(sim(), bug, seed, &SHAPE).err());
    failed.expect("a wrong pool fails").failure
}

fn broken(failure: &Failure) -> Rule {
    match failure {
        Failure::Rules(found) => found[0].rule(),
        other => panic!("a broken rule was expected: {other}"),
    }
}

#[test]
fn a_right_pool_passes() {
    let mut all = Report::default();
    for seed in 0..300 {
        for threads in [1, 8] {
            let shape = Shape { threads, ..SHAPE };
            match run(sim(), Bug::Nothing, seed, &shape) {
                Ok(report) => all.add(&report),
                Err(failed) => panic!("seed {seed}, at most {threads} threads: {failed}"),
            }
        }
    }
    // Something was done.
    assert!(all.allocated > 10_000 && all.used > 2000, "{all:?}");
}

#[test]
fn a_right_pool_passes_with_real_bytes() {
    for seed in 0..100 {
        let device = HostDevice::builder()
            .total_memory(2 * LIMIT)
            .delays(seed, Duration::from_micros(100))
            .build()
            .expect("a host device");
        let shape = Shape {
            threads: 4,
            ..SHAPE
        };
        if let Err(failed) = run(Arc::new(device), Bug::Nothing, seed, &shape) {
            panic!("seed {seed}: {failed}");
        }
    }
}

#[test]
fn reuse_out_of_order_is_found() {
    assert_eq!(broken(&found(Bug::IgnoresOrder)), Rule::StreamOrder);
}

#[test]
fn forgotten_uses_are_found() {
    assert_eq!(broken(&found(Bug::ForgetsUses)), Rule::StreamOrder);
}

#[test]
fn ends_taken_for_completions_are_found() {
    assert_eq!(broken(&found(Bug::EndsEarly)), Rule::StreamOrder);
}

#[test]
fn unmapping_in_use_is_found() {
    assert_eq!(broken(&found(Bug::UnmapsEarly)), Rule::NotInUse);
}

#[test]
fn overlapping_blocks_are_found() {
    assert_eq!(broken(&found(Bug::Overlaps)), Rule::OneOwner);
}

#[test]
fn ignored_alignments_are_found() {
    assert_eq!(broken(&found(Bug::Misaligns)), Rule::AsAsked);
}

#[test]
fn leaks_are_found() {
    assert_eq!(broken(&found(Bug::Leaks)), Rule::NothingLost);
}

#[test]
fn wrong_statistics_are_found() {
    let failure = found(Bug::Miscounts);
    assert!(matches!(failure, Failure::Statistics { .. }), "{failure}");
}

#[test]
fn wrong_frees_are_found() {
    let failure = found(Bug::AcceptsInterior);
    assert!(matches!(failure, Failure::Accepted(_)), "{failure}");
}

#[test]
fn changed_contents_are_found() {
    // The checker cannot see it: no rule is broken but that the pool writes to blocks.
    let wiped = |seed| {
        let device = HostDevice::builder()
            .total_memory(2 * LIMIT)
            .delays(seed, Duration::from_micros(100))
            .build()
            .expect("a host device");
        let failed = run(Arc::new(device), Bug::Wipes, seed, &SHAPE).err()?;
        let Failure::Contents(corrupt) = failed.failure else {
            panic!("{failed}");
        };
        // Of blocks below 8 bytes there is no whole word.
        corrupt
            .into_iter()
            .find(|found| found.found_word == u64::MAX)
    };
    let wiped = (0..200).find_map(wiped).expect("a wrong pool fails");
    assert_eq!(wiped.overwritten_by, None);
}
