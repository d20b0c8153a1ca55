//! Numbers that the exact search counts in: as small as the problem allows.

use std::ops::{Add, Sub};

pub(crate) trait Unit: Copy + Ord + Add<Output = Self> + Sub<Output = Self> {
    const ZERO: Self;
    /// Larger than every number that is added to another.
    const MAX: Self;

    /// The caller has made sure that it fits.
    fn of(number: u64) -> Self;
    fn get(self) -> u64;
    /// The next multiple of `alignment`, which is positive.
    fn round_up(self, alignment: Self) -> Self;
}

macro_rules! unit {
    ($integer:ty) => {
        impl Unit for $integer {
            const ZERO: Self = 0;
            const MAX: Self = <$integer>::MAX;

            fn of(number: u64) -> Self {
                number as $integer
            }

            fn get(self) -> u64 {
                self as u64
            }

            fn round_up(self, alignment: Self) -> Self {
                match alignment {
                    1 => self,
                    _ => (self + alignment - 1) / alignment * alignment,
                }
            }
        }
    };
}

unit!(i32);
unit!(i64);
