//! Plans in one pass: an order of the items, and for each in turn the lowest place that is free, or
//! the tightest gap.

use crate::instance::Instance;
use crate::occupancy::Occupancy;

/// What comes first. Ties go to the longer, then to the earlier index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The largest.
    Size,
    /// The largest product of bytes and sections.
    Area,
    /// The one with the most sections.
    Width,
    /// The first to be born.
    Birth,
    /// The one with the fullest section, then the largest.
    Contention,
    /// The one with the fullest section, then the one with the most sections.
    ContentionWidth,
}

impl Order {
    pub(crate) const ALL: [Order; 6] = [
        Order::Size,
        Order::Area,
        Order::Width,
        Order::Birth,
        Order::Contention,
        Order::ContentionWidth,
    ];
}

/// Numbers of an item by which it is ordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measures {
    /// Sections.
    pub(crate) width: u64,
    pub(crate) area: u128,
    /// Bytes of its fullest section.
    pub(crate) contention: u64,
}

pub(crate) fn measures(instance: &Instance) -> Vec<Measures> {
    let totals = instance.totals();
    let fullest = Fullest::new(&totals);
    let measure = |item: &crate::instance::Item| {
        let width = item.parts.iter().map(|p| u64::from(p.last - p.first)).sum();
        Measures {
            width,
            area: u128::from(width) * u128::from(item.size),
            contention: item
                .parts
                .iter()
                .map(|p| fullest.in_range(p.first as usize, p.last as usize))
                .max()
                .unwrap_or(0),
        }
    };
    instance.items.iter().map(measure).collect()
}

/// The greatest number of a range, by tables of powers of two.
struct Fullest {
    levels: Vec<Vec<u64>>,
}

impl Fullest {
    fn new(numbers: &[u64]) -> Fullest {
        let mut levels = vec![numbers.to_vec()];
        let mut step = 1;
        while 2 * step <= numbers.len() {
            let below = &levels[levels.len() - 1];
            let pairs = (0..=numbers.len() - 2 * step).map(|i| below[i].max(below[i + step]));
            let level = pairs.collect();
            levels.push(level);
            step *= 2;
        }
        Fullest { levels }
    }

    fn in_range(&self, first: usize, last: usize) -> u64 {
        let level = (last - first).ilog2() as usize;
        let table = &self.levels[level];
        table[first].max(table[last - (1 << level)])
    }
}

/// The items in that order, those with fixed offsets first.
pub(crate) fn ordered(instance: &Instance, measures: &[Measures], order: Order) -> Vec<u32> {
    let mut indices: Vec<u32> = (0..instance.items.len() as u32).collect();
    let key = |&i: &u32| {
        let (item, m) = (&instance.items[i as usize], &measures[i as usize]);
        let (a, b) = match order {
            Order::Size => (u128::from(item.size), m.width),
            Order::Area => (m.area, m.width),
            Order::Width => (u128::from(m.width), item.size),
            Order::Birth => (u128::from(u32::MAX - item.first()), item.size),
            Order::Contention => (u128::from(m.contention), item.size),
            Order::ContentionWidth => (u128::from(m.contention), m.width),
        };
        (item.fixed.is_none(), std::cmp::Reverse((a, b)), i)
    };
    indices.sort_by_cached_key(key);
    indices
}

/// Offsets of all items, and the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    pub(crate) offsets: Vec<u64>,
    pub(crate) peak: u64,
}

/// Where in the free space an item goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    First,
    Best,
}

/// Places the items one by one; gives up when one does not end below `limit`, and says which.
pub(crate) fn pack(
    instance: &Instance,
    order: &[u32],
    fit: Fit,
    limit: u64,
    occupancy: &mut Occupancy,
) -> Result<Packing, u32> {
    occupancy.clear();
    let mut packing = Packing {
        offsets: vec![0; instance.items.len()],
        peak: 0,
    };
    for &index in order {
        let item = &instance.items[index as usize];
        let offset = match item.fixed {
            Some(offset) => offset,
            None if fit == Fit::Best && item.parts.len() == 1 && item.is_flat() => {
                occupancy.best_fit(item)
            }
            None => occupancy.first_fit(item, 0),
        };
        if offset + item.size >= limit {
            return Err(index);
        }
        occupancy.insert(item, offset);
        packing.offsets[index as usize] = offset;
        packing.peak = packing.peak.max(offset + item.size);
    }
    Ok(packing)
}
