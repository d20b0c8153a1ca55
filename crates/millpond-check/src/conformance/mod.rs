//! The conformance suites: one set of tests over the device contract and one over the pool, run on
//! every device alike.
//!
//! A [`Case`] is a function over a [`Fixture`], which has opened one [`Kind`] of device; it panics
//! where a rule does not hold. What an emulation imitates of the driver is thus tested on the
//! driver by the same code. `DRV`, `GUIDE`, `MEASURED` and the rule numbers are those of
//! [`millpond::device`].
//!
//! Where a device has no bytes, contents are not looked at, but order is: through events, and in
//! the pool's suite through the [`Checker`](crate::Checker), which stands in front of the device
//! in every case.
//!
//! # Invariants
//!
//! - No case depends on time: work that must not be over yet is held ([`Fixture::hold`]), and one
//!   hold is in force at a time, because host functions of one CUDA context share a thread.
//! - A case whose fault stays with the process runs in a process of its own where that is so.
//! - Cases on a GPU take turns, so that what one holds cannot hold up another.

pub mod device;
mod fixture;
pub mod pool;
mod processes;

pub use fixture::{Fixture, Hold, Kind, Mapped};
pub use processes::{as_child, run};

use std::fmt;
use std::os::unix::net::UnixStream;

/// Why a case has nothing to say about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped(pub String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a case that did not fail gives. A failure is a panic.
pub type Outcome = Result<(), Skipped>;

/// In which process a case runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    /// With all others.
    Shared,
    /// In its own on a GPU, where a fault ends the process's use of the device.
    OwnOnCuda,
    /// In its own, because it looks at the process as a whole.
    Own,
}

/// One test of a suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in the suite.
    pub name: &'static str,
    /// The rule it checks, and where that comes from.
    pub clause: &'static str,
    /// Where it runs.
    pub process: Process,
    /// The test.
    pub run: fn(&Fixture) -> Outcome,
    /// What a second process does, on its own device, if the test starts one
    /// ([`Fixture::start_partner`]).
    pub partner: Option<fn(&Fixture, UnixStream) -> Outcome>,
}

impl Case {
    const fn new(name: &'static str, clause: &'static str, run: fn(&Fixture) -> Outcome) -> Case {
        Case {
            name,
            clause,
            process: Process::Shared,
            run,
            partner: None,
        }
    }

    const fn process(mut self, process: Process) -> Case {
        self.process = process;
        self
    }

    const fn partner(mut self, partner: fn(&Fixture, UnixStream) -> Outcome) -> Case {
        self.partner = Some(partner);
        self
    }
}

/// A case under its function's name.
macro_rules! case {
    ($run:path, $clause:literal) => {
        $crate::conformance::Case::new(
            $crate::conformance::last_segment(stringify!($run)),
            $clause,
            $run,
        )
    };
}
use case;

/// What follows the last colon of a path.
const fn last_segment(path: &'static str) -> &'static str {
    let bytes = path.as_bytes();
    let mut at = bytes.len();
    while at > 0 && bytes[at - 1] != b':' && bytes[at - 1] != b' ' {
        at -= 1;
    }
    path.split_at(at).1
}

/// All cases of both suites, each under the name of its suite.
pub fn all() -> impl Iterator<Item = (&'static str, &'static Case)> {
    let device = device::all().iter().map(|case| ("device", case));
    device.chain(pool::all().iter().map(|case| ("pool", case)))
}
