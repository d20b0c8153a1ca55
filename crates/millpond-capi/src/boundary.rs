//! The boundary that every exported function's body runs behind, and the checks of its arguments.
//!
//! Invariants: nothing unwinds past [`call`] and [`value`]; a result is written only on success.

use std::cell::RefCell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::status::{Failure, millpond_status, remember};

thread_local! {
    /// Whether this thread is inside the boundary, and where it panicked there.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Runs a body, and gives its status.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> millpond_status {
    match value(body) {
        Ok(()) => millpond_status::MILLPOND_OK,
        Err(status) => status,
    }
}

/// Runs a body, and gives its value or its status; the failure's message is kept for the thread.
pub(crate) fn value<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, millpond_status> {
    // What the body may leave half done is behind the engine's locks, which go on after a panic.
    let caught = {
        let _inside = Inside::enter();
        catch_unwind(AssertUnwindSafe(body))
    };
    let failure = match caught {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(failure)) => failure,
        Err(payload) => {
            // A payload's own drop may panic; it is not worth the risk.
            std::mem::forget(payload);
            Failure::new(millpond_status::MILLPOND_INTERNAL, panic_message())
        }
    };
    remember(&failure);
    Err(failure.status)
}

/// Marks that this thread's panics are caught, so that they are told through the last error and
/// not on the process's standard error.
struct Inside;

impl Inside {
    fn enter() -> Inside {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Inside
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Lets panics inside the boundary be told through the last error. The hook is that of this
/// library's own copy of the standard library, and nobody else's panics pass through it.
pub(crate) fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.try_with(std::cell::Cell::get).unwrap_or(0) == 0 {
                return usual(info);
            }
            let text = info.to_string();
            let _ = PANIC.try_with(|panic| {
                if let Ok(mut panic) = panic.try_borrow_mut() {
                    *panic = Some(text);
                }
            });
        }));
    });
}

fn panic_message() -> String {
    let told = PANIC
        .try_with(|panic| panic.try_borrow_mut().ok().and_then(|mut p| p.take()))
        .unwrap_or(None);
    let what = told.unwrap_or_else(|| "a panic".to_owned());
    format!("a bug in millpond, please report it: {what}")
}

/// A pointer of the caller's, which must not be null.
///
/// # Safety
///
/// If it is not null, it points to a `T` that lives for `'a` and is not changed meanwhile but
/// through shared references.
pub(crate) unsafe fn required<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Where a result goes.
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Checks that there is a place for the result, before anything is done for it.
    ///
    /// # Safety
    ///
    /// If it is not null, a `T` can be written there until the function returns.
    pub(crate) unsafe fn new(pointer: *mut T, name: &str) -> Result<Out<T>, Failure> {
        if pointer.is_null() {
            return Err(null(name));
        }
        Ok(Out(pointer))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` was promised that this can be written; what was there is plain data of C's.
        unsafe { self.0.write(value) };
    }
}

fn null(name: &str) -> Failure {
    Failure::invalid(format!("{name} is a null pointer; give one that is valid"))
}

/// An address as C has it.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

/// An address of C's as the engine has it.
pub(crate) fn address(pointer: *const c_void) -> u64 {
    pointer.addr() as u64
}

/// Copies as much of a struct as the caller's version of it has; the caller's first word is the
/// size of its version.
///
/// # Safety
///
/// `to` points to a struct that begins with a `usize` and is that many bytes long; `from` is one of
/// C's, without padding before its last field.
pub(crate) unsafe fn copy_versioned<T: Copy>(from: &T, to: *mut T, size: usize) {
    let bytes = size.min(size_of::<T>());
    let source = std::ptr::from_ref(from).cast::<u8>();
    // SAFETY: both are at least `bytes` long, and `from` is the library's own.
    unsafe { std::ptr::copy_nonoverlapping(source, to.cast::<u8>(), bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::millpond_last_error;

    fn last_error() -> String {
        // SAFETY: the pointer is never null, and nothing fails in between.
        let text = unsafe { std::ffi::CStr::from_ptr(millpond_last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        watch_panics();
        let status = call(|| panic!("the reason"));
        assert_eq!(status, millpond_status::MILLPOND_INTERNAL);
        assert!(last_error().contains("the reason"), "{}", last_error());
        assert!(last_error().contains("boundary.rs"), "{}", last_error());
    }

    #[test]
    fn a_success_keeps_the_last_message() {
        let status = call(|| Err(Failure::invalid("first\0 reason")));
        assert_eq!(status, millpond_status::MILLPOND_INVALID_ARGUMENT);
        assert_eq!(call(|| Ok(())), millpond_status::MILLPOND_OK);
        assert_eq!(last_error(), "first reason");
    }
}
