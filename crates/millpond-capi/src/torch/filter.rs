//! A copy of a C++ `std::function<bool(cudaStream_t)>`, called from Rust.
//!
//! The layout is libstdc++'s (part of its stable ABI, `bits/std_function.h`): 16 bytes that hold
//! or point to what is called, a manager that copies and destroys it, an invoker that calls it.
//! What libstdc++ stores in the 16 bytes themselves can be moved as plain bytes. PyTorch on Linux
//! is built with libstdc++.

use std::ffi::{c_int, c_void};

use crate::boundary::pointer;
use crate::status::Failure;
use engine::device::StreamId;

const CLONE: c_int = 2;
const DESTROY: c_int = 3;

type Functor = [usize; 2];
type Manager = unsafe extern "C-unwind" fn(*mut Functor, *const Functor, c_int) -> bool;
type Invoker = unsafe extern "C-unwind" fn(*const Functor, *mut *mut c_void) -> bool;

#[repr(C)]
struct Function {
    functor: Functor,
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

/// A filter of streams.
pub(super) struct Filter {
    functor: Functor,
    manager: Manager,
    invoker: Invoker,
}

// SAFETY: PyTorch calls these functions from whichever thread allocates, and hands them out to be
// called so; they are called under a lock, one at a time.
unsafe impl Send for Filter {}

impl Filter {
    /// Copies a function that belongs to the caller.
    ///
    /// # Safety
    ///
    /// `function` is null, or points to a `std::function<bool(cudaStream_t)>` of libstdc++.
    pub(super) unsafe fn copied(function: *const c_void) -> Result<Filter, Failure> {
        // SAFETY: null, or a function in the layout above.
        let function = unsafe { function.cast::<Function>().as_ref() };
        let parts = function.and_then(|f| Some((f, f.manager?, f.invoker?)));
        let Some((function, manager, invoker)) = parts else {
            return Err(Failure::invalid("the filter of streams is empty"));
        };
        let mut functor = [0; 2];
        // SAFETY: the manager is the function's own, and a copy is made where none is.
        unsafe { manager(&raw mut functor, &raw const function.functor, CLONE) };
        Ok(Filter {
            functor,
            manager,
            invoker,
        })
    }

    /// Whether the function says yes to a stream.
    pub(super) fn accepts(&self, stream: StreamId) -> bool {
        let mut argument = pointer(stream.0);
        // SAFETY: the invoker is that of the copied function; it takes its argument by reference.
        unsafe { (self.invoker)(&raw const self.functor, &raw mut argument) }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        let functor = &raw mut self.functor;
        // SAFETY: the copy is destroyed once, by its own manager.
        unsafe { (self.manager)(functor, functor, DESTROY) };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    unsafe extern "C-unwind" fn manage(
        to: *mut Functor,
        from: *const Functor,
        what: c_int,
    ) -> bool {
        if what == CLONE {
            // SAFETY: both are valid in these tests.
            unsafe { to.copy_from(from, 1) };
        }
        false
    }

    unsafe extern "C-unwind" fn equals(functor: *const Functor, stream: *mut *mut c_void) -> bool {
        // SAFETY: valid in these tests.
        let functor = unsafe { *functor };
        // SAFETY: valid in these tests.
        functor[0] == unsafe { *stream }.addr()
    }

    /// A filter that accepts one stream, in the layout of a `std::function`.
    pub(in crate::torch) fn accepting(stream: StreamId) -> Filter {
        let function = Function {
            functor: [stream.0 as usize, 0],
            manager: Some(manage),
            invoker: Some(equals),
        };
        // SAFETY: the layout is the one asked for.
        unsafe { Filter::copied((&raw const function).cast()) }.unwrap()
    }

    #[test]
    fn an_empty_function_is_refused() {
        let function = Function {
            functor: [0; 2],
            manager: None,
            invoker: None,
        };
        // SAFETY: the layout is the one asked for.
        assert!(unsafe { Filter::copied((&raw const function).cast()) }.is_err());
        // SAFETY: null is allowed.
        assert!(unsafe { Filter::copied(std::ptr::null()) }.is_err());
    }

    #[test]
    fn a_copy_is_called_with_the_stream() {
        let filter = accepting(StreamId(7));
        assert!(filter.accepts(StreamId(7)));
        assert!(!filter.accepts(StreamId(8)));
    }
}
