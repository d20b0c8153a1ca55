//! Random replacement among a fixed number of live blocks: the load of allocator benchmarks.
//!
//! No job is like it, but it is simple, the same everywhere, and leaves no order in memory for an
//! allocator to profit from.

/// One step: the block in a slot goes, and another one takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replacement {
    /// Which of the live blocks, from 0.
    pub slot: u32,
    /// Bytes of the new block.
    pub size: u64,
}

/// An endless sequence of replacements; the same for the same arguments.
///
/// Slots are uniform, and sizes so that each power of two is as likely as any other.
///
/// ```
/// use millpond_trace::churn::Churn;
///
/// let sizes: Vec<u64> = Churn::new(100, 9, 13, 0).map(|step| step.size).take(3).collect();
/// assert!(sizes.iter().all(|size| (1 << 9..1 << 13).contains(size)));
/// ```
#[derive(Clone, Debug)]
pub struct Churn {
    state: u64,
    slots: u64,
    smallest: f64,
    octaves: f64,
}

/// Sizes are drawn from so many steps between the smallest and the largest.
const STEPS: u64 = 100_000;

/// Marsaglia's first state for the generator, and how far apart two sequences begin.
const FIRST_STATE: u64 = 88_172_645_463_325_252;
const APART: u64 = 7919;

impl Churn {
    /// Replacements among `slots` blocks (none: one), of `2^smallest` up to, but not with,
    /// `2^largest` bytes. Other numbers give other sequences.
    pub fn new(slots: u32, smallest: u8, largest: u8, number: u64) -> Churn {
        Churn {
            // The generator would stay at zero.
            state: FIRST_STATE.wrapping_add(number.wrapping_mul(APART)).max(1),
            slots: u64::from(slots.max(1)),
            smallest: f64::from(smallest),
            octaves: f64::from(largest) - f64::from(smallest),
        }
    }

    /// The size of a next block, in bytes.
    pub fn size(&mut self) -> u64 {
        let step = (self.draw() % STEPS) as f64 / STEPS as f64;
        (self.smallest + self.octaves * step).exp2() as u64
    }

    /// Xorshift, 64 bits.
    fn draw(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}

impl Iterator for Churn {
    type Item = Replacement;

    fn next(&mut self) -> Option<Replacement> {
        Some(Replacement {
            slot: (self.draw() % self.slots) as u32,
            size: self.size(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_and_every_octave_come_equally_often() {
        let (mut slots, mut octaves) = ([0_u32; 10], [0_u32; 4]);
        for step in Churn::new(10, 9, 13, 1).take(10_000) {
            slots[step.slot as usize] += 1;
            octaves[step.size.ilog2() as usize - 9] += 1;
        }
        assert!(slots.iter().all(|n| (900..1100).contains(n)), "{slots:?}");
        let fair = |n: &u32| (2350..2650).contains(n);
        assert!(octaves.iter().all(fair), "{octaves:?}");
    }

    #[test]
    fn a_sequence_is_its_arguments_alone() {
        let first = |number| Churn::new(100, 9, 24, number).take(50).collect::<Vec<_>>();
        assert_eq!(first(3), first(3));
        assert_ne!(first(3), first(4));
    }
}
