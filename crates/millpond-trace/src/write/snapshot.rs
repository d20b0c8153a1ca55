//! Writing PyTorch memory snapshots: pickles of the dict that [`pytorch`](crate::pytorch) reads.
//!
//! # Invariants, which PyTorch's own viewer relies on
//! - The segments and blocks are just the state at the end of the history; every live block lies in
//!   a segment, and the blocks tile it.
//! - A free is written as requested and completed, so that none is pending.
//! - Entries name their pool by both keys that tools look for.

use std::io::{self, Write};

use super::Checked;
use super::places::taken;
use super::segments::{Segment, Segments};
use crate::model::{Op, ReservedAction, Site};
use crate::pickle::PickleWriter;

/// A block that is live at the end.
#[derive(Clone, Copy)]
struct Live {
    address: u64,
    size: u64,
    block: u32,
}

/// Gives whether the recorded changes of the allocator's memory are in it.
pub(super) fn write(checked: &Checked<'_>, to: &mut dyn Write) -> io::Result<bool> {
    let segments = Segments::new(checked);
    let carried = segments.carried;
    let mut writer = SnapshotWriter {
        checked,
        streams: streams(checked, &segments.last),
        segments,
        pickle: PickleWriter::begin(to)?,
        stacks: vec![None; checked.trace.sites.len()],
        pool: None,
    };
    writer.write()?;
    writer.pickle.end()?;
    Ok(carried)
}

/// The stream of each segment: that of the first block in it, else the default stream.
fn streams(checked: &Checked<'_>, segments: &[Segment]) -> Vec<u64> {
    let mut streams: Vec<Option<u64>> = vec![None; segments.len()];
    for step in &checked.trace.steps {
        if let Op::Alloc { block, stream, .. } = step.op
            && let Some(segment) = containing(segments, checked.addresses[block as usize])
        {
            streams[segment].get_or_insert(checked.handles[stream as usize]);
        }
    }
    streams.into_iter().map(Option::unwrap_or_default).collect()
}

fn containing(segments: &[Segment], address: u64) -> Option<usize> {
    let after = segments.partition_point(|segment| segment.address <= address);
    let segment = segments.get(after.checked_sub(1)?)?;
    (address < segment.address + segment.size).then_some(after - 1)
}

struct SnapshotWriter<'c, 't, 'w> {
    checked: &'c Checked<'t>,
    segments: Segments,
    /// Of each segment.
    streams: Vec<u64>,
    pickle: PickleWriter<'w>,
    /// Where in the pickle's memo each call stack is.
    stacks: Vec<Option<u32>>,
    /// Where in the pickle's memo the default pool's number is.
    pool: Option<u32>,
}

