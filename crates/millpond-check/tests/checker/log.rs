//! A log of device calls made by hand.

use millpond::device::{
    AccessGrant, Accessor, Call, CallRecord, Capabilities, DeviceError, DeviceKind, EventId,
    HandleId, HandleProperties, Observer, Outcome, Protection, Status, StreamId, StreamOrder,
};
use millpond_check::{Checker, Freeing, Rule, Violation};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PAGE: u64 = 2 * MIB;
/// Where the tests' first reservation begins.
pub(crate) const BASE: u64 = 0x10_0000_0000;
/// Streams that nobody created: any stream of the program can be named.
pub(crate) const A: StreamId = StreamId(0xA0);
pub(crate) const B: StreamId = StreamId(0xB0);
pub(crate) const C: StreamId = StreamId(0xC0);

pub(crate) struct Log {
    pub(crate) checker: Checker,
}

impl Log {
    /// A log in which nothing happened yet.
    pub(crate) fn empty() -> Log {
        let capabilities = Capabilities {
            kind: DeviceKind::Sim,
            name: "by hand".to_owned(),
            ordinal: 0,
            total_memory: 1 << 40,
            granularity: PAGE,
            mapping: true,
            share_posix_fd: false,
            share_fabric: false,
            rdma: false,
            host: false,
            host_numa: false,
            stream_values_recur: true,
        };
        Log {
            checker: Checker::new(&capabilities),
        }
    }

    /// One reservation of 64 pages at [`BASE`], and handle 1 of 4 pages mapped at its begin.
    pub(crate) fn new() -> Log {
        let log = Log::empty();
        log.reserve(BASE, 64 * PAGE);
        log.create(1, 4 * PAGE);
        log.map(BASE, 4 * PAGE, 1);
        log
    }

    pub(crate) fn made(&self, call: &CallRecord, outcome: Outcome<'_>) {
        self.checker
            .before(call)
            .expect("the checker fails no call");
        self.checker.after(call, outcome, 0, 0);
    }

    pub(crate) fn done(&self, call: &CallRecord) {
        self.made(call, Outcome::Done);
    }

    /// The call was made and failed.
    pub(crate) fn failed(&self, call: &CallRecord) {
        let error = DeviceError::new(call.call(), Status::OUT_OF_MEMORY, String::new());
        self.made(call, Outcome::Failed(&error));
    }

    pub(crate) fn reserve(&self, base: u64, size: u64) {
        let call = CallRecord::Reserve { size, alignment: 0 };
        self.made(&call, Outcome::Value(base));
    }

    pub(crate) fn create(&self, handle: u64, size: u64) {
        let properties = HandleProperties::default();
        let call = CallRecord::Create { size, properties };
        self.made(&call, Outcome::Value(handle));
    }

    /// Maps, and gives access.
    pub(crate) fn map(&self, address: u64, size: u64, handle: u64) {
        let handle = HandleId(handle);
        self.done(&CallRecord::Map {
            address,
            size,
            handle,
        });
        self.access(address, size, Protection::ReadWrite);
    }

    pub(crate) fn access(&self, address: u64, size: u64, protection: Protection) {
        let accessor = Accessor::Device(0);
        let grants = vec![AccessGrant {
            accessor,
            protection,
        }];
        self.done(&CallRecord::SetAccess {
            address,
            size,
            grants,
        });
    }

    pub(crate) fn unmap(&self, address: u64, size: u64) {
        self.done(&CallRecord::Unmap { address, size });
    }

    pub(crate) fn release(&self, handle: u64) {
        let handle = HandleId(handle);
        self.done(&CallRecord::Release { handle });
    }

    pub(crate) fn create_stream(&self, stream: StreamId) {
        let order = StreamOrder::Independent;
        let call = CallRecord::CreateStream { order };
        self.made(&call, Outcome::Value(stream.0));
    }

    pub(crate) fn destroy_stream(&self, stream: StreamId) {
        self.done(&CallRecord::DestroyStream { stream });
    }

    pub(crate) fn create_event(&self, event: EventId) {
        self.made(&CallRecord::CreateEvent, Outcome::Value(event.0));
    }

    pub(crate) fn destroy_event(&self, event: EventId) {
        self.done(&CallRecord::DestroyEvent { event });
    }

    pub(crate) fn record(&self, event: EventId, stream: StreamId) {
        self.done(&CallRecord::RecordEvent { event, stream });
    }

    pub(crate) fn wait(&self, stream: StreamId, event: EventId) {
        self.done(&CallRecord::WaitEvent { stream, event });
    }

    pub(crate) fn query(&self, event: EventId, completed: bool) {
        let call = CallRecord::QueryEvent { event };
        self.made(&call, Outcome::Completed(completed));
    }

    pub(crate) fn synchronize(&self) {
        self.done(&CallRecord::Synchronize);
    }

    pub(crate) fn synchronize_stream(&self, stream: StreamId) {
        self.done(&CallRecord::SynchronizeStream { stream });
    }

    /// A block of the pool's, asked for without alignment.
    pub(crate) fn block(&self, address: u64, size: u64, stream: StreamId) -> Vec<Violation> {
        self.checker.allocated(address, size, 1, stream)
    }

    pub(crate) fn freed(&self, address: u64) -> Freeing {
        self.checker.freeing(address).expect("a live block")
    }

    pub(crate) fn clean(&self) {
        assert_eq!(self.checker.violations(), []);
    }
}

/// Exactly one violation, of this rule.
pub(crate) fn only(found: &[Violation], rule: Rule) -> Violation {
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].rule(), rule, "{found:?}");
    found[0].clone()
}

/// The call that broke the rule.
pub(crate) fn call_of(violation: &Violation) -> Option<Call> {
    match violation {
        Violation::TakenFromLive { call, .. }
        | Violation::TakenInUse { call, .. }
        | Violation::Contract { call, .. } => Some(*call),
        _ => None,
    }
}

/// Two events.
pub(crate) const E: EventId = EventId(0xE1);
pub(crate) const F: EventId = EventId(0xE2);

/// A block of A's that is freed; the next block of the same bytes is the question.
pub(crate) fn freed_on_a() -> Log {
    let log = Log::new();
    log.create_event(E);
    log.create_event(F);
    log.block(BASE, 4096, A);
    log.freed(BASE);
    log
}

/// Asks for the bytes on a stream: they must not be given yet.
pub(crate) fn too_early(log: &Log, stream: StreamId) -> Violation {
    let violation = only(&log.block(BASE, 4096, stream), Rule::StreamOrder);
    assert!(violation.to_string().starts_with("rule 3"), "{violation}");
    violation
}

/// Asks for the bytes on a stream: they may be given.
pub(crate) fn in_time(log: &Log, stream: StreamId) {
    assert_eq!(log.block(BASE, 4096, stream), []);
    log.clean();
}
