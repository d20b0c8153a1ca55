//! The end of a pool, when its last clone and its last block are gone. Nobody waits for it: what
//! is in use still is left to the `reaper`, in a pool that nobody can reach.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;

use super::access::AccessList;
use super::attributes::Settings;
use super::state::State;
use super::{Inner, reaper};
use crate::pages::Pages;
use crate::sync::Mutex;

impl Drop for Inner {
    fn drop(&mut self) {
        let (reserved, given_up) = {
            let state = self.lock();
            (state.pages.reserved(), state.given_up)
        };
        if given_up {
            return;
        }
        if reserved > 0 || self.graphs.any() {
            let remains = Arc::new(self.take_remains());
            remains.free_leftovers();
            reaper::take(remains);
            return;
        }
        self.give_addresses_back();
    }
}

impl Inner {
    /// All that the pool has, in one that nobody else can reach.
    fn take_remains(&mut self) -> Inner {
        let pages = Pages::new(self.device.capabilities().granularity, 0);
        let empty = State::new(pages, Arc::default(), false);
        let reuse = self.reuse();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        Inner {
            id: self.id,
            device: Arc::clone(&self.device),
            events: Arc::clone(&self.events),
            access: AccessList::new(self.properties.location),
            identify_streams: self.identify_streams,
            setting: self.setting,
            waits: self.waits,
            properties: self.properties,
            settings: Settings::new(reuse, 0),
            graphs: std::mem::take(&mut self.graphs),
            sanitizer: None,
            is_default: false,
            destroyed: AtomicBool::new(true),
            abandoned: true,
            fronts: Arc::clone(&self.fronts),
            state: Mutex::new(std::mem::replace(state, empty)),
        }
    }

    /// Frees the blocks that became bare addresses and were never freed: nobody can any more. Their
    /// uses end with what their streams were given up to now.
    fn free_leftovers(&self) {
        let mut state = self.lock();
        state.take_all_fronts_away();
        let (blocks, bytes) = (state.blocks.count(), state.blocks.live_bytes());
        if blocks == 0 {
            return;
        }
        tracing::warn!(blocks, bytes, "a pool is dropped with raw blocks not freed");
        let mut left: Vec<u64> = state.blocks.iter().map(|(address, _)| address).collect();
        // In a fixed order, so that what is recorded for them does not depend on the map's.
        left.sort_unstable();
        for address in left {
            // Markers are recorded for all streams when it is settled.
            let freed = state.free_block(address, None);
            debug_assert!(freed.is_ok());
        }
    }

    /// Gives the address space back. There is no memory any more.
    fn give_addresses_back(&self) {
        let reservations: Vec<(u64, u64)> = {
            let state = self.lock();
            state.backing.mappable().collect()
        };
        for (base, size) in reservations {
            if let Err(error) = self.device.free_reservation(base, size) {
                tracing::debug!(%error, "address space of a pool stays until the process ends");
            }
        }
    }
}
