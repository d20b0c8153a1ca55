//! One file for each subcommand: its arguments and what it does.

pub(crate) mod bench;
pub(crate) mod convert;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod report;
