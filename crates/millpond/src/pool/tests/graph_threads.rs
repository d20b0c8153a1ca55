//! Captures in several threads, beside each other and beside other work.

use super::*;
use crate::device::StreamOrder;

const THREADS: usize = 4;
const ROUNDS: usize = 300;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn threads_capture_beside_each_other_and_nothing_is_lost() {
    let sim = Arc::new(SimDevice::builder().total_memory(4096 * MIB).build());
    let pool = Pool::builder(Arc::clone(&sim) as _).build().unwrap();
    let shared = pool.graph_memory();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sim, pool, shared) = (&sim, &pool, shared.clone());
            scope.spawn(move || {
                let mut random = Random(thread as u64);
                let create = || sim.create_stream(StreamOrder::Independent).unwrap();
                let [a, b, eager] = [(); 3].map(|()| create());
                let event = sim.create_event().unwrap();
                for _ in 0..ROUNDS {
                    let own = pool.graph_memory();
                    let memory = if random.below(2) == 0 { &own } else { &shared };
                    let beside = pool.allocate(random.below(4 * MIB), eager).unwrap();
                    let capture = memory.begin_capture(a).unwrap();
                    pool.record_event(event, a).unwrap();
                    pool.wait_event(b, event).unwrap();
                    let mut blocks = Vec::new();
                    for _ in 0..random.below(8) {
                        let stream = if random.below(2) == 0 { a } else { b };
                        let block = pool.allocate(random.below(4 * MIB), stream).unwrap();
                        if random.below(3) == 0 {
                            block.use_on(eager).unwrap();
                        }
                        blocks.push(block);
                        if random.below(2) == 0 {
                            let place = random.below(blocks.len() as u64) as usize;
                            drop(blocks.swap_remove(place));
                        }
                    }
                    sim.enqueue_work(eager, 1000).unwrap();
                    drop(beside);
                    match random.below(3) {
                        // The memory goes before its blocks, and before its capture is over.
                        0 => {
                            drop(own);
                            capture.end();
                        }
                        1 => capture.end(),
                        _ => {
                            blocks.clear();
                            capture.end();
                        }
                    }
                    let _ = pool.synchronize();
                    pool.validate().unwrap();
                }
            });
        }
    });
    drop(shared);
    pool.synchronize().unwrap();
    pool.trim(0).unwrap();
    let statistics = pool.statistics();
    assert_eq!(
        (statistics.reserved_bytes, statistics.graph_live_blocks),
        (0, 0),
        "{statistics:?}"
    );
    let info = sim.memory_info().unwrap();
    assert_eq!(info.free, info.total);
}
