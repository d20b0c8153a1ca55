//! How a run of a sequence fails.

use std::fmt;

use crate::tested::Held;
use crate::violation::Violation;

/// A block whose bytes were changed by somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corruption {
    /// The block, counted from 0 in the run.
    pub block: u64,
    /// Bytes that were wrong, over all checks of the block.
    pub wrong_bytes: u64,
    /// One of the wrong words, as it was found.
    pub found_word: u64,
    /// The block whose content that word is, if it is one's.
    pub overwritten_by: Option<u64>,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corruption {
            block,
            wrong_bytes,
            found_word,
            ..
        } = self;
        write!(f, "block {block} has {wrong_bytes} wrong bytes; ")?;
        match self.overwritten_by {
            Some(other) => write!(f, "block {other} was written there"),
            None => write!(f, "one word is {found_word:#x}, which no block has"),
        }
    }
}

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The checker found broken rules.
    #[error("{}", lines(.0))]
    Rules(Vec<Violation>),
    /// Contents were changed.
    #[error("{}", lines(.0))]
    Contents(Vec<Corruption>),
    /// The pool's statistics are not what the plain count says.
    #[error("the pool says it holds {said:x?}, but it holds {counted:x?}")]
    Statistics {
        /// The pool's.
        said: Held,
        /// The driver's, and the checker's for the bytes reserved.
        counted: Held,
    },
    /// The pool's own books do not agree.
    #[error("the pool's books: {0}")]
    Books(String),
    /// The pool did what it should have refused.
    #[error("accepted: {0}")]
    Accepted(String),
    /// The pool refused what it should have done.
    #[error("refused: {0}")]
    Refused(String),
}

fn lines<T: fmt::Display>(all: &[T]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = all.iter().take(SHOWN).map(T::to_string).collect();
    if all.len() > SHOWN {
        text.push(format!("and {} more", all.len() - SHOWN));
    }
    text.join("\n")
}

/// A failure, and where in the sequence it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedRun {
    /// What went wrong.
    pub failure: Failure,
    /// The thread, the place in it, and the operation, as text; `None` at the end of the run.
    pub operation: Option<String>,
}

impl fmt::Display for FailedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.operation {
            Some(operation) => write!(f, "at {operation}: {}", self.failure),
            None => write!(f, "at the end: {}", self.failure),
        }
    }
}

impl std::error::Error for FailedRun {}
