//! The caller's own events, as far as the pool is told of them.

use super::{Clock, End, Order, StreamIndex};
use crate::device::EventId;

/// What the caller's event stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Recorded {
    /// Where its stream stood.
    end: End,
    /// What its stream knew, itself included.
    knowledge: Clock,
}

impl Order {
    /// The caller's event is about to be recorded on a stream: what it will stand for. What the
    /// stream knows before is what the event surely stands for.
    pub(crate) fn recording(&mut self, stream: StreamIndex) -> Recorded {
        let end = self.pass(stream);
        let knowledge = self.knowledge(stream);
        Recorded { end, knowledge }
    }

    /// The caller's event was recorded.
    pub(crate) fn remember_event(&mut self, event: EventId, recorded: Recorded) {
        self.user_events.insert(event, recorded);
    }

    /// A use ended where the caller's event was recorded; `None` if the event is not known.
    pub(crate) fn end_at_event(&mut self, event: EventId) -> Option<End> {
        let end = self.user_events.get(&event)?.end;
        self.end_stands(end);
        Some(end)
    }

    /// What the caller's event stands for.
    pub(crate) fn event_knowledge(&self, event: EventId) -> Option<Clock> {
        let recorded = self.user_events.get(&event)?;
        Some(recorded.knowledge.clone())
    }

    /// The caller's event is destroyed, or no longer his.
    pub(crate) fn forget_event(&mut self, event: EventId) {
        self.user_events.remove(&event);
    }
}