impl SnapshotWriter<'_, '_, '_> {
    fn write(&mut self) -> io::Result<()> {
        // A dict with few keys, written by hand: its values borrow all of `self`.
        self.pickle.open_dict()?;
        self.pickle.key("segments")?;
        self.write_segments()?;
        self.pickle.key("device_traces")?;
        self.pickle.open_list()?;
        self.write_history()?;
        self.pickle.close_list()?;
        self.pickle.key("allocator_settings")?;
        self.pickle.open_dict()?;
        self.pickle.close_dict()?;
        self.pickle.key("external_annotations")?;
        self.pickle.open_list()?;
        self.pickle.close_list()?;
        self.pickle.close_dict()
    }

    fn number(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.pickle.key(key)?;
        // A stream's handle may be any 64 bits; readers take a negative number for one.
        self.pickle.int(value as i64)
    }

    fn pool_under(&mut self, key: &'static str) -> io::Result<()> {
        self.pickle.key(key)?;
        if let Some(pool) = self.pool {
            return self.pickle.again(pool);
        }
        self.pickle.pair(0, 0)?;
        self.pool = Some(self.pickle.memoize()?);
        Ok(())
    }

    fn write_segments(&mut self) -> io::Result<()> {
        let live = self.live_at_end();
        let mut live = live.into_iter().peekable();
        self.pickle.open_list()?;
        for index in 0..self.segments.last.len() {
            let segment = self.segments.last[index];
            let end = segment.address + segment.size;
            let mut inside = Vec::new();
            while let Some(block) = live.next_if(|block| block.address < end) {
                inside.push(block);
            }
            self.write_segment(segment, self.streams[index], &inside)?;
            self.pickle.item()?;
        }
        self.pickle.close_list()
    }

    fn live_at_end(&self) -> Vec<Live> {
        let mut live: Vec<Option<Live>> = Vec::new();
        for step in &self.checked.trace.steps {
            match step.op {
                Op::Alloc { block, size, .. } => live.push(Some(Live {
                    address: self.checked.addresses[block as usize],
                    size,
                    block,
                })),
                Op::Free { block, .. } => live[block as usize] = None,
                _ => {}
            }
        }
        let mut live: Vec<Live> = live.into_iter().flatten().collect();
        live.sort_unstable_by_key(|block| block.address);
        live
    }

    fn write_segment(&mut self, segment: Segment, stream: u64, live: &[Live]) -> io::Result<()> {
        let end = segment.address + segment.size;
        // Up to the next block, or the segment's end.
        let size = |index: usize| {
            let next = live.get(index + 1).map_or(end, |next| next.address);
            taken(live[index].size).min(next - live[index].address)
        };
        let active: u64 = (0..live.len()).map(size).sum();
        let requested: u64 = live.iter().map(|block| block.size).sum();
        self.pickle.open_dict()?;
        self.number("device", 0)?;
        self.number("address", segment.address)?;
        self.number("total_size", segment.size)?;
        self.number("allocated_size", active)?;
        self.number("active_size", active)?;
        self.number("requested_size", requested)?;
        self.number("stream", stream)?;
        self.pickle.key("segment_type")?;
        let small = segment.size <= 2 << 20;
        self.pickle.key(if small { "small" } else { "large" })?;
        self.pool_under("segment_pool_id")?;
        self.pickle.key("is_expandable")?;
        self.pickle.bool(segment.expandable)?;
        self.pickle.key("frames")?;
        self.pickle.open_list()?;
        self.pickle.close_list()?;
        self.pickle.key("blocks")?;
        self.pickle.open_list()?;
        let mut at = segment.address;
        for (index, block) in live.iter().enumerate() {
            if block.address > at {
                self.write_block(at, block.address - at, None)?;
            }
            self.write_block(block.address, size(index), Some(*block))?;
            at = block.address + size(index);
        }
        if at < end {
            self.write_block(at, end - at, None)?;
        }
        self.pickle.close_list()?;
        self.pickle.close_dict()
    }

    fn write_block(&mut self, address: u64, size: u64, live: Option<Live>) -> io::Result<()> {
        self.pickle.open_dict()?;
        self.number("address", address)?;
        self.number("size", size)?;
        self.number("requested_size", live.map_or(0, |block| block.size))?;
        self.pickle.key("state")?;
        self.pickle.key(match live {
            Some(_) => "active_allocated",
            None => "inactive",
        })?;
        self.pickle.key("frames")?;
        self.stack(live.map(|block| block.block))?;
        self.pickle.close_dict()?;
        self.pickle.item()
    }

    /// The call stack that allocated a block: a list, empty where there is none.
    fn stack(&mut self, block: Option<u32>) -> io::Result<()> {
        let trace = self.checked.trace;
        let number = block.and_then(|block| trace.block_sites.get(block as usize).copied()?);
        let Some(number) = number.map(|number| number as usize) else {
            self.pickle.open_list()?;
            return self.pickle.close_list();
        };
        if let Some(at) = self.stacks[number] {
            return self.pickle.again(at);
        }
        self.write_stack(&trace.sites[number])?;
        self.stacks[number] = Some(self.pickle.memoize()?);
        Ok(())
    }

    fn write_stack(&mut self, site: &Site) -> io::Result<()> {
        self.pickle.open_list()?;
        for frame in &site.frames {
            self.pickle.open_dict()?;
            self.pickle.key("filename")?;
            self.pickle.text(&frame.file)?;
            self.number("line", u64::from(frame.line))?;
            self.pickle.key("name")?;
            self.pickle.text(&frame.function)?;
            self.pickle.close_dict()?;
            self.pickle.item()?;
        }
        self.pickle.close_list()
    }

    /// The history of the only device.
    fn write_history(&mut self) -> io::Result<()> {
        let checked = self.checked;
        let trace = checked.trace;
        let mut reserved = trace.reserved.iter().peekable();
        let mut failures = trace.failures.iter().peekable();
        let mut now_us = 0;
        self.pickle.open_list()?;
        for index in 0..=trace.steps.len() {
            if let Some(step) = trace.steps.get(index) {
                now_us = step.host_ns / 1000;
            }
            while let Some(step) = reserved.next_if(|step| step.step as usize == index) {
                let action = match step.action {
                    ReservedAction::Initial => continue,
                    ReservedAction::SegmentAlloc => "segment_alloc",
                    ReservedAction::SegmentFree => "segment_free",
                    ReservedAction::SegmentMap => "segment_map",
                    ReservedAction::SegmentUnmap => "segment_unmap",
                };
                if let Some(address) = step.address.filter(|_| self.segments.carried) {
                    let segment = containing(&self.segments.last, address);
                    let stream = segment.map_or(0, |segment| self.streams[segment]);
                    self.entry(action, Some(address), step.bytes, stream, now_us)?;
                    self.close_entry()?;
                }
            }
            while let Some(failed) = failures.next_if(|failed| failed.step as usize == index) {
                self.entry("oom", None, failed.bytes, 0, now_us)?;
                self.number("device_free", failed.device_free.unwrap_or(0))?;
                self.close_entry()?;
            }
            let Some(step) = trace.steps.get(index) else {
                break;
            };
            match step.op {
                Op::Alloc {
                    block,
                    size,
                    stream,
                } => {
                    let at = checked.addresses[block as usize];
                    let stream = checked.handles[stream as usize];
                    self.entry("alloc", Some(at), size, stream, now_us)?;
                    if trace.site_of(block).is_some() {
                        self.pickle.key("frames")?;
                        self.stack(Some(block))?;
                    }
                    self.close_entry()?;
                }
                Op::Free { block, stream, .. } => {
                    let at = checked.addresses[block as usize];
                    let size = checked.sizes[block as usize];
                    let stream = checked.handles[stream as usize];
                    for action in ["free_requested", "free_completed"] {
                        self.entry(action, Some(at), size, stream, now_us)?;
                        self.close_entry()?;
                    }
                }
                Op::Use { .. } | Op::UseEnd { .. } | Op::Record { .. } | Op::Wait { .. } => {}
            }
        }
        self.pickle.close_list()?;
        self.pickle.item()
    }

    /// Begins an entry, which may have more keys.
    fn entry(
        &mut self,
        action: &'static str,
        address: Option<u64>,
        size: u64,
        stream: u64,
        time_us: u64,
    ) -> io::Result<()> {
        self.pickle.open_dict()?;
        self.pickle.key("action")?;
        self.pickle.key(action)?;
        if let Some(address) = address {
            self.number("addr", address)?;
        }
        self.number("size", size)?;
        self.number("stream", stream)?;
        self.number("time_us", time_us)?;
        self.pool_under("pool_id")?;
        self.pool_under("segment_pool_id")
    }

    fn close_entry(&mut self) -> io::Result<()> {
        self.pickle.close_dict()?;
        self.pickle.item()
    }
}
