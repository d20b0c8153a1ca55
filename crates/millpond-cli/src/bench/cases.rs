//! The patterns, and the parameters with which other allocators were measured.

use std::num::NonZeroUsize;

/// What a thread does again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pattern {
    /// Allocate and free one size.
    Pair,
    /// Replace a random one of the live blocks, on one thread.
    Churn,
    /// The same on several threads, each with a stream of its own.
    Threads,
    /// The same with more and more live blocks.
    Scale,
}

impl Pattern {
    /// Its name, as it is written.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Pattern::Pair => "pair",
            Pattern::Churn => "churn",
            Pattern::Threads => "threads",
            Pattern::Scale => "scale",
        }
    }
}

/// A row to be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) pattern: Pattern,
    pub(crate) threads: usize,
    /// Live blocks of each thread, while one of them is not being replaced.
    pub(crate) live: u32,
    /// Sizes are from 2^this bytes.
    pub(crate) smallest: u8,
    /// Sizes are below 2^this bytes, or just that where it is the smallest.
    pub(crate) largest: u8,
    /// Pairs of one pass, of each thread.
    pub(crate) pairs: usize,
    /// Pairs of each thread before anything is measured.
    pub(crate) warm_up: usize,
}

impl Case {
    /// Blocks that are live at a time, of all threads.
    pub(crate) fn all_live(&self) -> u64 {
        u64::from(self.live) * self.threads as u64
    }

    /// The rows of a pattern, with another number of pairs if one is given.
    pub(crate) fn all(pattern: Pattern, pairs: Option<NonZeroUsize>) -> Vec<Case> {
        let case = |threads, live, (smallest, largest), usual| {
            let pairs = pairs.map_or(usual, NonZeroUsize::get);
            Case {
                pattern,
                threads,
                live,
                smallest,
                largest,
                pairs,
                warm_up: pairs.div_ceil(4),
            }
        };
        match pattern {
            Pattern::Pair => {
                let sizes = [9, 16, 20, 26];
                let of_size = |size| Case {
                    warm_up: 200,
                    ..case(1, 1, (size, size), 20_000)
                };
                sizes.into_iter().map(of_size).collect()
            }
            Pattern::Churn => vec![
                case(1, 1000, (9, 24), 100_000),
                case(1, 200, (20, 28), 20_000),
            ],
            Pattern::Threads => {
                let counts = [1, 2, 4, 8, 16];
                let of_count = |threads| case(threads, 100, (9, 22), 20_000);
                counts.into_iter().map(of_count).collect()
            }
            Pattern::Scale => {
                let counts = [1000, 10_000, 100_000, 1_000_000, 10_000_000];
                let of_count = |live| {
                    let case = case(1, live, (9, 13), 20_000);
                    // Blocks that lie as they were laid down at first are not yet churn.
                    let warm_up = case.warm_up.max(live as usize / 2);
                    Case { warm_up, ..case }
                };
                counts.into_iter().map(of_count).collect()
            }
        }
    }
}
