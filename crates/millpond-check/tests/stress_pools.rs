//! 64 pools, 32 threads, random calls: pools come and go, share budgets, are trimmed, waited for and
//! told other policies, while blocks are taken, used on further streams, looked up and freed, on the
//! thread that took them or by their address. At every stop the pools' figures are the checker's; at
//! the end nothing is left.
//!
//! The short runs are part of the suite. `cargo test --release --test stress_pools -- --ignored`
//! runs for `MILLPOND_STRESS_SECONDS` (60 without), a seed after the other, from `MILLPOND_SEED` on.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millpond::device::sim::SimDevice;
use millpond::device::{Device, Findings, HostDevice, Observed, Pattern, StreamId, StreamOrder};
use millpond::pool::{Budget, PoolAttribute, PoolLocation, reap_waiting};
use millpond::{AllocError, Block, Pool, Pools};
use millpond_check::Checker;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HERE: PoolLocation = PoolLocation::Device(0);

const POOLS: u64 = 64;
const THREADS: u64 = 32;

/// Bytes that all pools of one budget may have together.
const BUDGET: u64 = 192 * MIB;

/// Numbers drawn from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// From one byte to 4 MiB, as many of each power of two.
    fn size(&mut self) -> u64 {
        let power = self.below(22);
        (1 << power) + self.below(1 << power)
    }
}

/// What all threads work on.
struct World {
    device: Arc<dyn Device>,
    checker: Arc<Checker>,
    pools: Pools,
    slots: Vec<Mutex<Pool>>,
    budgets: [Budget; 2],
    findings: Arc<Findings>,
}

/// A block that a thread has.
enum Held {
    Owned(Block),
    Raw(u64),
}

impl Held {
    fn address(&self) -> u64 {
        match self {
            Held::Owned(block) => block.address(),
            Held::Raw(address) => *address,
        }
    }
}

struct Taken {
    held: Held,
    size: u64,
    pool: u64,
    stream: StreamId,
    pattern: Pattern,
}

impl World {
    fn new(device: Arc<dyn Device>) -> World {
        let checker = Arc::new(Checker::new(device.capabilities()));
        let observed = Observed::new(device, vec![Arc::clone(&checker) as _]);
        let device: Arc<dyn Device> = Arc::new(observed);
        let machine = Budget::new(2 * BUDGET);
        let world = World {
            pools: Pools::new([Arc::clone(&device)]).unwrap(),
            device,
            checker,
            slots: Vec::new(),
            budgets: [machine.within(BUDGET), machine],
            findings: Findings::new(),
        };
        let slots = (0..POOLS)
            .map(|number| Mutex::new(world.pool(number)))
            .collect();
        World { slots, ..world }
    }

    /// A pool of one of four kinds: by itself, limited, or under a budget.
    fn pool(&self, number: u64) -> Pool {
        let builder = self.pools.builder(HERE).unwrap();
        let builder = match number % 4 {
            0 => builder,
            1 => builder.limit(32 * MIB),
            2 => builder.budget(&self.budgets[0]).release_threshold(8 * MIB),
            _ => builder.budget(&self.budgets[1]),
        };
        self.pools.create(builder).unwrap()
    }

