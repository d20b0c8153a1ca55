//! An independent judge of the pool, and the conformance suites.
//!
//! [`Checker`] watches every device call and is told what the pool handed out and took back. From
//! these two alone it knows who owns which physical byte and what is ordered before what, and
//! judges the pool's rules 1 to 4. It shares no code with the pool's engine: neither its clocks
//! nor its maps.
//!
//! A [`Driver`] runs random [sequences](Sequence) of what programs do against a pool, with the
//! checker in front of the device and every block's content verified.

mod bound;
mod checker;
pub mod conformance;
mod driver;
mod failure;
mod fault;
mod memory;
mod order;
mod segments;
mod sequences;
mod streams;
mod tested;
mod violation;

pub use bound::RealPool;
pub use checker::{Checker, Freeing, Totals};
pub use driver::{Driver, Report};
pub use failure::{Corruption, FailedRun, Failure};
pub use sequences::{Mistake, Operation, Sequence, Shape};
pub use tested::{Held, Refusal, TestedPool};
pub use violation::{BlockSeen, Gap, Remaining, Rule, Violation};
