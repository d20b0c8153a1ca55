//! Static memory planning: offsets for buffers whose lifetimes are known, and a proof of how good
//! they are.
//!
//! A plan is there within milliseconds; it gets better until no plan can be better, or until time is up.
//! Every plan that is handed out has been checked by [`validate`], which shares no code with what
//! made it.
//!
//! ```
//! use millpond_plan::{Buffer, Options, Problem, plan};
//! // Two buffers of 4 bytes that never live at once, and one of 2 that meets both.
//! let problem = Problem::new(vec![
//!     Buffer::new(0, 2, 4),
//!     Buffer::new(2, 4, 4),
//!     Buffer::new(1, 3, 2),
//! ]);
//! let plan = plan(&problem, &Options::default())?;
//! assert_eq!(plan.peak, 6);
//! assert!(plan.is_optimal());
//! assert_eq!(plan.placements[0].offset, plan.placements[1].offset);
//! # Ok::<(), millpond_plan::PlanError>(())
//! ```
//!
//! # Invariants
//! - Lower rooms know nothing of upper ones: `problem` → `instance` → `occupancy` → `greedy`, `exact` →
//!   `component` → `arenas`, `planner`. `validate` knows `problem` alone.
//! - No problem makes the planner panic; what it cannot plan is an error.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod arenas;
mod compare;
mod component;
mod control;
mod error;
mod exact;
mod greedy;
mod instance;
mod occupancy;
mod planner;
mod problem;
mod unit;
mod validate;

pub use compare::{Comparison, compare, held_at, peak_time};
pub use error::{PlanError, ProblemError};
pub use planner::{Options, Placement, Plan, plan, plan_with};
pub use problem::{Arena, Buffer, Gap, Problem};
pub use validate::{Violation, validate};
