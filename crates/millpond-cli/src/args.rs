//! The arguments of the command line.

use clap::{Parser, Subcommand};

use crate::commands::bench::BenchArgs;
use crate::commands::convert::ConvertArgs;
use crate::commands::diff::DiffArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::generate::GenerateArgs;
use crate::commands::plan::PlanArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::report::ReportArgs;

/// A GPU memory pool in stream order: look at this machine, replay recordings of real jobs, plan
/// memory, time it.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Bench(BenchArgs),
    Convert(ConvertArgs),
    Diff(DiffArgs),
    Doctor(DoctorArgs),
    Generate(GenerateArgs),
    Plan(PlanArgs),
    Replay(ReplayArgs),
    Report(ReportArgs),
}
