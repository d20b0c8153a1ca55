//! A problem made ready for search: pieces that move as one, and the times that matter.
//!
//! # Invariants
//! - A section is a time at which the live set is contained in no other time's; two plans that agree on
//!   offsets overlap at some time exactly if they overlap in some section.
//! - Sections are in time order. Parts of an item are in the order of sections, apart from each
//!   other, and none is empty in time or bytes.
//! - `size` of an item is the largest `hi` of its parts. It has at least one part.

use crate::error::ProblemError;
use crate::problem::Problem;

/// An item's bytes in some sections, counted from the item's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    /// First section.
    pub(crate) first: u32,
    /// First section after it.
    pub(crate) last: u32,
    /// First byte.
    pub(crate) lo: u64,
    /// First byte after it.
    pub(crate) hi: u64,
}

/// A buffer, or several that are tied together.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) parts: Vec<Part>,
    pub(crate) size: u64,
    pub(crate) alignment: u64,
    pub(crate) fixed: Option<u64>,
    /// Time in which it holds something.
    pub(crate) duration: u64,
    /// Of the buffer from which the others' distances count.
    pub(crate) root: usize,
}

impl Item {
    pub(crate) fn first(&self) -> u32 {
        self.parts[0].first
    }

    pub(crate) fn last(&self) -> u32 {
        self.parts[self.parts.len() - 1].last
    }

