//! The pool: allocate, use, free; growth, reclaim and the ladder when memory runs out.
//!
//! A pool hands out memory of one device in stream order. What is freed on a stream can be used
//! again on that stream at once; on others when it is ordered or completed, or after a wait that
//! the pool inserts when nothing else is left.
//!
//! # Invariants
//!
//! 1. No lock is held while the device is called. What a call has taken for itself (see
//!    `growth`) belongs to it until it is settled.
//! 2. A call that fails gives back everything it took.

#![forbid(unsafe_code)]

mod access;
mod attributes;
mod error;
mod fronts;
mod graphs;
mod growth;
mod identity;
mod ladder;
mod plain;
mod pointer;
mod policy;
mod properties;
mod reaper;
mod reclaim;
mod sanitizer;
mod state;
mod statistics;
mod streams;
mod teardown;
mod tenants;
mod together;
mod uses;

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

pub use access::AccessError;
pub use attributes::{AttributeError, PoolAttribute, Usage};
pub use error::{AllocError, BlockError, OutOfMemory, PoolError, Wall};
pub use graphs::{Capture, CaptureError, GraphMemory};
pub(crate) use identity::WeakPool;
pub use pointer::{Pointer, PointerState};
pub use policy::{ReusePolicies, Setting, Waits};
pub use properties::{HandleTypes, PoolLocation};
pub use reaper::{Reaper, reap, reap_waiting};
pub use reclaim::TrimReport;
pub use sanitizer::{Access, Action, Hazard, OrderReport, ReportedBlock, Site};
pub use statistics::Statistics;
pub(crate) use together::{WaitFor, wait_for};

use crate::device::{Device, StreamId};
use crate::order::{EventPool, Reasons, StreamKey};
use crate::pages::Pages;
pub use crate::pages::{Budget, BudgetUsage};
use crate::space::{GRAIN, align_up};
use crate::sync::{Mutex, MutexGuard};
use access::AccessList;
use attributes::Settings;
use fronts::{Fronts, Wish};
use graphs::Graphs;
use properties::Properties;
use sanitizer::{BlockCall, Sanitizer};
use state::{Granted, Need, State};

/// A pool of one device's memory. Clones are the same pool.
///
/// The pool goes when its last clone and its last [`Block`] are gone, or when it is destroyed
/// ([`Pool::destroy`]) and its last block is freed. Nobody waits for that: memory that work of the
/// device may still use is given back later, by the next call of a pool of the device that calls
/// the device, or by a thread (see [`reap`]). Blocks that were turned into raw addresses and never
/// freed go with the last clone.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    id: u64,
    device: Arc<dyn Device>,
    events: Arc<EventPool>,
    /// Who may touch the pool's memory.
    access: AccessList,
    /// Whether the device is asked which stream a handle value stands for.
    identify_streams: bool,
    setting: Setting,
    waits: Waits,
    properties: Properties,
    settings: Settings,
    graphs: Graphs,
    /// What checks the caller's own order, if he wants that.
    sanitizer: Option<Sanitizer>,
    /// Whether it is a device's default pool, which cannot be destroyed.
    is_default: bool,
    /// Whether it serves no requests any more.
    destroyed: AtomicBool,
    /// Whether nobody can reach it any more but the reaper.
    abandoned: bool,
    fronts: Arc<Fronts>,
    state: Mutex<State>,
}

impl Inner {
    /// The reuse policies at this moment.
    fn reuse(&self) -> ReusePolicies {
        self.settings.reuse()
    }

    /// The reuse policies as `order` knows them.
    fn reasons(&self) -> Reasons {
        let reuse = self.reuse();
        Reasons {
            ordered: reuse.follow_event_dependencies,
            completed: reuse.allow_opportunistic,
        }
    }

    #[inline]
    fn allocate(
        &self,
        request: Request,
        location: &'static Location<'static>,
    ) -> Result<Granted, AllocError> {
        match self.allocate_at_once(&request) {
            Some(granted) => Ok(granted),
            None => self.allocate_in_full(request, location),
        }
    }

    /// Serves a request of a usual kind from the front of its stream, if that has something.
    #[inline]
    fn allocate_at_once(&self, request: &Request) -> Option<Granted> {
        if self.destroyed.load(Ordering::Relaxed) {
            return None;
        }
        let key = self.key_by_value(request.stream)?;
        self.allocate_in_front(key, request.wish()?)
    }

