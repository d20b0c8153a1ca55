//! A pool's attributes, with the names and the meaning that CUDA gives them (DRV
//! `CUmemPool_attribute`; GUIDE 4.3, "Memory Reuse Policies", "Physical Page Caching Behavior",
//! "Resource Usage Statistics").
//!
//! # Invariants
//!
//! 1. What is set is what is read back; a refused value changes nothing.
//! 2. The four figures of a [`Usage`] are of one moment, and none of the high ones is below its
//!    current one.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::policy::ReusePolicies;
use super::properties::Properties;
use super::{Inner, Pool};

/// An attribute of a pool (`CUmemPool_attribute`). The number of each is the driver's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum PoolAttribute {
    /// Whether memory whose uses are ordered before a request by events is used again; 0 or 1, at
    /// first 1. See [`ReusePolicies::follow_event_dependencies`].
    ReuseFollowEventDependencies = 1,
    /// Whether memory whose uses turn out to be completed is used again; 0 or 1, at first 1. See
    /// [`ReusePolicies::allow_opportunistic`].
    ReuseAllowOpportunistic = 2,
    /// Whether the pool may insert a wait to use memory again; 0 or 1, at first 1. See
    /// [`ReusePolicies::allow_internal_dependencies`].
    ReuseAllowInternalDependencies = 3,
    /// Bytes above which the pool gives memory back at every synchronisation that it is told of.
    /// At first `u64::MAX`: never (the driver's pools begin with 0). See
    /// [`Pool::set_release_threshold`].
    ReleaseThreshold = 4,
    /// Bytes of the device that the pool has now. Read only.
    ReservedMemCurrent = 5,
    /// The most it had since it was made or this was reset. Only 0 can be set: the mark begins
    /// again at the current value.
    ReservedMemHigh = 6,
    /// Bytes in blocks that are not freed, as they were asked for. Read only.
    UsedMemCurrent = 7,
    /// The most there were since the pool was made or this was reset. Only 0 can be set: the mark
    /// begins again at the current value.
    UsedMemHigh = 8,
    /// How its memory is allocated: 1 (`CU_MEM_ALLOCATION_TYPE_PINNED`), the only one offered.
    /// Read only.
    AllocationType = 9,
    /// The ways in which its memory can be exported, as a set: 0 none, 1 POSIX descriptors, 8
    /// fabric handles (`CUmemAllocationHandleType`). Read only.
    ExportHandleTypes = 10,
    /// The ordinal of its device, or the number of its NUMA node. Read only.
    LocationId = 11,
    /// Where its memory lies: 1 device, 2 host, 3 NUMA node of the host
    /// (`CUmemLocationType`). Read only.
    LocationType = 12,
    /// The most bytes that it takes; 0 if it has no limit. Read only here: see
    /// [`Pool::set_limit`].
    MaxPoolSize = 13,
}

impl PoolAttribute {
    /// All that there are, in the order of their numbers.
    pub const ALL: [PoolAttribute; 13] = [
        PoolAttribute::ReuseFollowEventDependencies,
        PoolAttribute::ReuseAllowOpportunistic,
        PoolAttribute::ReuseAllowInternalDependencies,
        PoolAttribute::ReleaseThreshold,
        PoolAttribute::ReservedMemCurrent,
        PoolAttribute::ReservedMemHigh,
        PoolAttribute::UsedMemCurrent,
        PoolAttribute::UsedMemHigh,
        PoolAttribute::AllocationType,
        PoolAttribute::ExportHandleTypes,
        PoolAttribute::LocationId,
        PoolAttribute::LocationType,
        PoolAttribute::MaxPoolSize,
    ];

    /// The attribute that has this number in the driver's enumeration.
    ///
    /// # Errors
    ///
    /// [`AttributeError::NotOffered`] for those that no pool of this library has: hardware
    /// decompression (14) and locality domains (15) among them.
    pub fn from_number(number: u32) -> Result<PoolAttribute, AttributeError> {
        let mut all = PoolAttribute::ALL.into_iter();
        let found = all.find(|&attribute| attribute as u32 == number);
        found.ok_or(AttributeError::NotOffered { number })
    }
}

