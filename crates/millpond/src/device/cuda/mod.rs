//! A real GPU, through the NVIDIA driver alone.
//!
//! [`Driver`] is the driver's library, loaded when it is first asked for; neither building nor
//! running needs a CUDA toolkit. [`CudaDevice`] is the [`Device`](super::Device) contract on one of
//! its devices, or on one MIG instance.
//!
//! # Surroundings
//!
//! * **Contexts.** A device works in its primary context (shared with the CUDA runtime), or in the
//!   context that was current when it was opened. Every call makes that context current for its own
//!   length, so any thread may call, whatever is current there.
//! * **Streams** of anybody in that context can be named by their handles. A null handle is the
//!   legacy stream. Destroying the streams of others, or handing in handles that are none, is as
//!   undefined as it is for the driver.
//! * **Process exit.** Once the driver is shutting down, calls answer
//!   [`DEINITIALIZED`](super::Status::DEINITIALIZED); dropping a device then does nothing.
//! * **Fork.** In a process forked off the one that opened the driver, every call answers
//!   [`NOT_INITIALIZED`](super::Status::NOT_INITIALIZED) and says so, and dropping does nothing.
//! * **Sticky errors.** After a kernel failed, all calls answer with its code
//!   ([`Status::is_sticky`](super::Status::is_sticky)); host functions that were queued are dropped
//!   with the device, without being called.
//! * **Host functions** that call the device get [`NOT_PERMITTED`](super::Status::NOT_PERMITTED).
#![allow(unsafe_code)]

mod context;
mod contract;
mod device;
mod driver;
mod hold;
mod jobs;
mod kernels;
mod slots;
mod table;
mod types;

pub use device::CudaDevice;
pub use driver::Driver;
pub use hold::Hold;