    fn allocate_in_full(
        &self,
        request: Request,
        location: &'static Location<'static>,
    ) -> Result<Granted, AllocError> {
        let requested = request.size;
        let alignment = request.alignment;
        let bad_alignment = AllocError::BadAlignment { alignment };
        let wish = request.wish().ok_or(bad_alignment)?;
        if self.destroyed.load(Ordering::Relaxed) {
            return Err(AllocError::Destroyed { requested });
        }
        let device_failed = |error| AllocError::Device { requested, error };
        let key = self.stream_key(request.stream).map_err(device_failed)?;
        if let Some(captured) = self.graphs.captured(key) {
            let (address, serial) = self.allocate_captured(&captured, request)?;
            return Ok(Granted { address, serial });
        }
        let granted = match self.allocate_in_front(key, wish) {
            Some(granted) => granted,
            None => self.allocate_behind_front(key, wish)?,
        };
        if self.sanitizer.is_some() {
            let call = BlockCall {
                address: granted.address,
                serial: Some(granted.serial),
                location: Some(location),
            };
            self.watch_allocation(call, request.name, requested, key);
        }
        Ok(granted)
    }

    /// Serves a request that its stream's front has nothing for.
    fn allocate_behind_front(&self, key: StreamKey, wish: Wish) -> Result<Granted, AllocError> {
        let visit = self.fronts.visit();
        let mut state = self.lock();
        let stream = state.stream(key);
        self.remember_front(key, state.front_for(stream));
        let met = visit.meets_others() && self.setting != Setting::Tight;
        let need = Need {
            requested: wish.requested,
            size: wish.size,
            alignment: wish.alignment,
            own_first: self.waits != Waits::MemoryFirst,
            stand: state.stand(stream, &wish, met),
            key,
            stream,
            reasons: self.reasons(),
        };
        if let Some(claim) = state.claim_usable(&need) {
            return Ok(state.hand_out(&need, &claim));
        }
        // The slot stays the stream's until the block itself names it.
        state.order.name(need.stream);
        drop(state);
        let granted = self.allocate_slowly(need);
        self.lock().order.unname(need.stream);
        granted
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere, under the lock, is a bug in this crate; the rest of the process can
        // still do no better than go on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pool is to be.
#[derive(Debug)]
pub struct PoolBuilder {
    device: Arc<dyn Device>,
    limit: u64,
    streams_declared: bool,
    setting: Setting,
    waits: Waits,
    reuse: ReusePolicies,
    release_threshold: u64,
    location: Option<PoolLocation>,
    handle_types: HandleTypes,
    budget: Option<Budget>,
    is_default: bool,
    stream_sanitizer: bool,
}

impl PoolBuilder {
    /// Bytes that the pool may take from the device at most. Without it: all the device has.
    #[must_use]
    pub fn limit(mut self, bytes: u64) -> PoolBuilder {
        self.limit = bytes;
        self
    }

    /// Chooses how dear memory is against the driver's time. Without it: [`Setting::Balanced`].
    #[must_use]
    pub fn setting(mut self, setting: Setting) -> PoolBuilder {
        self.setting = setting;
        self
    }

    /// Chooses between waiting and taking more memory. Without it: [`Waits::Balanced`].
    #[must_use]
    pub fn waits(mut self, waits: Waits) -> PoolBuilder {
        self.waits = waits;
        self
    }

    /// Chooses which memory of other streams is used again. Without it: all that safely can be.
    #[must_use]
    pub fn reuse_policies(mut self, reuse: ReusePolicies) -> PoolBuilder {
        self.reuse = reuse;
        self
    }

    /// Bytes above which memory is given back at synchronisations. Without it: `u64::MAX`, nothing
    /// is. See [`Pool::set_release_threshold`].
    #[must_use]
    pub fn release_threshold(mut self, bytes: u64) -> PoolBuilder {
        self.release_threshold = bytes;
        self
    }

    /// Where the pool's memory is to lie. Without it: in the device's own memory.
    #[must_use]
    pub fn location(mut self, location: PoolLocation) -> PoolBuilder {
        self.location = Some(location);
        self
    }

    /// How the pool's memory can be handed to other processes. Without it: not at all. Fixed from
    /// then on. What it has is given back like that of any pool, by trims and thresholds (the
    /// driver's exportable pools never give any back).
    #[must_use]
    pub fn handle_types(mut self, handle_types: HandleTypes) -> PoolBuilder {
        self.handle_types = handle_types;
        self
    }

    /// Promises that every stream is announced to [`Pool::stream_destroyed`] before it is
    /// destroyed, or is never destroyed.
    ///
    /// A driver may give the handle value of a destroyed stream to a new one, which comes after
    /// nothing that the old one did. Without this promise the pool therefore asks the driver at
    /// each call which stream a value stands for (60 ns on an H200); with it, it does not.
    #[must_use]
    pub fn streams_declared(mut self) -> PoolBuilder {
        self.streams_declared = true;
        self
    }

    /// Makes the pool one that cannot be destroyed.
    pub(crate) fn default_pool(mut self) -> PoolBuilder {
        self.is_default = true;
        self
    }

    /// Builds the pool. It takes no memory until something is allocated.
    ///
    /// # Errors
    ///
    /// [`PoolError`]: the limit is too small, or the device cannot have such a pool.
    pub fn build(self) -> Result<Pool, PoolError> {
        reaper::reap(&self.device);
        let capabilities = self.device.capabilities();
        let granularity = capabilities.granularity;
        if self.limit < granularity {
            return Err(PoolError::LimitTooSmall {
                limit: self.limit,
                granularity,
            });
        }
        let own = PoolLocation::Device(capabilities.ordinal);
        let properties = Properties {
            location: self.location.unwrap_or(own),
            handle_types: self.handle_types,
        };
        properties.check(capabilities)?;
        let events = EventPool::new(Arc::clone(&self.device));
        let pages = Pages::new(granularity, self.limit).under(self.budget);
        let fronts = Arc::new(Fronts::default());
        let state = Mutex::new(State::new(
            pages,
            Arc::clone(&fronts),
            // Its reports are of one order of all calls.
            !self.stream_sanitizer,
        ));
        let identify_streams = capabilities.stream_values_recur && !self.streams_declared;
        let inner = Inner {
            id: identity::next(),
            device: self.device,
            events,
            access: AccessList::new(properties.location),
            identify_streams,
            setting: self.setting,
            waits: self.waits,
            properties,
            settings: Settings::new(self.reuse, self.release_threshold),
            graphs: Graphs::default(),
            sanitizer: self.stream_sanitizer.then(Sanitizer::default),
            is_default: self.is_default,
            destroyed: AtomicBool::new(false),
            abandoned: false,
            fronts,
            state,
        };
        let inner = Arc::new(inner);
        inner.join_budget();
        Ok(Pool { inner })
    }
}

/// What is asked of [`Pool::allocate_with`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    size: u64,
    alignment: u64,
    stream: StreamId,
    name: Option<&'static str>,
}

impl Request {
    /// `size` bytes for a stream, aligned to 256 bytes.
    pub fn new(size: u64, stream: StreamId) -> Request {
        Request {
            size,
            alignment: GRAIN,
            stream,
            name: None,
        }
    }

