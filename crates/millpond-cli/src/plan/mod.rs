//! Planning what a file describes: reading it, and saying what came out.
//!
//! `input` finds the format and makes a problem of it (`csv`, `recording`; models are read by
//! `millpond-onnx`), `report` says in text and JSON what the plan takes, `export` writes it for other
//! programs, `picture` draws it.

mod csv;
mod error;
mod export;
mod input;
mod picture;
mod recording;
mod report;

pub(crate) use error::Failure;
pub(crate) use export::export;
pub(crate) use input::{Reading, read};
pub(crate) use picture::draw;
pub(crate) use report::Report;
