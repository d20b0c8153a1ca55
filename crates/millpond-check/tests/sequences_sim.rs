//! Random sequences on the sim: deterministic, and quick enough for many.

use std::sync::Arc;

use millpond::Pool;
use millpond::device::sim::SimDevice;
use millpond_check::{Driver, FailedRun, RealPool, Report, Sequence, Shape};

const MIB: u64 = 1 << 20;

fn run(device: SimDevice, limit: u64, sequence: &Sequence) -> Result<Report, FailedRun> {
    let driver = Driver::new(Arc::new(device));
    let pool = Pool::builder(driver.device()).limit(limit).build();
    driver.run(RealPool::new(pool.expect("a pool")), sequence)
}

#[test]
fn smoke() {
    let shape = Shape {
        threads: 1,
        streams: 8,
        operations: 200,
        largest: 64 * MIB,
        faults: false,
        undeclared: false,
    };
    let mut all = Report::default();
    let mut bad = 0;
    for seed in 0..1000 {
        let device = SimDevice::builder().total_memory(512 * MIB).build();
        let sequence = Sequence::from_seed(seed, &shape);
        match run(device, 256 * MIB, &sequence) {
            Ok(report) => all.add(&report),
            Err(failed) => {
                bad += 1;
                if bad < 10 {
                    eprintln!("seed {seed}: {failed}");
                }
            }
        }
    }
    eprintln!("{bad} bad, {all:?}");
}
