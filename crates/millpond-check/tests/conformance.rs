//! Runs the conformance suites: every case on every kind of device is a test of its own, named
//! `suite::case::device`. Where a device is not there, or a case has nothing to say about it, the
//! test is ignored and says why.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};
use millpond_check::conformance::{self, Case, Kind};

fn main() -> ExitCode {
    if let Some(code) = conformance::as_child() {
        return code;
    }
    let arguments = Arguments::from_args();
    let trials = conformance::all()
        .flat_map(|(suite, case)| Kind::ALL.map(|kind| trial(suite, case, kind)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(suite: &'static str, case: &'static Case, kind: Kind) -> Trial {
    let name = format!("{suite}::{}::{}", case.name, kind.name());
    Trial::ignorable_test(name, move || {
        let described = Described(case);
        let outcome = conformance::run(suite, case, kind);
        drop(described);
        match outcome {
            Ok(()) => Ok(Completion::Completed),
            Err(skipped) => Ok(Completion::ignored_with(skipped)),
        }
    })
}

/// Says which clause was checked, if the check panics.
struct Described(&'static Case);

impl Drop for Described {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: checks {}", self.0.name, self.0.clause);
        }
    }
}