/// Why an attribute could not be set, or asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// The attribute only tells something.
    #[error(
        "{attribute:?} was to be set to {value}, and can only be read; the pool's limit, location \
         and handle types are given when it is made"
    )]
    ReadOnly {
        /// Which.
        attribute: PoolAttribute,
        /// The value given.
        value: u64,
    },
    /// A high watermark can be reset, and nothing else.
    #[error(
        "{attribute:?} was to be set to {value}; only 0 can be set, and begins it again at the \
         current value"
    )]
    OnlyReset {
        /// Which.
        attribute: PoolAttribute,
        /// The value given.
        value: u64,
    },
    /// A reuse policy is on or off.
    #[error("{attribute:?} was to be set to {value}; it is 0 or 1")]
    NotABoolean {
        /// Which.
        attribute: PoolAttribute,
        /// The value given.
        value: u64,
    },
    /// No pool of this library has such an attribute.
    #[error("there is no attribute of number {number} here; 1 to 13 are offered")]
    NotOffered {
        /// The number given.
        number: u32,
    },
}

/// What a pool has and uses: the four figures of CUDA's attributes, of one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes of the device that the pool has.
    pub reserved_current: u64,
    /// The most it had since it was made or the mark was reset.
    pub reserved_high: u64,
    /// Bytes in live blocks, as they were asked for, but for those of graphs.
    pub used_current: u64,
    /// The most there were since the pool was made or the mark was reset.
    pub used_high: u64,
}

/// What can be changed while the pool works, without its lock: each is read on its own, and decides
/// what is worth doing, never what is safe.
#[derive(Debug)]
pub(super) struct Settings {
    reuse: AtomicU8,
    release_threshold: AtomicU64,
}

const FOLLOW: u8 = 1;
const OPPORTUNISTIC: u8 = 2;
const INTERNAL: u8 = 4;

impl Settings {
    pub(super) fn new(reuse: ReusePolicies, release_threshold: u64) -> Settings {
        Settings {
            reuse: AtomicU8::new(bits(reuse)),
            release_threshold: AtomicU64::new(release_threshold),
        }
    }

    pub(super) fn reuse(&self) -> ReusePolicies {
        let bits = self.reuse.load(Ordering::Relaxed);
        ReusePolicies {
            follow_event_dependencies: bits & FOLLOW != 0,
            allow_opportunistic: bits & OPPORTUNISTIC != 0,
            allow_internal_dependencies: bits & INTERNAL != 0,
        }
    }

    pub(super) fn release_threshold(&self) -> u64 {
        self.release_threshold.load(Ordering::Relaxed)
    }

