//! What one pair of allocation and free costs, in patterns that are the same for every allocator.
//!
//! - [`cases`]: the patterns and their parameters; [`work`]: one step of each.
//! - [`passes`]: runs a pattern's threads, pass after pass; [`replayed`]: recordings, in place of
//!   a pattern.
//! - [`clock`]: the time, and how much of it the sim's driver took; [`latencies`]: percentiles.
//! - [`target`]: devices; [`row`]: what comes of it; [`error`]: why nothing does.
//!
//! # What is measured
//!
//! Each row has a pool of its own, so that none depends on what came before it. Means are from
//! passes with no clock inside; percentiles from further passes in which each pair is timed by
//! itself, less what reading the clock costs. On the sim, real time that its emulated driver takes
//! is left out of both.

mod cases;
mod clock;
mod error;
mod latencies;
mod passes;
mod replayed;
mod row;
mod target;
mod work;

pub(crate) use cases::{Case, Pattern};
pub(crate) use clock::Clock;
pub(crate) use error::BenchError;
pub(crate) use replayed::replay;
pub(crate) use row::{Row, table};
pub(crate) use target::Target;

use millpond::Pool;
use millpond::device::StreamOrder;

use passes::Passes;
use work::{Churning, Pairs};

/// Measures one row.
pub(crate) fn measure(case: &Case, target: &Target, clock: &Clock) -> Result<Row, BenchError> {
    let device = target.device(clock)?;
    let pool = Pool::builder(device.clone()).build()?;
    let streams = (0..case.threads)
        .map(|_| device.create_stream(StreamOrder::Independent))
        .collect::<Result<Vec<_>, _>>()?;
    let passes = Passes {
        clock,
        threads: case.threads,
        pairs: case.pairs,
    };
    let measured = if case.pattern == Pattern::Pair {
        passes.run(|thread| Pairs::new(&pool, streams[thread], case))
    } else {
        passes.run(|thread| Churning::new(&pool, streams[thread], case, thread))
    }?;
    let statistics = pool.statistics();
    drop(pool);
    for stream in streams {
        device.destroy_stream(stream)?;
    }
    Ok(Row::of_case(
        case,
        target.name(),
        clock,
        &measured,
        &statistics,
    ))
}
