//! Who may touch a pool's memory: for past and future allocations alike, by the access descriptors
//! of its mappings (DRV `cuMemPoolSetAccess`, `cuMemSetAccess`). Enabling peers between contexts
//! (`cuCtxEnablePeerAccess`) does nothing here, as it does nothing for the driver's pools.
//!
//! # Invariants
//!
//! 1. Every mapping of the pool's that memory is handed out from has the access that the pool says
//!    it has. A growth that was under way while that changed gives its mappings the new access
//!    before it hands anything out ([`Inner::renew_access`]): what is granted is published before
//!    the mappings are looked at, and a growth looks at what is published after it has settled.
//! 2. A change that fails is undone.
//! 3. The pool's own place always has full access.
//! 4. Memory of graphs keeps the access that held when it was mapped (DRV, graph memory nodes).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::properties::PoolLocation;
use super::{Inner, Pool};
use crate::device::{AccessGrant, Accessor, DeviceError, Protection};
use crate::pages::HandleSlot;
use crate::sync::{AtomicU64, Mutex};

/// Why a pool's access could not be changed. It is as it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The device cannot reach the pool's device (invalid device, 101).
    #[error(
        "device {accessor} was to have access to memory of device {device}, and cannot reach it: \
         there is no such device, or no peer access between the two; copy through the host"
    )]
    NoPeerAccess {
        /// The ordinal of the device that was to have access.
        accessor: u32,
        /// The ordinal of the pool's device.
        device: u32,
    },
    /// The memory's own place always has access.
    #[error("{accessor:?} is where the pool's memory lies; its access cannot be {protection:?}")]
    OwnPlace {
        /// Who.
        accessor: Accessor,
        /// What was asked for it.
        protection: Protection,
    },
    /// The host's processors cannot touch a device's memory.
    #[error("{accessor:?} was to have access to a device's memory, which only devices can touch")]
    HostCannot {
        /// Who.
        accessor: Accessor,
    },
    /// Somebody was named twice.
    #[error("{accessor:?} is named twice; name everybody once")]
    NamedTwice {
        /// Who.
        accessor: Accessor,
    },
    /// The pool's memory is plain, and plain memory has no access descriptors (not supported, 801).
    #[error("this device cannot map memory, so access to it cannot be given")]
    NotSupported,
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Who may touch a pool's memory.
#[derive(Debug)]
pub(super) struct AccessList {
    lists: Mutex<Lists>,
    /// Rises with every change.
    version: AtomicU64,
}

#[derive(Debug)]
struct Lists {
    grants: Arc<[AccessGrant]>,
    /// Those who had access once and have none now.
    revoked: Vec<Accessor>,
}

/// The list at a moment.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) grants: Arc<[AccessGrant]>,
    pub(super) version: u64,
}

impl AccessList {
    /// Full access for the memory's own place alone.
    pub(super) fn new(location: PoolLocation) -> AccessList {
        let own = AccessGrant {
            accessor: location.own_accessor(),
            protection: Protection::ReadWrite,
        };
        AccessList {
            lists: Mutex::new(Lists {
                grants: Arc::new([own]),
                revoked: Vec::new(),
            }),
            version: AtomicU64::new(0),
        }
    }

    pub(super) fn current(&self) -> Granted {
        let lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        Granted {
            grants: Arc::clone(&lists.grants),
            version: self.version.load(Ordering::Acquire),
        }
    }

    /// The list, and what takes their access from those who had any, for mappings that may have
    /// been given it.
    fn everything(&self) -> (Vec<AccessGrant>, u64) {
        let lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let revoked = lists.revoked.iter().map(|&accessor| AccessGrant {
            accessor,
            protection: Protection::None,
        });
        let all = lists.grants.iter().copied().chain(revoked).collect();
        (all, self.version.load(Ordering::Acquire))
    }

    /// Changes the list. Gives what those who are named had before.
    fn change(&self, changes: &[AccessGrant]) -> Vec<AccessGrant> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let Lists { grants, revoked } = &mut *lists;
        let had = |accessor| {
            let known = grants.iter().find(|grant| grant.accessor == accessor);
            AccessGrant {
                accessor,
                protection: known.map_or(Protection::None, |grant| grant.protection),
            }
        };
        let before = changes.iter().map(|change| had(change.accessor)).collect();
        let named = |grant: &&AccessGrant| changes.iter().all(|c| c.accessor != grant.accessor);
        let kept = grants.iter().filter(named).copied();
        // Nobody has access to a fresh mapping, so those who are to have none are not named.
        let given = changes.iter().filter(|c| c.protection != Protection::None);
        let former: Vec<Accessor> = grants.iter().map(|grant| grant.accessor).collect();
        *grants = kept.chain(given.copied()).collect();
        let has = |accessor: Accessor| grants.iter().any(|grant| grant.accessor == accessor);
        revoked.extend(former);
        revoked.retain(|&accessor| !has(accessor));
        revoked.dedup();
        self.version.fetch_add(1, Ordering::AcqRel);
        before
    }
}