    fn slot(&self, random: &mut Random) -> (u64, Pool) {
        let number = random.below(POOLS);
        let slot = self.slots[number as usize].lock();
        (number, slot.unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// While nobody else works: the pools' figures are the checker's.
    fn stop(&self) {
        assert_eq!(self.checker.violations(), []);
        reap_waiting(&self.device).unwrap();
        let totals = self.checker.totals();
        let (mut used, mut reserved) = (0, 0);
        for pool in self.pools.all() {
            pool.validate().unwrap();
            let (usage, statistics) = (pool.usage(), pool.statistics());
            assert_eq!(usage.used_current, statistics.live_bytes);
            assert_eq!(usage.reserved_current, statistics.reserved_bytes);
            assert_eq!(usage.reserved_high, statistics.peak_reserved_bytes);
            assert!(usage.used_high >= usage.used_current);
            assert!(usage.reserved_high >= usage.reserved_current);
            let parts = statistics.live_rounded_bytes + statistics.free_bytes;
            assert_eq!(
                statistics.reserved_bytes,
                parts + statistics.in_transit_bytes
            );
            used += usage.used_current;
            reserved += usage.reserved_current;
        }
        assert_eq!((used, reserved), (totals.live_bytes, totals.physical_bytes));
        for budget in &self.budgets {
            let usage = budget.usage();
            assert!(usage.reserved_high <= usage.limit, "{usage:?}");
        }
    }

    fn thread(&self, mut random: Random, rounds: u64, calls: u64, stop: &Barrier) {
        let streams = [(); 2].map(|()| {
            let order = StreamOrder::Independent;
            self.device.create_stream(order).unwrap()
        });
        let event = self.device.create_event().unwrap();
        let mut taken: Vec<Taken> = Vec::new();
        for _ in 0..rounds {
            for _ in 0..calls {
                self.call(&mut random, streams, event, &mut taken);
            }
            // Everybody stops; one looks; all go on.
            if stop.wait().is_leader() {
                self.stop();
            }
            stop.wait();
        }
        for block in taken.drain(..) {
            self.free(block);
        }
        for stream in streams {
            self.checker.stream_ends(stream);
            for pool in self.pools.all() {
                pool.stream_destroyed(stream).unwrap();
            }
            self.device.destroy_stream(stream).unwrap();
        }
        self.device.destroy_event(event).unwrap();
    }

    fn call(
        &self,
        random: &mut Random,
        streams: [StreamId; 2],
        event: millpond::device::EventId,
        taken: &mut Vec<Taken>,
    ) {
        let stream = streams[random.below(2) as usize];
        match random.below(100) {
            0..=44 if taken.len() < 24 => {
                let (_, pool) = self.slot(random);
                let size = random.size();
                match pool.allocate(size, stream) {
                    Ok(block) => {
                        let address = block.address();
                        let broken = self.checker.allocated(address, size, 256, stream);
                        assert!(broken.is_empty(), "{broken:?}");
                        let pattern = Pattern(random.below(u64::MAX) | 1);
                        self.device
                            .fill(stream, address, size.min(KIB), pattern)
                            .unwrap();
                        let held = match random.below(2) {
                            0 => Held::Owned(block),
                            _ => Held::Raw(block.into_raw()),
                        };
                        taken.push(Taken {
                            held,
                            size,
                            pool: pool.id(),
                            stream,
                            pattern,
                        });
                    }
                    Err(AllocError::OutOfMemory(_) | AllocError::Destroyed { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            0..=74 if !taken.is_empty() => {
                let number = random.below(taken.len() as u64) as usize;
                self.free(taken.swap_remove(number));
            }
            75..=82 if !taken.is_empty() => {
                let block = &taken[random.below(taken.len() as u64) as usize];
                let address = block.held.address();
                self.device.record_event(event, block.stream).unwrap();
                self.device.wait_event(stream, event).unwrap();
                match &block.held {
                    Held::Owned(owned) => owned.use_on(stream).unwrap(),
                    Held::Raw(raw) => {
                        let pool = self.pools.pool_of(*raw).unwrap();
                        pool.use_on(*raw, stream).unwrap();
                    }
                }
                assert!(self.checker.used(address, stream));
                self.verify(block, stream);
            }
            83..=89 if !taken.is_empty() => {
                let block = &taken[random.below(taken.len() as u64) as usize];
                let offset = random.below(block.size);
                let pointer = self.pools.pointer(block.held.address() + offset).unwrap();
                assert_eq!(pointer.start, block.held.address());
                assert_eq!((pointer.size, pointer.offset), (block.size, offset));
                assert_eq!(
                    (pointer.pool.id(), pointer.stream),
                    (block.pool, block.stream)
                );
            }
            90..=91 => self.pools.synchronize_stream(0, stream).unwrap(),
            92..=93 => {
                let (_, pool) = self.slot(random);
                pool.trim_to(random.below(64) * MIB).unwrap();
            }
            94..=95 => {
                let (_, pool) = self.slot(random);
                let policy = [
                    PoolAttribute::ReuseFollowEventDependencies,
                    PoolAttribute::ReuseAllowOpportunistic,
                    PoolAttribute::ReuseAllowInternalDependencies,
                ][random.below(3) as usize];
                pool.set_attribute(policy, random.below(2)).unwrap();
            }
            96 => {
                let (_, pool) = self.slot(random);
                let threshold = [0, 8 * MIB, u64::MAX][random.below(3) as usize];
                pool.set_attribute(PoolAttribute::ReleaseThreshold, threshold)
                    .unwrap();
            }
            97 => {
                let number = random.below(POOLS);
                let fresh = self.pool(number);
                let slot = &self.slots[number as usize];
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                let old = std::mem::replace(&mut *slot, fresh);
                drop(slot);
                old.destroy().unwrap();
            }
            _ => {
                let (_, pool) = self.slot(random);
                let usage = pool.usage();
                assert!(usage.reserved_high >= usage.reserved_current);
                assert!(usage.used_high >= usage.used_current);
            }
        }
    }

    fn verify(&self, block: &Taken, stream: StreamId) {
        let (address, size) = (block.held.address(), block.size.min(KIB));
        let findings = &self.findings;
        let verified = self
            .device
            .verify(stream, address, size, block.pattern, findings);
        verified.unwrap();
    }

    fn free(&self, block: Taken) {
        self.verify(&block, block.stream);
        assert!(self.checker.freeing(block.held.address()).is_some());
        match block.held {
            Held::Owned(owned) => owned.free().unwrap(),
            Held::Raw(address) => self.pools.free(address).unwrap(),
        }
    }

    fn run(self, seed: u64, rounds: u64, calls: u64) {
        let stop = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (world, stop) = (&self, &stop);
                let random = Random(seed.wrapping_mul(1 << 32) + thread);
                scope.spawn(move || {
                    // A thread that panics must not leave the others at the barrier.
                    let run = std::panic::AssertUnwindSafe(|| {
                        world.thread(random, rounds, calls, stop);
                    });
                    if std::panic::catch_unwind(run).is_err() {
                        eprintln!("seed {seed}, thread {thread}");
                        std::process::abort();
                    }
                });
            }
        });
        self.stop();
        let World {
            device,
            checker,
            pools,
            slots,
            budgets,
            findings,
        } = self;
        drop(slots);
        assert_eq!(reap_waiting(&device), Ok(0), "seed {seed}");
        assert!(pools.all().is_empty(), "seed {seed}");
        drop(pools);
        device.synchronize().unwrap();
        assert_eq!(checker.finish(), [], "seed {seed}");
        assert_eq!(findings.wrong_bytes(), 0, "seed {seed}: {findings:?}");
        for budget in budgets {
            let usage = budget.usage();
            assert_eq!((usage.reserved_current, usage.pools), (0, 0), "seed {seed}");
        }
        let info = device.memory_info().unwrap();
        assert_eq!(info.free, info.total, "seed {seed}");
    }
}

fn sim() -> Arc<dyn Device> {
    Arc::new(SimDevice::builder().total_memory(1024 * MIB).build())
}

fn host() -> Arc<dyn Device> {
    Arc::new(HostDevice::new(1024 * MIB).unwrap())
}

fn from_environment(name: &str, usual: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn a_short_run_on_the_sim() {
    for seed in 0..3 {
        World::new(sim()).run(from_environment("MILLPOND_SEED", 0) + seed, 6, 40);
    }
}

#[test]
fn a_short_run_on_the_host() {
    World::new(host()).run(from_environment("MILLPOND_SEED", 0), 4, 30);
}

#[test]
#[ignore = "runs for a minute"]
fn a_long_run() {
    let seconds = from_environment("MILLPOND_STRESS_SECONDS", 60);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = from_environment("MILLPOND_SEED", 0);
    while Instant::now() < until {
        World::new(sim()).run(seed, 10, 100);
        World::new(host()).run(seed, 4, 50);
        seed += 1;
    }
    println!("seeds up to {seed}");
}
