//! Free runs of one silo by length, and within a length class by address: first fit in a few
//! steps.
//!
//! Lengths fall into classes, eight to a power of two; a bit for each class tells whether it holds
//! anything, and the lowest address of each class stands beside it. The lowest run that is long
//! enough is then the lowest of the classes that are long enough throughout, unless the request's
//! own class, where some are and some are not, has a lower one.

use std::collections::BTreeMap;

use super::GRAIN;

/// Classes to a power of two, as a power of two.
const FINE: u32 = 3;
const CLASSES: usize = 56 << FINE;
const WORDS: usize = CLASSES / 64;

/// Entries of the request's own class that are looked at: more would make the worst case long.
const LOOKS: usize = 64;

#[derive(Debug)]
pub(super) struct RunIndex {
    /// Lengths by start.
    classes: Vec<BTreeMap<u64, u64>>,
    /// The first of each class, or the largest number.
    lowest: Vec<u64>,
    occupied: [u64; WORDS],
}

impl RunIndex {
    pub(super) fn new() -> RunIndex {
        RunIndex {
            classes: (0..CLASSES).map(|_| BTreeMap::new()).collect(),
            lowest: vec![u64::MAX; CLASSES],
            occupied: [0; WORDS],
        }
    }

    pub(super) fn insert(&mut self, start: u64, length: u64) {
        let class = class_of(length);
        self.classes[class].insert(start, length);
        self.lowest[class] = self.lowest[class].min(start);
        self.occupied[class / 64] |= 1 << (class % 64);
    }

    pub(super) fn remove(&mut self, start: u64, length: u64) -> bool {
        let class = class_of(length);
        let found = self.classes[class].remove(&start).is_some();
        if self.lowest[class] == start {
            match self.classes[class].first_key_value() {
                Some((&first, _)) => self.lowest[class] = first,
                None => {
                    self.lowest[class] = u64::MAX;
                    self.occupied[class / 64] &= !(1 << (class % 64));
                }
            }
        }
        found
    }

    /// The first answer of `accept` to the starts and lengths of runs of at least `length`, lowest
    /// first as far as a bounded search goes.
    pub(super) fn first_fit<T>(
        &self,
        length: u64,
        mut accept: impl FnMut(u64, u64) -> Option<T>,
    ) -> Option<T> {
        let own = class_of(length);
        let (mut lowest, mut lowest_class) = (u64::MAX, own);
        for class in self.occupied_from(own + 1) {
            if self.lowest[class] < lowest {
                (lowest, lowest_class) = (self.lowest[class], class);
            }
        }
        for (&start, &known) in self.classes[own].iter().take(LOOKS) {
            if start > lowest {
                break;
            }
            if known >= length
                && let Some(accepted) = accept(start, known)
            {
                return Some(accepted);
            }
        }
        let (&start, &known) = self.classes[lowest_class].first_key_value()?;
        if lowest_class == own {
            return None;
        }
        if let Some(accepted) = accept(start, known) {
            return Some(accepted);
        }
        // The lowest does not do, for its alignment or its past: the others in order of address.
        let mut others: Vec<(u64, u64)> = self.at_least(length).collect();
        others.sort_unstable();
        others
            .into_iter()
            .find_map(|(start, known)| accept(start, known))
    }

    /// Starts and lengths of runs of at least `length`, a class at a time, shortest first; a
    /// bounded number of each class.
    pub(super) fn at_least(&self, length: u64) -> impl Iterator<Item = (u64, u64)> {
        let own = class_of(length);
        let of_own_class = self.classes[own].iter().take(LOOKS);
        let longer = self
            .occupied_from(own + 1)
            .flat_map(|class| self.classes[class].iter().take(LOOKS));
        of_own_class
            .filter(move |&(_, &known)| known >= length)
            .chain(longer)
            .map(|(&start, &known)| (start, known))
    }

    /// All starts, a class at a time.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.occupied_from(0)
            .flat_map(|class| self.classes[class].keys().copied())
    }

    fn occupied_from(&self, class: usize) -> impl Iterator<Item = usize> + '_ {
        let first_word = class / 64;
        (first_word..WORDS).flat_map(move |word| {
            let mut bits = self.occupied[word];
            if word == first_word {
                bits &= u64::MAX << (class % 64);
            }
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }
}

/// The exponent, then the bits below the leading one.
fn class_of(length: u64) -> usize {
    let units = (length / GRAIN).max(1);
    let exponent = 63 - units.leading_zeros();
    let below = if exponent >= FINE {
        units >> (exponent - FINE)
    } else {
        units << (FINE - exponent)
    };
    let fine = below & ((1 << FINE) - 1);
    ((exponent as usize) << FINE) + fine as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_the_length() {
        let lengths = (1..5000).map(|n| n * GRAIN);
        let lengths = lengths.chain((21..60).map(|b| 1 << b));
        let classes: Vec<usize> = lengths.map(class_of).collect();
        assert!(classes.is_sorted());
        assert!(class_of(u64::MAX) < CLASSES);
    }

    #[test]
    fn the_lowest_that_fits_comes_first_whatever_its_class() {
        let runs = [(9, 4096), (7, 1024), (3, 1280), (1, 512), (5, 1 << 30)];
        let mut index = RunIndex::new();
        for (start, length) in runs {
            index.insert(start, length);
        }
        let start_of = |start: u64, _| Some(start);
        let first = |index: &RunIndex, length| index.first_fit(length, start_of);
        assert_eq!(first(&index, 768), Some(3));
        assert_eq!(first(&index, 1536), Some(5));
        assert_eq!(first(&index, 2 << 30), None);
        let above = index.first_fit(768, |start, _| (start > 5).then_some(start));
        assert_eq!(above, Some(7));
        assert!(index.remove(3, 1280));
        assert_eq!(first(&index, 768), Some(5));
        let all: Vec<(u64, u64)> = index.at_least(1).collect();
        assert_eq!(all, [(1, 512), (7, 1024), (9, 4096), (5, 1 << 30)]);
    }
}
