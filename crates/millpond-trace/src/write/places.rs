//! The addresses that blocks are written with: the recording's own, or else made up.
//!
//! # Invariants
//! - No address is 0 or ends beyond 2^63, and blocks that are live at one time do not overlap.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Op, Trace};

/// What made-up addresses and sizes are multiples of, in bytes: PyTorch's own unit.
pub(super) const UNIT: u64 = 512;

/// Where made-up addresses begin.
const BEGIN: u64 = 1 << 32;

/// The address of each block, and whether it is the recording's; `None` if the blocks do not fit
/// into 63 bits of addresses.
pub(super) fn of(trace: &Trace) -> Option<(Vec<u64>, bool)> {
    if !trace.addresses.is_empty() && hold(trace, &trace.addresses) {
        return Some((trace.addresses.clone(), true));
    }
    Some((made_up(trace)?, false))
}

/// The bytes that a block takes.
pub(super) fn taken(size: u64) -> u64 {
    size.max(1).checked_next_multiple_of(UNIT).unwrap_or(size)
}

fn hold(trace: &Trace, addresses: &[u64]) -> bool {
    // Numbers in a pickle and in other tools are signed.
    let fits = |address: u64, size: u64| {
        let end = address.checked_add(taken(size));
        address != 0 && end.is_some_and(|end| i64::try_from(end).is_ok())
    };
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for step in &trace.steps {
        match step.op {
            Op::Alloc { block, size, .. } => {
                let address = addresses[block as usize];
                let before = live.range(..=address).next_back();
                let free = before.is_none_or(|(&at, &size)| at + size.max(1) <= address);
                let after = live.range(address..).next();
                let fitting = after.is_none_or(|(&at, _)| address.saturating_add(size) <= at);
                if !fits(address, size) || !free || !fitting {
                    return false;
                }
                live.insert(address, size);
            }
            Op::Free { block, .. } => {
                live.remove(&addresses[block as usize]);
            }
            _ => {}
        }
    }
    true
}

/// Best fit, with free neighbours put together.
fn made_up(trace: &Trace) -> Option<Vec<u64>> {
    let mut addresses: Vec<u64> = Vec::with_capacity(trace.block_count as usize);
    let mut sizes = Vec::with_capacity(trace.block_count as usize);
    let mut by_size: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut by_address: BTreeMap<u64, u64> = BTreeMap::new();
    let mut end = BEGIN;
    for step in &trace.steps {
        match step.op {
            Op::Alloc { size, .. } => {
                let size = taken(size);
                sizes.push(size);
                let Some(&(hole, at)) = by_size.range((size, 0)..).next() else {
                    addresses.push(end);
                    let next = end.checked_add(size);
                    end = next.filter(|&next| i64::try_from(next).is_ok())?;
                    continue;
                };
                by_size.remove(&(hole, at));
                by_address.remove(&at);
                addresses.push(at);
                if hole > size {
                    by_size.insert((hole - size, at + size));
                    by_address.insert(at + size, hole - size);
                }
            }
            Op::Free { block, .. } => {
                let (mut at, mut size) = (addresses[block as usize], sizes[block as usize]);
                if let Some((&before, &hole)) = by_address.range(..at).next_back()
                    && before + hole == at
                {
                    by_address.remove(&before);
                    by_size.remove(&(hole, before));
                    (at, size) = (before, size + hole);
                }
                if let Some(hole) = by_address.remove(&(at + size)) {
                    by_size.remove(&(hole, at + size));
                    size += hole;
                }
                by_address.insert(at, size);
                by_size.insert((size, at));
            }
            _ => {}
        }
    }
    Some(addresses)
}
