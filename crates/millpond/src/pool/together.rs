//! Waiting for a device once, on behalf of several of its pools.

use std::sync::Arc;

use super::{Inner, Pool, reaper};
use crate::device::{Call, Device, DeviceError, EventId, StreamId};
use crate::order::Clock;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitFor {
    Stream(StreamId),
    Event(EventId),
    Device,
}

impl Inner {
    /// What the pool knows to be over when the wait is; nothing if it has nothing to do with it.
    fn awaited(&self, wait: WaitFor) -> Result<Option<Clock>, DeviceError> {
        match wait {
            WaitFor::Stream(stream) => {
                let key = self.stream_key(stream)?;
                self.graphs
                    .refuse_wait(Call::SynchronizeStream, Some(key))?;
                let mut state = self.lock();
                let index = state.order.known(key);
                Ok(index.map(|index| state.order.everything_on(index)))
            }
            WaitFor::Event(event) => Ok(self.lock().order.event_knowledge(event)),
            WaitFor::Device => {
                self.graphs.refuse_wait(Call::Synchronize, None)?;
                Ok(Some(self.lock().order.everything()))
            }
        }
    }
}

/// Waits once, and tells all these pools of the device, with what is left of those that are gone.
pub(crate) fn wait_for(
    device: &Arc<dyn Device>,
    pools: &[Pool],
    wait: WaitFor,
) -> Result<(), DeviceError> {
    let mut told = Vec::new();
    for pool in pools {
        told.push((&pool.inner, pool.inner.awaited(wait)?));
    }
    match wait {
        WaitFor::Stream(stream) => device.synchronize_stream(stream)?,
        WaitFor::Event(event) => device.synchronize_event(event)?,
        WaitFor::Device => {
            let gone = reaper::Awaited::before(device, None);
            let graphs: Vec<_> = pools
                .iter()
                .map(|pool| pool.inner.take_unused_graphs())
                .collect();
            let waited = device.synchronize();
            for (pool, graphs) in pools.iter().zip(graphs) {
                match waited {
                    Ok(()) => pool.inner.close_graphs(graphs),
                    Err(_) => pool.inner.keep_graphs(graphs),
                }
            }
            waited?;
            gone.over();
        }
    }
    for (inner, knowledge) in told {
        if let Some(knowledge) = knowledge {
            let mut state = inner.lock();
            let recorded_again = match wait {
                WaitFor::Event(event) => {
                    state.order.event_knowledge(event).as_ref() != Some(&knowledge)
                }
                _ => false,
            };
            if !recorded_again {
                state.order.synchronized_knowledge(&knowledge);
                state.settle_finished_streams();
            }
        }
        inner.apply_release_threshold();
    }
    Ok(())
}
