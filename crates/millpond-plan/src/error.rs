//! What can be wrong with a problem, and why there is no plan.

/// A problem that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// The lifetime is reversed.
    #[error(
        "buffer {buffer} is live from {lower} to before {upper}; its end must not be before its begin"
    )]
    EndsBeforeItBegins {
        /// Its index.
        buffer: usize,
        /// Where it begins.
        lower: i64,
        /// Where it ends.
        upper: i64,
    },
    /// The alignment is zero.
    #[error("buffer {buffer} has alignment 0; give 1 if it needs none")]
    NoAlignment {
        /// Its index.
        buffer: usize,
    },
    /// A fixed offset is no multiple of the alignment, in its own place or in that of the buffer
    /// it is tied to.
    #[error(
        "buffer {buffer} must be at {offset}, which is no multiple of its alignment {alignment}"
    )]
    Misaligned {
        /// Its index.
        buffer: usize,
        /// Where it must be.
        offset: u64,
        /// What that should be a multiple of.
        alignment: u64,
    },
    /// A gap is empty, outside of the lifetime, out of order, or holds what is not there.
    #[error(
        "buffer {buffer} has a gap from {lower} to {upper}; gaps must be in time order, apart, inside \
         the lifetime, and hold a part of the buffer or nothing"
    )]
    BadGap {
        /// Its index.
        buffer: usize,
        /// Where the gap begins.
        lower: i64,
        /// Where the gap ends.
        upper: i64,
    },
    /// The sizes add up to more than offsets can say.
    #[error(
        "the sizes, alignments and offsets up to buffer {buffer} add up to more than 2^62 bytes"
    )]
    TooLarge {
        /// Where the sum became too large.
        buffer: usize,
    },
    /// A buffer lies inside one that does not exist.
    #[error("buffer {buffer} lies inside buffer {base}, which does not exist")]
    NoSuchBase {
        /// Its index.
        buffer: usize,
        /// The index that it names.
        base: usize,
    },
    /// Buffers lie inside each other in a circle.
    #[error("buffer {buffer} lies, through others, inside itself")]
    Circle {
        /// One of them.
        buffer: usize,
    },
    /// Buffers that are tied together have offsets that do not agree.
    #[error("buffer {buffer} must be at {offset}, but what it is tied to must be elsewhere")]
    TiedApart {
        /// Its index.
        buffer: usize,
        /// Where it must be.
        offset: u64,
    },
    /// A buffer can lie only in an arena that does not exist, or that what it is tied to cannot
    /// lie in.
    #[error(
        "buffer {buffer} belongs into arena {arena}, which does not exist, or not for what it is tied to"
    )]
    NoSuchArena {
        /// Its index.
        buffer: usize,
        /// The index that it names.
        arena: usize,
    },
    /// A largest block of no bytes.
    #[error("an arena has blocks of 0 bytes; give none if a block can have any size")]
    EmptyBlocks,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The problem contradicts itself.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Two buffers with fixed offsets overlap.
    #[error("buffers {first} and {second} have fixed offsets and overlap while both are live")]
    FixedOverlap {
        /// One of them.
        first: usize,
        /// The other.
        second: usize,
    },
    /// No plan can fit: at some time more must be live than there is.
    #[error(
        "no plan fits: {needed} bytes are needed at one time and {capacity} are there; raise the \
         capacity or shorten lifetimes"
    )]
    Impossible {
        /// Bytes that any plan needs.
        needed: u64,
        /// Bytes of all arenas.
        capacity: u64,
    },
    /// None was found that fits. There may be one.
    #[error(
        "no plan found that fits: the best takes {peak} bytes, {capacity} are there, and the lower \
         bound is {lower_bound}; give more time or capacity"
    )]
    NotFound {
        /// What the best plan without the limit takes; 0 if buffers had no arena to go to.
        peak: u64,
        /// Bytes of all arenas.
        capacity: u64,
        /// No plan takes less.
        lower_bound: u64,
    },
    /// The planner broke its own rules; the plan is withheld.
    #[error("the planner made a wrong plan, which is withheld ({0}); please report this")]
    Wrong(#[from] crate::validate::Violation),
}
