//! Sizes in bytes, as people write them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes that a person gave: `141GB`, `1.5GiB`, `80G`, `4096`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ByteSize(pub(crate) u64);

/// Why a text is no size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum SizeError {
    #[error(
        "not a size; write a number of bytes, or a number with KB, MB, GB, TB (powers of 1000) \
         or K, M, G, T, KiB, MiB, GiB, TiB (powers of 1024), such as 141GB"
    )]
    Malformed,
    #[error("more than {} bytes", u64::MAX)]
    TooLarge,
}

/// Digits after the decimal point that are read; more than any unit can show.
const FRACTION_DIGITS: usize = 12;

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<ByteSize, SizeError> {
        let text = text.trim();
        let number_end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(number_end);
        let unit = unit_bytes(unit.trim_start()).ok_or(SizeError::Malformed)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') || fraction.len() > FRACTION_DIGITS {
            return Err(SizeError::Malformed);
        }
        // Only digits are left, so that no number here can fail but for its size.
        let whole: u64 = whole.parse().map_err(|_| SizeError::TooLarge)?;
        let scale = 10_u128.pow(fraction.len() as u32);
        let fraction: u128 = match fraction {
            "" => 0,
            digits => digits.parse().map_err(|_| SizeError::Malformed)?,
        };
        let bytes = (u128::from(whole) * scale + fraction) * u128::from(unit) / scale;
        u64::try_from(bytes)
            .map(ByteSize)
            .map_err(|_| SizeError::TooLarge)
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let mut letters = unit.chars();
    let power = match letters.next() {
        None => return Some(1),
        Some('b') => 0,
        Some('k') => 1,
        Some('m') => 2,
        Some('g') => 3,
        Some('t') => 4,
        Some(_) => return None,
    };
    let base: u64 = match (power, letters.as_str()) {
        (0, "") => 1,
        (0, _) => return None,
        (_, "" | "ib") => 1024,
        (_, "b") => 1000,
        (_, _) => return None,
    };
    Some(base.pow(power))
}

/// With the binary unit that leaves few digits.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let unit = (self.0.max(1).ilog2() / 10).min(4);
        if unit == 0 {
            return f.pad(&format!("{} B", self.0));
        }
        let value = self.0 as f64 / f64::from(unit * 10).exp2();
        f.pad(&format!("{value:.1} {}", UNITS[unit as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, SizeError> {
        text.parse().map(|ByteSize(bytes)| bytes)
    }

    #[test]
    fn units_with_a_plain_b_are_decimal_and_all_others_binary() {
        assert_eq!(bytes("141GB"), Ok(141_000_000_000));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("80G"), Ok(80 << 30));
        assert_eq!(bytes("3 MiB"), Ok(3 << 20));
        assert_eq!(bytes("7kb"), Ok(7000));
        assert_eq!(bytes("1T"), Ok(1 << 40));
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("4096B"), Ok(4096));
    }

    #[test]
    fn fractions_are_exact_and_rounded_down_to_bytes() {
        assert_eq!(bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(bytes("0.1K"), Ok(102));
        assert_eq!(bytes("2."), Ok(2));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "", "GB", "-1", "1.2.3G", "12QB", "1GiBs", "1bb", "0x10", ".5G", "1e9", "五",
        ] {
            assert_eq!(bytes(text), Err(SizeError::Malformed), "{text:?}");
        }
        assert_eq!(bytes("18446744073709551616"), Err(SizeError::TooLarge));
        assert_eq!(bytes("16777216TiB"), Err(SizeError::TooLarge));
        assert_eq!(bytes("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn sizes_are_shown_in_few_digits() {
        assert_eq!(ByteSize(0).to_string(), "0 B");
        assert_eq!(ByteSize(1023).to_string(), "1023 B");
        assert_eq!(ByteSize(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(ByteSize(5 << 50).to_string(), "5120.0 TiB");
    }
}
