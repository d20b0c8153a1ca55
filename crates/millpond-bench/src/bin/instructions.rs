//! What `scripts/instructions.sh` counts: `instructions pair|churn PAIRS`. Only what is called from
//! a function `measured_…` is to be counted.

#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::hint::black_box;

use millpond_bench::{Allocator, Churning, PoolOnSim};

/// Bytes of the blocks that are allocated and freed.
const SIZE: u64 = 1 << 20;

/// Pairs before those that are counted.
const WARM_UP: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [pattern, pairs] = &arguments[..] else {
        return Err("usage: instructions pair|churn PAIRS".into());
    };
    let pairs: u64 = pairs.parse()?;
    match pattern.as_str() {
        "pair" => {
            let mut pool = PoolOnSim::new()?;
            for _ in 0..WARM_UP {
                let block = pool.allocate(SIZE)?;
                pool.free(block)?;
            }
            measured_pairs(&mut pool, pairs)
        }
        "churn" => measured_churn(&mut Churning::new(1000, 9, 24)?, pairs),
        other => Err(format!("no pattern is called {other}; there are pair and churn").into()),
    }
}

/// The common path: a size that the stream freed just before.
#[inline(never)]
fn measured_pairs(pool: &mut PoolOnSim, pairs: u64) -> Result<(), Box<dyn Error>> {
    for _ in 0..pairs {
        let block = pool.allocate(black_box(SIZE))?;
        pool.free(black_box(block))?;
    }
    Ok(())
}

/// Random sizes among many live blocks.
#[inline(never)]
fn measured_churn(churning: &mut Churning<PoolOnSim>, pairs: u64) -> Result<(), Box<dyn Error>> {
    for _ in 0..pairs {
        churning.replace()?;
    }
    Ok(())
}
