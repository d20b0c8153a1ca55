//! Drawing what was recorded.
//!
//! From left to right go the job's operations, from the bottom up the addresses. Light bands are
//! mapped memory; those of a handle that was mapped at several addresses have one colour of their
//! own. Blocks stand on the bands; where a block's memory can be reached through another mapping
//! at the same time, its shadow stands there. So what is light is free.

use std::collections::{BTreeMap, HashMap};

use svg::Document;
use svg::node::element::{Group, Line, Rectangle, Text, Title};

use super::addresses::Addresses;
use super::recorder::{Band, Block, Recorder, Recording};
use crate::size::ByteSize;

// Of the picture, in pixels.
const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 120.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 94.0;
const BOTTOM: f64 = 48.0;
/// Between strips of addresses.
const GAP: f64 = 4.0;

/// Blocks, and shadows, that are drawn at most: the largest.
const MOST: usize = 20_000;

/// Less is not to be seen: in square pixels, and of height and width in pixels.
const LEAST: f64 = 0.05;
const LEAST_SIDE: f64 = 0.02;

const MIB: u64 = 1 << 20;

/// Of blocks by stream, again and again.
const STREAMS: [&str; 8] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988",
];

/// Of blocks by size, where there is one stream: up to so many bytes.
const SIZES: [(u64, &str, &str); 4] = [
    (MIB, "#9ecae1", "to 1 MiB"),
    (8 * MIB, "#5a9bd0", "to 8 MiB"),
    (64 * MIB, "#2f6fb0", "to 64 MiB"),
    (u64::MAX, "#123f7a", "larger"),
];

/// Of handles that were mapped once.
const ONCE: &str = "#ebebeb";

/// Of handles that were mapped at several addresses, again and again.
const SEVERAL: [&str; 10] = [
    "#fbd8a6", "#c9e7c1", "#f6c3c8", "#d7cdec", "#f3efa0", "#bfe6e6", "#eccbe0", "#d6c7a8",
    "#cfe0a0", "#e8c9b3",
];

const SHADOW: &str = "#8a8a8a";
const INK: &str = "#333333";

/// A part of a block, as it is reached through another mapping of its memory.
#[derive(Clone, Copy)]
struct Shadow {
    address: u64,
    size: u64,
    from: u64,
    to: u64,
}

/// Where things are in the picture.
struct Plot {
    addresses: Addresses,
    operations: f64,
    /// Pixels a byte.
    scale: f64,
    height: f64,
}

impl Plot {
    fn new(recording: &Recording) -> Plot {
        let seen = recording.bands.iter().filter(|band| band.from < band.to);
        let addresses = Addresses::of(seen.map(|band| (band.address, band.address + band.size)));
        let gaps = addresses.strips().len().saturating_sub(1) as f64 * GAP;
        Plot {
            scale: HEIGHT / addresses.bytes().max(1) as f64,
            operations: recording.operations.max(1) as f64,
            height: HEIGHT + gaps,
            addresses,
        }
    }

    fn x(&self, operation: u64) -> f64 {
        LEFT + operation as f64 / self.operations * WIDTH
    }

    fn y(&self, address: u64) -> f64 {
        let (strip, below) = self.addresses.place(address);
        TOP + self.height - below as f64 * self.scale - strip as f64 * GAP
    }

    /// Width and height of what has so many bytes for so long.
    fn sides(&self, size: u64, from: u64, to: u64) -> (f64, f64) {
        (self.x(to) - self.x(from), size as f64 * self.scale)
    }

    fn rectangle(&self, address: u64, size: u64, from: u64, to: u64) -> Rectangle {
        let (width, height) = self.sides(size, from, to);
        Rectangle::new()
            .set("x", round(self.x(from)))
            .set("y", round(self.y(address) - height))
            .set("width", round(width))
            .set("height", round(height))
    }