    /// The stream that asks.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Asks for another alignment, in bytes: a power of two. Less than 256 gives 256.
    #[must_use]
    pub fn alignment(mut self, alignment: u64) -> Request {
        self.alignment = alignment;
        self
    }

    /// What it comes to, if its alignment is one.
    #[inline]
    fn wish(&self) -> Option<Wish> {
        self.alignment.is_power_of_two().then(|| Wish {
            requested: self.size,
            size: align_up(self.size.max(1), GRAIN).unwrap_or(u64::MAX),
            alignment: self.alignment.max(GRAIN),
        })
    }

    /// Names the block, for reports ([`Pool::order_reports`]); [`Block::set_name`] takes names that
    /// are made at run time.
    #[must_use]
    pub fn name(mut self, name: &'static str) -> Request {
        self.name = Some(name);
        self
    }
}

impl Pool {
    /// Begins to build a pool on a device.
    pub fn builder(device: Arc<dyn Device>) -> PoolBuilder {
        PoolBuilder {
            device,
            limit: u64::MAX,
            streams_declared: false,
            setting: Setting::default(),
            waits: Waits::default(),
            reuse: ReusePolicies::default(),
            release_threshold: u64::MAX,
            location: None,
            handle_types: HandleTypes::NONE,
            budget: None,
            is_default: false,
            stream_sanitizer: false,
        }
    }

