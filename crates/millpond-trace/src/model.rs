//! The recording itself, whatever its file format was.
//!
//! # Invariants
//! [`Trace::validate`] states them; every reader guarantees them.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

/// A recording of allocation in host order.
///
/// # Invariants
/// - Blocks are numbered `0..block_count` in the order of their `Alloc`; each is allocated
///   exactly once and freed at most once.
/// - Every `Free`, `Use` and `UseEnd` names a live block. A `UseEnd` ends all uses of its block
///   on its stream, and there is one; at a `Free` no use is open.
/// - Events are numbered `0..event_count` in the order of their first `Record`; every `Wait`
///   names one recorded before it, and means the latest record.
/// - Every stream is an index into `streams`.
/// - `host_ns` never decreases and begins with 0.
/// - The sizes of the blocks live at one time add up to less than 2^64. A size may be zero.
/// - `reserved` is ordered by `step`, and no `step` exceeds `steps.len()`; so is `failures`.
/// - `addresses` and `block_sites` are empty or have an entry for each block; a site is an index into
///   `sites`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The file name without `.gz` and then `.csv`, `.pickle`, `.pkl`, `.log` or `.txt`.
    pub name: String,
    /// What the file was.
    pub format: Format,
    /// Whether stream order and the device's progress are recorded.
    pub ordered: bool,
    /// The recording's own name of each stream, in the order of their first appearance.
    pub streams: Vec<String>,
    /// Number of blocks.
    pub block_count: u32,
    /// Number of user events.
    pub event_count: u32,
    /// What the job did, in host order.
    pub steps: Vec<Step>,
    /// What the recording allocator itself held, for comparison.
    pub reserved: Vec<ReservedStep>,
    /// Allocations that the recording allocator could not serve.
    pub failures: Vec<FailedStep>,
    /// Where the recording allocator had put each block; empty if the recording does not say.
    pub addresses: Vec<u64>,
    /// The call stacks that allocated, each once.
    pub sites: Vec<Site>,
    /// The call stack that allocated each block; empty if the recording has none.
    pub block_sites: Vec<Option<u32>>,
    /// What a reader of results should know: what was ignored, rebuilt or adjusted.
    pub notes: Vec<String>,
}

/// File format of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Pickle of `torch.cuda.memory._snapshot()`.
    PytorchSnapshot,
    /// `action,addr,size,stream,time_us`.
    EventCsv,
    /// `op,block,size,stream,event,host_us,device_us`.
    OrderedCsv,
    /// `Thread,Time,Action,Pointer,Size,Stream` of RMM's logging adaptor.
    RmmLog,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::PytorchSnapshot => "PyTorch snapshot",
            Format::EventCsv => "event CSV",
            Format::OrderedCsv => "ordered CSV",
            Format::RmmLog => "RMM log",
        })
    }
}

/// One thing that the job did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Nanoseconds since the first step, by the host's clock.
    pub host_ns: u64,
    /// What was done.
    pub op: Op,
}

/// What the job did. `device_ns` is on the clock of [`Step::host_ns`]; a time before the first
/// step's is given as 1. It is `None` where the recording does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A block is allocated on its stream.
    Alloc {
        /// The new block.
        block: u32,
        /// Bytes asked for.
        size: u64,
        /// The stream it was asked for on.
        stream: u32,
    },
    /// The host gives the block back.
    Free {
        /// A live block.
        block: u32,
        /// The stream of the free: the block's own unless the file says otherwise.
        stream: u32,
        /// When the last use of the block on that stream was over.
        device_ns: Option<NonZeroU64>,
    },
    /// From now on the block is used on `stream` as well; may repeat.
    Use {
        /// A live block.
        block: u32,
        /// The other stream.
        stream: u32,
    },
    /// The host will use the block on `stream` no more.
    UseEnd {
        /// A live block in use on `stream`.
        block: u32,
        /// The other stream.
        stream: u32,
        /// When the last use of the block on that stream was over.
        device_ns: Option<NonZeroU64>,
    },
    /// An event is recorded on `stream`.
    Record {
        /// The event.
        event: u32,
        /// Where it is recorded.
        stream: u32,
        /// When the device reached it.
        device_ns: Option<NonZeroU64>,
    },
    /// `stream` waits for the latest record of `event`.
    Wait {
        /// An event recorded before.
        event: u32,
        /// Which stream waits.
        stream: u32,
    },
}

// Millions of steps are held at once.
const _: () = assert!(size_of::<Step>() <= 40);

/// The recording allocator got or returned memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedStep {
    /// It happened before `steps[step]`; `steps.len()` for after the last.
    pub step: u32,
    /// What it did.
    pub action: ReservedAction,
    /// Bytes of device memory got or returned.
    pub bytes: u64,
    /// Where, if the recording says.
    pub address: Option<u64>,
}

/// The recording allocator could not serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedStep {
    /// It happened before `steps[step]`; `steps.len()` for after the last.
    pub step: u32,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes that were free on the device, if the recording says.
    pub device_free: Option<u64>,
}

/// A call stack that allocated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The innermost first.
    pub frames: Vec<Arc<Frame>>,
}

