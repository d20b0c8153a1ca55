//! The checker on hand-made logs: for each rule one that breaks it, and one close by that does not.

mod ends;
mod log;
mod memory;
mod order;
mod taking;
