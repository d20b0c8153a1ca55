//! What streams do to bytes: fill, compare, copy.
//!
//! A range is worked on in chunks, and what lies there is looked up anew for each: memory that is
//! unmapped while work on it is queued or running is found missing, and the work ends with illegal
//! address, as it would on a device.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::space::{AddressSpace, Held};
use super::worker::Worker;
use crate::device::{Call, DeviceError, Findings, Pattern, Protection};

/// Bytes worked on between two looks at what is mapped.
const CHUNK: u64 = 1 << 20;

/// Bytes moved at once; small enough to stay in a core's nearest cache. Divides `CHUNK`, and is a
/// multiple of a pattern's word, so that each block begins with the word's first byte.
const BLOCK: usize = 16 << 10;

/// Bytes to write from which setting up the page tables first is worth a system call.
const WORTH_PREPARING: u64 = 64 << 10;

const WORD: usize = size_of::<u64>();

/// Where bytes are: in the device's own memory, or in another's that lets this one touch it.
pub(super) enum Reach<'a> {
    Own(&'a AddressSpace),
    Peer(Arc<Worker>, u32),
}

impl Reach<'_> {
    fn hold(&self) -> Held<'_> {
        match self {
            Reach::Own(space) => space.hold(),
            Reach::Peer(worker, ordinal) => worker.space.hold_for(*ordinal),
        }
    }
}

/// A block of the pattern, as far as a range of so many bytes needs it.
fn block_of(pattern: Pattern, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let words = size.div_ceil(WORD as u64) as usize;
    for word in block.chunks_exact_mut(WORD).take(words) {
        word.copy_from_slice(&pattern.0.to_le_bytes());
    }
    block
}

/// Cuts a size into steps: the offset and the length of each.
fn steps(size: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size.div_ceil(step)).map(move |n| (n * step, step.min(size - n * step)))
}

fn blocks(size: u64) -> impl Iterator<Item = (u64, usize)> {
    // A block's length fits, since it is at most `BLOCK`.
    steps(size, BLOCK as u64).map(|(offset, length)| (offset, length as usize))
}

/// Fills a range with a pattern.
pub(super) fn fill(
    space: &Reach<'_>,
    address: u64,
    size: u64,
    pattern: Pattern,
) -> Result<(), DeviceError> {
    let block = block_of(pattern, size);
    for (start, length) in steps(size, CHUNK) {
        let held = space.hold();
        let bytes = held.bytes(Call::Fill, address + start, length, Protection::ReadWrite)?;
        if length >= WORTH_PREPARING {
            bytes.prepare();
        }
        for (offset, length) in blocks(length) {
            bytes.store(offset, &block[..length]);
        }
    }
    Ok(())
}

/// Compares a range with a pattern.
pub(super) fn verify(
    space: &Reach<'_>,
    address: u64,
    size: u64,
    pattern: Pattern,
    findings: &Findings,
) -> Result<(), DeviceError> {
    let expected = block_of(pattern, size);
    let mut found = [0; BLOCK];
    for (start, length) in steps(size, CHUNK) {
        let held = space.hold();
        let bytes = held.bytes(Call::Verify, address + start, length, Protection::Read)?;
        for (offset, length) in blocks(length) {
            let found = &mut found[..length];
            bytes.load(offset, found);
            if found != &expected[..length] {
                report(found, pattern, findings);
            }
        }
    }
    Ok(())
}

/// Counts what is wrong in a block. The last word may be cut; its missing bytes count as zero.
fn report(found: &[u8], pattern: Pattern, findings: &Findings) {
    let mut wrong_bytes = 0;
    let mut wrong_word = 0;
    for bytes in found.chunks(WORD) {
        let mut word = [0; WORD];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        let difference = (word ^ pattern.0).to_le_bytes();
        let wrong = difference[..bytes.len()]
            .iter()
            .filter(|&&byte| byte != 0)
            .count();
        if wrong > 0 {
            wrong_bytes += wrong as u64;
            wrong_word = word;
        }
    }
    findings.report(wrong_bytes, wrong_word);
}

/// Copies a range to another.
pub(super) fn copy(
    (to, destination): (&Reach<'_>, u64),
    (from, source): (&Reach<'_>, u64),
    size: u64,
) -> Result<(), DeviceError> {
    let (Reach::Own(space), Reach::Own(_)) = (to, from) else {
        return copy_across((to, destination), (from, source), size);
    };
    let mut block = [0; BLOCK];
    for (start, length) in steps(size, CHUNK) {
        let held = space.hold();
        let from = held.bytes(Call::Copy, source + start, length, Protection::Read)?;
        let to = held.bytes(
            Call::Copy,
            destination + start,
            length,
            Protection::ReadWrite,
        )?;
        if length >= WORTH_PREPARING {
            to.prepare();
        }
        for (offset, length) in blocks(length) {
            let block = &mut block[..length];
            from.load(offset, block);
            to.store(offset, block);
        }
    }
    Ok(())
}

/// Copies between two devices' memory. Only one of them is held at a time, so that two devices that
/// copy from each other cannot wait for each other.
fn copy_across(
    (to, destination): (&Reach<'_>, u64),
    (from, source): (&Reach<'_>, u64),
    size: u64,
) -> Result<(), DeviceError> {
    let mut block = [0; BLOCK];
    for (offset, length) in blocks(size) {
        let block = &mut block[..length];
        let needed = Protection::Read;
        from.hold()
            .bytes(Call::Copy, source + offset, length as u64, needed)?
            .load(0, block);
        let needed = Protection::ReadWrite;
        to.hold()
            .bytes(Call::Copy, destination + offset, length as u64, needed)?
            .store(0, block);
    }
    Ok(())
}

/// Reads bytes for the host.
pub(super) fn read(space: &AddressSpace, address: u64, into: &mut [u8]) -> Result<(), DeviceError> {
    let held = space.hold();
    let bytes = held.bytes(Call::Copy, address, into.len() as u64, Protection::Read)?;
    bytes.load(0, into);
    Ok(())
}

/// Writes bytes for the host.
pub(super) fn write(space: &AddressSpace, address: u64, from: &[u8]) -> Result<(), DeviceError> {
    let held = space.hold();
    let bytes = held.bytes(
        Call::Copy,
        address,
        from.len() as u64,
        Protection::ReadWrite,
    )?;
    bytes.store(0, from);
    Ok(())
}
