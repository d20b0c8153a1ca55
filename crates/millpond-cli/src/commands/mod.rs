//! One file for each subcommand: its arguments and what it does.

pub(crate) mod replay;
