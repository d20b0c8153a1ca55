//! Logs of RMM's `logging_resource_adaptor`.
//!
//! The header is `Thread,Time,Action,Pointer,Size,Stream`, a row `586,17:56:41.315970,allocate,
//! 0x7fb6e2000000,1579088,0`. Accepted besides: pointers and streams without `0x`, a colon before
//! the fraction of a second (older RMM), a log without its header or with several (joined logs),
//! and the `[...]` groups that a logger's own pattern puts before the text.
//!
//! RMM writes a free's row before it frees, so rows of several threads are in a valid order.

use crate::builder::{Builder, Radix, Times};
use crate::error::{Position, TraceError};
use crate::fields::{decimal, pointer, scaled, split};
use crate::input::Lines;
use crate::limits::Limits;
use crate::model::{Format, Trace};

pub(crate) const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream";
const DAY_NS: u64 = 86_400 * 1_000_000_000;

pub(crate) fn is_header(line: &[u8]) -> bool {
    without_groups(line) == HEADER
}

/// Whether a first line can be a row of a log that lost its header.
pub(crate) fn is_row(line: &[u8]) -> bool {
    split::<6>(without_groups(line), Position::Start).is_ok_and(|[_, time, action, ..]| {
        time_of_day(time).is_some() && matches!(action, b"allocate" | b"allocate failure" | b"free")
    })
}

pub(crate) fn read(name: &str, mut lines: Lines<'_>, limits: &Limits) -> Result<Trace, TraceError> {
    let mut builder = Builder::new(limits, Radix::Hexadecimal);
    let mut clock = WallClock::default();
    let (mut failures, mut empty) = (0_u64, 0_u64);
    while let Some(line) = lines.next_line()? {
        let at = line.at;
        builder.set_position(at);
        let text = without_groups(line.text);
        if text == HEADER {
            continue;
        }
        let [_thread, time, action, address, size, stream] = split(text, at)?;
        let Some(of_day) = time_of_day(time) else {
            let expected = "a time of day such as 17:56:41.315970";
            return Err(TraceError::malformed(at, "Time", time, expected));
        };
        let times = Times::host(clock.advance(of_day));
        let key = pointer(address, "Pointer", at)?;
        let size = decimal(size, "Size", at)?;
        let stream = pointer(stream, "Stream", at)?;
        match action {
            b"allocate failure" => {
                failures += 1;
                builder.failed(size, None)?;
            }
            // No memory stands behind (nil): what RMM returns for zero bytes.
            b"allocate" | b"free" if key == 0 => empty += 1,
            b"allocate" => builder.alloc(key, size, stream, times)?,
            b"free" => builder.free(key, size, stream, times)?,
            _ => {
                let expected = "allocate, allocate failure or free";
                return Err(TraceError::malformed(at, "Action", action, expected));
            }
        }
    }
    if failures > 0 {
        builder.note(format!("{failures} failed allocations in the recording"));
    }
    if empty > 0 {
        builder.note(format!("{empty} allocations and frees of (nil) ignored"));
    }
    Ok(builder.finish(name, Format::RmmLog))
}

/// Makes a rising time of times of day.
#[derive(Default)]
struct WallClock {
    days: u64,
    last: u64,
}

impl WallClock {
    /// A step back by more than half a day is midnight; a smaller one is a clock set back or
    /// threads that wrote in another order, and stays for the builder to even out.
    fn advance(&mut self, of_day: u64) -> u64 {
        if self.last.saturating_sub(of_day) > DAY_NS / 2 {
            self.days += 1;
        }
        self.last = of_day;
        self.days.saturating_mul(DAY_NS).saturating_add(of_day)
    }
}

/// `HH:MM:SS` with an optional fraction, in nanoseconds since midnight.
fn time_of_day(text: &[u8]) -> Option<u64> {
    let (clock, fraction) = text.split_at_checked(8)?;
    let two = |from: usize, most: u64| {
        let pair = &clock[from..from + 2];
        let value = pair
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| scaled(pair, 2))?;
        (value < most).then_some(value)
    };
    if (clock[2], clock[5]) != (b':', b':') {
        return None;
    }
    let seconds = two(0, 24)? * 3600 + two(3, 60)? * 60 + two(6, 61)?;
    let nanos = match fraction.split_first() {
        None => 0,
        Some((b'.' | b':', digits)) if digits.iter().all(u8::is_ascii_digit) => scaled(digits, 9),
        Some(_) => return None,
    };
    Some(seconds * 1_000_000_000 + nanos)
}

/// The text after any leading `[...]` groups.
fn without_groups(mut line: &[u8]) -> &[u8] {
    while line.first() == Some(&b'[')
        && let Some(end) = line.iter().position(|&b| b == b']')
    {
        line = line[end + 1..].trim_ascii_start();
    }
    line.trim_ascii_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_day_is_exact_and_strict() {
        assert_eq!(time_of_day(b"00:00:00"), Some(0));
        assert_eq!(time_of_day(b"17:56:41.315970"), Some(64_601_315_970_000));
        assert_eq!(time_of_day(b"17:56:41:315970"), Some(64_601_315_970_000));
        assert_eq!(time_of_day(b"23:59:59.9999999999"), Some(DAY_NS - 1));
        for bad in [
            "",
            "1:2:3",
            "24:00:00",
            "12:60:00",
            "12-00-00",
            "12:00:00x",
            "aa:00:00",
        ] {
            assert_eq!(time_of_day(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn midnight_adds_a_day_and_a_small_step_back_does_not() {
        let mut clock = WallClock::default();
        assert_eq!(clock.advance(DAY_NS - 1), DAY_NS - 1);
        assert_eq!(clock.advance(5), DAY_NS + 5);
        assert_eq!(clock.advance(3), DAY_NS + 3);
    }
}