    /// Where the pool's memory lies.
    pub fn location(&self) -> PoolLocation {
        self.inner.properties.location
    }

    /// The device that the pool works with.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// Allocates `size` bytes, aligned to 256, for use on `stream`.
    ///
    /// The memory may be used by whatever the stream is given from now on; by other streams once
    /// they are ordered after that, and once [`Block::use_on`] says so. Its content is undefined.
    /// Zero bytes give a block of its own address, of which nothing may be touched.
    #[track_caller]
    pub fn allocate(&self, size: u64, stream: StreamId) -> Result<Block, AllocError> {
        self.allocate_with(Request::new(size, stream))
    }

    /// Allocates with further wishes: see [`Request`].
    #[track_caller]
    pub fn allocate_with(&self, request: Request) -> Result<Block, AllocError> {
        let granted = self.inner.allocate(request, Location::caller())?;
        Ok(Block {
            inner: Arc::clone(&self.inner),
            address: granted.address,
            size: request.size,
            serial: granted.serial,
        })
    }

    /// Allocates as [`Pool::allocate_with`] does, and gives the bare address: as
    /// [`Block::into_raw`], but threads that only do this share nothing in doing it. The block is
    /// freed by [`Pool::free`].
    #[track_caller]
    pub fn allocate_raw(&self, request: Request) -> Result<u64, AllocError> {
        let granted = self.inner.allocate(request, Location::caller())?;
        Ok(granted.address)
    }

    /// What the pool holds.
    pub fn statistics(&self) -> Statistics {
        self.inner.lock().statistics()
    }

    /// Begins the high watermarks again at the current values.
    pub fn reset_peaks(&self) {
        let mut state = self.inner.lock();
        state.pages.reset_peak();
        state.peaks.live = state.gather_usage();
    }

    /// The most bytes that the pool takes from the device.
    pub fn limit(&self) -> u64 {
        self.inner.lock().pages.limit()
    }

    /// Changes the limit. What the pool has beyond it stays until it is freed and trimmed; until
    /// then the pool does not grow.
    pub fn set_limit(&self, bytes: u64) {
        self.inner.lock().pages.set_limit(bytes);
    }

    /// Checks the pool's own bookkeeping. For tests: it looks at everything.
    ///
    /// What other threads have in flight is not an error, but to see every byte accounted for, let
    /// nothing run beside it.
    #[doc(hidden)]
    pub fn validate(&self) -> Result<(), String> {
        self.inner.graphs.validate()?;
        self.inner.lock().validate()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("device", &self.inner.device.capabilities().name)
            .field("statistics", &self.statistics())
            .finish()
    }
}

/// A block of memory. Dropping it frees it, in the order of the streams that used it; nothing
/// waits for that.
#[must_use = "a block that is not kept is freed at once"]
pub struct Block {
    inner: Arc<Inner>,
    address: u64,
    size: u64,
    serial: u64,
}

impl Block {
    /// Where it starts, on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The bytes that were asked for.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Frees the block, as dropping it does, and says if that failed.
    #[track_caller]
    pub fn free(self) -> Result<(), BlockError> {
        let result = self.inner.free_block(self.call(Location::caller()));
        self.forget();
        result
    }

    /// Gives the bare address, for C and for those who keep their own books: it is freed by
    /// [`Pool::free`].
    pub fn into_raw(self) -> u64 {
        let address = self.address;
        self.forget();
        address
    }

    /// Drops the block without freeing it, but lets go of the pool.
    fn forget(mut self) {
        self.serial = FORGOTTEN;
    }
}

/// The serial number of a block that is no longer its holder's; no block ever has it.
const FORGOTTEN: u64 = u64::MAX;

impl Drop for Block {
    fn drop(&mut self) {
        if self.serial == FORGOTTEN {
            return;
        }
        let call = BlockCall {
            address: self.address,
            serial: Some(self.serial),
            location: None,
        };
        if let Err(error) = self.inner.free_block(call) {
            tracing::error!(%error, "a block could not be freed when it was dropped");
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:#x}, {} bytes)", self.address, self.size)
    }
}

#[cfg(test)]
mod tests;
