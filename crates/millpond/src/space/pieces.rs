//! What is free of one handle, by offset.
//!
//! *Pieces* remember where the last uses of their bytes ended, and when they were freed. They stay
//! apart as long as somebody may have to wait for one and not for the other.
//!
//! # Invariants
//!
//! 1. Pieces are not empty, do not overlap, and stand in order.

use super::strips::Summary;
use crate::order::Ends;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    start: u64,
    end: u64,
    ends: Ends,
    freed: u64,
}

/// Free bytes with one past, as others see them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Free<'a> {
    /// An offset, or an address.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where their last uses ended.
    pub(crate) ends: &'a Ends,
    /// A number that rises with every free.
    pub(crate) freed: u64,
}

impl Free<'_> {
    /// The same bytes as seen through a mapping that begins at this address.
    pub(crate) fn through(self, mapping: u64) -> Self {
        Free {
            start: self.start + mapping,
            end: self.end + mapping,
            ..self
        }
    }
}

/// See the [module](self).
#[derive(Clone, Default, Debug)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    /// All of a handle is free.
    pub(crate) fn whole(size: u64, ends: Ends) -> Pieces {
        Pieces(vec![Piece {
            start: 0,
            end: size,
            ends,
            freed: 0,
        }])
    }

    /// Frees a range. `alike` says of two pasts that nobody will ever have to tell them apart.
    pub(crate) fn insert(
        &mut self,
        start: u64,
        end: u64,
        ends: &Ends,
        freed: u64,
        alike: impl Fn(&Ends, &Ends) -> bool,
    ) {
        debug_assert!(start < end);
        let place = self.0.partition_point(|piece| piece.start < start);
        let (below, above) = self.0.split_at_mut(place);
        let below = below
            .last_mut()
            .filter(|below| below.end == start && alike(&below.ends, ends));
        let above = above
            .first_mut()
            .filter(|above| above.start == end && alike(ends, &above.ends));
        match (below, above) {
            (Some(below), above) => {
                below.end = end;
                below.join(ends, freed);
                // What is alike to the new one may be told from what the new one became.
                if let Some(above) = above
                    && alike(&below.ends, &above.ends)
                {
                    below.end = above.end;
                    below.join(&above.ends, above.freed);
                    self.0.remove(place);
                }
            }
            (None, Some(above)) => {
                above.start = start;
                above.join(ends, freed);
            }
            (None, None) => {
                let ends = ends.clone();
                let piece = Piece {
                    start,
                    end,
                    ends,
                    freed,
                };
                self.0.insert(place, piece);
            }
        }
    }

    /// Takes a range, all of which is free.
    pub(crate) fn carve(&mut self, start: u64, end: u64) {
        let first = self.0.partition_point(|piece| piece.end <= start);
        let mut place = first;
        let mut at = start;
        while at < end {
            let Some(piece) = self.0.get_mut(place).filter(|piece| piece.start <= at) else {
                debug_assert!(false, "{at:#x} is not free");
                return;
            };
            let piece_end = piece.end;
            if piece.start < at {
                // Only the first: its beginning stays.
                piece.end = at;
                if end < piece_end {
                    let rest = Piece {
                        start: end,
                        end: piece_end,
                        ..piece.clone()
                    };
                    self.0.insert(place + 1, rest);
                    return;
                }
                place += 1;
            } else if end < piece_end {
                piece.start = end;
            } else {
                self.0.remove(place);
            }
            at = piece_end;
        }
    }

    /// All free bytes, lowest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Free<'_>> {
        self.0.iter().map(Piece::seen)
    }

    /// The free bytes in a range, lowest first.
    pub(crate) fn inside(&self, start: u64, end: u64) -> impl Iterator<Item = Free<'_>> {
        let first = self.0.partition_point(|piece| piece.end <= start);
        let pieces = self.0[first..].iter();
        let pieces = pieces.take_while(move |piece| piece.start < end);
        pieces.map(move |piece| Free {
            start: piece.start.max(start),
            end: piece.end.min(end),
            ..piece.seen()
        })
    }

    /// Ranges of free bytes as long as they can be, whatever their pasts, lowest first.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut pieces = self.0.iter().peekable();
        std::iter::from_fn(move || {
            let first = pieces.next()?;
            let mut end = first.end;
            while let Some(next) = pieces.next_if(|next| next.start == end) {
                end = next.end;
            }
            Some((first.start, end))
        })
    }

    /// The offset up to which all is free that `wanted` wants.
    pub(crate) fn reach_from_start(&self, wanted: impl Fn(&Free<'_>) -> bool) -> u64 {
        let mut reached = 0;
        for free in self.iter() {
            if free.start != reached || !wanted(&free) {
                break;
            }
            reached = free.end;
        }
        reached
    }

    /// The offset from which on all is free that `wanted` wants, in a handle of so many bytes.
    pub(crate) fn reach_from_end(&self, size: u64, wanted: impl Fn(&Free<'_>) -> bool) -> u64 {
        let mut reached = size;
        for free in self.iter().rev() {
            if free.end != reached || !wanted(&free) {
                break;
            }
            reached = free.start;
        }
        reached
    }

    /// How much is free where, in a handle of so many bytes.
    pub(crate) fn summary(&self, size: u64) -> Summary {
        let mut summary = Summary::default();
        for (start, end) in self.ranges() {
            if start == 0 {
                summary.prefix = end;
            }
            if end == size {
                summary.suffix = end - start;
            }
            summary.longest = summary.longest.max(end - start);
        }
        summary
    }

    /// Changes what is remembered of the pasts, where `change` has an answer. Gives whether it had
    /// any.
    pub(crate) fn rewrite(
        &mut self,
        change: impl Fn(&Ends) -> Option<Ends>,
        alike: impl Fn(&Ends, &Ends) -> bool,
    ) {
        let mut changed = false;
        for piece in &mut self.0 {
            if let Some(ends) = change(&piece.ends) {
                piece.ends = ends;
                changed = true;
            }
        }
        if changed {
            self.0.dedup_by(|above, below| {
                let joins = below.end == above.start && alike(&below.ends, &above.ends);
                if joins {
                    below.end = above.end;
                    below.join(&above.ends, above.freed);
                }
                joins
            });
        }
    }

    /// Checks the invariants, in a handle of so many bytes.
    pub(crate) fn validate(&self, size: u64) -> Result<(), String> {
        let mut reached = 0;
        for piece in &self.0 {
            if piece.start < reached || piece.end <= piece.start || piece.end > size {
                return Err(format!("pieces of {size} bytes: {:?}", self.0));
            }
            reached = piece.end;
        }
        Ok(())
    }
}

impl Piece {
    fn seen(&self) -> Free<'_> {
        Free {
            start: self.start,
            end: self.end,
            ends: &self.ends,
            freed: self.freed,
        }
    }

    fn join(&mut self, ends: &Ends, freed: u64) {
        self.ends.merge(ends);
        self.freed = self.freed.max(freed);
    }
}
