//! Giving memory back: which handles nothing uses any more, and taking them from their ranges.

use super::Inner;
use super::state::{Claim, State};
use crate::device::DeviceError;
use crate::mapping::Mapping;
use crate::pages::Handle;

/// A mapping whose memory was claimed so that it can be taken away.
#[derive(Clone, Debug)]
pub(super) struct Vacated {
    pub(super) mapping: Mapping,
    pub(super) claim: Claim,
}

impl State {
    /// Mappings of which every byte is free and every use completed, lowest first.
    fn vacatable(&self) -> Vec<Mapping> {
        let done =
            |id| self.extents.is_free(id) && self.order.completed(&self.extents.get(id).ends);
        let mut found = Vec::new();
        for first in self.extents.free() {
            if self.extents.previous(first).is_some_and(done) || !done(first) {
                continue;
            }
            let start = self.extents.get(first).address;
            let mut last = first;
            while let Some(next) = self.extents.next(last).filter(|&next| done(next)) {
                last = next;
            }
            found.extend(self.mappings.inside(start, self.extents.get(last).end()));
        }
        found.sort_unstable_by_key(|mapping| mapping.address);
        found
    }

    /// Claims vacatable mappings for `want` bytes, as far as they go: the largest that are not
    /// larger than what is missing, and a larger one for the rest if it still fits in `room`.
    /// Says also whether it did not.
    pub(super) fn take_vacatable(&mut self, want: u64, room: u64) -> (Vec<Vacated>, bool) {
        let mut candidates = self.vacatable();
        candidates.sort_unstable_by_key(|m| (m.handle.size, m.address));
        let mut chosen = Vec::new();
        let (mut missing, mut room) = (want, room);
        let mut too_large = false;
        while missing > 0 {
            let larger = candidates.partition_point(|m| m.handle.size <= missing);
            let place = if larger > 0 { larger - 1 } else { 0 };
            let Some(mapping) = candidates.get(place).copied() else {
                break;
            };
            if mapping.handle.size > room {
                too_large = true;
                break;
            }
            candidates.remove(place);
            missing = missing.saturating_sub(mapping.handle.size);
            room -= mapping.handle.size;
            chosen.push(mapping);
        }
        (self.claim_mappings(&chosen), too_large)
    }

    fn claim_mappings(&mut self, mappings: &[Mapping]) -> Vec<Vacated> {
        let mut vacated = Vec::with_capacity(mappings.len());
        for &mapping in mappings {
            if let Some(id) = self.free_extent_at(mapping.address) {
                let claim = self.take_across(id, mapping.address, mapping.end());
                // All its uses are completed, so nothing has to be remembered of them.
                let claim = Claim {
                    extent: claim.extent,
                    ends: Default::default(),
                };
                vacated.push(Vacated { mapping, claim });
            }
        }
        vacated
    }

    /// The free extent that holds an address. Looks at all free extents.
    fn free_extent_at(&self, address: u64) -> Option<crate::space::ExtentId> {
        self.extents.free().find(|&id| {
            let extent = self.extents.get(id);
            extent.address <= address && address < extent.end()
        })
    }

    /// A mapping was taken away; its handle is with whoever asked for that.
    pub(super) fn settle_vacated(&mut self, vacated: Vacated) {
        let Vacated { mapping, claim } = vacated;
        self.mappings.remove(mapping);
        self.extents.remove_taken(claim.extent);
        self.reservations.unclaim(mapping.address, mapping.end());
    }

    /// Claims what can be given back without going below `keep` reserved bytes: spare handles
    /// first, then vacatable mappings from the top of the address space down.
    fn plan_trim(&mut self, keep: u64) -> (Vec<Handle>, Vec<Vacated>) {
        let mut left = self.pages.reserved();
        let mut fits = |size: u64| {
            let fits = left.saturating_sub(size) >= keep && left >= size;
            if fits {
                left -= size;
            }
            fits
        };
        let (spare, keep_spare): (Vec<Handle>, Vec<Handle>) = self
            .pages
            .take_all_spare()
            .into_iter()
            .rev()
            .partition(|handle| fits(handle.size));
        for handle in keep_spare {
            self.pages.put_spare(handle);
        }
        let mut mappings = self.vacatable();
        mappings.reverse();
        mappings.retain(|mapping| fits(mapping.handle.size));
        (spare, self.claim_mappings(&mappings))
    }

