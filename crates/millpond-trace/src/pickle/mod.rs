//! Pickles as data (protocols 2 to 5): a reader for the data opcodes and the values it leaves.

mod opcode;
mod reader;
mod value;

pub(crate) use opcode::PROTO;
pub(crate) use reader::read;
pub(crate) use value::{NodeId, Pickle};
