//! Events of the pool's own, kept for the next use: creating one costs as much as recording it.

use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::device::{Device, DeviceError, EventId};
use crate::sync::Mutex;

/// Hands out events and takes them back.
#[derive(Debug)]
pub(crate) struct EventPool {
    device: Arc<dyn Device>,
    idle: Mutex<Vec<EventId>>,
}

impl EventPool {
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<EventPool> {
        Arc::new(EventPool {
            device,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// An event that nobody else has. It comes back when the last clone of it is dropped.
    pub(crate) fn take(self: &Arc<EventPool>) -> Result<Arc<PooledEvent>, DeviceError> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let event = match idle {
            Some(event) => event,
            None => self.device.create_event()?,
        };
        Ok(Arc::new(PooledEvent {
            event,
            pool: Arc::clone(self),
        }))
    }
}

impl Drop for EventPool {
    fn drop(&mut self) {
        let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
        for event in idle.drain(..) {
            if let Err(error) = self.device.destroy_event(event) {
                tracing::debug!(%error, "an event could not be destroyed");
            }
        }
    }
}

/// An event on loan. While anybody holds it, it is not recorded for anything else.
pub(crate) struct PooledEvent {
    event: EventId,
    pool: Arc<EventPool>,
}

impl PooledEvent {
    pub(crate) fn id(&self) -> EventId {
        self.event
    }
}

impl fmt::Debug for PooledEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        self.pool
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(self.event);
    }
}
