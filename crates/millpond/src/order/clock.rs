//! What is known of every stream.

use super::StreamIndex;

/// For each stream slot, the position up to which something is known. Missing slots are 0.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    pub(crate) fn at(&self, stream: StreamIndex) -> u64 {
        self.0.get(stream.slot()).copied().unwrap_or(0)
    }

    pub(super) fn raise(&mut self, stream: StreamIndex, position: u64) {
        if self.0.len() <= stream.slot() {
            self.0.resize(stream.slot() + 1, 0);
        }
        let entry = &mut self.0[stream.slot()];
        *entry = (*entry).max(position);
    }

    pub(super) fn join(&mut self, other: &Clock) {
        for (slot, &position) in other.0.iter().enumerate() {
            if position > 0 {
                self.raise(StreamIndex(slot as u32), position);
            }
        }
    }
}

impl FromIterator<u64> for Clock {
    /// By slot.
    fn from_iter<I: IntoIterator<Item = u64>>(iter: I) -> Clock {
        Clock(iter.into_iter().collect())
    }
}
