//! Making device calls fail on purpose, by number or by seed.

use std::sync::Mutex;
use std::sync::PoisonError;

use super::{Call, CallRecord, DeviceError, Observer, Outcome, Status};

/// An [`Observer`] that fails chosen calls before they reach the device.
///
/// The same calls in the same order fail the same way, run after run.
#[derive(Debug)]
pub struct Faults {
    only: Option<Vec<Call>>,
    status: Status,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: Plan,
    seen: u64,
    failed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Plan {
    Nothing,
    /// The call with this number, counted from 0.
    Number(u64),
    /// Each call with this probability, out of 2^32; the second number is the generator's state.
    Random(u32, u64),
}

impl Faults {
    /// Fails nothing, and counts.
    pub fn none() -> Faults {
        Faults::with(Plan::Nothing)
    }

    /// Fails the call with this number, counted from 0 over the calls that are considered.
    pub fn number(number: u64) -> Faults {
        Faults::with(Plan::Number(number))
    }

    /// Fails each considered call with this probability (0 to 1), from a seed.
    pub fn random(seed: u64, probability: f64) -> Faults {
        let chance = (probability.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32;
        Faults::with(Plan::Random(chance, seed | 1))
    }

    fn with(plan: Plan) -> Faults {
        let state = Mutex::new(State {
            plan,
            seen: 0,
            failed: 0,
        });
        Faults {
            only: None,
            status: Status::OUT_OF_MEMORY,
            state,
        }
    }

    /// Considers only these calls; by default all.
    #[must_use]
    pub fn only(mut self, calls: &[Call]) -> Faults {
        self.only = Some(calls.to_vec());
        self
    }

    /// Fails with this code; by default out of memory.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Faults {
        self.status = status;
        self
    }

    /// Fails nothing from now on.
    pub fn stop(&self) {
        self.lock().plan = Plan::Nothing;
    }

    /// Calls considered so far.
    pub fn seen(&self) -> u64 {
        self.lock().seen
    }

    /// Calls failed so far.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Faults {
    fn before(&self, record: &CallRecord) -> Result<(), DeviceError> {
        let call = record.call();
        if self.only.as_ref().is_some_and(|only| !only.contains(&call)) {
            return Ok(());
        }
        let mut state = self.lock();
        let number = state.seen;
        state.seen += 1;
        let fails = match &mut state.plan {
            Plan::Nothing => false,
            Plan::Number(chosen) => *chosen == number,
            Plan::Random(chance, generator) => {
                // xorshift64*: the high half is well mixed.
                *generator ^= *generator >> 12;
                *generator ^= *generator << 25;
                *generator ^= *generator >> 27;
                let drawn = generator.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
                drawn < u64::from(*chance)
            }
        };
        if !fails {
            return Ok(());
        }
        state.failed += 1;
        Err(DeviceError::new(
            call,
            self.status,
            format!("injected fault at call {number}"),
        ))
    }

    fn after(&self, _: &CallRecord, _: Outcome<'_>, _: u64, _: u64) {}
}