    /// Whether it begins with its first byte in all of its sections.
    pub(crate) fn is_flat(&self) -> bool {
        self.parts.iter().all(|part| part.lo == 0)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Instance {
    pub(crate) items: Vec<Item>,
    pub(crate) sections: usize,
}

/// Where a buffer lies: which piece, and how far from the piece's root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tie {
    pub(crate) root: usize,
    pub(crate) distance: u64,
}

pub(crate) fn round_up(offset: u64, alignment: u64) -> u64 {
    if alignment.is_power_of_two() {
        (offset + alignment - 1) & !(alignment - 1)
    } else {
        offset.next_multiple_of(alignment)
    }
}

/// Follows `inside` of every buffer to its root.
pub(crate) fn ties(problem: &Problem) -> Result<Vec<Tie>, ProblemError> {
    let buffers = &problem.buffers;
    let mut ties: Vec<Option<Tie>> = vec![None; buffers.len()];
    let mut path = Vec::new();
    for start in 0..buffers.len() {
        let mut at = start;
        path.clear();
        let mut tie = loop {
            if let Some(tie) = ties[at] {
                break tie;
            }
            let Some((base, distance)) = buffers[at].inside else {
                break Tie {
                    root: at,
                    distance: 0,
                };
            };
            path.push((at, distance));
            if path.len() > buffers.len() {
                return Err(ProblemError::Circle { buffer: start });
            }
            at = base;
        };
        ties[at] = Some(tie);
        while let Some((buffer, distance)) = path.pop() {
            tie.distance += distance;
            ties[buffer] = Some(tie);
        }
    }
    Ok(ties
        .into_iter()
        .enumerate()
        .map(|(buffer, tie)| {
            tie.unwrap_or(Tie {
                root: buffer,
                distance: 0,
            })
        })
        .collect())
}

/// When a buffer holds which of its bytes: `(lower, upper, lo, hi)` in time order.
fn holdings(problem: &Problem, buffer: usize) -> Vec<(i64, i64, u64, u64)> {
    let b = &problem.buffers[buffer];
    let mut holdings = Vec::new();
    let mut from = b.lower;
    for gap in &b.gaps {
        holdings.push((from, gap.lower, 0, b.size));
        if let Some((lo, hi)) = gap.held {
            holdings.push((gap.lower, gap.upper, lo, hi));
        }
        from = gap.upper;
    }
    holdings.push((from, b.upper, 0, b.size));
    holdings.retain(|&(lower, upper, lo, hi)| lower < upper && lo < hi);
    holdings
}

/// A piece before its times are sections: holdings of all that is tied, and how it may lie.
struct Piece {
    holdings: Vec<(i64, i64, u64, u64)>,
    alignment: u64,
    fixed: Option<u64>,
    root: usize,
}

/// The pieces of those roots that `wanted` names.
fn pieces(
    problem: &Problem,
    ties: &[Tie],
    wanted: &dyn Fn(usize) -> bool,
) -> Result<Vec<Piece>, ProblemError> {
    let mut slot = vec![usize::MAX; problem.buffers.len()];
    let mut pieces: Vec<Piece> = Vec::new();
    for (buffer, tie) in ties.iter().enumerate() {
        if !wanted(tie.root) {
            continue;
        }
        if slot[tie.root] == usize::MAX {
            slot[tie.root] = pieces.len();
            pieces.push(Piece {
                holdings: Vec::new(),
                alignment: 1,
                fixed: None,
                root: tie.root,
            });
        }
        let piece = &mut pieces[slot[tie.root]];
        let b = &problem.buffers[buffer];
        let misaligned = ProblemError::Misaligned {
            buffer,
            offset: tie.distance,
            alignment: b.alignment,
        };
        if tie.distance % b.alignment != 0 {
            return Err(misaligned);
        }
        piece.alignment = least_common_multiple(piece.alignment, b.alignment).ok_or(misaligned)?;
        if let Some(offset) = b.offset {
            let apart = ProblemError::TiedApart { buffer, offset };
            let at = offset.checked_sub(tie.distance).ok_or(apart.clone())?;
            if piece.fixed.is_some_and(|fixed| fixed != at) {
                return Err(apart);
            }
            piece.fixed = Some(at);
        }
        let held = holdings(problem, buffer);
        let moved = held
            .into_iter()
            .map(|(lower, upper, lo, hi)| (lower, upper, lo + tie.distance, hi + tie.distance));
        piece.holdings.extend(moved);
    }
    for piece in &pieces {
        if let Some(offset) = piece.fixed
            && offset % piece.alignment != 0
        {
            return Err(ProblemError::Misaligned {
                buffer: piece.root,
                offset,
                alignment: piece.alignment,
            });
        }
    }
    Ok(pieces)
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    (a / gcd(a, b)).checked_mul(b).filter(|&m| m <= 1 << 40)
}

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Instance {
    /// The pieces of those roots that `wanted` names. Those without time or bytes are left out.
    pub(crate) fn new(
        problem: &Problem,
        ties: &[Tie],
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Instance, ProblemError> {
        let mut pieces = pieces(problem, ties, wanted)?;
        pieces.retain(|piece| !piece.holdings.is_empty());
        for piece in &mut pieces {
            piece.holdings = hulls(std::mem::take(&mut piece.holdings));
        }
        let held = pieces.iter().flat_map(|p| &p.holdings);
        let mut times: Vec<i64> = held.clone().flat_map(|h| [h.0, h.1]).collect();
        times.sort_unstable();
        times.dedup();
        let index = |time: i64| times.partition_point(|&t| t < time);
        let (mut begins, mut ends) = (vec![false; times.len()], vec![false; times.len()]);
        for &(lower, upper, ..) in held {
            begins[index(lower)] = true;
            ends[index(upper)] = true;
        }
        // Between two times the live set is contained in a neighbour's unless it begins with a
        // begin and ends with an end.
        let mut section = Vec::with_capacity(times.len());
        let mut sections = 0;
        for (i, &begin) in begins.iter().enumerate() {
            section.push(sections);
            sections += u32::from(begin && ends.get(i + 1).is_some_and(|&end| end));
        }
        let items = pieces.into_iter().map(|piece| {
            let duration = piece
                .holdings
                .iter()
                .map(|h| h.1.abs_diff(h.0))
                .fold(0, u64::saturating_add);
            let mut parts: Vec<Part> = Vec::with_capacity(piece.holdings.len());
            for (lower, upper, lo, hi) in piece.holdings {
                let (first, last) = (section[index(lower)], section[index(upper)]);
                match parts.last_mut() {
                    Some(p) if p.last == first && (p.lo, p.hi) == (lo, hi) => p.last = last,
                    _ if first < last => parts.push(Part {
                        first,
                        last,
                        lo,
                        hi,
                    }),
                    _ => {}
                }
            }
            Item {
                size: parts.iter().map(|p| p.hi).max().unwrap_or(0),
                parts,
                duration,
                alignment: piece.alignment,
                fixed: piece.fixed,
                root: piece.root,
            }
        });
        Ok(Instance {
            items: items.collect(),
            sections: sections as usize,
        })
    }

    /// Splits at the times that no item spans. Sections and items keep their order.
    pub(crate) fn components(&self) -> Vec<Instance> {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by_key(|&i| (self.items[i].first(), i));
        let mut components: Vec<Instance> = Vec::new();
        let (mut start, mut end) = (0, 0);
        for index in order {
            let item = &self.items[index];
            if item.first() >= end || components.is_empty() {
                start = item.first();
                components.push(Instance::default());
            }
            end = end.max(item.last());
            let Some(component) = components.last_mut() else {
                continue;
            };
            component.sections = (end - start) as usize;
            let mut item = item.clone();
            for part in &mut item.parts {
                part.first -= start;
                part.last -= start;
            }
            component.items.push(item);
        }
        components
    }

    /// Bytes held in each section.
    pub(crate) fn totals(&self) -> Vec<u64> {
        let mut totals = vec![0_u64; self.sections];
        for item in &self.items {
            for part in &item.parts {
                for total in &mut totals[part.first as usize..part.last as usize] {
                    *total += part.hi - part.lo;
                }
            }
        }
        totals
    }

    /// All offsets in a plan that is pushed down, and all tops, are multiples of this.
    pub(crate) fn grain(&self) -> u64 {
        let mut grain = 0;
        for item in &self.items {
            grain = gcd(grain, item.fixed.unwrap_or(0));
            for part in &item.parts {
                grain = gcd(gcd(grain, part.hi), part.lo);
            }
            if grain == 1 {
                return 1;
            }
        }
        // A multiple of the grain is aligned already, or stays a multiple when it is.
        let harmless = |a: u64| a.is_multiple_of(grain) || grain.is_multiple_of(a);
        if grain > 0 && !self.items.iter().all(|item| harmless(item.alignment)) {
            grain = self
                .items
                .iter()
                .fold(grain, |g, item| gcd(g, item.alignment));
        }
        grain.max(1)
    }

    /// No plan has a lower peak: at each time all live bytes must have a place, with all but the
    /// topmost rounded up to what every alignment is a multiple of.
    pub(crate) fn lower_bound(&self) -> u64 {
        let mut bound = self
            .items
            .iter()
            .filter_map(|i| Some(i.fixed? + i.size))
            .max()
            .unwrap_or(0);
        let flat = self.items.iter().all(Item::is_flat);
        let unit = match flat {
            true => self.items.iter().fold(0, |g, i| gcd(g, i.alignment)).max(1),
            false => 1,
        };
        let mut totals = vec![(0_u64, 0_u64); self.sections];
        for part in self.items.iter().flat_map(|item| &item.parts) {
            let bytes = part.hi - part.lo;
            let rounded = round_up(bytes, unit);
            for (total, most) in &mut totals[part.first as usize..part.last as usize] {
                *total += rounded;
                *most = rounded.saturating_sub(bytes).max(*most);
            }
        }
        for (total, most) in totals {
            bound = bound.max(total - most);
        }
        round_up(bound, self.grain())
    }
}

/// The first time at which the most bytes are held; `None` if none ever are.
pub(crate) fn fullest_time(problem: &Problem, ties: &[Tie]) -> Result<Option<i64>, ProblemError> {
    let mut changes: Vec<(i64, bool, u64)> = Vec::new();
    for piece in pieces(problem, ties, &|_| true)? {
        for (lower, upper, lo, hi) in hulls(piece.holdings) {
            changes.push((lower, true, hi - lo));
            changes.push((upper, false, hi - lo));
        }
    }
    changes.sort_unstable();
    let (mut live, mut best) = (0_u64, None);
    for (time, begins, bytes) in changes {
        if !begins {
            live -= bytes;
            continue;
        }
        live += bytes;
        if best.is_none_or(|(most, _)| live > most) {
            best = Some((live, time));
        }
    }
    Ok(best.map(|(_, time)| time))
}

/// For each time from the lowest to the highest byte held then.
fn hulls(mut holdings: Vec<(i64, i64, u64, u64)>) -> Vec<(i64, i64, u64, u64)> {
    holdings.sort_unstable();
    if holdings.windows(2).all(|w| w[0].1 <= w[1].0) {
        return holdings;
    }
    let mut times: Vec<i64> = holdings.iter().flat_map(|h| [h.0, h.1]).collect();
    times.sort_unstable();
    times.dedup();
    let mut hulls = vec![(u64::MAX, 0); times.len()];
    for (lower, upper, lo, hi) in holdings {
        let (from, to) = (
            times.partition_point(|&t| t < lower),
            times.partition_point(|&t| t < upper),
        );
        for hull in &mut hulls[from..to] {
            *hull = (lo.min(hull.0), hi.max(hull.1));
        }
    }
    let spans = times.windows(2).zip(hulls);
    spans
        .filter(|(_, hull)| hull.0 < hull.1)
        .map(|(t, (lo, hi))| (t[0], t[1], lo, hi))
        .collect()
}
