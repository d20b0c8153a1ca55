//! Blocks that belong together: of one call site, of one size, of one stream.

use std::collections::HashMap;

use millpond_trace::{Op, Trace};
use serde::Serialize;

use crate::size::ByteSize;

/// How blocks are put together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grouping {
    SizeClass,
    CallSite,
    Stream,
    /// Blocks of just one size.
    Size,
}

impl Grouping {
    /// Those that a recording says something about.
    pub(crate) fn of(trace: &Trace) -> Vec<Grouping> {
        let mut groupings = Vec::new();
        if !trace.block_sites.is_empty() {
            groupings.push(Grouping::CallSite);
        }
        groupings.push(Grouping::SizeClass);
        if trace.streams.len() > 1 {
            groupings.push(Grouping::Stream);
        }
        groupings
    }

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Grouping::SizeClass => "size class",
            Grouping::CallSite => "call site",
            Grouping::Stream => "stream",
            Grouping::Size => "size",
        }
    }
}

/// The size classes: up to this many bytes each, and one for all above.
const CLASSES: [(u64, &str); 6] = [
    (64 << 10, "up to 64 KiB"),
    (1 << 20, "64 KiB to 1 MiB"),
    (8 << 20, "1 to 8 MiB"),
    (64 << 20, "8 to 64 MiB"),
    (512 << 20, "64 to 512 MiB"),
    (u64::MAX, "over 512 MiB"),
];

/// What the blocks of a group have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Key {
    /// The number of a class.
    Class(usize),
    /// By name, so that two recordings can be compared.
    Site(String),
    /// By name.
    Stream(String),
    Size(u64),
}

impl Key {
    /// For people.
    pub(crate) fn label(&self) -> String {
        match self {
            Key::Class(class) => CLASSES[*class].1.to_owned(),
            Key::Site(site) => site.clone(),
            Key::Stream(stream) => format!("stream {stream}"),
            Key::Size(size) => format!("blocks of {}", ByteSize(*size)),
        }
    }
}

/// The groups of a recording.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) keys: Vec<Key>,
    /// The group of each block.
    pub(crate) of_block: Vec<u32>,
}

impl Group {
    /// Puts a recording's blocks together.
    pub(crate) fn new(trace: &Trace, grouping: Grouping) -> Group {
        let mut group = Group {
            keys: Vec::new(),
            of_block: Vec::with_capacity(trace.block_count as usize),
        };
        let mut numbers: HashMap<Key, u32> = HashMap::new();
        let labels: Vec<String> = trace.sites.iter().map(|site| site.label()).collect();
        // Most blocks are like one of a few before them, whose key need not be made again.
        let mut known: HashMap<u64, u32> = HashMap::new();
        for step in &trace.steps {
            let Op::Alloc {
                block,
                size,
                stream,
            } = step.op
            else {
                continue;
            };
            let site = trace.block_sites.get(block as usize).copied().flatten();
            let short = match grouping {
                Grouping::SizeClass => class(size) as u64,
                Grouping::CallSite => site.map_or(u64::MAX, u64::from),
                Grouping::Stream => u64::from(stream),
                Grouping::Size => size,
            };
            let number = *known.entry(short).or_insert_with(|| {
                let key = match grouping {
                    Grouping::SizeClass => Key::Class(class(size)),
                    Grouping::CallSite => Key::Site(site.map_or_else(
                        || "no call site".to_owned(),
                        |site| labels[site as usize].clone(),
                    )),
                    Grouping::Stream => Key::Stream(stream_name(&trace.streams[stream as usize])),
                    Grouping::Size => Key::Size(size),
                };
                *numbers.entry(key.clone()).or_insert_with(|| {
                    group.keys.push(key);
                    (group.keys.len() - 1) as u32
                })
            });
            group.of_block.push(number);
        }
        group
    }
}

/// A stream's name in one form for all formats: small numbers in decimal, handles in hexadecimal.
fn stream_name(recorded: &str) -> String {
    let handle = match recorded.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => recorded.parse(),
    };
    match handle {
        Ok(small) if small < 4096 => small.to_string(),
        Ok(handle) => format!("{handle:#x}"),
        Err(_) => recorded.to_owned(),
    }
}

fn class(size: u64) -> usize {
    CLASSES.partition_point(|&(most, _)| most < size)
}
