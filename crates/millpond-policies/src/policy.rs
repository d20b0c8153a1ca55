//! What a policy is, and which there are.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use millpond::device::{Device, StreamId};

use crate::PolicyError;
use crate::buddy::Buddy;
use crate::bump::Bump;
use crate::cuda_malloc::CudaMalloc;
use crate::pytorch::{Caching, Expandable};
use crate::slab::Slab;

/// Where requests go, and what is kept.
pub(crate) trait Policy: fmt::Debug + Send {
    /// Gives `size` bytes, more than 0, for work that `stream` runs from now on. The address is a
    /// multiple of 256.
    fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64, PolicyError>;

    /// Takes a block back. Every use of it is completed, or comes before what its stream runs from
    /// now on.
    fn free(&mut self, address: u64) -> Result<(), PolicyError>;

    /// Gives back to the device what is free and can be given back, and waits for what may still
    /// use it. When nothing is live, that is everything.
    fn release_cached(&mut self) -> Result<(), PolicyError>;

    /// Whether a free waits for the device, so that it does not matter who still used the block.
    fn free_waits(&self) -> bool {
        false
    }
}

/// A policy, by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PolicyName {
    /// A driver call for every operation.
    CudaMalloc,
    /// Chunks that are filled front to back, and begun again when all in them is free.
    Bump,
    /// Powers of two, halved and joined.
    Buddy,
    /// Classes of size, each with slabs of equal slots.
    Slab,
    /// PyTorch's caching allocator.
    Caching,
    /// The same with expandable segments.
    Expandable,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [PolicyName; 6] = [
        PolicyName::CudaMalloc,
        PolicyName::Bump,
        PolicyName::Buddy,
        PolicyName::Slab,
        PolicyName::Caching,
        PolicyName::Expandable,
    ];

    /// The name, as it is written and read.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyName::CudaMalloc => "cuda-malloc",
            PolicyName::Bump => "bump",
            PolicyName::Buddy => "buddy",
            PolicyName::Slab => "slab",
            PolicyName::Caching => "caching",
            PolicyName::Expandable => "expandable",
        }
    }

    pub(crate) fn policy(self, device: Arc<dyn Device>) -> Box<dyn Policy> {
        match self {
            PolicyName::CudaMalloc => Box::new(CudaMalloc::new(device)),
            PolicyName::Bump => Box::new(Bump::new(device)),
            PolicyName::Buddy => Box::new(Buddy::new(device)),
            PolicyName::Slab => Box::new(Slab::new(device)),
            PolicyName::Caching => Box::new(Caching::new(device)),
            PolicyName::Expandable => Box::new(Expandable::new(device)),
        }
    }
}

/// A text that names no policy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "not a policy; there are: {}",
    PolicyName::ALL.map(PolicyName::as_str).join(", ")
)]
pub struct PolicyNameError;

impl FromStr for PolicyName {
    type Err = PolicyNameError;

    fn from_str(text: &str) -> Result<PolicyName, PolicyNameError> {
        let named = |name: &PolicyName| name.as_str() == text;
        PolicyName::ALL
            .into_iter()
            .find(named)
            .ok_or(PolicyNameError)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_as_it_is_written() {
        for name in PolicyName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let error = "arena".parse::<PolicyName>().unwrap_err().to_string();
        assert!(
            error.contains("bump") && error.contains("expandable"),
            "{error}"
        );
    }
}
