//! Other allocators' policies, each written from its description, to compare a pool with.
//!
//! A policy decides where a request goes and what is kept; it works on any
//! [`Device`](millpond::device::Device), so that on the sim its driver calls cost what a pool's
//! cost. [`Allocator`] stands in front of each and does what is the same for all: blocks used on
//! several streams, memory that has run out, the bytes that are live.
//!
//! | name | policy |
//! |---|---|
//! | `cuda-malloc` | a driver call for every operation |
//! | `bump` | chunks that are filled front to back, and begun again when all in them is free |
//! | `buddy` | powers of two, halved and joined |
//! | `slab` | classes of size, each with slabs of equal slots |
//! | `caching` | PyTorch's caching allocator |
//! | `expandable` | the same with expandable segments |
//!
//! ```
//! use std::sync::Arc;
//! use millpond::device::{Device, SimDevice, StreamOrder};
//! use millpond_policies::{Allocator, PolicyName};
//!
//! let device = Arc::new(SimDevice::new());
//! let stream = device.create_stream(StreamOrder::Independent)?;
//! let mut allocator = Allocator::new(PolicyName::Caching, device);
//! let first = allocator.allocate(5 << 20, stream)?;
//! allocator.free(first)?;
//! assert_eq!(allocator.allocate(4 << 20, stream)?, first);
//! allocator.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What all of them keep
//!
//! - Memory of a block that was used on its own stream alone serves only that stream again: no
//!   policy here knows of an order between streams. (`cuda-malloc` waits at every free instead.)
//! - A block that was used on further streams is kept back until the host has seen these uses
//!   completed.
//! - A failed request changes nothing but what is cached.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod allocator;
mod buddy;
mod bump;
mod cuda_malloc;
mod error;
mod held;
mod policy;
mod pytorch;
mod reserved;
mod slab;

pub use allocator::Allocator;
pub use error::PolicyError;
pub use policy::{PolicyName, PolicyNameError};
pub use reserved::Reserved;

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;