/// A place in a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The file's name, as the recording gives it.
    pub file: String,
    /// From 1; 0 where it is not known.
    pub line: u32,
    /// The function's name.
    pub function: String,
}

impl Site {
    /// The frame that tells most, in a few words: the innermost one of a Python file that is not
    /// PyTorch's own, or of any Python file, or of one of PyTorch's operators, or that is not the
    /// allocator's or the recorder's own.
    pub fn label(&self) -> String {
        let python = |frame: &&Arc<Frame>| frame.file.ends_with(".py");
        let own = |frame: &&Arc<Frame>| python(frame) && !frame.file.contains("/torch/");
        let operator = |frame: &&Arc<Frame>| frame.function.starts_with("at::native::");
        let others = |frame: &&Arc<Frame>| {
            const MACHINERY: [&str; 4] = [
                "unwind",
                "CapturedTraceback",
                "gather_with_cpp",
                "CachingAllocator",
            ];
            !MACHINERY.iter().any(|name| frame.function.contains(name))
        };
        let frames = || self.frames.iter();
        let chosen = frames()
            .find(own)
            .or_else(|| frames().find(python))
            .or_else(|| frames().find(operator))
            .or_else(|| frames().find(others))
            .or_else(|| frames().next());
        chosen.map_or_else(|| "no frames".to_owned(), |frame| frame.to_string())
    }
}

/// `train.py:12 forward`; without a line, the function up to its arguments.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.replace("(anonymous namespace)::", "");
        let function = function.split(['(', '<']).next().unwrap_or_default();
        if self.line == 0 {
            return f.write_str(function);
        }
        let file = self.file.rsplit(['/', '\\']).next().unwrap_or_default();
        write!(f, "{file}:{} {function}", self.line)
    }
}

/// What a recording allocator does with device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedAction {
    /// What it held before the recording began.
    Initial,
    /// `segment_alloc`: allocated.
    SegmentAlloc,
    /// `segment_free`: released.
    SegmentFree,
    /// `segment_map`: created and mapped into an expandable segment.
    SegmentMap,
    /// `segment_unmap`: unmapped and released.
    SegmentUnmap,
}

/// A [`Trace`] that breaks one of its invariants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trace `{name}`, step {step}: {rule}")]
pub struct InvalidTrace {
    /// The trace's name.
    pub name: String,
    /// The step at which it is broken; `steps.len()` if it is not one step's.
    pub step: usize,
    /// The broken rule.
    pub rule: TraceRule,
}

/// The rules that [`Trace::validate`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceRule {
    /// A block's number is not the next one at its allocation.
    #[error("block {0} is not the next to be allocated")]
    BlockNotNext(u32),
    /// A block is named that is not live.
    #[error("block {0} is not live")]
    BlockNotLive(u32),
    /// A use ends that is not open, or a block is freed while one is.
    #[error("block {0}: a use ends that is not open, or is open at the free")]
    UseUnbalanced(u32),
    /// An event's number is neither known nor the next one at its record.
    #[error("event {0} is not the next to be recorded")]
    EventNotNext(u32),
    /// An event is waited for that was not recorded.
    #[error("event {0} was never recorded")]
    EventNotRecorded(u32),
    /// A stream without a name.
    #[error("stream {0} is not in the list of streams")]
    StreamUnknown(u32),
    /// The host's time went backwards, or does not begin with 0.
    #[error("host time goes backwards or does not begin with 0")]
    TimeBackwards,
    /// The live blocks are too large together.
    #[error("live bytes exceed 2^64 - 1")]
    LiveOverflow,
    /// `block_count` or `event_count` is not what the steps hold.
    #[error("block_count or event_count differs from the steps")]
    WrongCount,
    /// `reserved` is out of order or points outside the steps.
    #[error("the reserved or the failed list is out of order or points outside the steps")]
    ReservedOutOfOrder,
    /// `addresses` or `block_sites` does not fit the blocks.
    #[error("addresses or sites do not fit the blocks")]
    WrongPlaces,
}

impl Trace {
    /// The most bytes live at one time, in sizes asked for.
    pub fn peak_live_bytes(&self) -> u64 {
        let mut sizes = Vec::new();
        let (mut live, mut peak) = (0_u64, 0_u64);
        for step in &self.steps {
            match step.op {
                Op::Alloc { size, .. } => {
                    sizes.push(size);
                    live = live.saturating_add(size);
                    peak = peak.max(live);
                }
                Op::Free { block, .. } => {
                    let size = sizes.get(block as usize).copied().unwrap_or(0);
                    live = live.saturating_sub(size);
                }
                _ => {}
            }
        }
        peak
    }

    /// The most bytes that the recording allocator held at one time, as far as the recording
    /// says: only a snapshot knows what was held before it began. `None` if it says nothing.
    pub fn recorded_peak_reserved_bytes(&self) -> Option<u64> {
        let (mut held, mut peak) = (0_u64, None);
        for step in &self.reserved {
            held = match step.action {
                ReservedAction::Initial
                | ReservedAction::SegmentAlloc
                | ReservedAction::SegmentMap => held.saturating_add(step.bytes),
                ReservedAction::SegmentFree | ReservedAction::SegmentUnmap => {
                    held.saturating_sub(step.bytes)
                }
            };
            peak = peak.max(Some(held));
        }
        peak
    }

