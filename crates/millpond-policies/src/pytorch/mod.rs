//! PyTorch's caching allocator, in its two kinds.
//!
//! Source: what its documentation, headers and issue threads say of versions 2.6 to 2.15, with
//! default settings; the numbers are those of 2.11. Left out, since no recording here needs it:
//! graph captures and private pools, a limit on splitting, rounding to parts of powers of two,
//! garbage collection below a memory fraction.
//!
//! # Rules of both
//!
//! - Requests are rounded up to 512 bytes. Up to 1 MiB they are *small*, otherwise *large*.
//! - Small and large requests, and those of different streams, never share a segment.
//! - Best fit: of the free blocks that are large enough the smallest; of those the one in the oldest
//!   segment; there the one at the lowest address.
//! - A freed block joins the free blocks on both sides of it in its segment.
//!
//! [`Caching`] and [`Expandable`] say what each adds; [`blocks`] is the list of blocks they share.

mod blocks;
mod caching;
mod expandable;

pub(crate) use caching::Caching;
pub(crate) use expandable::Expandable;

use crate::{MIB, PolicyError};

/// What requests are rounded up to, and the smallest rest that is split off.
const GRAIN: u64 = 512;
/// Up to here a request is small.
const SMALL_UP_TO: u64 = MIB;
/// A segment of small blocks, and a handle under them.
const SMALL_SEGMENT: u64 = 2 * MIB;
/// A segment of middling large blocks, and a handle under large ones.
const LARGE_SEGMENT: u64 = 20 * MIB;

/// Which requests a block serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Kind {
    Small,
    Large,
}

impl Kind {
    /// By the rounded size.
    fn of(size: u64) -> Kind {
        if size <= SMALL_UP_TO {
            Kind::Small
        } else {
            Kind::Large
        }
    }
}

/// A request's size, rounded.
fn rounded(size: u64) -> Result<u64, PolicyError> {
    size.checked_next_multiple_of(GRAIN)
        .ok_or(PolicyError::TooLarge(size))
}
