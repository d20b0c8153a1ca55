//! The time, and how much of it the sim's emulated driver took.
//!
//! # Invariants
//!
//! - What the driver took is counted by the thread that called it, and belongs to what that thread
//!   did then.

use std::cell::Cell;
use std::ops::Sub;

use millpond::device::{CallRecord, DeviceError, Observer, Outcome};

/// Pairs of readings from which the cost of one is taken.
const READINGS: usize = 10_001;

/// A clock that is cheap to read: the processor's counter where it is steady, else the system's
/// monotonic clock.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    clock: quanta::Clock,
    /// Of one reading, in ticks.
    cost: u64,
}

/// A moment of one thread: the clock, and what its driver calls took up to then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) ticks: u64,
    pub(super) driver: DriverTime,
}

/// Driver calls of the sim so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct DriverTime {
    /// Real time.
    pub(super) ticks: u64,
    pub(super) calls: u64,
    /// The device's own time, which is virtual.
    pub(super) device_ns: u64,
}

impl Sub for DriverTime {
    type Output = DriverTime;

    fn sub(self, before: DriverTime) -> DriverTime {
        DriverTime {
            ticks: self.ticks - before.ticks,
            calls: self.calls - before.calls,
            device_ns: self.device_ns - before.device_ns,
        }
    }
}

thread_local! {
    static DRIVER: Cell<DriverTime> = const {
        Cell::new(DriverTime { ticks: 0, calls: 0, device_ns: 0 })
    };
    static CALL_BEGAN: Cell<u64> = const { Cell::new(0) };
}

impl Clock {
    /// Finds out how fast it goes, and what reading it costs.
    pub(crate) fn new() -> Clock {
        let clock = quanta::Clock::new();
        let mut apart = [0; READINGS];
        for ticks in &mut apart {
            let before = clock.raw();
            *ticks = clock.raw().saturating_sub(before);
        }
        apart.sort_unstable();
        Clock {
            clock,
            cost: apart[READINGS / 2],
        }
    }

    #[inline]
    pub(super) fn ticks(&self) -> u64 {
        self.clock.raw()
    }

    /// This moment of this thread.
    #[inline]
    pub(super) fn moment(&self) -> Moment {
        Moment {
            ticks: self.ticks(),
            driver: DRIVER.get(),
        }
    }

    /// From one moment to the next one that was read, in ticks, without the driver's time and
    /// without the reading.
    #[inline]
    pub(super) fn between(&self, from: Moment, to: Moment) -> u64 {
        let apart = to.ticks.saturating_sub(from.ticks);
        apart.saturating_sub(self.cost + (to.driver.ticks - from.driver.ticks))
    }

    /// Ticks, in nanoseconds.
    pub(super) fn nanoseconds(&self, ticks: u64) -> u64 {
        self.clock.delta_as_nanos(0, ticks)
    }

    /// What one reading costs, in nanoseconds.
    pub(crate) fn cost_ns(&self) -> f64 {
        // One is too short to be turned into whole nanoseconds.
        self.nanoseconds(self.cost * 1000) as f64 / 1000.0
    }
}

/// Stands in front of the sim, and takes the time of its calls.
pub(super) struct DriverStopwatch(pub(super) Clock);

impl Observer for DriverStopwatch {
    fn before(&self, _call: &CallRecord) -> Result<(), DeviceError> {
        CALL_BEGAN.set(self.0.ticks());
        Ok(())
    }

    fn after(&self, _call: &CallRecord, _outcome: Outcome<'_>, started: u64, ended: u64) {
        let mut driver = DRIVER.get();
        driver.ticks += self.0.ticks().saturating_sub(CALL_BEGAN.get());
        driver.calls += 1;
        driver.device_ns += ended.saturating_sub(started);
        DRIVER.set(driver);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn driver_time_is_the_calling_thread_s_and_left_out() {
        let clock = Clock::new();
        let stopwatch = DriverStopwatch(clock.clone());
        let from = clock.moment();
        let call = CallRecord::Synchronize;
        stopwatch.before(&call).unwrap();
        thread::sleep(Duration::from_millis(20));
        stopwatch.after(&call, Outcome::Done, 5, 12);
        let to = clock.moment();
        let driver = to.driver - from.driver;
        assert_eq!((driver.calls, driver.device_ns), (1, 7));
        assert!(clock.nanoseconds(driver.ticks) >= 19_000_000);
        assert!(clock.between(from, to) <= to.ticks - from.ticks - driver.ticks);
        let other = thread::spawn(|| DRIVER.get()).join().unwrap();
        assert_eq!(other, DriverTime::default());
    }
}
