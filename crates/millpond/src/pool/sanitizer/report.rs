//! What the sanitizer found, as values and as text.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

use crate::device::StreamId;

/// What a stream does with a block: see [`Block::access`](crate::Block::access).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes, and may read.
    Write,
}

/// What is wrong between two calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Hazard {
    /// A stream uses the block that does not come after its allocation: what used the memory before
    /// may not be over.
    UseNotOrderedAfterAllocation,
    /// A stream uses the block in a way that neither the free nor the end of any declared use comes
    /// after: the memory may be another block's by then.
    FreeNotOrderedAfterUse,
    /// The block was used after it was freed.
    UseAfterFree,
    /// The block was freed twice.
    DoubleFree,
    /// Two streams use the block, one of them writes, and neither comes after the other.
    ConflictingAccesses,
}

/// What a call did with a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Action {
    /// It allocated the block.
    Allocate,
    /// It declared that a stream reads or writes the block
    /// ([`Block::access`](crate::Block::access)).
    Access(Access),
    /// It declared a use without saying of which kind
    /// ([`Block::use_on`](crate::Block::use_on), [`Block::hand_over`](crate::Block::hand_over)).
    Use,
    /// It ended a use.
    EndUse,
    /// It freed the block.
    Free,
}

/// A call of the program's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Site {
    /// What it did.
    pub action: Action,
    /// The stream that it named.
    pub stream: Option<StreamId>,
    /// Where it stands in the source; `None` for a block that went out of scope, of which the
    /// language does not tell where ([`Block::free`](crate::Block::free) does).
    pub location: Option<&'static Location<'static>>,
}

/// A block that a report is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportedBlock {
    /// The name that the program gave it.
    pub name: Option<Cow<'static, str>>,
    /// Where it starts, on the device.
    pub address: u64,
    /// Bytes asked for.
    pub size: u64,
}

/// Two calls of the program's whose order is wrong, or that have none.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OrderReport {
    /// What is wrong.
    pub hazard: Hazard,
    /// The first block with which it happened.
    pub block: ReportedBlock,
    /// The call that was made first.
    pub earlier: Site,
    /// The call that was made later.
    pub later: Site,
    /// How often it happened between calls at these places, on these streams, with blocks of this
    /// name.
    pub occurrences: u64,
}

impl OrderReport {
    fn is_of(&self, other: &OrderReport) -> bool {
        (self.hazard, self.earlier, self.later) == (other.hazard, other.earlier, other.later)
            && self.block.name == other.block.name
    }
}

/// Different reports that are kept; more are only warned of.
const KEPT: usize = 1000;

/// The reports of a pool, each kind once.
#[derive(Default, Debug)]
pub(super) struct Reports(Vec<OrderReport>);

impl Reports {
    pub(super) fn add(&mut self, report: OrderReport) {
        if let Some(known) = self.0.iter_mut().find(|known| known.is_of(&report)) {
            known.occurrences += 1;
            return;
        }
        tracing::warn!("{report}");
        if self.0.len() < KEPT {
            self.0.push(report);
        }
    }

    pub(super) fn all(&self) -> Vec<OrderReport> {
        self.0.clone()
    }
}

impl fmt::Display for ReportedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "block \"{name}\"")?,
            None => f.write_str("block without a name")?,
        }
        write!(f, " ({:#x}, {} bytes)", self.address, self.size)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Allocate => "the allocation",
            Action::Access(Access::Read) => "the read",
            Action::Access(Access::Write) => "the write",
            Action::Use => "the declared use",
            Action::EndUse => "the declared end of the use",
            Action::Free => "the free",
        })
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.action.fmt(f)?;
        if let Some(stream) = self.stream {
            write!(f, " on stream {stream}")?;
        }
        match self.location {
            Some(location) => write!(f, " at {location}"),
            None => f.write_str(" where it went out of scope"),
        }
    }
}

impl fmt::Display for OrderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OrderReport {
            hazard,
            block,
            earlier,
            later,
            occurrences,
        } = self;
        write!(f, "{block}: ")?;
        match hazard {
            Hazard::UseNotOrderedAfterAllocation | Hazard::ConflictingAccesses => {
                write!(f, "{later} is not ordered after {earlier}; record an event")?;
                if let Some(stream) = earlier.stream {
                    write!(f, " on stream {stream}")?;
                }
                let earlier = earlier.action;
                write!(f, " after {earlier} (Pool::record_event), and let ")?;
                match later.stream {
                    Some(stream) => write!(f, "stream {stream}")?,
                    None => f.write_str("the other stream")?,
                }
                write!(f, " wait for it before {} (Pool::wait_event)", later.action)?;
            }
            Hazard::FreeNotOrderedAfterUse => {
                write!(f, "{later} is not ordered after {earlier}; declare the use")?;
                if let Some(stream) = earlier.stream {
                    write!(f, " of stream {stream}")?;
                }
                f.write_str(
                    " (Block::use_on, and end it only after its last access), or let a stream that \
                     uses the block wait for it before the free",
                )?;
            }
            Hazard::UseAfterFree => {
                write!(f, "{later} comes after {earlier}; free the block later")?;
            }
            Hazard::DoubleFree => write!(f, "{later} comes after {earlier}; free it once")?,
        }
        match occurrences {
            1 => Ok(()),
            _ => write!(f, " ({occurrences} times)"),
        }
    }
}
