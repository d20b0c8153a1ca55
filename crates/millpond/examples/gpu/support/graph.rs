//! CUDA graphs of the program's own: captured from its streams, and launched.

use std::ptr;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode_enum as CaptureMode};
use millpond::device::StreamId;

use super::{Gpu, Outcome, ensure, ok, raw};

/// What the driver forbids while a stream is captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Much, to every thread.
    Global,
    /// Much, to the capturing thread.
    ThreadLocal,
    /// Only what touches captured streams.
    Relaxed,
}

/// A graph that can be launched. It must not be running when it is dropped.
#[derive(Debug)]
pub(crate) struct Graph {
    exec: CUgraphExec,
}

impl Gpu {
    /// What a stream is given from now on goes into a graph.
    pub(crate) fn begin_capture(&self, stream: StreamId, mode: Mode) -> Outcome {
        self.enter()?;
        let mode = match mode {
            Mode::Global => CaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::ThreadLocal => CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::Relaxed => CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        };
        // SAFETY: the stream is one of this context.
        let code = unsafe { sys::cuStreamBeginCapture_v2(raw(stream), mode) };
        ok(code, "cuStreamBeginCapture")
    }

    /// Ends a capture, and makes a graph of it that can be launched.
    pub(crate) fn end_capture(&self, stream: StreamId) -> Outcome<Graph> {
        self.enter()?;
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the stream is one of this context, and is being captured.
        let code = unsafe { sys::cuStreamEndCapture(raw(stream), &raw mut graph) };
        ok(code, "cuStreamEndCapture")?;
        ensure(!graph.is_null(), || "the capture gave no graph".into())?;
        let mut exec: CUgraphExec = ptr::null_mut();
        // SAFETY: the graph is the one just captured.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) };
        // SAFETY: the graph is this function's own, and what was made of it lives without it.
        let destroyed = unsafe { sys::cuGraphDestroy(graph) };
        ok(code, "cuGraphInstantiate")?;
        let graph = Graph { exec };
        ok(destroyed, "cuGraphDestroy")?;
        Ok(graph)
    }

    /// Queues a run of the graph.
    pub(crate) fn launch_graph(&self, graph: &Graph, stream: StreamId) -> Outcome {
        self.enter()?;
        // SAFETY: the graph was made in this context, and the stream is one of it.
        let code = unsafe { sys::cuGraphLaunch(graph.exec, raw(stream)) };
        ok(code, "cuGraphLaunch")
    }

    /// Queues: `bytes` at an address become copies of a word.
    pub(crate) fn set_words(
        &self,
        stream: StreamId,
        address: u64,
        bytes: u64,
        word: u32,
    ) -> Outcome {
        self.enter()?;
        let words = (bytes / 4) as usize;
        // SAFETY: the range is the program's, for as long as the stream needs it.
        let code = unsafe { sys::cuMemsetD32Async(address, word, words, raw(stream)) };
        ok(code, "cuMemsetD32Async")
    }

    /// Queues: a range becomes a copy of another.
    pub(crate) fn copy(&self, stream: StreamId, to: u64, from: u64, bytes: u64) -> Outcome {
        self.enter()?;
        // SAFETY: the ranges are the program's, for as long as the stream needs them.
        let code = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, raw(stream)) };
        ok(code, "cuMemcpyDtoDAsync")
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is this object's own, and does not run.
        unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}