    fn set_bit(&self, bit: u8, on: bool) {
        if on {
            self.reuse.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.reuse.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

fn bits(reuse: ReusePolicies) -> u8 {
    let bit = |on: bool, bit: u8| if on { bit } else { 0 };
    bit(reuse.follow_event_dependencies, FOLLOW)
        | bit(reuse.allow_opportunistic, OPPORTUNISTIC)
        | bit(reuse.allow_internal_dependencies, INTERNAL)
}

impl Inner {
    fn usage(&self) -> Usage {
        let mut state = self.lock();
        let used_current = state.gather_usage();
        Usage {
            reserved_current: state.pages.existing(),
            reserved_high: state.pages.peak_reserved(),
            used_current,
            used_high: state.peaks.live.max(used_current),
        }
    }
}

impl Pool {
    /// The value of an attribute. Costs no device call, and looks at no block.
    pub fn attribute(&self, attribute: PoolAttribute) -> u64 {
        let Properties {
            location,
            handle_types,
        } = self.inner.properties;
        let reuse = self.inner.settings.reuse();
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => reuse.follow_event_dependencies.into(),
            PoolAttribute::ReuseAllowOpportunistic => reuse.allow_opportunistic.into(),
            PoolAttribute::ReuseAllowInternalDependencies => {
                reuse.allow_internal_dependencies.into()
            }
            PoolAttribute::ReleaseThreshold => self.release_threshold(),
            PoolAttribute::ReservedMemCurrent => self.usage().reserved_current,
            PoolAttribute::ReservedMemHigh => self.usage().reserved_high,
            PoolAttribute::UsedMemCurrent => self.usage().used_current,
            PoolAttribute::UsedMemHigh => self.usage().used_high,
            PoolAttribute::AllocationType => ALLOCATION_PINNED,
            PoolAttribute::ExportHandleTypes => handle_types.bits(),
            PoolAttribute::LocationId => location.id().into(),
            PoolAttribute::LocationType => location.kind(),
            PoolAttribute::MaxPoolSize => match self.limit() {
                u64::MAX => 0,
                limit => limit,
            },
        }
    }

    /// Sets an attribute. Those that can be set are the reuse policies (0 or 1), the release
    /// threshold, and the two high watermarks (0 alone, which resets them).
    ///
    /// # Errors
    ///
    /// [`AttributeError`]; the attribute is as it was.
    pub fn set_attribute(
        &self,
        attribute: PoolAttribute,
        value: u64,
    ) -> Result<(), AttributeError> {
        let policy = |bit| match value {
            0 | 1 => {
                self.inner.settings.set_bit(bit, value == 1);
                Ok(())
            }
            _ => Err(AttributeError::NotABoolean { attribute, value }),
        };
        match attribute {
            PoolAttribute::ReuseFollowEventDependencies => policy(FOLLOW),
            PoolAttribute::ReuseAllowOpportunistic => policy(OPPORTUNISTIC),
            PoolAttribute::ReuseAllowInternalDependencies => policy(INTERNAL),
            PoolAttribute::ReleaseThreshold => {
                self.set_release_threshold(value);
                Ok(())
            }
            PoolAttribute::ReservedMemHigh | PoolAttribute::UsedMemHigh if value != 0 => {
                Err(AttributeError::OnlyReset { attribute, value })
            }
            PoolAttribute::ReservedMemHigh => {
                self.inner.lock().pages.reset_peak();
                Ok(())
            }
            PoolAttribute::UsedMemHigh => {
                let mut state = self.inner.lock();
                state.peaks.live = state.gather_usage();
                Ok(())
            }
            _ => Err(AttributeError::ReadOnly { attribute, value }),
        }
    }

    /// What the pool has and uses, in four figures of one moment. Costs no device call, and looks
    /// at no block.
    pub fn usage(&self) -> Usage {
        self.inner.usage()
    }

    /// Which memory of other streams is used again.
    pub fn reuse_policies(&self) -> ReusePolicies {
        self.inner.settings.reuse()
    }

    /// Chooses which memory of other streams is used again, from the next request on.
    pub fn set_reuse_policies(&self, reuse: ReusePolicies) {
        let settings = &self.inner.settings;
        settings.reuse.store(bits(reuse), Ordering::Relaxed);
    }

    /// Bytes above which memory is given back at synchronisations.
    pub fn release_threshold(&self) -> u64 {
        self.inner.settings.release_threshold()
    }

    /// Sets the bytes above which memory is given back: when the pool waits for a stream, an event
    /// or the device ([`Pool::synchronize_stream`], [`Pool::synchronize_event`],
    /// [`Pool::synchronize`]) and has more than these, it gives back what nothing uses, until it has
    /// no more than these (GUIDE 4.3, "Physical Page Caching Behavior"). Nothing happens before the
    /// next such call.
    ///
    /// A pool begins with `u64::MAX`, which gives nothing back; the driver's pools begin with 0,
    /// which creates and releases memory at every synchronisation.
    pub fn set_release_threshold(&self, bytes: u64) {
        let settings = &self.inner.settings;
        settings.release_threshold.store(bytes, Ordering::Relaxed);
    }
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const ALLOCATION_PINNED: u64 = 1;
