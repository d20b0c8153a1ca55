//! The command line of millpond.
//!
//! - [`args`]: what can be said; [`commands`]: one file for each subcommand.
//! - [`doctor`]: what this machine has; [`replay`]: a recording against the pool on a device;
//!   [`report`]: where its memory is; [`diff`]: what grew from one to another.
//! - [`mod@bench`]: what one allocation and free costs; [`plan`]: what a file describes, planned.
//! - [`device`], [`size`]: devices, and sizes in bytes, as people write them.

mod args;
mod bench;
mod commands;
mod device;
mod diff;
mod doctor;
mod plan;
mod replay;
mod report;
mod size;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("MILLPOND_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .without_time()
        .init();
    match cli.command {
        Command::Bench(args) => commands::bench::run(&args),
        Command::Convert(args) => commands::convert::run(&args),
        Command::Diff(args) => commands::diff::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Generate(args) => commands::generate::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Replay(args) => commands::replay::run(&args),
        Command::Report(args) => commands::report::run(&args),
    }
}
