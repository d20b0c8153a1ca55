//! The life of each block as the caller tells it, and what is wrong with it.
//!
//! # Invariants
//!
//! 1. Of each stream's reads and writes the last is kept: what comes after it comes after all.
//! 2. A block that was freed is remembered, by its serial number and its address, until many others
//!    were freed after it.

use std::borrow::Cow;
use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::BlockCall;
use super::happens_before::{HappensBefore, Point, StreamNumber, VectorClock};
use super::report::{Access, Action, Hazard, OrderReport, ReportedBlock, Reports, Site};

/// A call, and the point of its stream where it stands.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    point: Point,
    site: Site,
}

/// A stream that the caller declared as a user.
#[derive(Debug)]
struct User {
    stream: StreamNumber,
    /// Where the use was declared, until an access says more exactly what the stream does. `None`
    /// for the use that the allocation is.
    declared: Option<Site>,
}

/// The last accesses of a stream.
#[derive(Debug)]
struct Accesses {
    stream: StreamNumber,
    read: Option<Stamp>,
    write: Option<Stamp>,
}

#[derive(Debug)]
struct Watched {
    block: ReportedBlock,
    serial: u64,
    allocation: Stamp,
    /// The stream that it was allocated for or last handed over to.
    owner: StreamNumber,
    users: Vec<User>,
    /// What came before the ends of uses that are over.
    ended: Vec<VectorClock>,
    accesses: Vec<Accesses>,
}

#[derive(Debug)]
struct Freed {
    block: ReportedBlock,
    site: Site,
}

/// Freed blocks that are remembered.
const REMEMBERED: usize = 1 << 16;

/// What the sanitizer of a pool knows.
#[derive(Default, Debug)]
pub(super) struct Detector {
    pub(super) order: HappensBefore,
    pub(super) reports: Reports,
    live: FxHashMap<u64, Watched>,
    freed: FxHashMap<u64, Freed>,
    /// The serial number of the block that was freed last at an address.
    freed_at: FxHashMap<u64, u64>,
    /// Addresses and serial numbers, the first freed first.
    freed_order: VecDeque<(u64, u64)>,
}

impl Detector {
    pub(super) fn allocated(
        &mut self,
        call: BlockCall,
        name: Option<Cow<'static, str>>,
        size: u64,
        stream: StreamNumber,
    ) {
        let BlockCall {
            address, serial, ..
        } = call;
        let Some(serial) = serial else { return };
        let allocation = Stamp {
            point: self.order.step(stream),
            site: self.site(call, Action::Allocate, stream),
        };
        let watched = Watched {
            block: ReportedBlock {
                name,
                address,
                size,
            },
            serial,
            allocation,
            owner: stream,
            users: vec![User {
                stream,
                declared: None,
            }],
            ended: Vec::new(),
            accesses: Vec::new(),
        };
        self.live.insert(address, watched);
    }

    pub(super) fn named(&mut self, call: BlockCall, name: Cow<'static, str>) {
        if let Some(watched) = self.live.get_mut(&call.address)
            && call.serial.is_none_or(|serial| serial == watched.serial)
        {
            watched.block.name = Some(name);
        }
    }

    pub(super) fn accessed(&mut self, call: BlockCall, access: Access, stream: StreamNumber) {
        let later = self.site(call, Action::Access(access), stream);
        let Some(mut watched) = self.take_live(call) else {
            return self.used_after_free(call, later, Hazard::UseAfterFree);
        };
        let clock = self.order.clock(stream);
        if !self.order.is_before(watched.allocation.point, &clock) {
            // The one wait that is missing would order it after other accesses as well.
            let allocation = watched.allocation.site;
            let hazard = Hazard::UseNotOrderedAfterAllocation;
            self.report(hazard, &watched, allocation, later);
        } else {
            for other in watched.accesses.iter().filter(|a| a.stream != stream) {
                let read = other.read.filter(|_| access == Access::Write);
                let unordered = [other.write, read].into_iter().flatten();
                let mut unordered = unordered.filter(|s| !self.order.is_before(s.point, &clock));
                if let Some(stamp) = unordered.next() {
                    let hazard = Hazard::ConflictingAccesses;
                    self.report(hazard, &watched, stamp.site, later);
                }
            }
        }
        let stamp = Stamp {
            point: self.order.step(stream),
            site: later,
        };
        watched.add_access(stream, access, stamp);
        self.live.insert(call.address, watched);
    }

    pub(super) fn use_begins(&mut self, call: BlockCall, stream: StreamNumber) {
        let site = self.site(call, Action::Use, stream);
        let Some(mut watched) = self.take_live(call) else {
            return self.used_after_free(call, site, Hazard::UseAfterFree);
        };
        watched.add_user(stream, site);
        self.live.insert(call.address, watched);
    }

    /// A use is over where this much had been queued.
    pub(super) fn use_ends(&mut self, call: BlockCall, stream: StreamNumber, end: VectorClock) {
        let site = self.site(call, Action::EndUse, stream);
        let Some(mut watched) = self.take_live(call) else {
            return self.used_after_free(call, site, Hazard::UseAfterFree);
        };
        self.end_use(&mut watched, stream, end);
        self.live.insert(call.address, watched);
    }

