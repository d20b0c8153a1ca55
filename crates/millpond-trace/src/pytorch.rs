//! PyTorch memory snapshots: `torch.cuda.memory._snapshot()` pickled, or the bare list of
//! segments of old versions.
//!
//! The history is a ring that may have lost its beginning, while `segments` is the state at its
//! end. So the history is first undone from the end to the beginning, which gives the blocks that
//! were live before it; they become allocations at the time of the first entry.

mod frames;

use std::collections::BTreeMap;

use crate::builder::{Builder, Radix, Times};
use crate::error::{ErrorKind, Position, TraceError};
use crate::input::Input;
use crate::limits::Limits;
use crate::model::{Format, ReservedAction, Trace};
use crate::pickle::{self, NodeId, Pickle};
use frames::Frames;

/// More keys than any record of a snapshot has; a larger dict is not one, and reading it for
/// every place that shares it could take for ever.
const KEYS_MAX: usize = 64;

pub(crate) fn read(name: &str, input: Input<'_>, limits: &Limits) -> Result<Trace, TraceError> {
    let bytes = input.into_bytes()?;
    let pickle = pickle::read(&bytes, limits)?;
    let mut builder = Builder::new(limits, Radix::Decimal);
    Snapshot {
        pickle: &pickle,
        limits,
    }
    .replay(&mut builder)?;
    Ok(builder.finish(name, Format::PytorchSnapshot))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    Reserved(ReservedAction),
    OutOfMemory,
    /// Of no effect on memory: snapshot, annotate.
    Aside,
    /// Of a version that this reader does not know.
    Unknown,
}

/// One entry of a device's history.
struct Entry {
    action: Action,
    addr: u64,
    size: u64,
    stream: u64,
    time_us: Option<u64>,
    device_free: Option<u64>,
    frames: Option<NodeId>,
    at: u64,
}

/// A block that the recording allocator held.
#[derive(Clone, Copy)]
struct Held {
    size: u64,
    stream: u64,
    at: u64,
    /// The job had freed it already, the allocator could not yet.
    pending: bool,
    frames: Option<NodeId>,
}

struct Snapshot<'p> {
    pickle: &'p Pickle<'p>,
    limits: &'p Limits,
}

