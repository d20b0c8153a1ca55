//! A picture of a replay: the address space over time, as an SVG.
//!
//! [`recorder`] looks at the device's calls and is told of the job's blocks; [`addresses`] leaves
//! out the addresses that never had memory; [`svg`] draws.

mod addresses;
mod recorder;
mod svg;

pub(crate) use recorder::{Band, Block, Recorder, Recording};