    /// The owner is done, and another stream owns the block from now on.
    pub(super) fn handed_over(&mut self, call: BlockCall, heir: StreamNumber) {
        let site = self.site(call, Action::Use, heir);
        let Some(mut watched) = self.take_live(call) else {
            return self.used_after_free(call, site, Hazard::UseAfterFree);
        };
        watched.add_user(heir, site);
        let former = watched.owner;
        if former != heir {
            self.order.join_legacy(former);
            let end = self.order.clock(former);
            self.end_use(&mut watched, former, end);
        }
        watched.owner = heir;
        self.live.insert(call.address, watched);
    }

    pub(super) fn freed(&mut self, call: BlockCall) {
        let mut site = Site {
            action: Action::Free,
            stream: None,
            location: call.location,
        };
        let Some(mut watched) = self.take_live(call) else {
            return self.used_after_free(call, site, Hazard::DoubleFree);
        };
        site.stream = self.order.id(watched.owner);
        let users: Vec<StreamNumber> = watched.users.iter().map(|user| user.stream).collect();
        for stream in users {
            self.order.join_legacy(stream);
            let end = self.order.clock(stream);
            self.end_use(&mut watched, stream, end);
        }
        for accesses in &watched.accesses {
            let mut stamps = [accesses.write, accesses.read].into_iter().flatten();
            let order = &self.order;
            let waited_for = |stamp: &Stamp| {
                let mut ends = watched.ended.iter();
                order.is_before(stamp.point, &VectorClock::default())
                    || ends.any(|end| order.is_before(stamp.point, end))
            };
            if let Some(stamp) = stamps.find(|stamp| !waited_for(stamp)) {
                let hazard = Hazard::FreeNotOrderedAfterUse;
                self.report(hazard, &watched, stamp.site, site);
            }
        }
        self.remember(watched, site);
    }

    /// Takes out the block that a call means, if it is live.
    fn take_live(&mut self, call: BlockCall) -> Option<Watched> {
        let watched = self.live.get(&call.address)?;
        let is_it = call.serial.is_none_or(|serial| serial == watched.serial);
        is_it.then(|| self.live.remove(&call.address)).flatten()
    }

    /// Reports a call for a block that was freed. What was never seen is not the sanitizer's: memory
    /// of graphs, or no block at all.
    fn used_after_free(&mut self, call: BlockCall, later: Site, hazard: Hazard) {
        let serial = call.serial.or_else(|| {
            let last = self.freed_at.get(&call.address);
            last.copied()
        });
        let Some(freed) = serial.and_then(|serial| self.freed.get(&serial)) else {
            return;
        };
        let report = OrderReport {
            hazard,
            block: freed.block.clone(),
            earlier: freed.site,
            later,
            occurrences: 1,
        };
        self.reports.add(report);
    }

    fn end_use(&mut self, watched: &mut Watched, stream: StreamNumber, end: VectorClock) {
        let Some(place) = watched.users.iter().position(|user| user.stream == stream) else {
            return;
        };
        let user = watched.users.swap_remove(place);
        if let Some(declared) = user.declared
            && !self.order.is_before(watched.allocation.point, &end)
        {
            let allocation = watched.allocation.site;
            let hazard = Hazard::UseNotOrderedAfterAllocation;
            self.report(hazard, watched, allocation, declared);
        }
        watched.ended.push(end);
    }

    fn report(&mut self, hazard: Hazard, watched: &Watched, earlier: Site, later: Site) {
        let report = OrderReport {
            hazard,
            block: watched.block.clone(),
            earlier,
            later,
            occurrences: 1,
        };
        self.reports.add(report);
    }

    fn remember(&mut self, watched: Watched, site: Site) {
        let Watched { block, serial, .. } = watched;
        let address = block.address;
        if self.freed_order.len() >= REMEMBERED
            && let Some((address, serial)) = self.freed_order.pop_front()
        {
            self.freed.remove(&serial);
            if self.freed_at.get(&address) == Some(&serial) {
                self.freed_at.remove(&address);
            }
        }
        self.freed_order.push_back((address, serial));
        self.freed_at.insert(address, serial);
        self.freed.insert(serial, Freed { block, site });
    }

    fn site(&self, call: BlockCall, action: Action, stream: StreamNumber) -> Site {
        Site {
            action,
            stream: self.order.id(stream),
            location: call.location,
        }
    }
}

impl Watched {
    fn add_user(&mut self, stream: StreamNumber, site: Site) {
        if !self.users.iter().any(|user| user.stream == stream) {
            // Who says what a stream does says it of all that it does.
            let told = self.accesses.iter().any(|a| a.stream == stream);
            let declared = Some(site).filter(|_| !told);
            self.users.push(User { stream, declared });
        }
    }

    fn add_access(&mut self, stream: StreamNumber, access: Access, stamp: Stamp) {
        if let Some(user) = self.users.iter_mut().find(|user| user.stream == stream) {
            user.declared = None;
        }
        let known = self.accesses.iter().position(|a| a.stream == stream);
        let place = known.unwrap_or(self.accesses.len());
        if known.is_none() {
            self.accesses.push(Accesses {
                stream,
                read: None,
                write: None,
            });
        }
        match access {
            Access::Read => self.accesses[place].read = Some(stamp),
            Access::Write => self.accesses[place].write = Some(stamp),
        }
    }
}