    /// Those of all that are large enough to be seen, the largest if there are too many; in their
    /// order.
    fn seen<T: Copy>(&self, all: &[T], extent: impl Fn(&T) -> (u64, u64, u64)) -> Vec<T> {
        let sides = |number: usize| {
            let (size, from, to) = extent(&all[number]);
            self.sides(size, from, to)
        };
        let area = |&number: &usize| {
            let (width, height) = sides(number);
            width * height
        };
        let is_seen = |number: &usize| {
            let (width, height) = sides(*number);
            width.min(height) >= LEAST_SIDE && area(number) >= LEAST
        };
        let mut seen: Vec<usize> = (0..all.len()).filter(is_seen).collect();
        seen.sort_by(|a, b| area(b).total_cmp(&area(a)));
        seen.truncate(MOST);
        seen.sort_unstable();
        seen.into_iter().map(|number| all[number]).collect()
    }
}

impl Recorder {
    /// Draws what was seen so far, under this heading.
    pub(crate) fn draw(&self, heading: &str) -> String {
        draw(&self.recording(), heading).to_string()
    }
}

fn draw(recording: &Recording, heading: &str) -> Document {
    let plot = Plot::new(recording);
    let blocks = plot.seen(&recording.blocks, |b| (b.size, b.from, b.to));
    let shadows = plot.seen(&shadows(&blocks, &recording.bands), |s| {
        (s.size, s.from, s.to)
    });
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + plot.height + BOTTOM);
    // A file's name may hold what no XML may.
    let heading: String = heading.chars().filter(|c| !c.is_control()).collect();
    let colours = colours_of_memories(&recording.bands);
    let palette = Palette::new(&recording.blocks);
    Document::new()
        .set("viewBox", (0.0, 0.0, width, round(height)))
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .set("fill", INK)
        .add(Title::new(heading.clone()))
        .add(
            Rectangle::new()
                .set("width", "100%")
                .set("height", "100%")
                .set("fill", "#ffffff"),
        )
        .add(text(LEFT, 20.0, &heading).set("font-size", 15))
        .add(legend(&palette, recording, blocks.len()))
        .add(bands(&plot, recording, &colours))
        .add(group(
            "shadows",
            SHADOW,
            shadows
                .iter()
                .map(|s| plot.rectangle(s.address, s.size, s.from, s.to)),
        ))
        .add(drawn_blocks(&plot, &blocks, &palette))
        .add(axes(&plot, recording.operations))
}

/// The parts of blocks that can be reached through other mappings.
fn shadows(blocks: &[Block], bands: &[Band]) -> Vec<Shadow> {
    let mut by_memory: HashMap<usize, Vec<&Band>> = HashMap::new();
    for band in bands {
        by_memory.entry(band.memory).or_default().push(band);
    }
    let mut by_address: Vec<&Band> = bands
        .iter()
        .filter(|b| by_memory[&b.memory].len() > 1)
        .collect();
    by_address.sort_by_key(|band| band.address);
    let largest = by_address.iter().map(|band| band.size).max().unwrap_or(0);
    let mut shadows = Vec::new();
    for block in blocks {
        let (start, end) = (block.address, block.address + block.size);
        let first = by_address.partition_point(|b| b.address + largest <= start);
        let under = by_address[first..]
            .iter()
            .take_while(|band| band.address < end);
        for band in under.filter(|band| band.from < block.to && block.from < band.to) {
            let (low, high) = (start.max(band.address), end.min(band.address + band.size));
            if low >= high {
                continue;
            }
            let others = by_memory[&band.memory]
                .iter()
                .filter(|b| b.address != band.address);
            shadows.extend(others.map(|other| Shadow {
                address: other.address + (low - band.address),
                size: high - low,
                from: block.from.max(other.from),
                to: block.to.min(other.to),
            }));
        }
    }
    shadows.retain(|shadow| shadow.from < shadow.to);
    shadows
}