impl Inner {
    /// Gives the newest access to mappings that were made with that of `version`, if it has
    /// changed since.
    pub(super) fn renew_access(
        &self,
        mut version: u64,
        start: u64,
        end: u64,
    ) -> Result<(), DeviceError> {
        loop {
            if self.access.current().version == version {
                return Ok(());
            }
            let (newest, at) = self.access.everything();
            self.device.set_access(start, end - start, &newest)?;
            version = at;
        }
    }

    /// A mapping was to be taken away, and is still there: it may have missed a change.
    pub(super) fn renew_access_of_kept(&self, address: u64, size: u64) {
        let (newest, _) = self.access.everything();
        if let Err(error) = self.device.set_access(address, size, &newest) {
            tracing::debug!(%error, "a mapping that stays keeps its former access");
        }
    }

    /// Sets access on all mappings there are. Gives how far it came, if it failed.
    fn apply_access(&self, changes: &[AccessGrant]) -> Result<(), DeviceError> {
        let (ranges, pinned) = self.pin_mappings();
        let mut outcome = Ok(());
        for (start, end) in ranges {
            outcome = self.device.set_access(start, end - start, changes);
            if outcome.is_err() {
                break;
            }
        }
        let mut state = self.lock();
        for slot in pinned {
            state.backing.unpin(slot);
        }
        outcome
    }

    /// All mapped ranges, whose mappings stay where they are until their handles are unpinned.
    fn pin_mappings(&self) -> (Vec<(u64, u64)>, Vec<HandleSlot>) {
        let mut state = self.lock();
        let mapped = state.backing.mapped();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut pinned = Vec::new();
        for (start, end, slot, base) in mapped {
            // One call for all that lie side by side, but none from one reservation into another.
            match ranges.last_mut() {
                Some(last) if last.1 == start && start != base => last.1 = end,
                _ => ranges.push((start, end)),
            }
            state.backing.pin(slot);
            pinned.push(slot);
        }
        (ranges, pinned)
    }

    fn check_access(&self, changes: &[AccessGrant]) -> Result<(), AccessError> {
        let capabilities = self.device.capabilities();
        if !capabilities.mapping {
            return Err(AccessError::NotSupported);
        }
        let location = self.properties.location;
        let in_device = matches!(location, PoolLocation::Device(_));
        for (number, change) in changes.iter().enumerate() {
            let AccessGrant {
                accessor,
                protection,
            } = *change;
            if changes.iter().take(number).any(|c| c.accessor == accessor) {
                return Err(AccessError::NamedTwice { accessor });
            }
            let own = accessor == location.own_accessor();
            if own && protection != Protection::ReadWrite {
                return Err(AccessError::OwnPlace {
                    accessor,
                    protection,
                });
            }
            match accessor {
                Accessor::Device(ordinal) if !self.device.can_be_accessed_by(ordinal) => {
                    return Err(AccessError::NoPeerAccess {
                        accessor: ordinal,
                        device: capabilities.ordinal,
                    });
                }
                Accessor::Host | Accessor::HostNuma(_) if in_device => {
                    return Err(AccessError::HostCannot { accessor });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Pool {
    /// Says what others may do with the pool's memory (`cuMemPoolSetAccess`): all of it, what is
    /// allocated already and what will be. Those who are not named keep what they have;
    /// [`Protection::None`] takes it away again.
    ///
    /// What work of theirs is doing at the moment is the caller's business: it must be over before
    /// access is taken away, and comes too early if it began before access was given.
    ///
    /// A GPU's access costs every later mapping of the pool a little: give it only to those who
    /// need it.
    ///
    /// # Errors
    ///
    /// [`AccessError`], at once, also while the pool is empty (the driver may only tell at the next
    /// allocation). Nothing has changed then.
    pub fn set_access(&self, changes: &[AccessGrant]) -> Result<(), AccessError> {
        let inner = &self.inner;
        inner.check_access(changes)?;
        if changes.is_empty() {
            return Ok(());
        }
        let before = inner.access.change(changes);
        let Err(error) = inner.apply_access(changes) else {
            return Ok(());
        };
        inner.access.change(&before);
        if let Err(error) = inner.apply_access(&before) {
            tracing::warn!(%error, "some memory of a pool keeps access that was not granted");
        }
        Err(error.into())
    }

    /// What somebody may do with the pool's memory (`cuMemPoolGetAccess`).
    pub fn access_of(&self, accessor: Accessor) -> Protection {
        let granted = self.inner.access.current();
        let mut grants = granted.grants.iter();
        let found = grants.find(|grant| grant.accessor == accessor);
        found.map_or(Protection::None, |grant| grant.protection)
    }
}
