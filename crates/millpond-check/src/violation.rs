//! What the checker finds: each broken rule with everything needed to understand it.

use millpond::device::{Call, HandleId, StreamId};

/// The rule that was broken. The numbers are those of the pool's design.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// Rule 1: a byte belongs to one block at a time, whatever addresses it stands under.
    OneOwner,
    /// Rule 2: a returned address has the size and the alignment that were asked for.
    AsAsked,
    /// Rule 3: a byte is reused only after its earlier uses, in stream order or completed.
    StreamOrder,
    /// Rule 4: memory is taken away only when the host has seen all use of it complete.
    NotInUse,
    /// Rule 5, as far as it shows at the end: nothing is lost.
    NothingLost,
    /// The device's contract, not the pool's rules: a call succeeded that must be refused.
    Contract,
}

/// A block as the checker saw it handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSeen {
    /// Counts the blocks of one checker, from 0.
    pub number: u64,
    /// Where it begins.
    pub address: u64,
    /// Bytes that were asked for.
    pub size: u64,
    /// The stream it was asked for on.
    pub stream: StreamId,
}

impl std::fmt::Display for BlockSeen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "block {} ({:#x}, {} bytes, stream {})",
            self.number, self.address, self.size, self.stream
        )
    }
}

/// Why a part of a block cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    /// The block does not lie inside one reservation.
    OutsideReservation,
    /// No handle is mapped there.
    Unmapped,
    /// A handle is mapped there, but the device has no access to it.
    NoAccess,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Gap::OutsideReservation => "outside the reservation that the block begins in",
            Gap::Unmapped => "not mapped",
            Gap::NoAccess => "mapped without access",
        })
    }
}

/// Something that still exists at the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Remaining {
    /// A handle that was not released: its value.
    Handle(u64),
    /// A mapping: its address.
    Mapping(u64),
    /// A reservation: its base.
    Reservation(u64),
    /// Memory from `Device::allocate`: its address.
    Allocation(u64),
    /// An event: its value.
    Event(u64),
}

/// A broken rule.
///
/// Positions count what the checker saw on a stream; they are comparable within one stream only.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// A physical byte lies in two live blocks.
    #[error(
        "rule 1: {given} was given {length} bytes at offset {offset} of handle {handle:?} \
         that are still part of {owner}"
    )]
    SharedByte {
        /// The later block.
        given: BlockSeen,
        /// The block that has the byte.
        owner: BlockSeen,
        /// The handle, by value.
        handle: HandleId,
        /// The first shared byte in it.
        offset: u64,
        /// Shared bytes from there on.
        length: u64,
    },

    /// Two live blocks have one address.
    #[error("rule 1: {given} was given the address of {owner}, which is live")]
    SharedAddress {
        /// The later block.
        given: BlockSeen,
        /// The block that has the address.
        owner: BlockSeen,
    },

    /// The address is not a multiple of the alignment.
    #[error("rule 2: {given} is not aligned to {alignment} bytes as asked")]
    Misaligned {
        /// The block.
        given: BlockSeen,
        /// Bytes.
        alignment: u64,
    },

    /// Not all bytes of the block can be used.
    #[error("rule 2: {given} cannot be used at {address:#x}: {gap}")]
    Unusable {
        /// The block.
        given: BlockSeen,
        /// The first byte that cannot be used.
        address: u64,
        /// Why.
        gap: Gap,
    },

    /// A byte was reused before an earlier use of it was over or ordered.
    #[error(
        "rule 3: {given} was given {length} bytes at offset {offset} of handle {handle:?} that \
         {earlier} uses on stream {used_on} up to position {position}; {stream} is ordered after \
         position {ordered} of that stream, and the host has seen position {completed} complete",
        stream = given.stream
    )]
    Unordered {
        /// The later block.
        given: BlockSeen,
        /// The freed block whose use is not over.
        earlier: BlockSeen,
        /// The stream of that use.
        used_on: StreamId,
        /// Where that use ends.
        position: u64,
        /// Up to where of that stream the asking stream's next work is ordered.
        ordered: u64,
        /// Up to where of that stream the host knows the work complete.
        completed: u64,
        /// The handle, by value.
        handle: HandleId,
        /// The first such byte in it.
        offset: u64,
        /// Such bytes from there on.
        length: u64,
    },

    /// Memory was taken from under a live block.
    #[error("rule 4: {call:?} of {address:#x}, {size} bytes, takes memory from {owner}")]
    TakenFromLive {
        /// Unmap or free.
        call: Call,
        /// The mapping.
        address: u64,
        /// Its bytes.
        size: u64,
        /// The live block.
        owner: BlockSeen,
    },

    /// A mapping was taken away before a use through it was seen complete.
    #[error(
        "rule 4: {call:?} of {address:#x}, {size} bytes, through which {earlier} is used on \
         stream {used_on} up to position {position}; the host has seen position {completed} complete"
    )]
    TakenInUse {
        /// Unmap or free.
        call: Call,
        /// The mapping.
        address: u64,
        /// Its bytes.
        size: u64,
        /// The freed block whose use is not over.
        earlier: BlockSeen,
        /// The stream of that use.
        used_on: StreamId,
        /// Where that use ends.
        position: u64,
        /// Up to where of that stream the host knows the work complete.
        completed: u64,
    },

    /// A handle was released while a live block stands on it.
    #[error("rule 4: handle {handle:?} was released under {owner}")]
    ReleasedUnderLive {
        /// The handle, by value.
        handle: HandleId,
        /// A live block on it.
        owner: BlockSeen,
    },

    /// Something was not given back.
    #[error("rule 5: left behind at the end: {0:x?}")]
    LeftBehind(Remaining),

    /// The device did what its contract forbids; what follows in the log cannot be trusted.
    #[error("device contract: {call:?} at {address:#x} succeeded, but {reason}")]
    Contract {
        /// The call.
        call: Call,
        /// Its address, base, or handle.
        address: u64,
        /// What forbids it.
        reason: &'static str,
    },
}

impl Violation {
    /// The rule that was broken.
    pub fn rule(&self) -> Rule {
        match self {
            Violation::SharedByte { .. } | Violation::SharedAddress { .. } => Rule::OneOwner,
            Violation::Misaligned { .. } | Violation::Unusable { .. } => Rule::AsAsked,
            Violation::Unordered { .. } => Rule::StreamOrder,
            Violation::TakenFromLive { .. }
            | Violation::TakenInUse { .. }
            | Violation::ReleasedUnderLive { .. } => Rule::NotInUse,
            Violation::LeftBehind(_) => Rule::NothingLost,
            Violation::Contract { .. } => Rule::Contract,
        }
    }
}
