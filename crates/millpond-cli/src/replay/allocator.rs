//! What serves a job: the pool, or another allocator's policy to compare it with.
//!
//! # Invariants
//!
//! - Both are asked the same, and both are counted from the same calls of their device. What a
//!   policy has reserved is counted from these calls alone.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use millpond::device::{Device, EventId, Observed, StreamId};
use millpond::pool::{Setting, Waits};
use millpond::{AllocError, Pool, Statistics};
use millpond_policies::{Allocator, PolicyError, PolicyName, PolicyNameError, Reserved};

use super::error::ReplayError;

/// Whose rules a job is replayed with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum PolicyChoice {
    /// The pool's.
    #[default]
    Millpond,
    /// Another allocator's.
    Other(PolicyName),
}

impl PolicyChoice {
    /// The name, as it is written and read.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            PolicyChoice::Millpond => "millpond",
            PolicyChoice::Other(policy) => policy.as_str(),
        }
    }
}

/// A text that names no policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}, and millpond itself")]
pub(crate) struct PolicyChoiceError(PolicyNameError);

impl FromStr for PolicyChoice {
    type Err = PolicyChoiceError;

    fn from_str(text: &str) -> Result<PolicyChoice, PolicyChoiceError> {
        if text == PolicyChoice::Millpond.as_str() {
            return Ok(PolicyChoice::Millpond);
        }
        text.parse()
            .map(PolicyChoice::Other)
            .map_err(PolicyChoiceError)
    }
}

impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the job's pool is built.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PoolSettings {
    /// Bytes that the pool may take; without it, everything.
    pub(crate) limit: Option<u64>,
    /// For the pool alone, like `waits`: the policies have rules of their own.
    pub(crate) setting: Setting,
    pub(crate) waits: Waits,
    pub(crate) policy: PolicyChoice,
}

impl PoolSettings {
    /// The setting's name, where the policy has it.
    pub(super) fn setting_name(&self) -> Option<&'static str> {
        let ours = self.policy == PolicyChoice::Millpond;
        ours.then_some(match self.setting {
            Setting::Plentiful => "plentiful",
            Setting::Fast => "fast",
            Setting::Balanced => "balanced",
            Setting::Tight => "tight",
        })
    }
}

/// What was done so far, and the peaks since they were reset. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    pub(super) peak_live: u64,
    pub(super) peak_reserved: u64,
    pub(super) waits_inserted: u64,
    pub(super) events_recorded: u64,
    pub(super) event_queries: u64,
}

/// Why there is no block.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoBlock {
    #[error(transparent)]
    Pool(#[from] AllocError),
    #[error("{0}: {1}")]
    Policy(PolicyName, PolicyError),
}

/// See the [module](self).
pub(super) enum JobAllocator {
    Millpond(Pool),
    Other(Box<Other>),
}

/// A policy, and what is counted around it.
pub(super) struct Other {
    policy: PolicyName,
    allocator: Allocator,
    reserved: Arc<Reserved>,
    device: Arc<dyn Device>,
}

impl Other {
    fn failed(&self, error: PolicyError) -> ReplayError {
        let policy = self.policy;
        ReplayError::Policy { policy, error }
    }
}

impl JobAllocator {
    pub(super) fn new(
        device: Arc<dyn Device>,
        settings: PoolSettings,
    ) -> Result<JobAllocator, ReplayError> {
        let policy = match settings.policy {
            PolicyChoice::Millpond => {
                let mut builder = Pool::builder(device)
                    .setting(settings.setting)
                    .waits(settings.waits);
                if let Some(limit) = settings.limit {
                    builder = builder.limit(limit);
                }
                return Ok(JobAllocator::Millpond(builder.build()?));
            }
            PolicyChoice::Other(policy) => policy,
        };
        let reserved = Arc::new(Reserved::new(settings.limit));
        let observers = vec![Arc::clone(&reserved) as _];
        let device: Arc<dyn Device> = Arc::new(Observed::new(device, observers));
        Ok(JobAllocator::Other(Box::new(Other {
            policy,
            allocator: Allocator::new(policy, Arc::clone(&device)),
            reserved,
            device,
        })))
    }

