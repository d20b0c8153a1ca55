//! An independent judge of the pool, and the conformance suites.
//!
//! [`Checker`] watches every device call and is told what the pool handed out and took back. From
//! these two alone it knows who owns which physical byte and what is ordered before what, and
//! judges the pool's rules 1 to 4. It shares no code with the pool's engine: neither its clocks
//! nor its maps.

mod checker;
mod memory;
mod order;
mod segments;
mod violation;

pub use checker::{Checker, Freeing, Totals};
pub use violation::{BlockSeen, Gap, Remaining, Rule, Violation};
