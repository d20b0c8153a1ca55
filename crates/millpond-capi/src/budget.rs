//! Budgets that several pools share.

use engine::pool::Budget;

use crate::boundary::{Out, call, copy_versioned, required};
use crate::device::versioned_size;
use crate::status::millpond_status;

/// The most bytes that several pools may take together. Pools get it through
/// `millpond_pool_options.budget`. May be used from any thread.
pub struct millpond_budget {
    pub(crate) budget: Budget,
}

/// What the pools under a budget have: all in bytes, but for their number.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct millpond_budget_usage {
    /// Set by the caller: `sizeof(millpond_budget_usage)`.
    pub size: usize,
    /// The most that they may have together.
    pub limit_bytes: u64,
    /// What they have of their devices.
    pub reserved_current: u64,
    /// The most they had together.
    pub reserved_high: u64,
    /// What is in their live blocks, as it was asked for.
    pub used_current: u64,
    /// Pools under the budget, and under those below it.
    pub pools: u64,
}

/// Makes a budget of so many bytes: within `parent`, so that what its pools take counts in both, or
/// by itself if `parent` is null.
///
/// To be destroyed with `millpond_budget_destroy`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null result).
///
/// # Safety
///
/// `parent` is null or a live budget; `budget` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_create(
    parent: *const millpond_budget,
    limit_bytes: u64,
    budget: *mut *mut millpond_budget,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a place for a pointer.
        let out = unsafe { Out::new(budget, "budget") }?;
        // SAFETY: null, or a live budget.
        let budget = match unsafe { parent.as_ref() } {
            Some(parent) => parent.budget.within(limit_bytes),
            None => Budget::new(limit_bytes),
        };
        out.set(Box::into_raw(Box::new(millpond_budget { budget })));
        Ok(())
    })
}

/// Lets go of a budget. Pools and budgets under it keep it. Null does nothing.
///
/// # Safety
///
/// `budget` is null, or was made by `millpond_budget_create` and not destroyed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_destroy(budget: *mut millpond_budget) {
    call(|| {
        if !budget.is_null() {
            // SAFETY: made by `millpond_budget_create`, and the caller gives it up.
            drop(unsafe { Box::from_raw(budget) });
        }
        Ok(())
    });
}

/// Changes the most bytes that the pools under a budget may take together. What they have beyond
/// it stays until it is freed and trimmed.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null budget).
///
/// # Safety
///
/// `budget` is null or a live budget.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_set_limit(
    budget: *const millpond_budget,
    limit_bytes: u64,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live budget.
        let budget = unsafe { required(budget, "budget") }?;
        budget.budget.set_limit(limit_bytes);
        Ok(())
    })
}

/// What the pools under a budget have. `usage->size` must be set to
/// `sizeof(millpond_budget_usage)`.
///
/// Errors: `MILLPOND_INVALID_ARGUMENT` (a null pointer, or no size).
///
/// # Safety
///
/// `budget` is null or a live budget; `usage` is null, or points to a struct of `usage->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_get_usage(
    budget: *const millpond_budget,
    usage: *mut millpond_budget_usage,
) -> millpond_status {
    call(|| {
        // SAFETY: null, or a live budget.
        let budget = unsafe { required(budget, "budget") }?;
        // SAFETY: null, or a struct of the caller's that begins with its size.
        let size = unsafe { versioned_size(usage.cast_const().cast(), "usage") }?;
        let told = budget.budget.usage();
        let filled = millpond_budget_usage {
            size,
            limit_bytes: told.limit,
            reserved_current: told.reserved_current,
            reserved_high: told.reserved_high,
            used_current: told.used_current,
            pools: told.pools,
        };
        // SAFETY: the caller's struct is `size` bytes long and begins with its size.
        unsafe { copy_versioned(&filled, usage, size) };
        Ok(())
    })
}
