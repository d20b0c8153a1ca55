//! Threads that share a pool, in random orders of all the points where one could overtake another
//! (`sync`): locks taken and let go, and calls of the device.
//!
//! What must hold in every order: no two live blocks overlap, the pool's books are right at any
//! time, no memory is touched that is not mapped, or unmapped while it is touched (the sim then
//! faults), and in the end all of it goes back.

use std::collections::BTreeMap;

use shuttle::rand::{Rng, thread_rng};

use super::*;
use crate::device::{EventId, Pattern, StreamOrder};
use crate::pool::{AllocError, GraphMemory};
use crate::sync;

/// A device whose calls are points of a thread's way, and a pool, for several threads.
struct Shared {
    sim: Arc<SimDevice>,
    pool: Pool,
    /// Blocks that any thread may use or free.
    blocks: sync::Mutex<Vec<Block>>,
    /// Where live blocks are: their ends by their starts.
    live: sync::Mutex<BTreeMap<u64, u64>>,
    event: EventId,
}

struct Points;

impl Observer for Points {
    fn before(&self, _: &CallRecord) -> Result<(), crate::device::DeviceError> {
        sync::point();
        Ok(())
    }

    fn after(&self, _: &CallRecord, _: Outcome<'_>, _: u64, _: u64) {}
}

fn below(bound: usize) -> usize {
    thread_rng().gen_range(0..bound)
}

fn shared(total: u64) -> Arc<Shared> {
    let sim = SimDevice::builder().total_memory(total);
    let sim = Arc::new(sim.stream_values_recur(below(2) == 0).build());
    let observers: Vec<Arc<dyn Observer>> = vec![Arc::new(Points)];
    let device = Arc::new(Observed::new(Arc::clone(&sim) as _, observers));
    let waits = [Waits::MemoryFirst, Waits::Balanced, Waits::TimeFirst][below(3)];
    let pool = Pool::builder(device).waits(waits).build().unwrap();
    if below(2) == 0 {
        // As if others were always there: then fronts have leases.
        std::mem::forget(pool.inner.fronts.visit());
    }
    let event = sim.create_event().unwrap();
    Arc::new(Shared {
        sim,
        pool,
        blocks: sync::Mutex::default(),
        live: sync::Mutex::default(),
        event,
    })
}

impl Shared {
    fn stream(&self) -> StreamId {
        self.sim.create_stream(StreamOrder::Independent).unwrap()
    }

    /// Allocates a block, if there is memory for it, and lets its stream touch all of it.
    fn allocate(&self, size: u64, stream: StreamId) {
        let block = match self.pool.allocate(size, stream) {
            Ok(block) => block,
            Err(AllocError::OutOfMemory(_)) => return,
            Err(error) => panic!("{error}"),
        };
        let (start, end) = (block.address(), block.address() + size.max(1));
        {
            let mut live = self.live.lock().unwrap();
            let before = live.range(..end).next_back();
            assert!(before.is_none_or(|(_, &e)| e <= start), "blocks overlap");
            live.insert(start, end);
        }
        self.touch(&block, stream);
        self.blocks.lock().unwrap().push(block);
    }

    fn touch(&self, block: &Block, stream: StreamId) {
        let (address, size) = (block.address(), block.size());
        self.sim.fill(stream, address, size, Pattern(1)).unwrap();
    }

    /// A block of anybody's, for this thread alone.
    fn take(&self) -> Option<Block> {
        let mut blocks = self.blocks.lock().unwrap();
        match blocks.len() {
            0 => None,
            count => Some(blocks.swap_remove(below(count))),
        }
    }

    fn put(&self, block: Block) {
        self.blocks.lock().unwrap().push(block);
    }

    fn free(&self, block: Block) {
        self.live.lock().unwrap().remove(&block.address());
        block.free().unwrap();
    }

    fn replace(&self, stream: &mut StreamId) {
        self.pool.stream_destroyed(*stream).unwrap();
        self.sim.destroy_stream(*stream).unwrap();
        *stream = self.stream();
    }

    /// Whatever a thread may do.
    fn anything(&self, stream: &mut StreamId) {
        match below(16) {
            0..5 => {
                let size = [0, 700, 300_000, MIB, 3 * MIB, 5 * MIB][below(6)];
                self.allocate(size, *stream);
            }
            5..8 => {
                if let Some(block) = self.take() {
                    self.free(block);
                }
            }
            8 | 9 => {
                if let Some(block) = self.take() {
                    block.use_on(*stream).unwrap();
                    self.touch(&block, *stream);
                    match below(3) {
                        0 => block.use_ended(*stream).unwrap(),
                        1 => block.hand_over(*stream).unwrap(),
                        _ => {}
                    }
                    self.put(block);
                }
            }
            10 => self.replace(stream),
            11 => drop(self.pool.trim(0).unwrap()),
            12 => match below(2) {
                0 => self.pool.synchronize().unwrap(),
                _ => self.pool.synchronize_stream(*stream).unwrap(),
            },
            13 => self.pool.record_event(self.event, *stream).unwrap(),
            14 => self.pool.wait_event(*stream, self.event).unwrap(),
            _ => self.pool.validate().unwrap(),
        }
    }