    /// The call stack that allocated a block, if the recording has it.
    pub fn site_of(&self, block: u32) -> Option<&Site> {
        let site = (*self.block_sites.get(block as usize)?)?;
        self.sites.get(site as usize)
    }

    /// Checks every invariant of [`Trace`]; the readers' own results always pass.
    ///
    /// # Errors
    /// The first step that breaks a rule, and the rule.
    pub fn validate(&self) -> Result<(), InvalidTrace> {
        let invalid = |step, rule| {
            Err(InvalidTrace {
                name: self.name.clone(),
                step,
                rule,
            })
        };
        let mut check = Validator::new(self.streams.len());
        for (index, step) in self.steps.iter().enumerate() {
            if let Err(rule) = check.step(step) {
                return invalid(index, rule);
            }
        }
        let end = self.steps.len();
        if (check.sizes.len(), check.events) != (self.block_count as usize, self.event_count) {
            return invalid(end, TraceRule::WrongCount);
        }
        let mut last = 0;
        for reserved in &self.reserved {
            if reserved.step < last || reserved.step as usize > end {
                return invalid(reserved.step as usize, TraceRule::ReservedOutOfOrder);
            }
            last = reserved.step;
        }
        last = 0;
        for failed in &self.failures {
            if failed.step < last || failed.step as usize > end {
                return invalid(failed.step as usize, TraceRule::ReservedOutOfOrder);
            }
            last = failed.step;
        }
        let fits = |length: usize| length == 0 || length == self.block_count as usize;
        let known = |site: &Option<u32>| site.is_none_or(|site| (site as usize) < self.sites.len());
        if !fits(self.addresses.len())
            || !fits(self.block_sites.len())
            || !self.block_sites.iter().all(known)
        {
            return invalid(end, TraceRule::WrongPlaces);
        }
        Ok(())
    }
}

/// The state that [`Trace::validate`] carries along the steps.
struct Validator {
    streams: usize,
    /// Size of each block so far; `None` once it is freed.
    sizes: Vec<Option<u64>>,
    open_uses: HashSet<(u32, u32)>,
    /// Open uses of each block so far.
    use_counts: Vec<u32>,
    events: u32,
    live: u64,
    last_ns: Option<u64>,
}

impl Validator {
    fn new(streams: usize) -> Self {
        Self {
            streams,
            sizes: Vec::new(),
            open_uses: HashSet::new(),
            use_counts: Vec::new(),
            events: 0,
            live: 0,
            last_ns: None,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TraceRule> {
        if self
            .last_ns
            .map_or(step.host_ns != 0, |last| step.host_ns < last)
        {
            return Err(TraceRule::TimeBackwards);
        }
        self.last_ns = Some(step.host_ns);
        let (Op::Alloc { stream, .. }
        | Op::Free { stream, .. }
        | Op::Use { stream, .. }
        | Op::UseEnd { stream, .. }
        | Op::Record { stream, .. }
        | Op::Wait { stream, .. }) = step.op;
        if stream as usize >= self.streams {
            return Err(TraceRule::StreamUnknown(stream));
        }
        match step.op {
            Op::Alloc { block, size, .. } => self.alloc(block, size),
            Op::Free { block, .. } => {
                let size = self.live_size(block)?;
                if self.use_counts[block as usize] != 0 {
                    return Err(TraceRule::UseUnbalanced(block));
                }
                self.live -= size;
                self.sizes[block as usize] = None;
                Ok(())
            }
            Op::Use { block, .. } => {
                self.live_size(block)?;
                self.use_counts[block as usize] +=
                    u32::from(self.open_uses.insert((block, stream)));
                Ok(())
            }
            Op::UseEnd { block, .. } => {
                self.live_size(block)?;
                if !self.open_uses.remove(&(block, stream)) {
                    return Err(TraceRule::UseUnbalanced(block));
                }
                self.use_counts[block as usize] -= 1;
                Ok(())
            }
            Op::Record { event, .. } if event > self.events => Err(TraceRule::EventNotNext(event)),
            Op::Record { event, .. } => {
                self.events = self.events.max(event + 1);
                Ok(())
            }
            Op::Wait { event, .. } if event >= self.events => {
                Err(TraceRule::EventNotRecorded(event))
            }
            Op::Wait { .. } => Ok(()),
        }
    }

    fn alloc(&mut self, block: u32, size: u64) -> Result<(), TraceRule> {
        if block as usize != self.sizes.len() {
            return Err(TraceRule::BlockNotNext(block));
        }
        self.live = self.live.checked_add(size).ok_or(TraceRule::LiveOverflow)?;
        self.sizes.push(Some(size));
        self.use_counts.push(0);
        Ok(())
    }

    fn live_size(&self, block: u32) -> Result<u64, TraceRule> {
        self.sizes
            .get(block as usize)
            .copied()
            .flatten()
            .ok_or(TraceRule::BlockNotLive(block))
    }
}
