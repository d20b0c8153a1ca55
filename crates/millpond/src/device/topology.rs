//! Emulated devices that can reach each other's memory: which of them can, and what each may touch.
//!
//! Every emulated device stands alone unless it is put into a [`Topology`], under an ordinal. Two
//! devices of one topology that are linked can be given access to each other's mapped memory
//! ([`Device::set_access`](super::Device::set_access)), as peers that a driver's
//! `cuDeviceCanAccessPeer` says yes to.
//!
//! # Invariants
//!
//! 1. What is granted stands under the address of the mapping it was granted for, and goes with it.
//! 2. The lock here is the last that is taken: nothing is called under it.

#![forbid(unsafe_code)]

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Protection;

/// Emulated devices of one machine, and the links between them. Clones are the same.
///
/// ```
/// use millpond::device::sim::SimDevice;
/// use millpond::device::{Device, Topology};
///
/// // Three devices, of which the first two are linked.
/// let topology = Topology::new().link(0, 1);
/// let devices: Vec<_> =
///     (0..3).map(|n| SimDevice::builder().in_topology(&topology, n).build()).collect();
/// assert!(devices[0].can_be_accessed_by(1));
/// assert!(!devices[0].can_be_accessed_by(2));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Topology {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Pairs, the lower ordinal first.
    links: BTreeSet<(u32, u32)>,
    /// By the address of the mapping.
    granted: BTreeMap<u64, Granted>,
    /// What each device's memory is kept in, for those that have bytes.
    keepers: BTreeMap<u32, Weak<dyn Any + Send + Sync>>,
}

#[derive(Debug)]
struct Granted {
    size: u64,
    owner: u32,
    /// Peers, each named once, and what each may do.
    peers: Vec<(u32, Protection)>,
}

impl Topology {
    /// A machine whose devices cannot reach each other.
    pub fn new() -> Topology {
        Topology::default()
    }

    /// Links two devices, in both directions, whether or not they are there yet.
    #[must_use]
    pub fn link(self, one: u32, other: u32) -> Topology {
        self.lock().links.insert((one.min(other), one.max(other)));
        self
    }

    /// Links each of so many devices, from ordinal 0 on, with every other one.
    #[must_use]
    pub fn link_all(self, devices: u32) -> Topology {
        let pairs = (0..devices).flat_map(|one| (0..one).map(move |other| (other, one)));
        self.lock().links.extend(pairs);
        self
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether two devices are linked.
    pub fn linked(&self, one: u32, other: u32) -> bool {
        let pair = (one.min(other), one.max(other));
        self.lock().links.contains(&pair)
    }

    /// Where a device's bytes are.
    pub(super) fn keep(&self, ordinal: u32, keeper: Weak<dyn Any + Send + Sync>) {
        self.lock().keepers.insert(ordinal, keeper);
    }

    /// What keeps the bytes of the device that owns the mapping around an address.
    pub(super) fn keeper_of(&self, address: u64) -> Option<Arc<dyn Any + Send + Sync>> {
        let shared = self.lock();
        let (&base, granted) = shared.granted.range(..=address).next_back()?;
        let owner = (address - base < granted.size).then_some(granted.owner)?;
        shared.keepers.get(&owner)?.upgrade()
    }

    /// A peer may from now on do this with a mapping.
    pub(super) fn grant(
        &self,
        owner: u32,
        address: u64,
        size: u64,
        peer: u32,
        protection: Protection,
    ) {
        let mut shared = self.lock();
        let granted = shared.granted.entry(address).or_insert(Granted {
            size,
            owner,
            peers: Vec::new(),
        });
        granted.peers.retain(|&(known, _)| known != peer);
        if protection != Protection::None {
            granted.peers.push((peer, protection));
        }
        if granted.peers.is_empty() {
            shared.granted.remove(&address);
        }
    }

    /// The mapping is gone.
    pub(super) fn forget(&self, address: u64) {
        self.lock().granted.remove(&address);
    }

    /// What a peer may do with the mapping at this address.
    pub(super) fn protection(&self, address: u64, peer: u32) -> Protection {
        let shared = self.lock();
        let granted = shared.granted.get(&address);
        let mut peers = granted.iter().flat_map(|granted| granted.peers.iter());
        let found = peers.find(|&&(known, _)| known == peer);
        found.map_or(Protection::None, |&(_, protection)| protection)
    }

    /// Whether a peer may touch all of a range in this way, wherever it lies.
    pub(super) fn allows(&self, peer: u32, address: u64, size: u64, needed: Protection) -> bool {
        let shared = self.lock();
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let mut at = address;
        while at < end {
            let around = shared.granted.range(..=at).next_back();
            let Some((&base, granted)) = around.filter(|(base, g)| at - **base < g.size) else {
                return false;
            };
            let mut peers = granted.peers.iter();
            let may = peers.any(|&(known, protection)| {
                known == peer && (protection == Protection::ReadWrite || protection == needed)
            });
            if !may {
                return false;
            }
            at = base.saturating_add(granted.size);
        }
        true
    }
}
