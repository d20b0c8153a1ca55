//! The address space at each moment, in a fixed number of cells, and its largest blocks.
//!
//! Addresses that never had memory are left out; a cell is an equal part of the rest. What stands in
//! a cell is one byte: 0 where nothing is mapped, else `1 + live + 16 * elsewhere` with the share of
//! live bytes (0 to 15) and the share whose memory is live through another address (0 to 3). A second
//! byte names the stream of the block that has most of the cell.
//!
//! # Invariants
//!
//! - A share is 0 only if there is nothing of it.

use std::collections::HashMap;
use std::ops::Range;

use millpond_trace::Trace;
use serde::Serialize;

use super::axis::{Axis, MOMENTS};
use crate::replay::{Band, Block, Recording};

const CELLS: usize = 3072;

/// What cells are multiples of, in bytes.
const CELL_STEP: u64 = 64 << 10;

/// Blocks that the page knows by themselves.
const LARGE: usize = 3000;

/// See the [module](self). Sizes are in bytes.
#[derive(Default, Debug, Serialize)]
pub(super) struct Map {
    cells: usize,
    cell_bytes: u64,
    /// Address and size of each range that ever had memory.
    ranges: Vec<(u64, u64)>,
    /// Names of streams, as the second byte counts them from 1.
    streams: Vec<String>,
    blocks: LargeBlocks,
    /// Where in the page's bytes the cells are: one moment after the other, each as what differs
    /// from the one before.
    at: usize,
    #[serde(skip)]
    fill: Vec<u8>,
    #[serde(skip)]
    stream: Vec<u8>,
}

/// The largest blocks, in columns.
#[derive(Default, Debug, Serialize)]
struct LargeBlocks {
    address: Vec<u64>,
    size: Vec<u64>,
    /// The moments at which they are there: from this one, up to before that one.
    from: Vec<usize>,
    to: Vec<usize>,
    stream: Vec<u32>,
    /// The call site, where the recording has it: a place in `sites`.
    site: Vec<Option<usize>>,
    sites: Vec<String>,
}

/// Memory in which nothing is live, in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Free {
    pub(super) bytes: u64,
    pub(super) largest: u64,
}

impl Map {
    /// `numbered`: the blocks come in the order of the recording's, none is missing.
    pub(super) fn new(
        recording: &Recording,
        axis: &Axis,
        trace: &Trace,
        numbered: bool,
    ) -> (Map, Vec<Free>) {
        let ranges = merged(&recording.bands);
        let total: u64 = ranges.iter().map(|&(_, size)| size).sum();
        let cell_bytes = total
            .div_ceil(CELLS as u64)
            .next_multiple_of(CELL_STEP)
            .max(CELL_STEP);
        let cells = total.div_ceil(cell_bytes) as usize;
        let mut map = Map {
            cells,
            cell_bytes,
            ranges,
            streams: trace.streams.clone(),
            blocks: LargeBlocks::new(&recording.blocks, axis, trace, numbered),
            at: 0,
            fill: Vec::with_capacity(cells * MOMENTS),
            stream: Vec::with_capacity(cells * MOMENTS),
        };
        let places = Places::new(&map.ranges);
        let mut bands = Present::new(&recording.bands, |band| (band.from, band.to));
        let mut blocks = Present::new(&recording.blocks, |block| (block.from, block.to));
        let mut free = Vec::with_capacity(axis.moments.len());
        for moment in &axis.moments {
            bands.come_to(moment.operations);
            blocks.come_to(moment.operations);
            let sight = Sight::new(bands.sorted(), blocks.sorted());
            free.push(sight.free());
            let (fill, stream) = sight.cells(&places, cells, cell_bytes);
            map.fill.extend(fill);
            map.stream.extend(stream);
        }
        (map, free)
    }

    /// Puts the cells at the end of these bytes.
    pub(super) fn pack(&mut self, bytes: &mut Vec<u8>) {
        self.at = bytes.len();
        for cells in [&self.fill, &self.stream] {
            let before = std::iter::repeat_n(&0, self.cells).chain(cells);
            bytes.extend(cells.iter().zip(before).map(|(now, before)| now ^ before));
        }
        self.fill = Vec::new();
        self.stream = Vec::new();
    }
}

/// All addresses that ever had memory, in ranges that do not touch.
fn merged(bands: &[Band]) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = bands.iter().map(|b| (b.address, b.size)).collect();
    all.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (address, size) in all {
        match ranges.last_mut() {
            Some(last) if address <= last.0 + last.1 => {
                last.1 = last.1.max(address + size - last.0);
            }
            _ => ranges.push((address, size)),
        }
    }
    ranges
}

/// Addresses without those that never had memory.
struct Places<'a> {
    ranges: &'a [(u64, u64)],
    /// Where each range begins.
    begins: Vec<u64>,
}

