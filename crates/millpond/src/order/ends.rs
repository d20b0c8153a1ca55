//! Where the last uses of a range ended.

use super::StreamIndex;

/// A position of a stream: everything the stream had been given by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    pub(crate) stream: StreamIndex,
    pub(crate) position: u64,
}

impl End {
    /// Of two on one stream the later one stays.
    fn raise(&mut self, other: End) {
        self.position = self.position.max(other.position);
    }
}

/// The ends of a range's uses: at most one a stream, none for memory that nobody used.
///
/// Most often there is one, which is why that has a form of its own: it is copied at every free.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Ends {
    #[default]
    None,
    One(End),
    /// Two or more.
    Several(Vec<End>),
}

impl Ends {
    fn as_slice(&self) -> &[End] {
        match self {
            Ends::None => &[],
            Ends::One(end) => std::slice::from_ref(end),
            Ends::Several(ends) => ends,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = End> + '_ {
        self.as_slice().iter().copied()
    }

    /// Adds an end; of two on one stream the later one stays.
    pub(crate) fn add(&mut self, end: End) {
        match self {
            Ends::None => *self = Ends::One(end),
            Ends::One(known) if known.stream == end.stream => known.raise(end),
            Ends::One(known) => *self = Ends::Several(vec![*known, end]),
            Ends::Several(ends) => match ends.iter_mut().find(|e| e.stream == end.stream) {
                Some(known) => known.raise(end),
                None => ends.push(end),
            },
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
        *self = self.iter().filter(|&end| keep(end)).collect();
    }

    /// The end, if there is just one.
    pub(crate) fn only_end(&self) -> Option<End> {
        match self {
            Ends::One(end) => Some(*end),
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
        Ends::One(end)
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
