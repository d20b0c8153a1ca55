//! Cases in processes of their own, and second processes of cases: this program, started again
//! with the case's name in its environment.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, thread};

use super::{Case, Fixture, Kind, Outcome, Process, Skipped, all};

/// Names the case that a process is to run and then end.
const ALONE: &str = "MILLPOND_CONFORMANCE_CASE";
/// Names the case whose second process this is.
pub(super) const PARTNER: &str = "MILLPOND_CONFORMANCE_PARTNER";
/// The exit code of a case that was skipped; the reason is on standard output.
const SKIPPED: u8 = 3;

/// The full name of a case on a device.
fn full_name(suite: &str, case: &Case, kind: Kind) -> String {
    format!("{suite}::{}::{}", case.name, kind.name())
}

/// Runs a case on a kind of device, in the process it belongs in.
///
/// # Panics
///
/// If the case fails.
pub fn run(suite: &str, case: &Case, kind: Kind) -> Outcome {
    static GPU: Mutex<()> = Mutex::new(());
    let _turn = (kind == Kind::Cuda).then(|| GPU.lock().unwrap_or_else(PoisonError::into_inner));
    let name = full_name(suite, case, kind);
    let alone = match case.process {
        Process::Shared => false,
        Process::OwnOnCuda => kind == Kind::Cuda,
        Process::Own => true,
    };
    match alone {
        true => run_alone(&name),
        false => (case.run)(&Fixture::open(kind, &name)?),
    }
}

fn run_alone(name: &str) -> Outcome {
    let program = env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .env(ALONE, name)
        // Arenas come with threads that happen to run together, and take address space.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("to start this program again");
    let errors = child.stderr.take();
    let errors = thread::spawn(move || read_all(errors));
    let said = read_all(child.stdout.take());
    let status = child.wait().expect("the process to end");
    let errors = errors.join().unwrap_or_default();
    match status.code() {
        Some(0) => Ok(()),
        Some(code) if code == i32::from(SKIPPED) => Err(Skipped(said.trim().to_owned())),
        _ => panic!("in a process of its own, {status}:\n{said}{errors}"),
    }
}

fn read_all(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Does what this process was started for, if a case started it. To be called first in the
/// program that runs the cases.
pub fn as_child() -> Option<ExitCode> {
    let (name, partner) = match (env::var(PARTNER), env::var(ALONE)) {
        (Ok(name), _) => (name, true),
        (_, Ok(name)) => (name, false),
        _ => return None,
    };
    let Some((case, kind)) = find(&name) else {
        eprintln!("there is no case {name}");
        return Some(ExitCode::FAILURE);
    };
    let outcome = Fixture::open(kind, &name).and_then(|fixture| match case.partner {
        Some(partner_of) if partner => {
            let socket = io::stdin().as_fd().try_clone_to_owned();
            let socket: OwnedFd = socket.expect("standard input to be a socket");
            partner_of(&fixture, UnixStream::from(socket))
        }
        _ => (case.run)(&fixture),
    });
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(skipped) => {
            println!("{skipped}");
            ExitCode::from(SKIPPED)
        }
    })
}

fn find(name: &str) -> Option<(&'static Case, Kind)> {
    all()
        .flat_map(|(suite, case)| Kind::ALL.map(|kind| (suite, case, kind)))
        .find(|(suite, case, kind)| full_name(suite, case, *kind) == name)
        .map(|(_, case, kind)| (case, kind))
}