impl Snapshot<'_> {
    fn replay(&self, builder: &mut Builder<'_>) -> Result<(), TraceError> {
        let root = self.pickle.root();
        let (mut segments, mut traces) = (None, None);
        if self.pickle.sequence(root).is_some() {
            segments = Some(root);
        } else {
            self.fields(root, "the snapshot", |key, value| {
                match key {
                    b"segments" => segments = Some(value),
                    b"device_traces" => traces = Some(value),
                    _ => {}
                }
                Ok(())
            })?;
        }
        let Some(segments) = segments else {
            return Err(self.missing(root, "the snapshot", "segments"));
        };
        let segments = self.sequence(segments, "segments")?;
        let traces = match traces {
            Some(list) => self.sequence(list, "device_traces")?,
            None => &[],
        };
        let (device, entries) = self.choose_device(segments, traces, builder)?;
        let entries = self.entries(entries)?;
        let (held, total) = self.final_state(segments, device)?;
        let initial = rewind(&entries, held);
        let mut frames = Frames::new(self.pickle);
        Self::begin(&entries, &initial, total, &mut frames, builder)?;
        Self::forward(&entries, &mut frames, builder)
    }

    /// The device with the longest history; without any, the one with most segments.
    fn choose_device(
        &self,
        segments: &[NodeId],
        traces: &[NodeId],
        builder: &mut Builder<'_>,
    ) -> Result<(i64, &[NodeId]), TraceError> {
        let mut chosen: (i64, &[NodeId]) = (0, &[]);
        let mut used = 0;
        for (index, &trace) in traces.iter().enumerate() {
            let entries = self.sequence(trace, "a device's history")?;
            used += usize::from(!entries.is_empty());
            if entries.len() > chosen.1.len() {
                chosen = (index as i64, entries);
            }
        }
        if used > 1 {
            let (device, count) = (chosen.0, chosen.1.len());
            builder.note(format!(
                "{used} devices have a history: device {device} with {count} entries was taken"
            ));
        }
        if used == 0 {
            let mut counts = BTreeMap::<i64, usize>::new();
            for &segment in segments {
                *counts.entry(self.segment_device(segment)?).or_default() += 1;
            }
            // Of equal counts the lowest device, so that the choice is the same every time.
            if let Some((&device, _)) = counts.iter().rev().max_by_key(|&(_, &count)| count) {
                chosen.0 = device;
            }
            builder.note("no history in the snapshot: its live blocks are the trace".to_owned());
            if counts.len() > 1 {
                let (devices, device) = (counts.len(), chosen.0);
                builder.note(format!(
                    "{devices} devices have memory: device {device} was taken"
                ));
            }
        }
        Ok(chosen)
    }

    fn segment_device(&self, segment: NodeId) -> Result<i64, TraceError> {
        let mut device = 0;
        self.fields(segment, "a segment", |key, value| {
            if key == b"device" {
                device = self.int(segment, value, "device")?;
            }
            Ok(())
        })?;
        Ok(device)
    }

    /// The blocks held at the end, by address, and the bytes of all segments.
    fn final_state(
        &self,
        segments: &[NodeId],
        wanted: i64,
    ) -> Result<(BTreeMap<u64, Held>, u64), TraceError> {
        let mut held = BTreeMap::new();
        let mut total = 0_u64;
        let mut visited = 0_u64;
        for &segment in segments {
            let (mut device, mut address, mut size, mut stream) = (0, None, 0, 0);
            let mut blocks: &[NodeId] = &[];
            self.fields(segment, "a segment", |key, value| {
                match key {
                    b"device" => device = self.int(segment, value, "device")?,
                    b"address" => address = Some(self.unsigned(segment, value, "address")?),
                    b"total_size" => size = self.unsigned(segment, value, "total_size")?,
                    b"stream" => stream = self.int(segment, value, "stream")? as u64,
                    b"blocks" => blocks = self.sequence(value, "blocks")?,
                    _ => {}
                }
                Ok(())
            })?;
            if device != wanted {
                continue;
            }
            let Some(mut next) = address else {
                return Err(self.missing(segment, "a segment", "address"));
            };
            total = total.saturating_add(size);
            // Shared lists can be visited far more often than the file is long.
            visited += 1 + blocks.len() as u64;
            if visited > u64::from(self.limits.steps) {
                let at = Position::Byte(self.pickle.offset(segment));
                return Err(TraceError::limit(
                    at,
                    "blocks",
                    u64::from(self.limits.steps),
                ));
            }
            for &block in blocks {
                let (at, live) = self.block(block, &mut next, stream)?;
                if let Some(live) = live {
                    held.insert(at, live);
                }
            }
        }
        Ok((held, total))
    }

    /// A block's address and, if it is held, what it is. Blocks tile their segment: `next` is the
    /// address of one that does not say it itself (before PyTorch 2.1).
    fn block(
        &self,
        block: NodeId,
        next: &mut u64,
        stream: u64,
    ) -> Result<(u64, Option<Held>), TraceError> {
        let (mut address, mut size, mut requested, mut real) = (*next, None, None, None);
        let mut frames = None;
        let mut state: &[u8] = b"";
        self.fields(block, "a block", |key, value| {
            match key {
                b"address" => address = self.unsigned(block, value, "address")?,
                b"size" => size = Some(self.unsigned(block, value, "size")?),
                b"requested_size" => {
                    requested = Some(self.unsigned(block, value, "requested_size")?);
                }
                b"state" => state = self.pickle.text(value).unwrap_or_default(),
                b"history" => real = self.real_size(value)?,
                b"frames" => frames = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        let Some(size) = size else {
            return Err(self.missing(block, "a block", "size"));
        };
        *next = address.saturating_add(size);
        let at = self.pickle.offset(block);
        let pending = match state {
            b"active_allocated" => false,
            // The second spelling is that of PyTorch's documentation.
            b"active_pending_free" | b"active_awaiting_free" => true,
            _ => return Ok((address, None)),
        };
        let size = requested.or(real).unwrap_or(size);
        Ok((
            address,
            Some(Held {
                size,
                stream,
                at,
                pending,
                frames,
            }),
        ))
    }

    /// `history[0].real_size`, where PyTorch 2.0 kept the requested size.
    fn real_size(&self, history: NodeId) -> Result<Option<u64>, TraceError> {
        let mut real = None;
        if let Some(&first) = self.sequence(history, "history")?.first() {
            self.fields(first, "a block's history", |key, value| {
                if key == b"real_size" {
                    real = Some(self.unsigned(first, value, "real_size")?);
                }
                Ok(())
            })?;
        }
        Ok(real)
    }

    fn entries(&self, list: &[NodeId]) -> Result<Vec<Entry>, TraceError> {
        let most = u64::from(self.limits.steps);
        if list.len() as u64 > most {
            return Err(TraceError::limit(Position::Start, "history entries", most));
        }
        list.iter().map(|&entry| self.entry(entry)).collect()
    }

    fn entry(&self, id: NodeId) -> Result<Entry, TraceError> {
        let (mut action, mut addr, mut size) = (None, None, None);
        let (mut stream, mut time_us) = (0, None);
        let (mut device_free, mut frames) = (None, None);
        self.fields(id, "a history entry", |key, value| {
            match key {
                b"action" => action = self.pickle.text(value),
                b"addr" => addr = Some(self.unsigned(id, value, "addr")?),
                b"size" => size = Some(self.unsigned(id, value, "size")?),
                b"stream" => stream = self.int(id, value, "stream")? as u64,
                b"time_us" => time_us = Some(self.unsigned(id, value, "time_us")?),
                b"device_free" => device_free = self.unsigned(id, value, "device_free").ok(),
                b"frames" => frames = Some(value),
                _ => {}
            }
            Ok(())
        })?;
        let missing = |field| self.missing(id, "a history entry", field);
        let action = match action.ok_or_else(|| missing("action"))? {
            b"alloc" => Action::Alloc,
            b"free_requested" => Action::FreeRequested,
            b"free_completed" => Action::FreeCompleted,
            b"segment_alloc" => Action::Reserved(ReservedAction::SegmentAlloc),
            b"segment_free" => Action::Reserved(ReservedAction::SegmentFree),
            b"segment_map" => Action::Reserved(ReservedAction::SegmentMap),
            b"segment_unmap" => Action::Reserved(ReservedAction::SegmentUnmap),
            b"oom" => Action::OutOfMemory,
            b"snapshot" | b"annotate" => Action::Aside,
            _ => Action::Unknown,
        };
        let matters = !matches!(
            action,
            Action::OutOfMemory | Action::Aside | Action::Unknown
        );
        if matters && (addr.is_none() || size.is_none()) {
            return Err(missing(if addr.is_none() { "addr" } else { "size" }));
        }
        let (addr, size) = (addr.unwrap_or(0), size.unwrap_or(0));
        Ok(Entry {
            action,
            addr,
            size,
            stream,
            time_us,
            device_free,
            frames,
            at: self.pickle.offset(id),
        })
    }

    /// What was there before the first entry.
    fn begin(
        entries: &[Entry],
        initial: &BTreeMap<u64, Held>,
        total: u64,
        frames: &mut Frames<'_>,
        builder: &mut Builder<'_>,
    ) -> Result<(), TraceError> {
        let mut reserved = i128::from(total);
        for entry in entries {
            reserved -= match entry.action {
                Action::Reserved(ReservedAction::SegmentAlloc | ReservedAction::SegmentMap) => {
                    i128::from(entry.size)
                }
                Action::Reserved(_) => -i128::from(entry.size),
                _ => 0,
            };
        }
        let reserved = u64::try_from(reserved.max(0)).unwrap_or(u64::MAX);
        if reserved > 0 {
            builder.reserved(ReservedAction::Initial, reserved, None)?;
        }
        let first_ns = entries.iter().find_map(|e| e.time_us).map_or(Ok(0), |us| {
            let at = Position::Byte(entries.first().map_or(0, |e| e.at));
            as_ns(us, at)
        })?;
        let mut live = 0_u64;
        for (&addr, held) in initial {
            builder.set_position(Position::Byte(held.at));
            if held.pending {
                builder.requested_before(addr)?;
                continue;
            }
            builder.alloc(addr, held.size, held.stream, Times::host(first_ns))?;
            if let Some(site) = held.frames.and_then(|list| frames.site(list, builder)) {
                builder.allocated_by(site);
            }
            live += 1;
        }
        if live > 0 && !entries.is_empty() {
            builder.note(format!(
                "the history begins in the middle: {live} live blocks rebuilt from segments"
            ));
        }
        Ok(())
    }

    fn forward(
        entries: &[Entry],
        frames: &mut Frames<'_>,
        builder: &mut Builder<'_>,
    ) -> Result<(), TraceError> {
        let mut now_ns = 0;
        let (mut out_of_memory, mut unknown, mut untimed) = (0_u64, 0_u64, 0_u64);
        for entry in entries {
            let at = Position::Byte(entry.at);
            builder.set_position(at);
            match entry.time_us {
                Some(us) => now_ns = as_ns(us, at)?,
                None => untimed += 1,
            }
            let times = Times::host(now_ns);
            let Entry {
                addr, size, stream, ..
            } = *entry;
            match entry.action {
                Action::Alloc => {
                    builder.alloc(addr, size, stream, times)?;
                    if let Some(site) = entry.frames.and_then(|list| frames.site(list, builder)) {
                        builder.allocated_by(site);
                    }
                }
                Action::FreeRequested => builder.free_requested(addr, size, stream, times)?,
                Action::FreeCompleted => builder.free_completed(addr, size, stream, times)?,
                Action::Reserved(action) => builder.reserved(action, size, Some(addr))?,
                Action::OutOfMemory => {
                    out_of_memory += 1;
                    builder.failed(size, entry.device_free)?;
                }
                Action::Aside => {}
                Action::Unknown => unknown += 1,
            }
        }
        for (count, what) in [
            (out_of_memory, "out-of-memory events in the recording"),
            (unknown, "entries of unknown action ignored"),
            (
                untimed,
                "entries without a time take that of the entry before",
            ),
        ] {
            if count > 0 {
                builder.note(format!("{count} {what}"));
            }
        }
        Ok(())
    }

    /// Calls `each` for every string key of a dict and its value.
    fn fields(
        &self,
        id: NodeId,
        what: &'static str,
        mut each: impl FnMut(&[u8], NodeId) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        let Some(pairs) = self.pickle.dict(id) else {
            return Err(self.malformed(id, what, id, "a dict"));
        };
        if pairs.len() > KEYS_MAX {
            let at = Position::Byte(self.pickle.offset(id));
            return Err(TraceError::limit(at, "keys in one record", KEYS_MAX as u64));
        }
        for (key, value) in pairs {
            if let Some(key) = self.pickle.text(key) {
                each(key, value)?;
            }
        }
        Ok(())
    }

    fn sequence(&self, id: NodeId, what: &'static str) -> Result<&[NodeId], TraceError> {
        self.pickle
            .sequence(id)
            .ok_or_else(|| self.malformed(id, what, id, "a list"))
    }

    fn int(&self, within: NodeId, id: NodeId, what: &'static str) -> Result<i64, TraceError> {
        self.pickle
            .int(id)
            .ok_or_else(|| self.malformed(within, what, id, "a 64-bit number"))
    }

    fn unsigned(&self, within: NodeId, id: NodeId, what: &'static str) -> Result<u64, TraceError> {
        let value = self
            .pickle
            .int(id)
            .and_then(|value| u64::try_from(value).ok());
        value.ok_or_else(|| self.malformed(within, what, id, "a number from 0 to 2^63 - 1"))
    }

    fn malformed(
        &self,
        within: NodeId,
        what: &'static str,
        id: NodeId,
        expected: &'static str,
    ) -> TraceError {
        let found = self.pickle.describe(id);
        let at = Position::Byte(self.pickle.offset(within));
        TraceError::new(
            at,
            ErrorKind::Malformed {
                what,
                found,
                expected,
            },
        )
    }

    fn missing(&self, id: NodeId, within: &'static str, field: &'static str) -> TraceError {
        let at = Position::Byte(self.pickle.offset(id));
        TraceError::new(at, ErrorKind::Missing { within, field })
    }
}

/// Undoes the history from its end: what was held before it began.
fn rewind(entries: &[Entry], mut held: BTreeMap<u64, Held>) -> BTreeMap<u64, Held> {
    for entry in entries.iter().rev() {
        let Entry {
            addr,
            size,
            stream,
            at,
            ..
        } = *entry;
        match entry.action {
            Action::Alloc => {
                held.remove(&addr);
            }
            Action::FreeRequested => {
                held.insert(
                    addr,
                    Held {
                        size,
                        stream,
                        at,
                        frames: None,
                        pending: false,
                    },
                );
            }
            Action::FreeCompleted => {
                held.insert(
                    addr,
                    Held {
                        size,
                        stream,
                        at,
                        frames: None,
                        pending: true,
                    },
                );
            }
            _ => {}
        }
    }
    held
}

fn as_ns(us: u64, at: Position) -> Result<u64, TraceError> {
    us.checked_mul(1_000).ok_or_else(|| {
        TraceError::malformed(
            at,
            "time_us",
            us.to_string().as_bytes(),
            "a time below 2^64 ns",
        )
    })
}