/// Colours of the memories that were mapped at several addresses at one time, in the order in which they were.
fn colours_of_memories(bands: &[Band]) -> HashMap<usize, &'static str> {
    let mut first: HashMap<usize, &Band> = HashMap::new();
    let mut colours = HashMap::new();
    for band in bands.iter().filter(|band| band.from < band.to) {
        let known = first.entry(band.memory).or_insert(band);
        if known.address != band.address && !colours.contains_key(&band.memory) {
            colours.insert(band.memory, SEVERAL[colours.len() % SEVERAL.len()]);
        }
    }
    colours
}

/// What colours of blocks mean.
enum Palette {
    /// There are so many streams.
    Streams(u32),
    Sizes,
}

impl Palette {
    fn new(blocks: &[Block]) -> Palette {
        let first = blocks.first().map(|block| block.stream);
        if blocks.iter().all(|block| Some(block.stream) == first) {
            return Palette::Sizes;
        }
        let last = blocks.iter().map(|block| block.stream).max();
        Palette::Streams(last.map_or(0, |last| last + 1))
    }

    fn of(&self, block: &Block) -> &'static str {
        match self {
            Palette::Streams(_) => STREAMS[block.stream as usize % STREAMS.len()],
            Palette::Sizes => {
                let class = SIZES.iter().find(|(most, ..)| block.size <= *most);
                class.unwrap_or(&SIZES[SIZES.len() - 1]).1
            }
        }
    }

    /// Colours and what they mean.
    fn entries(&self) -> Vec<(&'static str, String)> {
        match *self {
            Palette::Streams(count) => {
                let colours = STREAMS.iter().zip(0..count);
                let names = colours.map(|(colour, first)| {
                    let streams = (first..count).step_by(STREAMS.len());
                    let streams: Vec<String> = streams.map(|stream| stream.to_string()).collect();
                    (*colour, format!("stream {}", streams.join(", ")))
                });
                names.collect()
            }
            Palette::Sizes => {
                let names = SIZES
                    .iter()
                    .map(|(_, colour, name)| (*colour, (*name).to_owned()));
                names.collect()
            }
        }
    }
}

fn legend(palette: &Palette, recording: &Recording, drawn: usize) -> Group {
    let memory = [
        (ONCE, "free memory, mapped once"),
        (
            SEVERAL[0],
            "free, mapped at several addresses: a colour a handle",
        ),
        (
            SHADOW,
            "taken, by a block at another address of the same handle",
        ),
    ];
    let memory = memory.map(|(colour, name)| (colour, name.to_owned()));
    let all = recording.blocks.len();
    let note = if drawn < all {
        format!("{drawn} of {all} blocks are drawn; the others are too small to be seen")
    } else {
        format!("{all} blocks")
    };
    let legend = Group::new().set("class", "legend");
    let legend = legend.add(text(LEFT, 38.0, &note));
    let legend = swatches(legend, 58.0, &palette.entries());
    swatches(legend, 78.0, &memory)
}