impl<'a> Places<'a> {
    fn new(ranges: &'a [(u64, u64)]) -> Places<'a> {
        let mut begins = Vec::with_capacity(ranges.len());
        let mut next = 0;
        for &(_, size) in ranges {
            begins.push(next);
            next += size;
        }
        Places { ranges, begins }
    }

    fn of(&self, address: u64) -> u64 {
        let after = self.ranges.partition_point(|&(begin, _)| begin <= address);
        let Some(range) = after.checked_sub(1) else {
            return 0;
        };
        self.begins[range] + (address - self.ranges[range].0)
    }
}

/// Which of many things are there, while time goes on.
struct Present<'a, T> {
    things: &'a [T],
    span: fn(&T) -> (u64, u64),
    /// The next one to come; they lie in the order in which they come.
    next: usize,
    here: Vec<u32>,
}

impl<'a, T: Addressed> Present<'a, T> {
    fn new(things: &'a [T], span: fn(&T) -> (u64, u64)) -> Present<'a, T> {
        Present {
            things,
            span,
            next: 0,
            here: Vec::new(),
        }
    }

    /// After so many operations.
    fn come_to(&mut self, operations: u64) {
        let (things, span) = (self.things, self.span);
        let stays = |&thing: &u32| span(&things[thing as usize]).1 >= operations;
        self.here.retain(stays);
        while let Some(thing) = things.get(self.next)
            && span(thing).0 < operations
        {
            let number = self.next as u32;
            if stays(&number) {
                self.here.push(number);
            }
            self.next += 1;
        }
    }

    /// Those that are there, by address.
    fn sorted(&self) -> Vec<&'a T> {
        let mut here: Vec<&T> = self
            .here
            .iter()
            .map(|&n| &self.things[n as usize])
            .collect();
        here.sort_unstable_by_key(|thing| thing.address());
        here
    }
}

trait Addressed {
    fn address(&self) -> u64;
}

impl Addressed for Band {
    fn address(&self) -> u64 {
        self.address
    }
}

impl Addressed for Block {
    fn address(&self) -> u64 {
        self.address
    }
}

/// One moment.
struct Sight<'a> {
    bands: Vec<&'a Band>,
    blocks: Vec<&'a Block>,
    /// Addresses whose memory is live through other ones, in order.
    elsewhere: Vec<Range<u64>>,
}

impl<'a> Sight<'a> {
    fn new(bands: Vec<&'a Band>, blocks: Vec<&'a Block>) -> Sight<'a> {
        let mut mappings: HashMap<usize, Vec<&Band>> = HashMap::new();
        for &band in &bands {
            mappings.entry(band.memory).or_default().push(band);
        }
        let mut elsewhere = Vec::new();
        let mut at = 0;
        for &block in &blocks {
            let end = block.address + block.size;
            while at < bands.len() && bands[at].address + bands[at].size <= block.address {
                at += 1;
            }
            for &band in bands[at..].iter().take_while(|band| band.address < end) {
                let others = &mappings[&band.memory];
                if others.len() < 2 {
                    continue;
                }
                let from = block.address.max(band.address) - band.address;
                let to = end.min(band.address + band.size) - band.address;
                for other in others.iter().filter(|other| other.address != band.address) {
                    elsewhere.push(other.address + from..other.address + to);
                }
            }
        }
        elsewhere.sort_unstable_by_key(|range| range.start);
        Sight {
            bands,
            blocks,
            elsewhere,
        }
    }

    fn free(&self) -> Free {
        let mut seen = std::collections::HashSet::new();
        let memory: u64 = self
            .bands
            .iter()
            .filter(|band| seen.insert(band.memory))
            .map(|band| band.size)
            .sum();
        let live: u64 = self.blocks.iter().map(|block| block.size).sum();
        let mut used: Vec<(u64, u64)> = self
            .blocks
            .iter()
            .map(|block| (block.address, block.address + block.size))
            .chain(self.elsewhere.iter().map(|range| (range.start, range.end)))
            .collect();
        used.sort_unstable();
        let mut used = used.into_iter().peekable();
        let mut largest = 0;
        // Up to where all is used, or was looked at.
        let mut reached = 0;
        let mut mapped_end = 0;
        for band in &self.bands {
            if band.address > mapped_end {
                reached = reached.max(band.address);
            }
            mapped_end = band.address + band.size;
            while let Some((begin, end)) = used.next_if(|&(begin, _)| begin < mapped_end) {
                largest = largest.max(begin.saturating_sub(reached));
                reached = reached.max(end);
            }
            largest = largest.max(mapped_end.saturating_sub(reached));
        }
        Free {
            bytes: memory.saturating_sub(live),
            // The same memory may be mapped twice side by side.
            largest: largest.min(memory.saturating_sub(live)),
        }
    }

    fn cells(&self, places: &Places<'_>, cells: usize, cell_bytes: u64) -> (Vec<u8>, Vec<u8>) {
        let mut mapped = vec![0_u64; cells];
        let mut live = vec![0_u64; cells];
        let mut elsewhere = vec![0_u64; cells];
        let mut most = vec![(0_u64, 0_u8); cells];
        let spread = |address: u64, size: u64, each: &mut dyn FnMut(usize, u64)| {
            let (mut from, end) = (places.of(address), places.of(address) + size);
            while from < end {
                let cell = (from / cell_bytes) as usize;
                let next = end.min((from / cell_bytes + 1) * cell_bytes);
                if cell < cells {
                    each(cell, next - from);
                }
                from = next;
            }
        };
        for band in &self.bands {
            spread(band.address, band.size, &mut |cell, bytes| {
                mapped[cell] += bytes;
            });
        }
        for range in &self.elsewhere {
            let size = range.end - range.start;
            spread(range.start, size, &mut |cell, bytes| {
                elsewhere[cell] += bytes;
            });
        }
        for block in &self.blocks {
            let stream = block.stream.saturating_add(1).min(255) as u8;
            spread(block.address, block.size, &mut |cell, bytes| {
                live[cell] += bytes;
                if bytes > most[cell].0 {
                    most[cell] = (bytes, stream);
                }
            });
        }
        let fill = (0..cells)
            .map(|cell| match mapped[cell] {
                0 => 0,
                of => 1 + share(live[cell], of, 15) + 16 * share(elsewhere[cell], of, 3),
            })
            .collect();
        (fill, most.into_iter().map(|(_, stream)| stream).collect())
    }
}

