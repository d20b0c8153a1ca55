//! A pool on a device with the checker before it, and blocks that know their content.
//!
//! Invariant: what the checker must be told, it is told by the methods here; a case that uses them
//! alone is a correct program.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millpond::device::{Device, EventId, Findings, Observed, Pattern, StreamId, StreamOrder};
use millpond::pool::{PoolBuilder, reap_waiting};
use millpond::{AllocError, Block, Pool, Request};

use crate::Checker;
use crate::conformance::Fixture;

/// A pool under test.
#[derive(Debug)]
pub(super) struct Bench {
    /// As the pool sees it.
    pub(super) device: Arc<dyn Device>,
    checker: Arc<Checker>,
    pool: Option<Pool>,
    numbers: AtomicU64,
    checks: Mutex<Vec<(u64, Arc<Findings>)>>,
    events: Mutex<Vec<EventId>>,
}

impl Bench {
    /// A pool of at most so many bytes.
    pub(super) fn new(fixture: &Fixture, limit: u64) -> Bench {
        Bench::with(fixture, |builder| builder.limit(limit))
    }

    /// A pool as it is wanted.
    pub(super) fn with(
        fixture: &Fixture,
        wanted: impl FnOnce(PoolBuilder) -> PoolBuilder,
    ) -> Bench {
        let checker = Arc::new(Checker::new(fixture.device().capabilities()));
        let observers = vec![Arc::clone(&checker) as _];
        let observed = Observed::new(Arc::clone(fixture.device()), observers);
        let device: Arc<dyn Device> = Arc::new(observed);
        let pool = wanted(Pool::builder(Arc::clone(&device))).build();
        Bench {
            device,
            checker,
            pool: Some(pool.expect("a pool")),
            numbers: AtomicU64::new(1),
            checks: Mutex::default(),
            events: Mutex::default(),
        }
    }

    pub(super) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("until the case ends it")
    }

    pub(super) fn stream(&self) -> StreamId {
        let order = StreamOrder::Independent;
        self.device.create_stream(order).expect("a stream")
    }

    pub(super) fn event(&self) -> EventId {
        let event = self.device.create_event().expect("an event");
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(event);
        event
    }

    /// An event recorded on a stream behind the pool's back.
    pub(super) fn recorded(&self, stream: StreamId) -> EventId {
        let event = self.event();
        self.device.record_event(event, stream).expect("to record");
        event
    }

    pub(super) fn is_done(&self, event: EventId) -> bool {
        self.device.query_event(event).expect("to query")
    }

    /// A block of this size, filled on its stream.
    pub(super) fn allocate(&self, size: u64, stream: StreamId) -> Filled<'_> {
        match self.try_allocate(Request::new(size, stream), size, 256, stream) {
            Ok(block) => block,
            Err(error) => panic!("{error}"),
        }
    }

    /// A block of this size and alignment, if there is memory for it.
    pub(super) fn try_allocate(
        &self,
        request: Request,
        size: u64,
        alignment: u64,
        stream: StreamId,
    ) -> Result<Filled<'_>, AllocError> {
        let block = self.pool().allocate_with(request)?;
        let broken = self
            .checker
            .allocated(block.address(), size, alignment, stream);
        assert!(broken.is_empty(), "{broken:?}");
        assert_eq!(block.size(), size);
        assert!(block.address().is_multiple_of(alignment));
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let filled = Filled {
            bench: self,
            block: Some(block),
            stream,
            // Never all zeros: that is what fresh memory may show.
            pattern: Pattern(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            findings: Findings::new(),
        };
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        checks.push((number, Arc::clone(&filled.findings)));
        drop(checks);
        filled.fill();
        Ok(filled)
    }

    /// Says that a stream is about to be destroyed, and destroys it.
    pub(super) fn destroy(&self, stream: StreamId) {
        self.checker.stream_ends(stream);
        self.pool().stream_destroyed(stream).expect("to be told");
        self.device.destroy_stream(stream).expect("to destroy");
    }

    /// Destroys a stream behind the pool's back.
    pub(super) fn destroy_untold(&self, stream: StreamId) {
        self.device.destroy_stream(stream).expect("to destroy");
    }

    /// The pool's own books, and the checker's findings so far.
    pub(super) fn check(&self) {
        self.pool().validate().expect("books that agree");
        assert_eq!(self.checker.violations(), []);
        let physical = self.checker.totals().physical_bytes;
        assert_eq!(self.pool().statistics().reserved_bytes, physical);
    }

    /// Drops the pool; the rest is looked at in the end.
    pub(super) fn drop_pool(mut self) -> Bench {
        self.check();
        self.pool = None;
        self
    }

    /// Drops the pool; everything must have gone back, and nothing been overwritten.
    pub(super) fn end(mut self) {
        if self.pool.is_some() {
            self.check();
        }
        self.pool = None;
        let left = reap_waiting(&self.device).expect("a device that works");
        assert_eq!(left, 0, "pools that are gone have memory");
        self.device.synchronize().expect("a device that works");
        let events = std::mem::take(&mut self.events);
        for event in events.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.device.destroy_event(event).expect("to destroy");
        }
        assert_eq!(self.checker.finish(), []);
        let checks = std::mem::take(&mut self.checks);
        for (number, findings) in checks.into_inner().unwrap_or_else(PoisonError::into_inner) {
            assert_eq!(findings.wrong_bytes(), 0, "block {number}: {findings:?}");
        }
    }
}