/// A line of colours and what they mean.
fn swatches(mut legend: Group, y: f64, entries: &[(&'static str, String)]) -> Group {
    let mut x = LEFT;
    for (colour, name) in entries {
        let swatch = Rectangle::new()
            .set("x", round(x))
            .set("y", round(y - 10.0))
            .set("width", 12)
            .set("height", 12)
            .set("fill", *colour);
        legend = legend.add(swatch).add(text(x + 16.0, y, name));
        x += 36.0 + 6.8 * name.len() as f64;
    }
    legend
}

fn bands(plot: &Plot, recording: &Recording, colours: &HashMap<usize, &'static str>) -> Group {
    let mut bands = Group::new()
        .set("class", "bands")
        .set("stroke", "#ffffff")
        .set("stroke-width", 0.4);
    for band in recording.bands.iter().filter(|band| band.from < band.to) {
        let rectangle = plot.rectangle(band.address, band.size, band.from, band.to);
        let colour = colours.get(&band.memory).copied().unwrap_or(ONCE);
        bands = bands.add(rectangle.set("fill", colour));
    }
    bands
}

fn drawn_blocks(plot: &Plot, blocks: &[Block], palette: &Palette) -> Group {
    // Neighbours are told apart by a line, where there is room for one.
    let is_outlined = |block: &Block| {
        let (width, height) = plot.sides(block.size, block.from, block.to);
        width.min(height) >= 3.0
    };
    let mut groups: BTreeMap<(bool, &str), Vec<Rectangle>> = BTreeMap::new();
    for block in blocks {
        let rectangle = plot.rectangle(block.address, block.size, block.from, block.to);
        let group = groups.entry((is_outlined(block), palette.of(block)));
        group.or_default().push(rectangle);
    }
    let groups = groups.into_iter().map(|((outlined, colour), all)| {
        let group = group("blocks", colour, all.into_iter());
        if outlined {
            group.set("stroke", "#ffffff").set("stroke-width", 0.5)
        } else {
            group
        }
    });
    groups.fold(Group::new(), Group::add)
}

/// The operations below, and the addresses of strips that have room for it on the left.
fn axes(plot: &Plot, operations: u64) -> Group {
    let bottom = TOP + plot.height;
    let mut axes = Group::new().set("class", "axes").set("stroke-width", 0.6);
    let step = tick_step(operations);
    for operation in (0..=operations).step_by(step as usize) {
        let x = round(plot.x(operation));
        let tick = Line::new()
            .set("x1", x)
            .set("x2", x)
            .set("y1", round(bottom + 3.0))
            .set("y2", round(bottom + 8.0))
            .set("stroke", INK);
        let number = text(x, bottom + 22.0, &operation.to_string()).set("text-anchor", "middle");
        axes = axes.add(tick).add(number);
    }
    let name = text(LEFT + WIDTH / 2.0, bottom + 38.0, "operations of the job");
    axes = axes.add(name.set("text-anchor", "middle"));
    for strip in plot.addresses.strips() {
        let bytes = strip.end - strip.start;
        if bytes as f64 * plot.scale < 22.0 {
            continue;
        }
        let y = plot.y(strip.start);
        let address = text(LEFT - 6.0, y - 2.0, &format!("{:#x}", strip.start));
        let size = text(LEFT - 6.0, y - 13.0, &ByteSize(bytes).to_string());
        for label in [address, size] {
            axes = axes.add(label.set("text-anchor", "end").set("font-size", 10));
        }
    }
    axes
}

/// At most ten steps of one, two or five times a power of ten.
fn tick_step(operations: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if operations / step <= 10 {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

fn group(class: &str, colour: &str, rectangles: impl Iterator<Item = Rectangle>) -> Group {
    let group = Group::new().set("class", class).set("fill", colour);
    rectangles.fold(group, Group::add)
}

fn text(x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("x", round(x)).set("y", round(y))
}

/// To a hundredth of a pixel.
fn round(pixels: f64) -> f64 {
    (pixels * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn band(address: u64, memory: usize, from: u64, to: u64) -> Band {
        Band {
            address,
            size: 100,
            memory,
            from,
            to,
        }
    }

    #[test]
    fn a_shadow_is_as_long_as_both_are_there() {
        let bands = [band(0, 0, 0, 10), band(100, 1, 0, 10), band(1000, 0, 4, 8)];
        let block = Block {
            address: 50,
            size: 100,
            stream: 0,
            from: 2,
            to: 6,
        };
        let all = shadows(&[block], &bands);
        let [shadow] = all[..] else {
            panic!("{} shadows", all.len())
        };
        assert_eq!((shadow.address, shadow.size), (1050, 50));
        assert_eq!((shadow.from, shadow.to), (4, 6));
        let elsewhere = Block {
            address: 100,
            ..block
        };
        assert!(shadows(&[elsewhere], &bands).is_empty());
    }

    #[test]
    fn ticks_are_few_and_round() {
        let steps = [0, 7, 10, 11, 254, 9174, 1_000_000, u64::MAX].map(tick_step);
        assert_eq!(steps[..7], [1, 1, 1, 2, 50, 1000, 100_000]);
    }
}
