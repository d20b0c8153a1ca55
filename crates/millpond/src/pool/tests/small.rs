//! Two million small blocks: how much memory they take.

use super::placement::Numbers;
use super::*;

const BLOCKS: usize = 2_000_000;
const LARGEST: u64 = 64 << 10;

#[test]
fn two_million_small_blocks_take_little_more_than_they_are() {
    let sim = Arc::new(SimDevice::builder().total_memory(256 << 30).build());
    let stream = sim
        .create_stream(crate::device::StreamOrder::Independent)
        .unwrap();
    let pool = Pool::builder(sim as _).build().unwrap();
    let mut numbers = Numbers(3);
    let mut blocks: Vec<Block> = (0..BLOCKS)
        .map(|_| pool.allocate(1 + numbers.below(LARGEST), stream).unwrap())
        .collect();
    let full = pool.statistics();
    let ratio = full.peak_reserved_bytes as f64 / full.live_rounded_bytes as f64;
    assert!(ratio <= 1.10, "{ratio:.4}");
    // Nine tenths go, and others come until as much lives as before.
    for _ in 0..BLOCKS / 10 * 9 {
        let which = numbers.below(blocks.len() as u64) as usize;
        drop(blocks.swap_remove(which));
    }
    while pool.statistics().live_bytes < full.live_bytes {
        for _ in 0..100 {
            let size = 1 + numbers.below(LARGEST / 2) + numbers.below(LARGEST / 2);
            blocks.push(pool.allocate(size, stream).unwrap());
        }
    }
    let refilled = pool.statistics();
    let growth = refilled.peak_reserved_bytes as f64 / full.peak_reserved_bytes as f64 - 1.0;
    println!(
        "{ratio:.4} of what is live, {:.3} % more after refilling",
        growth * 100.0
    );
    assert!(growth < 0.01, "{growth:.5}");
    pool.validate().unwrap();
}
