//! Pickles as data (protocols 2 to 5): a reader for the data opcodes and the values it leaves,
//! and a writer.

mod opcode;
mod reader;
mod value;
mod writer;

pub(crate) use opcode::PROTO;
pub(crate) use reader::read;
pub(crate) use value::{NodeId, Pickle};
pub(crate) use writer::PickleWriter;
