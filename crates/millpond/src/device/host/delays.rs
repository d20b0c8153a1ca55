//! Injected delays: each operation of a stream begins a little late, by a plan fixed by a seed.
#![forbid(unsafe_code)]

use std::time::Duration;

/// A plan of delays. The same seed, stream and operation always give the same delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Delays {
    seed: u64,
    longest: Duration,
}

impl Delays {
    /// Plans delays of up to `longest`.
    pub(super) fn new(seed: u64, longest: Duration) -> Delays {
        Delays { seed, longest }
    }

    /// How long the `operation`th operation of the `stream`th stream is held back.
    ///
    /// One in two is not held back at all, so that streams overtake each other.
    pub(super) fn of(&self, stream: u64, operation: u64) -> Duration {
        let random = mix(mix(mix(self.seed) ^ stream) ^ operation);
        if random & 1 == 0 {
            return Duration::ZERO;
        }
        let longest = u64::try_from(self.longest.as_nanos()).unwrap_or(u64::MAX);
        let fraction = u128::from(random >> 1);
        // The product of a 63-bit fraction and 64 bits, cut to its upper half: at most `longest`.
        Duration::from_nanos(((fraction * u128::from(longest)) >> 63) as u64)
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): spreads any change over all bits.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_depend_on_seed_stream_and_operation_alone() {
        let longest = Duration::from_micros(50);
        let plan = |seed: u64| -> Vec<Duration> {
            let delays = Delays::new(seed, longest);
            (0..64).map(|n| delays.of(n / 8, n % 8)).collect()
        };
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        assert!(plan(7).iter().all(|&delay| delay <= longest));
        assert!(plan(7).iter().any(|&delay| delay > Duration::ZERO));
        assert_eq!(Delays::new(7, Duration::ZERO).of(3, 1), Duration::ZERO);
    }
}
