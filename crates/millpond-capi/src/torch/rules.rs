//! What stands between the pools behind PyTorch's pair and their device: nothing reaches the
//! driver that a capture under way forbids, and all pools of a device keep one budget.
//!
//! # Invariants
//!
//! 1. While anything is captured, no event is recorded on a captured stream, none is made to wait,
//!    and nobody waits for the device. So every event that a pool asks after was recorded outside
//!    of captures. The pools take these refusals as they take every failed call: memory stays
//!    pending, and nothing else changes.
//! 2. A pool for captures never learns that a use is completed, since a replay of the graph is a
//!    use that it does not see: what was handed out once is never unmapped or moved before the
//!    pool closes, and passes from stream to stream never.
//! 3. A thread's capture mode is after every call what it was before.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::device::{CallRecord, DeviceError, DeviceKind, Observer, Outcome, Status};

use super::budget::{Budget, Piece};
use super::capture_mode::{self, Previous};
use super::underway::Underway;

/// Which pool the rules are for.
#[derive(Debug)]
pub(super) enum Sort {
    /// The one that serves everything but captures.
    Main,
    /// One for captures; true once it is being closed.
    Captures(AtomicBool),
}

pub(super) struct Rules {
    pub(super) ordinal: i32,
    pub(super) kind: DeviceKind,
    pub(super) underway: Arc<Underway>,
    pub(super) budget: Arc<Budget>,
    pub(super) sort: Sort,
}

thread_local! {
    /// What the call that this thread is making has to settle when it returns.
    static MODE: Cell<Option<Previous>> = const { Cell::new(None) };
    static PROMISED: Cell<u64> = const { Cell::new(0) };
}

impl Rules {
    /// The pool is being closed: its last act is to wait for the device.
    pub(super) fn closing(&self) {
        if let Sort::Captures(closing) = &self.sort {
            closing.store(true, Ordering::Release);
        }
    }

    fn forbidden(&self, call: &CallRecord) -> Option<&'static str> {
        use CallRecord as C;
        if let Sort::Captures(closing) = &self.sort
            && !closing.load(Ordering::Acquire)
            && matches!(
                call,
                C::CreateEvent
                    | C::RecordEvent { .. }
                    | C::QueryEvent { .. }
                    | C::WaitEvent { .. }
                    | C::SynchronizeEvent { .. }
                    | C::SynchronizeStream { .. }
                    | C::Synchronize
            )
        {
            return Some("memory of a captured graph is in use for as long as the graph lives");
        }
        if !self.underway.any() {
            return None;
        }
        match call {
            C::RecordEvent { stream, .. }
            | C::WaitEvent { stream, .. }
            | C::SynchronizeStream { stream }
                if self.underway.pool_of(self.ordinal, *stream).is_some() =>
            {
                Some("the stream is being captured; synchronise after the capture")
            }
            C::Synchronize => Some("a stream is being captured; synchronise after the capture"),
            _ => None,
        }
    }
}

impl Observer for Rules {
    fn before(&self, call: &CallRecord) -> Result<(), DeviceError> {
        if let Some(reason) = self.forbidden(call) {
            let status = Status::CAPTURE_UNSUPPORTED;
            return Err(DeviceError::new(call.call(), status, reason));
        }
        if let CallRecord::Create { size, .. } | CallRecord::Allocate { size } = *call {
            self.budget.promise(size).map_err(|used| {
                let limit = self.budget.limit();
                let detail = format!(
                    "asked for {size} bytes, and all pools of the device have {used} of the \
                     {limit} that they may take; raise the limit"
                );
                DeviceError::new(call.call(), Status::OUT_OF_MEMORY, detail)
            })?;
            PROMISED.set(size);
        }
        if self.kind == DeviceKind::Cuda && self.underway.any() {
            MODE.set(capture_mode::relax());
        }
        Ok(())
    }

    fn after(&self, call: &CallRecord, outcome: Outcome<'_>, _started: u64, _ended: u64) {
        if let Some(previous) = MODE.take() {
            capture_mode::restore(previous);
        }
        let promised = PROMISED.take();
        match (call, outcome) {
            (CallRecord::Create { .. }, Outcome::Value(handle)) => {
                let piece = Piece::Handle(engine::device::HandleId(handle));
                self.budget.kept(piece, promised);
            }
            (CallRecord::Allocate { .. }, Outcome::Value(address)) => {
                self.budget.kept(Piece::Plain(address), promised);
            }
            (_, Outcome::Failed(_)) => self.budget.broken(promised),
            (CallRecord::Release { handle }, _) => self.budget.returned(Piece::Handle(*handle)),
            (CallRecord::Free { address }, _) => self.budget.returned(Piece::Plain(*address)),
            _ => {}
        }
    }
}