/// A live block, filled with a pattern of its own. Dropping it verifies and frees it.
#[derive(Debug)]
#[must_use = "a block that is not kept is freed at once"]
pub(super) struct Filled<'a> {
    bench: &'a Bench,
    block: Option<Block>,
    stream: StreamId,
    pattern: Pattern,
    findings: Arc<Findings>,
}

impl Filled<'_> {
    fn block(&self) -> &Block {
        self.block.as_ref().expect("until it is freed")
    }

    pub(super) fn address(&self) -> u64 {
        self.block().address()
    }

    pub(super) fn size(&self) -> u64 {
        self.block().size()
    }

    fn fill(&self) {
        let (address, size) = (self.address(), self.size());
        let filled = self
            .bench
            .device
            .fill(self.stream, address, size, self.pattern);
        filled.expect("to fill");
    }

    /// Queues a check of the content on a stream that may see it.
    pub(super) fn verify_on(&self, stream: StreamId) {
        let (address, size) = (self.address(), self.size());
        let findings = &self.findings;
        let verified = self
            .bench
            .device
            .verify(stream, address, size, self.pattern, findings);
        verified.expect("to verify");
    }

    /// Lets another stream come after the block's content, and see it there.
    pub(super) fn use_on(&self, stream: StreamId) {
        let written = self.bench.recorded(self.stream);
        let waited = self.bench.device.wait_event(stream, written);
        waited.expect("to wait");
        self.use_unordered_on(stream);
    }

    /// As [`Filled::use_on`], where the caller has seen to the order.
    pub(super) fn use_unordered_on(&self, stream: StreamId) {
        self.block().use_on(stream).expect("to be used");
        assert!(self.bench.checker.used(self.address(), stream));
        self.verify_on(stream);
    }

    /// Says that the use on a stream ended where an event was recorded through the pool.
    pub(super) fn use_ends_at(&self, stream: StreamId, event: EventId) {
        let checker = &self.bench.checker;
        assert!(checker.use_ends_at(self.address(), stream, event));
        let ended = self.block().use_ends_at(stream, event);
        ended.expect("a use that ends");
    }

    /// Gives the bare block to somebody who frees it by its address.
    pub(super) fn free_by_address(mut self, pool: &Pool) {
        self.verify_on(self.stream);
        let address = self.block.take().expect("until it is freed").into_raw();
        assert!(self.bench.checker.freeing(address).is_some());
        pool.free(address).expect("to be freed");
    }

    /// Frees without looking at the content on its own stream, which another thread may not name.
    pub(super) fn free_unverified(mut self) {
        self.release();
    }

    fn release(&mut self) {
        if let Some(block) = self.block.take() {
            let known = self.bench.checker.freeing(block.address());
            assert!(known.is_some());
            block.free().expect("to be freed");
        }
    }
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        if self.block.is_some() && !std::thread::panicking() {
            self.verify_on(self.stream);
            self.release();
        }
    }
}

/// Numbers drawn from a seed.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}
