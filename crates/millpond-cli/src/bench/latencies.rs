//! Times of single pairs, and their percentiles.

use hdrhistogram::Histogram;

/// Significant decimal digits that are kept of a time.
const DIGITS: u8 = 3;

/// Longer times count as this one, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// How often each time was seen, in nanoseconds.
pub(super) struct Latencies(Histogram<u64>);

/// Times that so many parts of all are not longer than, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Percentiles {
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) p99_9: u64,
    pub(super) p99_99: u64,
    pub(super) longest: u64,
}

impl Latencies {
    pub(super) fn new() -> Latencies {
        let histogram = Histogram::new_with_max(LONGEST, DIGITS);
        Latencies(histogram.expect("so many digits, and such a time, are allowed"))
    }

    pub(super) fn add(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    pub(super) fn add_all(&mut self, others: &Latencies) {
        for value in others.0.iter_recorded() {
            self.0
                .saturating_record_n(value.value_iterated_to(), value.count_at_value());
        }
    }

    pub(super) fn percentiles(&self) -> Percentiles {
        let at = |quantile| self.0.value_at_quantile(quantile);
        Percentiles {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            longest: self.0.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_times_to_three_digits() {
        let (mut first, mut second) = (Latencies::new(), Latencies::new());
        for time in 1..=10_000 {
            if time % 2 == 0 {
                first.add(time);
            } else {
                second.add(time);
            }
        }
        first.add(5_000_000_000);
        first.add_all(&second);
        let percentiles = first.percentiles();
        let near = |found: u64, wanted: u64| {
            let off = found.abs_diff(wanted) * 1000;
            assert!(off <= 2 * wanted, "{found} {wanted}");
        };
        near(percentiles.p50, 5000);
        near(percentiles.p90, 9000);
        near(percentiles.p99, 9900);
        near(percentiles.p99_9, 9990);
        near(percentiles.p99_99, 9999);
        near(percentiles.longest, 5_000_000_000);
    }
}
