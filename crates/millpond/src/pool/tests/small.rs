//! Many small blocks: how much memory they take.

use super::placement::Numbers;
use super::*;

const LARGEST: u64 = 64 << 10;

/// The ratio of what is reserved to what is live, and by how much it grows when nine tenths have
/// gone and others come, as a part.
fn fill_and_refill(count: usize) -> (f64, f64) {
    let sim = Arc::new(SimDevice::builder().total_memory(256 << 30).build());
    let stream = sim
        .create_stream(crate::device::StreamOrder::Independent)
        .unwrap();
    let pool = Pool::builder(sim as _).build().unwrap();
    let mut numbers = Numbers(3);
    let mut blocks: Vec<Block> = (0..count)
        .map(|_| pool.allocate(1 + numbers.below(LARGEST), stream).unwrap())
        .collect();
    let full = pool.statistics();
    let ratio = full.peak_reserved_bytes as f64 / full.live_rounded_bytes as f64;
    // Nine tenths go, and others come until as much lives as before.
    for _ in 0..count / 10 * 9 {
        let which = numbers.below(blocks.len() as u64) as usize;
        drop(blocks.swap_remove(which));
    }
    let mut missing = full.live_bytes - pool.statistics().live_bytes;
    while missing > 0 {
        let size = 1 + numbers.below(LARGEST / 2) + numbers.below(LARGEST / 2);
        blocks.push(pool.allocate(size, stream).unwrap());
        missing = missing.saturating_sub(size);
    }
    let refilled = pool.statistics();
    let growth = refilled.peak_reserved_bytes as f64 / full.peak_reserved_bytes as f64 - 1.0;
    pool.validate().unwrap();
    (ratio, growth)
}

#[test]
fn small_blocks_take_little_more_than_they_are() {
    let (ratio, growth) = fill_and_refill(60_000);
    assert!(ratio <= 1.10, "{ratio:.4}");
    assert!(growth < 0.02, "{growth:.5}");
}

#[test]
#[ignore = "takes minutes"]
fn two_million_small_blocks_take_little_more_than_they_are() {
    let (ratio, growth) = fill_and_refill(2_000_000);
    println!("{ratio:.4} of what is live, {growth:.5} more after refilling");
    assert!(ratio <= 1.10, "{ratio:.4}");
    assert!(growth < 0.01, "{growth:.5}");
}
