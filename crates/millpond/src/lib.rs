//! millpond: a GPU memory pool that hands out device memory in stream order, from address ranges
//! backed by physical handles that it can place anywhere.
#![deny(unsafe_code)]

pub mod device;
pub mod pool;
pub mod pools;

mod backing;
mod blocks;
mod mapping;
mod order;
mod pages;
mod small;
mod space;
mod sync;

pub use pools::Pools;

pub use pool::{
    Access, AllocError, Block, BlockError, Capture, CaptureError, GraphMemory, Hazard, OrderReport,
    Pool, PoolError, Request, Statistics,
};
