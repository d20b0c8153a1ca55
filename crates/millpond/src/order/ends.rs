//! Where the last uses of a range ended.

use smallvec::SmallVec;

use super::StreamIndex;

/// A position of a stream: everything the stream had been given by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) stream: StreamIndex,
    pub(crate) position: u64,
}

/// The ends of a range's uses: at most one a stream, none for memory that nobody used.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Ends(SmallVec<[End; 1]>);

impl Ends {
    pub(crate) fn iter(&self) -> impl Iterator<Item = End> + '_ {
        self.0.iter().copied()
    }

    /// Adds an end; of two on one stream the later one stays.
    pub(crate) fn add(&mut self, end: End) {
        match self.0.iter_mut().find(|known| known.stream == end.stream) {
            Some(known) => known.position = known.position.max(end.position),
            None => self.0.push(end),
        }
    }

    /// Adds all ends of another range, as when the two become one.
    pub(crate) fn merge(&mut self, other: &Ends) {
        for end in other.iter() {
            self.add(end);
        }
    }

    /// Keeps the ends that `keep` wants.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(End) -> bool) {
        self.0.retain(|end| keep(*end));
    }

    /// The end, if there is just one.
    pub(crate) fn only_end(&self) -> Option<End> {
        match self.0.as_slice() {
            [end] => Some(*end),
            _ => None,
        }
    }

    /// The stream, if all ends are on one.
    pub(crate) fn only_stream(&self) -> Option<StreamIndex> {
        self.only_end().map(|end| end.stream)
    }
}

impl From<End> for Ends {
    fn from(end: End) -> Ends {
        let mut ends = Ends::default();
        ends.add(end);
        ends
    }
}

impl FromIterator<End> for Ends {
    fn from_iter<I: IntoIterator<Item = End>>(iter: I) -> Ends {
        let mut ends = Ends::default();
        for end in iter {
            ends.add(end);
        }
        ends
    }
}
