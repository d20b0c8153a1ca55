//! Free extents of one silo by size: best fit in a few steps.
//!
//! Sizes fall into classes, four to a power of two; a bit for each class tells whether it holds
//! anything. Within a class the extents are ordered by size, then by address, so that the choice
//! is the smallest that fits, and the lowest of these: the same calls choose the same ranges.

use std::collections::BTreeSet;

use super::GRAIN;
use super::extents::ExtentId;

const CLASSES: usize = 256;

/// One entry: size first, so that the order is the order of preference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Entry {
    pub(super) size: u64,
    pub(super) address: u64,
    pub(super) id: ExtentId,
}

#[derive(Debug)]
pub(super) struct FreeIndex {
    classes: Vec<BTreeSet<Entry>>,
    occupied: [u64; CLASSES / 64],
}

impl FreeIndex {
    pub(super) fn new() -> FreeIndex {
        FreeIndex {
            classes: (0..CLASSES).map(|_| BTreeSet::new()).collect(),
            occupied: [0; CLASSES / 64],
        }
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let class = class_of(entry.size);
        self.classes[class].insert(entry);
        self.occupied[class / 64] |= 1 << (class % 64);
    }

    pub(super) fn remove(&mut self, entry: Entry) -> bool {
        let class = class_of(entry.size);
        let found = self.classes[class].remove(&entry);
        if self.classes[class].is_empty() {
            self.occupied[class / 64] &= !(1 << (class % 64));
        }
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.occupied.iter().all(|&word| word == 0)
    }

    /// Entries of at least `size` bytes, in order of preference.
    pub(super) fn at_least(&self, size: u64) -> impl Iterator<Item = Entry> + '_ {
        let first = class_of(size);
        let from = Entry {
            size,
            address: 0,
            id: ExtentId(0),
        };
        let exact = self.classes[first].range(from..);
        let larger = Occupied {
            index: self,
            next: first + 1,
        };
        exact
            .chain(larger.flat_map(|class| self.classes[class].iter()))
            .copied()
    }

    /// All entries, smallest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> + '_ {
        let occupied = Occupied {
            index: self,
            next: 0,
        };
        occupied
            .flat_map(|class| self.classes[class].iter())
            .copied()
    }
}

/// The classes from `next` on that hold anything.
struct Occupied<'a> {
    index: &'a FreeIndex,
    next: usize,
}

impl Iterator for Occupied<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.next < CLASSES {
            let word = self.index.occupied[self.next / 64] >> (self.next % 64);
            if word != 0 {
                let class = self.next + word.trailing_zeros() as usize;
                self.next = class + 1;
                return Some(class);
            }
            self.next = (self.next / 64 + 1) * 64;
        }
        None
    }
}

/// Four classes to a power of two: the exponent, then the two bits below the leading one.
fn class_of(size: u64) -> usize {
    let units = (size / GRAIN).max(1);
    let exponent = 63 - units.leading_zeros() as usize;
    let mantissa = if exponent >= 2 {
        (units >> (exponent - 2)) & 3
    } else {
        units << (2 - exponent) & 3
    };
    exponent * 4 + mantissa as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_the_size() {
        let sizes: Vec<u64> = (1..5000)
            .map(|n| n * GRAIN)
            .chain((20..60).map(|b| 1 << b))
            .collect();
        assert!(
            sizes
                .iter()
                .map(|&s| class_of(s))
                .collect::<Vec<_>>()
                .is_sorted()
        );
        assert!(class_of(u64::MAX) < CLASSES);
    }

    #[test]
    fn the_smallest_that_fits_comes_first_then_the_lowest() {
        let mut index = FreeIndex::new();
        for (number, (size, address)) in [(4096, 9), (1024, 7), (1024, 3), (512, 1), (1 << 30, 2)]
            .into_iter()
            .enumerate()
        {
            index.insert(Entry {
                size,
                address: address * GRAIN,
                id: ExtentId(number as u32),
            });
        }
        let found: Vec<u32> = index.at_least(768).map(|e| e.id.0).collect();
        assert_eq!(found, [2, 1, 0, 4]);
    }
}
