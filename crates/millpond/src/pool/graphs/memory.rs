//! What a caller holds of the memory of graphs, and of a capture.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::arena::CaptureId;
use super::{Arena, Entry};
use crate::device::{DeviceError, StreamId};
use crate::pool::Pool;
use crate::sync::Mutex;

impl Pool {
    /// Memory for CUDA graphs: for one, or for several of which the caller knows that their
    /// executions never overlap. It takes none until something is captured.
    pub fn graph_memory(&self) -> GraphMemory {
        let graphs = &self.inner.graphs;
        let id = graphs.ids.fetch_add(1, Ordering::Relaxed);
        let arena = Arc::new(Arena {
            id,
            state: Mutex::default(),
        });
        graphs.arenas.fetch_add(1, Ordering::Relaxed);
        graphs.lock().entries.push(Entry { arena, held: true });
        let pool = self.clone();
        let shared = Arc::new(Shared { pool, id });
        GraphMemory { shared }
    }
}

struct Shared {
    pool: Pool,
    id: u64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let inner = &self.pool.inner;
        {
            let mut registry = inner.graphs.lock();
            let mut entries = registry.entries.iter_mut();
            if let Some(entry) = entries.find(|e| e.arena.id == self.id) {
                entry.held = false;
            }
        }
        if inner.graphs.any_closable()
            && let Err(error) = inner.synchronize()
        {
            tracing::debug!(%error, "a graph's memory stays until the pool is synchronised");
        }
    }
}

/// Memory that stays with CUDA graphs. Clones are the same memory.
///
/// What is allocated on a stream between [`GraphMemory::begin_capture`] and the capture's end comes
/// from here. Its addresses are stable: nothing of it is moved, unmapped or given to anybody else
/// until the last clone of this is dropped, whether or not its blocks are freed. A block that is
/// freed during the capture serves again later in the same capture where the graph's own order
/// allows it: on the same stream, and on others that the caller makes wait for it by
/// [`Pool::record_event`] and [`Pool::wait_event`]. Whatever is free when a capture begins, that
/// capture can use: several captures into the same memory share it. So the caller promises that
/// graphs that were captured into the same memory never run at the same time.
///
/// Drop the last clone when the last of these graphs is destroyed. It then waits for the device to
/// finish what may still run, as the end of a pool does, and gives the memory back. While a block
/// of it lives or a stream of the pool is captured, nothing is waited for, and the memory goes back
/// later: when the pool is synchronised, or runs out of memory.
#[derive(Clone)]
pub struct GraphMemory {
    shared: Arc<Shared>,
}

impl GraphMemory {
    /// Says that `stream` is being captured into a graph (`cuStreamBeginCapture`) from now on.
    ///
    /// To be called before the driver's call: what was freed of this memory, and was used outside of
    /// captures since, is waited for on the host, so that the capture can have it; in most cases
    /// there is none. From here to the capture's end, allocations on this stream make only mapping
    /// calls, which touch no stream; a wait of the pool's for the stream or the whole device is
    /// refused with [`Status::CAPTURE_UNSUPPORTED`](crate::device::Status::CAPTURE_UNSUPPORTED).
    ///
    /// Streams that join the capture, by waiting for an event that was recorded in it, join here
    /// too, if that was done by [`Pool::wait_event`]; if not, [`Capture::join`] declares them.
    pub fn begin_capture(&self, stream: StreamId) -> Result<Capture, CaptureError> {
        let id = self.shared.id;
        let capture = self.shared.pool.inner.begin_capture(id, stream)?;
        Ok(Capture {
            memory: self.clone(),
            id: capture,
        })
    }

    /// Bytes of physical memory that it has from the device.
    pub fn reserved_bytes(&self) -> u64 {
        let arena = self.shared.pool.inner.graphs.arena(self.shared.id);
        arena.map_or(0, |arena| arena.lock().reserved())
    }
}

impl fmt::Debug for GraphMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphMemory")
            .field("id", &self.shared.id)
            .field("reserved_bytes", &self.reserved_bytes())
            .finish()
    }
}

/// A capture that is under way. Dropping it ends it, for the pool: to be done when the driver's
/// capture has ended (`cuStreamEndCapture`), or was given up.
#[derive(Debug)]
#[must_use = "a capture that is not kept is over at once"]
pub struct Capture {
    memory: GraphMemory,
    id: CaptureId,
}

impl Capture {
    /// Says that a further stream belongs to the capture: it was made to wait for one of its events
    /// without the pool's being told. Nothing happens if it does already.
    pub fn join(&self, stream: StreamId) -> Result<(), CaptureError> {
        let inner = &self.memory.shared.pool.inner;
        let key = inner.stream_key(stream)?;
        inner.join_capture(self.memory.shared.id, self.id, key)
    }

    /// Ends the capture, as dropping it does. Its streams are ordinary ones again.
    pub fn end(self) {}
}

impl Drop for Capture {
    fn drop(&mut self) {
        let shared = &self.memory.shared;
        shared.pool.inner.end_capture(shared.id, self.id);
    }
}

/// Why a stream could not be taken for a captured one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The stream belongs to another capture that is under way.
    #[error("stream {stream} is being captured already; end that capture first")]
    AlreadyCaptured {
        /// The stream given.
        stream: StreamId,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
