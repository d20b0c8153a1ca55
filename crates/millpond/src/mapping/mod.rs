//! Puts handles under ranges and takes them away.
//!
//! # Invariants
//!
//! 1. A mapping covers its handle whole, and no two mappings overlap.
//! 2. Backing a range is all or nothing: on failure what was mapped is unmapped again. What even
//!    the unmapping failed for is *stranded*: it is told to the caller, and neither its address
//!    range nor its handle is used until a later unmapping succeeds.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::device::{AccessGrant, Device, DeviceError};
use crate::pages::Handle;

/// A handle under an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) address: u64,
    pub(crate) handle: Handle,
}

impl Mapping {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.handle.size
    }
}

/// The pool's mappings, by address.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    by_address: BTreeMap<u64, Handle>,
}

impl Mappings {
    pub(crate) fn add(&mut self, mapping: Mapping) {
        self.by_address.insert(mapping.address, mapping.handle);
    }

    pub(crate) fn remove(&mut self, mapping: Mapping) {
        self.by_address.remove(&mapping.address);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.by_address
            .iter()
            .map(|(&address, &handle)| Mapping { address, handle })
    }

    /// The mappings that lie wholly in a range, lowest first.
    pub(crate) fn inside(&self, start: u64, end: u64) -> impl Iterator<Item = Mapping> + '_ {
        self.by_address
            .range(start..end)
            .map(|(&address, &handle)| Mapping { address, handle })
            .filter(move |mapping| mapping.end() <= end)
    }

    /// Bytes mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.by_address.values().map(|handle| handle.size).sum()
    }
}

/// Why a range could not be backed, and what is stranded.
#[derive(Debug)]
pub(crate) struct BackingFailed {
    pub(crate) error: DeviceError,
    pub(crate) stranded: Vec<Mapping>,
}

/// Puts handles under consecutive addresses from `address` on, with access for `grants`.
/// All or nothing (invariant 2). Calls the device: to be called without the pool's lock.
pub(crate) fn back(
    device: &dyn Device,
    address: u64,
    handles: &[Handle],
    grants: &[AccessGrant],
) -> Result<Vec<Mapping>, BackingFailed> {
    let mut mapped: Vec<Mapping> = Vec::with_capacity(handles.len());
    let mut at = address;
    let mut result = Ok(());
    for &handle in handles {
        result = device.map(at, handle.size, handle.id);
        if result.is_err() {
            break;
        }
        mapped.push(Mapping {
            address: at,
            handle,
        });
        at += handle.size;
    }
    let result = result.and_then(|()| device.set_access(address, at - address, grants));
    match result {
        Ok(()) => Ok(mapped),
        Err(error) => {
            let stranded = mapped
                .into_iter()
                .filter(|mapping| device.unmap(mapping.address, mapping.handle.size).is_err())
                .collect();
            Err(BackingFailed { error, stranded })
        }
    }
}