    /// Claims the plain allocations that are wholly free and done with, without going below `keep`
    /// reserved bytes.
    fn plan_plain_trim(&mut self, keep: u64) -> Vec<(u64, u64, Claim)> {
        let mut left = self.pages.reserved();
        let mut taken = Vec::new();
        let all: Vec<(u64, u64)> = self.plain.iter().map(|(&a, &s)| (a, s)).collect();
        for (address, size) in all {
            let Some(id) = self.free_extent_at(address) else {
                continue;
            };
            let mut end = self.extents.get(id).end();
            let mut last = id;
            let done =
                |id| self.extents.is_free(id) && self.order.completed(&self.extents.get(id).ends);
            if !done(id) || left < size || left - size < keep {
                continue;
            }
            while let Some(next) = self.extents.next(last).filter(|&next| done(next)) {
                last = next;
                end = self.extents.get(next).end();
            }
            if end == address + size {
                left -= size;
                let claim = self.take_across(id, address, end);
                taken.push((
                    address,
                    size,
                    Claim {
                        ends: Default::default(),
                        ..claim
                    },
                ));
            }
        }
        taken
    }
}

impl Inner {
    /// Gives memory back to the device until at most `keep` bytes are reserved, as far as nothing
    /// uses it. Gives the bytes released.
    pub(super) fn trim_to(&self, keep: u64) -> Result<u64, DeviceError> {
        self.retry_stranded();
        let (spare, vacate, plain) = {
            let mut state = self.lock();
            state.settle_finished_streams();
            let plain = state.plan_plain_trim(keep);
            let going: u64 = plain.iter().map(|&(_, size, _)| size).sum();
            let (spare, vacate) = state.plan_trim(keep.saturating_add(going));
            (spare, vacate, plain)
        };
        let mut failure = None;
        let mut handles = spare;
        for entry in vacate {
            let Mapping { address, handle } = entry.mapping;
            let unmapped = self.device.unmap(address, handle.size);
            let mut state = self.lock();
            match unmapped {
                Ok(()) => {
                    state.settle_vacated(entry);
                    handles.push(handle);
                }
                Err(error) => {
                    state.unclaim(entry.claim);
                    failure = Some(error);
                }
            }
        }
        let mut released = 0;
        for handle in handles {
            let result = self.device.release(handle.id);
            let mut state = self.lock();
            match result {
                Ok(()) => {
                    state.pages.released(handle);
                    released += handle.size;
                }
                Err(error) => {
                    state.pages.put_spare(handle);
                    failure = Some(error);
                }
            }
        }
        for (address, size, claim) in plain {
            // Once it is free the device may give the address to anybody, so nothing may stand
            // for it here any more.
            self.lock().remove_plain(address, claim.extent);
            let freed = self.device.free(address);
            let mut state = self.lock();
            match freed {
                Ok(()) => {
                    state.pages.returned(size);
                    released += size;
                }
                Err(error) => {
                    let extent = state.add_plain(address, size);
                    state.unclaim(Claim { extent, ..claim });
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) if released == 0 => Err(error),
            _ => Ok(released),
        }
    }

    /// Tries again to take away what could not be taken away when a growth failed.
    pub(super) fn retry_stranded(&self) {
        let stranded = std::mem::take(&mut self.lock().stranded);
        for mapping in stranded {
            let unmapped = self.device.unmap(mapping.address, mapping.handle.size);
            let mut state = self.lock();
            match unmapped {
                Ok(()) => {
                    state.reservations.unclaim(mapping.address, mapping.end());
                    state.pages.put_spare(mapping.handle);
                }
                Err(error) => {
                    tracing::debug!(%error, "a mapping is still stranded");
                    state.stranded.push(mapping);
                }
            }
        }
    }
}