/// A share of a whole as a number up to `most`; 0 only for nothing.
fn share(part: u64, whole: u64, most: u64) -> u8 {
    (part * most).div_ceil(whole).min(most) as u8
}

impl LargeBlocks {
    fn new(blocks: &[Block], axis: &Axis, trace: &Trace, numbered: bool) -> LargeBlocks {
        let mut seen: Vec<(u128, usize, (usize, usize))> = Vec::new();
        for (number, block) in blocks.iter().enumerate() {
            let (from, to) = axis.span(block.from, block.to);
            if from < to && block.size > 0 {
                let weight = u128::from(block.size) * (to - from) as u128;
                seen.push((weight, number, (from, to)));
            }
        }
        let heavy = |&(weight, number, _): &(u128, usize, _)| (std::cmp::Reverse(weight), number);
        if seen.len() > LARGE {
            seen.select_nth_unstable_by_key(LARGE, heavy);
            seen.truncate(LARGE);
        }
        seen.sort_unstable_by_key(heavy);
        let mut large = LargeBlocks {
            sites: trace.sites.iter().map(|site| site.label()).collect(),
            ..LargeBlocks::default()
        };
        for (_, number, (from, to)) in seen {
            let block = &blocks[number];
            large.address.push(block.address);
            large.size.push(block.size);
            large.from.push(from);
            large.to.push(to);
            large.stream.push(block.stream);
            let site = trace.block_sites.get(number).copied().flatten();
            let site = site.filter(|_| numbered).map(|site| site as usize);
            large.site.push(site);
        }
        large
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn band(address: u64, memory: usize) -> Band {
        Band {
            address: address * MIB,
            size: 2 * MIB,
            memory,
            from: 0,
            to: 9,
        }
    }

    #[test]
    fn memory_that_is_live_elsewhere_is_neither_live_nor_free_here() {
        // One memory stands at 100 and at 200 MiB, another one beside it at 102 MiB.
        let bands = [band(100, 0), band(102, 1), band(200, 0)];
        let block = Block {
            address: 100 * MIB,
            size: MIB,
            stream: 3,
            from: 0,
            to: 9,
        };
        let sight = Sight::new(bands.iter().collect(), vec![&block]);
        let elsewhere = 200 * MIB..201 * MIB;
        assert_eq!(sight.elsewhere.first(), Some(&elsewhere));
        assert_eq!(sight.elsewhere.len(), 1);
        let free = sight.free();
        // The rest of the one, and all of the other, side by side.
        assert_eq!((free.bytes, free.largest), (3 * MIB, 3 * MIB));

        let ranges = merged(&bands);
        assert_eq!(ranges, [(100 * MIB, 4 * MIB), (200 * MIB, 2 * MIB)]);
        let (fill, stream) = sight.cells(&Places::new(&ranges), 6, MIB);
        let (live, free, elsewhere) = (1 + 15, 1, 1 + 16 * 3);
        assert_eq!(fill, [live, free, free, free, elsewhere, free]);
        assert_eq!(stream, [4, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_share_is_nothing_only_for_nothing_and_all_only_up_to_all() {
        assert_eq!(share(0, 100, 15), 0);
        assert_eq!(share(1, 1_000_000, 15), 1);
        assert_eq!(share(100, 100, 15), 15);
        // Two blocks may overlap in one cell of a mapping that ended in it.
        assert_eq!(share(200, 100, 15), 15);
    }
}
