//! Builds a [`Trace`] from what the readers find, and keeps its invariants: whatever a reader
//! reports, only steps that fit the ones before are added, the rest is noted.
//!
//! A *key* is what a file calls a block: its address, or its number. A key names at most one
//! live block, and can be used again once that is freed.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;

use crate::error::{ErrorKind, Position, TraceError};
use crate::limits::Limits;
use crate::model::{FailedStep, Format, Op, ReservedAction, ReservedStep, Site, Step, Trace};

/// When something happened: the host's time and, where known, the device's; nanoseconds on the
/// recording's own clock.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) host_ns: u64,
    pub(crate) device_ns: Option<u64>,
}

impl Times {
    pub(crate) fn host(host_ns: u64) -> Self {
        Self {
            host_ns,
            device_ns: None,
        }
    }
}

/// How a file writes stream handles.
#[derive(Clone, Copy)]
pub(crate) enum Radix {
    Decimal,
    Hexadecimal,
}

impl Radix {
    fn show(self, number: u64) -> String {
        match self {
            Radix::Hexadecimal if number != 0 => format!("{number:#x}"),
            _ => number.to_string(),
        }
    }
}

// The maps hash with the standard library's keyed hash: a file must not be able to choose
// keys that collide.
pub(crate) struct Builder<'l> {
    limits: &'l Limits,
    radix: Radix,
    /// Where the reader is, for errors.
    at: Position,
    steps: Vec<Step>,
    reserved: Vec<ReservedStep>,
    failures: Vec<FailedStep>,
    /// The key of each block.
    keys: Vec<u64>,
    sites: Vec<Site>,
    /// Of each block up to the last one that has a site.
    block_sites: Vec<Option<u32>>,
    streams: Vec<String>,
    stream_index: HashMap<u64, u32>,
    /// The handle asked for last and its index: most lines name the same stream.
    last_stream: Option<(u64, u32)>,
    blocks: HashMap<u64, Known>,
    block_count: u32,
    /// `(block, stream)` of every open use.
    open_uses: BTreeSet<(u32, u32)>,
    events: HashMap<u64, u32>,
    live_bytes: u64,
    clock: Clock,
    counts: Counts,
    notes: Vec<String>,
}

/// What is known of a key.
enum Known {
    Live {
        block: u32,
        size: u64,
        since: Position,
    },
    /// Freed by the job, not yet by the recording allocator; or never seen live.
    Requested,
}

#[derive(Default)]
struct Clock {
    origin: Option<u64>,
    last: u64,
}

/// What was left out or adjusted, for the notes.
#[derive(Default)]
struct Counts {
    unknown_frees: u64,
    other_sizes: u64,
    unknown_uses: u64,
    unknown_waits: u64,
    open_uses: u64,
    backwards: u64,
    early_device: u64,
}

impl<'l> Builder<'l> {
    pub(crate) fn new(limits: &'l Limits, radix: Radix) -> Self {
        Self {
            limits,
            radix,
            at: Position::Start,
            steps: Vec::new(),
            reserved: Vec::new(),
            failures: Vec::new(),
            keys: Vec::new(),
            sites: Vec::new(),
            block_sites: Vec::new(),
            streams: Vec::new(),
            stream_index: HashMap::new(),
            last_stream: None,
            blocks: HashMap::new(),
            block_count: 0,
            open_uses: BTreeSet::new(),
            events: HashMap::new(),
            live_bytes: 0,
            clock: Clock::default(),
            counts: Counts::default(),
            notes: Vec::new(),
        }
    }

