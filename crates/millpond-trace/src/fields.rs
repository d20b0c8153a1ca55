//! Fields of a line of text: splitting and exact numbers.

use crate::error::{Position, TraceError};

/// Splits a line at its commas into exactly `N` fields.
pub(crate) fn split<const N: usize>(line: &[u8], at: Position) -> Result<[&[u8]; N], TraceError> {
    let mut fields = [&line[..0]; N];
    let mut count = 0;
    for field in line.split(|&b| b == b',') {
        if count < N {
            fields[count] = field;
        }
        count += 1;
    }
    if count == N {
        return Ok(fields);
    }
    let expected = match N {
        5 => "5 fields",
        6 => "6 fields",
        7 => "7 fields",
        _ => "another number of fields",
    };
    Err(TraceError::malformed(at, "the line", line, expected))
}

/// A decimal number.
pub(crate) fn decimal(field: &[u8], what: &'static str, at: Position) -> Result<u64, TraceError> {
    digits(field, 10)
        .ok_or_else(|| TraceError::malformed(at, what, field, "a decimal number below 2^64"))
}

/// A stream handle: decimal, or the negative form of a handle above 2^63.
pub(crate) fn handle(field: &[u8], at: Position) -> Result<u64, TraceError> {
    let parsed = match field.strip_prefix(b"-") {
        Some(rest) => digits(rest, 10)
            .filter(|&n| n <= 1 << 63)
            .map(u64::wrapping_neg),
        None => digits(field, 10),
    };
    parsed.ok_or_else(|| TraceError::malformed(at, "stream", field, "a decimal stream handle"))
}

/// A pointer as C prints it: hexadecimal with or without `0x`, or `(nil)`.
pub(crate) fn pointer(field: &[u8], what: &'static str, at: Position) -> Result<u64, TraceError> {
    if field == b"(nil)" {
        return Ok(0);
    }
    let bare = field
        .strip_prefix(b"0x")
        .or_else(|| field.strip_prefix(b"0X"))
        .unwrap_or(field);
    digits(bare, 16)
        .ok_or_else(|| TraceError::malformed(at, what, field, "a hexadecimal number or (nil)"))
}

/// Microseconds with optional decimals, as nanoseconds. Exact: what is below a nanosecond is cut
/// off, and no floating point is involved.
pub(crate) fn micros_as_ns(
    field: &[u8],
    what: &'static str,
    at: Position,
) -> Result<u64, TraceError> {
    let point = field.iter().position(|&b| b == b'.').unwrap_or(field.len());
    let (whole, fraction) = (&field[..point], field.get(point + 1..).unwrap_or_default());
    let ns = || {
        if point + 1 == field.len() || !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        digits(whole, 10)?
            .checked_mul(1_000)?
            .checked_add(scaled(fraction, 3))
    };
    ns().ok_or_else(|| TraceError::malformed(at, what, field, "microseconds such as 12.5"))
}

/// Decimals after a point, in units of 10^-`places`; further ones are cut off. All must be digits.
pub(crate) fn scaled(fraction: &[u8], places: usize) -> u64 {
    let padded = fraction.iter().copied().chain(std::iter::repeat(b'0'));
    padded
        .take(places)
        .fold(0, |value, b| value * 10 + u64::from(b - b'0'))
}

fn digits(field: &[u8], radix: u32) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for &b in field {
        let digit = char::from(b).to_digit(radix)?;
        value = value
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Position = Position::Line(1);

    #[test]
    fn micros_are_exact_to_the_nanosecond() {
        let ns = |s: &str| micros_as_ns(s.as_bytes(), "t", AT).ok();
        assert_eq!(ns("0"), Some(0));
        assert_eq!(ns("10857221.3"), Some(10_857_221_300));
        // As f64, 1796060690434400.1 has a step of 0.25 us.
        assert_eq!(ns("1796060690434400.1"), Some(1_796_060_690_434_400_100));
        assert_eq!(ns("1.0009"), Some(1_000));
        assert_eq!(ns("1.23456"), Some(1_234));
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "1e3",
            "-1",
            "1.2.3",
            "1.x",
            " 1",
            "nan",
            "18446744073709551616",
        ] {
            assert_eq!(ns(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_refuse_what_does_not_fit() {
        assert_eq!(
            decimal(b"18446744073709551615", "n", AT).ok(),
            Some(u64::MAX)
        );
        assert!(decimal(b"18446744073709551616", "n", AT).is_err());
        assert!(decimal(b"+1", "n", AT).is_err());
        assert_eq!(
            pointer(b"0x7fb6E2000000", "p", AT).ok(),
            Some(0x7fb6_e200_0000)
        );
        assert_eq!(
            pointer(b"7fb6e2000000", "p", AT).ok(),
            Some(0x7fb6_e200_0000)
        );
        assert_eq!(pointer(b"(nil)", "p", AT).ok(), Some(0));
        assert!(pointer(b"0x", "p", AT).is_err());
        assert!(pointer(b"0x10000000000000000", "p", AT).is_err());
        assert_eq!(handle(b"-1", AT).ok(), Some(u64::MAX));
        assert!(handle(b"-9223372036854775809", AT).is_err());
    }
}