    /// Frees what is left; all memory goes back.
    fn end(&self) {
        while let Some(block) = self.take() {
            self.free(block);
        }
        self.pool.synchronize().unwrap();
        self.pool.validate().unwrap();
        self.pool.trim(0).unwrap();
        self.pool.validate().unwrap();
        let statistics = self.pool.statistics();
        assert_eq!(statistics.reserved_bytes, 0, "{statistics:?}");
        let info = self.sim.memory_info().unwrap();
        assert_eq!(info.free, info.total);
    }
}

type Part = Box<dyn FnOnce() + Send>;

fn together(parts: impl IntoIterator<Item = Part>) {
    let threads: Vec<_> = parts.into_iter().map(shuttle::thread::spawn).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn part(shared: &Arc<Shared>, act: impl FnOnce(&Shared) + Send + 'static) -> Part {
    let shared = Arc::clone(shared);
    Box::new(move || act(&shared))
}

#[test]
fn threads_that_do_whatever_they_may() {
    sync::explore(2500, || {
        let shared = shared(16 * MIB);
        together((0..3).map(|_| {
            part(&shared, |shared| {
                let mut stream = shared.stream();
                for _ in 0..8 {
                    shared.anything(&mut stream);
                }
            })
        }));
        shared.end();
    });
}

#[test]
fn growth_in_one_thread_while_others_free_and_trim() {
    sync::explore(2500, || {
        let shared = shared(12 * MIB);
        let [a, b] = [shared.stream(), shared.stream()];
        for (size, stream) in [(MIB, a), (3 * MIB, b), (300_000, a), (2 * MIB, b)] {
            shared.allocate(size, stream);
        }
        let free_all = |shared: &Shared| {
            while let Some(block) = shared.take() {
                shared.free(block);
            }
        };
        together([
            part(&shared, move |shared| {
                shared.allocate(5 * MIB, a);
                shared.allocate(3 * MIB, a);
            }),
            part(&shared, move |shared| {
                free_all(shared);
                shared.allocate(4 * MIB, b);
                free_all(shared);
            }),
            part(&shared, |shared| {
                for _ in 0..3 {
                    shared.pool.trim(0).unwrap();
                    shared.pool.validate().unwrap();
                }
            }),
        ]);
        shared.end();
    });
}

#[test]
fn streams_end_while_others_free_and_use_their_blocks() {
    sync::explore(2500, || {
        let shared = shared(8 * MIB);
        let busy = |shared: &Shared| {
            let mut stream = shared.stream();
            for _ in 0..3 {
                shared.allocate(2 * MIB, stream);
                shared.sim.enqueue_work(stream, 1_000_000).unwrap();
                shared.replace(&mut stream);
            }
        };
        together([
            part(&shared, busy),
            part(&shared, busy),
            part(&shared, |shared| {
                let stream = shared.stream();
                for _ in 0..4 {
                    if let Some(block) = shared.take() {
                        block.use_on(stream).unwrap();
                        shared.touch(&block, stream);
                        shared.free(block);
                    }
                    shared.allocate(3 * MIB, stream);
                    shared.pool.validate().unwrap();
                }
            }),
        ]);
        shared.end();
    });
}

#[test]
fn captures_beside_other_work() {
    sync::explore(800, || {
        let shared = shared(32 * MIB);
        let memory = shared.pool.graph_memory();
        let capture = |shared: &Shared, memory: GraphMemory| {
            let stream = shared.stream();
            let capture = memory.begin_capture(stream).unwrap();
            let kept = shared.pool.allocate(MIB, stream).unwrap();
            drop(shared.pool.allocate(3 * MIB, stream));
            capture.end();
            drop(memory);
            shared.put(kept);
        };
        let theirs = memory.clone();
        together([
            part(&shared, move |shared| capture(shared, memory)),
            part(&shared, move |shared| capture(shared, theirs)),
            part(&shared, |shared| {
                let mut stream = shared.stream();
                for _ in 0..3 {
                    shared.allocate(MIB, stream);
                    if let Some(block) = shared.take() {
                        block.use_on(stream).unwrap();
                        shared.free(block);
                    }
                    shared.replace(&mut stream);
                    // Refused while a stream is captured.
                    let _ = shared.pool.synchronize();
                    shared.pool.validate().unwrap();
                }
            }),
        ]);
        shared.end();
    });
}
