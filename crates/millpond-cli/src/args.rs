//! The arguments of the command line.

use clap::{Parser, Subcommand};

use crate::commands::replay::ReplayArgs;

/// A GPU memory pool in stream order: replay recordings of real jobs against it.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Replay(ReplayArgs),
}