    #[inline]
    pub(super) fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64, NoBlock> {
        match self {
            JobAllocator::Millpond(pool) => Ok(pool.allocate(size, stream)?.into_raw()),
            JobAllocator::Other(other) => {
                let result = other.allocator.allocate(size, stream);
                result.map_err(|error| NoBlock::Policy(other.policy, error))
            }
        }
    }

    /// `step` is for the error.
    pub(super) fn use_on(
        &mut self,
        address: u64,
        stream: StreamId,
        step: usize,
    ) -> Result<(), ReplayError> {
        match self {
            JobAllocator::Millpond(pool) => pool
                .use_on(address, stream)
                .map_err(|error| ReplayError::Refused { step, error }),
            JobAllocator::Other(other) => other
                .allocator
                .use_on(address, stream)
                .map_err(|error| other.failed(error)),
        }
    }

    /// `step` is for the error.
    #[inline]
    pub(super) fn free(&mut self, address: u64, step: usize) -> Result<(), ReplayError> {
        match self {
            JobAllocator::Millpond(pool) => pool
                .free(address)
                .map_err(|error| ReplayError::Refused { step, error }),
            JobAllocator::Other(other) => other
                .allocator
                .free(address)
                .map_err(|error| other.failed(error)),
        }
    }

    pub(super) fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), ReplayError> {
        match self {
            JobAllocator::Millpond(pool) => Ok(pool.record_event(event, stream)?),
            // No policy follows the job's events.
            JobAllocator::Other(other) => Ok(other.device.record_event(event, stream)?),
        }
    }

    pub(super) fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), ReplayError> {
        match self {
            JobAllocator::Millpond(pool) => Ok(pool.wait_event(stream, event)?),
            JobAllocator::Other(other) => Ok(other.device.wait_event(stream, event)?),
        }
    }

    /// Waits for the device.
    pub(super) fn synchronize(&self) -> Result<(), ReplayError> {
        match self {
            JobAllocator::Millpond(pool) => Ok(pool.synchronize()?),
            JobAllocator::Other(other) => Ok(other.device.synchronize()?),
        }
    }

    /// The peaks are from now on those of what comes, and begin with what there is.
    pub(super) fn reset_peaks(&mut self) {
        match self {
            JobAllocator::Millpond(pool) => pool.reset_peaks(),
            JobAllocator::Other(other) => {
                other.allocator.reset_peak();
                other.reserved.reset_peak();
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        match self {
            JobAllocator::Millpond(pool) => {
                let Statistics {
                    peak_live_bytes,
                    peak_reserved_bytes,
                    waits_inserted,
                    events_recorded,
                    event_queries,
                    ..
                } = pool.statistics();
                Counts {
                    peak_live: peak_live_bytes,
                    peak_reserved: peak_reserved_bytes,
                    waits_inserted,
                    events_recorded,
                    event_queries,
                }
            }
            JobAllocator::Other(other) => Counts {
                peak_live: other.allocator.peak_live_bytes(),
                peak_reserved: other.reserved.peak_bytes(),
                waits_inserted: 0,
                events_recorded: other.allocator.events_recorded(),
                event_queries: other.allocator.event_queries(),
            },
        }
    }

    /// Gives everything back, with the job's events and streams.
    pub(super) fn end(self, events: &[EventId], streams: &[StreamId]) -> Result<(), ReplayError> {
        match self {
            JobAllocator::Millpond(pool) => {
                let device = Arc::clone(pool.device());
                for &event in events {
                    pool.forget_event(event);
                    device.destroy_event(event)?;
                }
                for &stream in streams {
                    pool.stream_destroyed(stream)?;
                    device.destroy_stream(stream)?;
                }
            }
            JobAllocator::Other(other) => {
                let Other {
                    policy,
                    allocator,
                    device,
                    ..
                } = *other;
                allocator
                    .close()
                    .map_err(|error| ReplayError::Policy { policy, error })?;
                for &event in events {
                    device.destroy_event(event)?;
                }
                for &stream in streams {
                    device.destroy_stream(stream)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_as_it_is_written() {
        let others = PolicyName::ALL.map(PolicyChoice::Other);
        for choice in others.into_iter().chain([PolicyChoice::Millpond]) {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "mill".parse::<PolicyChoice>().unwrap_err().to_string();
        assert!(
            error.contains("caching") && error.contains("millpond"),
            "{error}"
        );
    }
}
