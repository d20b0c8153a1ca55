//! Random sequences against the pool, on both emulated devices, with the checker in front.
//!
//! `MILLPOND_SEQUENCES=10` runs ten times as many; `MILLPOND_SEED=5` begins with another seed.
//! With one thread a seed that fails fails again; with several it may take some runs.

mod failures;
mod host;
mod overtaken;
mod sim;

use std::sync::Arc;

use millpond::Pool;
use millpond::device::Device;
use millpond::pool::{ReusePolicies, Waits};
use millpond_check::{Driver, FailedRun, RealPool, Report, Sequence, Shape};

const MIB: u64 = 1 << 20;

/// As a pool reuses memory if it is not told otherwise.
const USUAL: ReusePolicies = ReusePolicies {
    follow_event_dependencies: true,
    allow_opportunistic: true,
    allow_internal_dependencies: true,
};

/// A kind of sequences, and how the pool is built for them.
struct Kind {
    shape: Shape,
    limit: u64,
    /// Whether the pool is promised that every stream's end is declared.
    streams_declared: bool,
    waits: Waits,
    reuse: ReusePolicies,
}

impl Kind {
    fn run(&self, device: Arc<dyn Device>, sequence: &Sequence) -> Result<Report, FailedRun> {
        let driver = Driver::new(device);
        let builder = Pool::builder(driver.device())
            .limit(self.limit)
            .waits(self.waits)
            .reuse_policies(self.reuse);
        let builder = if self.streams_declared {
            builder.streams_declared()
        } else {
            builder
        };
        driver.run(RealPool::new(builder.build().expect("a pool")), sequence)
    }

    /// Runs the sequences of many seeds, each on a device of its own.
    fn run_seeds(&self, count: u64, device: impl Fn(u64) -> Arc<dyn Device>) -> Report {
        let first = from_environment("MILLPOND_SEED", 0);
        let count = count * from_environment("MILLPOND_SEQUENCES", 1);
        let mut all = Report::default();
        for seed in first..first + count {
            let sequence = Sequence::from_seed(seed, &self.shape);
            match self.run(device(seed), &sequence) {
                Ok(report) => all.add(&report),
                Err(failed) => panic!("seed {seed}: {failed}"),
            }
        }
        // A run that allocates little or uses nothing elsewhere shows nothing.
        assert!(all.allocated > 5 * count && all.used > count, "{all:?}");
        if self.shape.faults {
            assert!(all.failed_calls > count / 2, "{all:?}");
        }
        all
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().expect("a number in the environment"),
        Err(_) => default,
    }
}
