//! What the calling thread may do while streams are captured (`cuThreadExchangeStreamCaptureMode`).
//!
//! By default the driver refuses a thread much while any other captures: mapping memory, asking
//! after events. Relaxed, it refuses only what touches the captured streams themselves.

use std::ffi::c_int;
use std::sync::OnceLock;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

type Exchange = unsafe extern "C" fn(*mut c_int) -> c_int;

/// A thread's capture mode before it was relaxed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Previous(c_int);

/// Relaxes the calling thread's mode. Gives what to restore; nothing if the driver does not know
/// the call.
pub(super) fn relax() -> Option<Previous> {
    exchange(RELAXED).map(Previous)
}

/// Restores the calling thread's mode.
pub(super) fn restore(previous: Previous) {
    exchange(previous.0);
}

fn exchange(mode: c_int) -> Option<c_int> {
    static FUNCTION: OnceLock<Option<Exchange>> = OnceLock::new();
    let function = (*FUNCTION.get_or_init(find))?;
    let mut mode = mode;
    // SAFETY: this is the call's C declaration, and `mode` outlives it.
    let code = unsafe { function(&raw mut mode) };
    (code == 0).then_some(mode)
}

fn find() -> Option<Exchange> {
    // SAFETY: the driver's library is loaded already where there is a CUDA device, by the same name.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.ok()?;
    // SAFETY: the name's C declaration is that of `Exchange`.
    let symbol = unsafe { library.get::<Exchange>(b"cuThreadExchangeStreamCaptureMode\0") };
    let function = symbol.ok().map(|symbol| *symbol);
    // The function must not outlive its library.
    std::mem::forget(library);
    function
}