    /// Says where in the file the following calls come from.
    pub(crate) fn set_position(&mut self, at: Position) {
        self.at = at;
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(crate) fn alloc(
        &mut self,
        key: u64,
        size: u64,
        handle: u64,
        times: Times,
    ) -> Result<(), TraceError> {
        let stream = self.stream(handle)?;
        let live = self.live_bytes.checked_add(size);
        self.live_bytes = live.ok_or_else(|| TraceError::new(self.at, ErrorKind::LiveOverflow))?;
        let block = self.block_count;
        let known = Known::Live {
            block,
            size,
            since: self.at,
        };
        match self.blocks.entry(key) {
            Entry::Occupied(mut old) => {
                if let Known::Live { since, .. } = *old.get() {
                    let kind = ErrorKind::StillLive {
                        key: self.radix.show(key),
                        since,
                    };
                    return Err(TraceError::new(self.at, kind));
                }
                old.insert(known);
            }
            Entry::Vacant(free) => {
                free.insert(known);
            }
        }
        self.push(times.host_ns, |_| Op::Alloc {
            block,
            size,
            stream,
        })?;
        self.block_count += 1;
        self.keys.push(key);
        Ok(())
    }

    /// The job gave a block back, once and for all.
    pub(crate) fn free(
        &mut self,
        key: u64,
        size: u64,
        handle: u64,
        times: Times,
    ) -> Result<(), TraceError> {
        match self.blocks.remove(&key) {
            Some(Known::Live {
                block, size: own, ..
            }) => {
                self.counts.other_sizes += u64::from(size != own);
                self.push_free(block, own, handle, times)
            }
            _ => {
                self.counts.unknown_frees += 1;
                Ok(())
            }
        }
    }

    /// The job gave a block back; `free_completed` may follow.
    pub(crate) fn free_requested(
        &mut self,
        key: u64,
        size: u64,
        handle: u64,
        times: Times,
    ) -> Result<(), TraceError> {
        self.free(key, size, handle, times)?;
        // Of unknown blocks no step is kept, so they are bounded on their own.
        self.check_steps(self.blocks.len())?;
        self.blocks.insert(key, Known::Requested);
        Ok(())
    }

    /// The job gave a block back before the recording began; `free_completed` may follow.
    pub(crate) fn requested_before(&mut self, key: u64) -> Result<(), TraceError> {
        self.check_steps(self.blocks.len())?;
        self.blocks.insert(key, Known::Requested);
        Ok(())
    }

    /// The recording allocator could free; a free of the job only if none was requested.
    pub(crate) fn free_completed(
        &mut self,
        key: u64,
        size: u64,
        handle: u64,
        times: Times,
    ) -> Result<(), TraceError> {
        if let Some(Known::Requested) = self.blocks.get(&key) {
            self.blocks.remove(&key);
            return Ok(());
        }
        self.free(key, size, handle, times)
    }

    pub(crate) fn use_on(&mut self, key: u64, handle: u64, times: Times) -> Result<(), TraceError> {
        let stream = self.stream(handle)?;
        let Some(&Known::Live { block, .. }) = self.blocks.get(&key) else {
            self.counts.unknown_uses += 1;
            return Ok(());
        };
        self.open_uses.insert((block, stream));
        self.push(times.host_ns, |_| Op::Use { block, stream })
    }

    pub(crate) fn use_end(
        &mut self,
        key: u64,
        handle: u64,
        times: Times,
    ) -> Result<(), TraceError> {
        let stream = self.stream(handle)?;
        match self.blocks.get(&key) {
            Some(&Known::Live { block, .. }) if self.open_uses.remove(&(block, stream)) => self
                .push_timed(times, |device_ns| Op::UseEnd {
                    block,
                    stream,
                    device_ns,
                }),
            _ => {
                self.counts.unknown_uses += 1;
                Ok(())
            }
        }
    }

    pub(crate) fn record(
        &mut self,
        event: u64,
        handle: u64,
        times: Times,
    ) -> Result<(), TraceError> {
        let stream = self.stream(handle)?;
        // As many events as steps at most, which are bounded below u32::MAX.
        let next = self.events.len() as u32;
        let event = *self.events.entry(event).or_insert(next);
        self.push_timed(times, |device_ns| Op::Record {
            event,
            stream,
            device_ns,
        })
    }

    pub(crate) fn wait(&mut self, event: u64, handle: u64, times: Times) -> Result<(), TraceError> {
        let stream = self.stream(handle)?;
        let Some(&event) = self.events.get(&event) else {
            self.counts.unknown_waits += 1;
            return Ok(());
        };
        self.push(times.host_ns, |_| Op::Wait { event, stream })
    }

    /// The recording allocator got or returned memory.
    pub(crate) fn reserved(
        &mut self,
        action: ReservedAction,
        bytes: u64,
        address: Option<u64>,
    ) -> Result<(), TraceError> {
        self.check_steps(self.reserved.len())?;
        self.reserved.push(ReservedStep {
            step: self.steps.len() as u32,
            action,
            bytes,
            address,
        });
        Ok(())
    }

    /// The recording allocator could not serve a request.
    pub(crate) fn failed(
        &mut self,
        bytes: u64,
        device_free: Option<u64>,
    ) -> Result<(), TraceError> {
        self.check_steps(self.failures.len())?;
        self.failures.push(FailedStep {
            step: self.steps.len() as u32,
            bytes,
            device_free,
        });
        Ok(())
    }

    /// Adds a call stack; gives its number.
    pub(crate) fn site(&mut self, site: Site) -> u32 {
        self.sites.push(site);
        // A recording has fewer stacks than values, which are bounded below `u32::MAX`.
        (self.sites.len() - 1) as u32
    }

    /// The last block was allocated by this call stack.
    pub(crate) fn allocated_by(&mut self, site: u32) {
        self.block_sites.resize(self.block_count as usize, None);
        if let Some(last) = self.block_sites.last_mut() {
            *last = Some(site);
        }
    }

    pub(crate) fn finish(mut self, name: &str, format: Format) -> Trace {
        let counts = std::mem::take(&mut self.counts);
        for (count, what) in [
            (counts.unknown_frees, "frees of unknown blocks ignored"),
            (
                counts.other_sizes,
                "frees name another size than the allocation, whose is kept",
            ),
            (
                counts.unknown_uses,
                "uses or ends of uses without a live block in use ignored",
            ),
            (
                counts.open_uses,
                "uses without an end were ended at the free",
            ),
            (
                counts.unknown_waits,
                "waits for events never recorded ignored",
            ),
            (
                counts.backwards,
                "times before the step ahead of them moved up to it",
            ),
            (
                counts.early_device,
                "device times before the first step moved up to it",
            ),
        ] {
            if count > 0 {
                self.notes.push(format!("{count} {what}"));
            }
        }
        self.steps.shrink_to_fit();
        if !self.block_sites.is_empty() {
            self.block_sites.resize(self.block_count as usize, None);
        }
        // An ordered CSV has numbers in place of addresses.
        let addresses = match format {
            Format::OrderedCsv => Vec::new(),
            _ => self.keys,
        };
        Trace {
            name: name.to_owned(),
            format,
            ordered: format == Format::OrderedCsv,
            streams: self.streams,
            block_count: self.block_count,
            event_count: self.events.len() as u32,
            steps: self.steps,
            reserved: self.reserved,
            failures: self.failures,
            addresses,
            sites: self.sites,
            block_sites: self.block_sites,
            notes: self.notes,
        }
    }

    fn push_free(
        &mut self,
        block: u32,
        size: u64,
        handle: u64,
        times: Times,
    ) -> Result<(), TraceError> {
        let stream = self.stream(handle)?;
        let host = Times::host(times.host_ns);
        while let Some(&(_, other)) = self.open_uses.range((block, 0)..=(block, u32::MAX)).next() {
            self.open_uses.remove(&(block, other));
            self.counts.open_uses += 1;
            self.push_timed(host, |device_ns| Op::UseEnd {
                block,
                stream: other,
                device_ns,
            })?;
        }
        self.live_bytes -= size;
        self.push_timed(times, |device_ns| Op::Free {
            block,
            stream,
            device_ns,
        })
    }

    fn stream(&mut self, handle: u64) -> Result<u32, TraceError> {
        if let Some((last, index)) = self.last_stream
            && last == handle
        {
            return Ok(index);
        }
        let next = self.streams.len() as u32;
        let index = *self.stream_index.entry(handle).or_insert(next);
        if index == next {
            if next >= self.limits.streams {
                let limit = u64::from(self.limits.streams);
                return Err(TraceError::limit(self.at, "streams", limit));
            }
            self.streams.push(self.radix.show(handle));
        }
        self.last_stream = Some((handle, index));
        Ok(index)
    }

    fn push_timed(
        &mut self,
        times: Times,
        op: impl FnOnce(Option<NonZeroU64>) -> Op,
    ) -> Result<(), TraceError> {
        let device = times.device_ns;
        self.push(
            times.host_ns,
            |this| op(device.map(|ns| this.device_ns(ns))),
        )
    }

    /// Adds a step; `op` is made once the clock has its origin.
    fn push(&mut self, host_ns: u64, op: impl FnOnce(&mut Self) -> Op) -> Result<(), TraceError> {
        self.check_steps(self.steps.len())?;
        let origin = *self.clock.origin.get_or_insert(host_ns);
        let now = host_ns.saturating_sub(origin);
        self.counts.backwards += u64::from(host_ns < origin || now < self.clock.last);
        self.clock.last = self.clock.last.max(now);
        let host_ns = self.clock.last;
        let op = op(self);
        self.steps.push(Step { host_ns, op });
        Ok(())
    }

    fn device_ns(&mut self, ns: u64) -> NonZeroU64 {
        let origin = self.clock.origin.unwrap_or(0);
        self.counts.early_device += u64::from(ns < origin);
        NonZeroU64::new(ns.saturating_sub(origin)).unwrap_or(NonZeroU64::MIN)
    }

    fn check_steps(&self, count: usize) -> Result<(), TraceError> {
        let most = self.limits.steps.min(u32::MAX - 1);
        if count >= most as usize {
            return Err(TraceError::limit(self.at, "steps", u64::from(most)));
        }
        Ok(())
    }
}
