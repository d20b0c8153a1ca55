//! What is to be planned, as the caller says it.

use crate::error::ProblemError;

/// Bytes that all buffers together may have at most, their alignment and fixed offsets included.
/// Offsets are sums of these, so that no sum of two can overflow.
pub(crate) const MOST_BYTES: u64 = 1 << 62;

/// A time without or with only a part of a buffer: an interval inside its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First time of the gap.
    pub lower: i64,
    /// First time after the gap.
    pub upper: i64,
    /// Bytes of the buffer that are still held in the gap, from the first to before the second,
    /// counted from the buffer's start; `None` if nothing is held.
    pub held: Option<(u64, u64)>,
}

/// One buffer: so many bytes, live from `lower` to before `upper`.
///
/// A buffer whose `upper` is another's `lower` may have the same bytes. A buffer without bytes or
/// without time needs no memory and gets offset 0 of its own alignment, or its fixed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// First time at which it is live.
    pub lower: i64,
    /// First time at which it is no longer live.
    pub upper: i64,
    /// Bytes.
    pub size: u64,
    /// Its offset is a multiple of this many bytes; at least 1, not only powers of two.
    pub alignment: u64,
    /// The offset that it must have, if it is not free.
    pub offset: Option<u64>,
    /// When it holds less than all of its bytes; in time order, not overlapping.
    pub gaps: Vec<Gap>,
    /// It lies in another buffer (its index in [`Problem::buffers`]), so many bytes from that one's
    /// start: a view, or the result of an operation in place. All buffers that are tied together
    /// are one piece: while any of them is live, everything from the lowest to the highest byte of the
    /// live ones is held, and what they do to each other's bytes is the caller's matter.
    pub inside: Option<(usize, u64)>,
    /// The only arena that it may lie in (its index in [`Problem::arenas`]); any if `None`.
    pub arena: Option<usize>,
}

impl Buffer {
    /// A buffer of `size` bytes, live from `lower` to before `upper`, aligned to 1.
    pub fn new(lower: i64, upper: i64, size: u64) -> Buffer {
        Buffer {
            lower,
            upper,
            size,
            alignment: 1,
            offset: None,
            gaps: Vec::new(),
            inside: None,
            arena: None,
        }
    }

    /// The same, with its offset a multiple of `alignment` bytes.
    pub fn aligned(mut self, alignment: u64) -> Buffer {
        self.alignment = alignment;
        self
    }
}

/// Memory to place buffers in, from offset 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arena {
    /// Bytes that there are; `None` if as many as it takes.
    pub capacity: Option<u64>,
    /// The most bytes that can be had in one piece: the arena then consists of blocks of this many
    /// bytes, one behind the other, and no buffer lies across the border of two.
    pub largest_block: Option<u64>,
}

/// Buffers, and where they may lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    /// The buffers; a plan names them by their index.
    pub buffers: Vec<Buffer>,
    /// The arenas, the preferred first; one without limits if there is none.
    pub arenas: Vec<Arena>,
}

impl Problem {
    /// Buffers in one arena without limits.
    pub fn new(buffers: Vec<Buffer>) -> Problem {
        Problem {
            buffers,
            arenas: Vec::new(),
        }
    }

    /// Checks what no plan could be made of.
    ///
    /// # Errors
    /// The first buffer that contradicts itself, another one or the arenas, and how.
    pub fn check(&self) -> Result<(), ProblemError> {
        for arena in &self.arenas {
            if arena.largest_block == Some(0) {
                return Err(ProblemError::EmptyBlocks);
            }
        }
        let mut total = 0_u64;
        for (index, buffer) in self.buffers.iter().enumerate() {
            self.check_buffer(index, buffer)?;
            let bytes = buffer.size.checked_add(buffer.alignment);
            let bytes = bytes.and_then(|b| b.checked_add(buffer.offset.unwrap_or(0)));
            let bytes = bytes.and_then(|b| b.checked_add(buffer.inside.map_or(0, |(_, at)| at)));
            total = bytes
                .and_then(|b| b.checked_add(total))
                .filter(|&total| total <= MOST_BYTES)
                .ok_or(ProblemError::TooLarge { buffer: index })?;
        }
        Ok(())
    }

    fn check_buffer(&self, index: usize, buffer: &Buffer) -> Result<(), ProblemError> {
        if buffer.lower > buffer.upper {
            return Err(ProblemError::EndsBeforeItBegins {
                buffer: index,
                lower: buffer.lower,
                upper: buffer.upper,
            });
        }
        if buffer.alignment == 0 {
            return Err(ProblemError::NoAlignment { buffer: index });
        }
        if let Some(offset) = buffer.offset
            && offset % buffer.alignment != 0
        {
            return Err(ProblemError::Misaligned {
                buffer: index,
                offset,
                alignment: buffer.alignment,
            });
        }
        let mut from = buffer.lower;
        for gap in &buffer.gaps {
            let held = gap.held.is_none_or(|(a, b)| a < b && b <= buffer.size);
            if gap.lower < from || gap.lower >= gap.upper || gap.upper > buffer.upper || !held {
                return Err(ProblemError::BadGap {
                    buffer: index,
                    lower: gap.lower,
                    upper: gap.upper,
                });
            }
            from = gap.upper;
        }
        if let Some((base, _)) = buffer.inside
            && base >= self.buffers.len()
        {
            return Err(ProblemError::NoSuchBase {
                buffer: index,
                base,
            });
        }
        if let Some(arena) = buffer.arena
            && arena >= self.arenas.len().max(1)
        {
            return Err(ProblemError::NoSuchArena {
                buffer: index,
                arena,
            });
        }
        Ok(())
    }
}
