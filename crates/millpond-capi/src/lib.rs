//! millpond as a C library, and PyTorch's pluggable allocator pair in the same library.
//!
//! # Invariants
//!
//! 1. No panic crosses the library's boundary: every exported function runs inside
//!    [`boundary`], which turns a panic into `MILLPOND_INTERNAL`.
//! 2. A function that fails leaves its results untouched, and its reason in the calling thread's
//!    `millpond_last_error`.
//! 3. Null pointers are refused, never followed. Other pointers are the caller's word: each
//!    function's safety section says what they must be.
//! 4. `include/millpond.h` is what cbindgen makes of this crate (`tests/header.rs`).
//!
//! The words of this crate's public items are the header's text, so they are written for C.

#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![allow(
    non_camel_case_types,
    unreachable_pub,
    reason = "the names are C's, and everything exported is reached through the header"
)]

mod attributes;
mod boundary;
mod budget;
mod choice;
mod device;
mod pool;
mod pools;
mod statistics;
mod status;
mod stream;
mod torch;
