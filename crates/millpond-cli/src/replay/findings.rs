//! What goes wrong in a replay, for people.

/// Messages of one kind that are kept.
const KEPT: usize = 10;

/// Messages in full up to a number; beyond it, they are only counted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Findings {
    kept: Vec<String>,
    seen: u64,
}

impl Findings {
    /// Adds a message; it is made only if it is kept.
    pub(super) fn add(&mut self, message: impl FnOnce() -> String) {
        if self.kept.len() < KEPT {
            self.kept.push(message());
        }
        self.seen += 1;
    }

    /// The messages that were kept.
    pub(crate) fn messages(&self) -> &[String] {
        &self.kept
    }

    /// How many more there were.
    pub(crate) fn more(&self) -> u64 {
        self.seen - self.kept.len() as u64
    }
}
