//! Memory for captures of CUDA graphs: a pool of its own for each graph pool of PyTorch's.
//!
//! A graph uses its memory whenever it is replayed, which no allocator sees. So what a capture
//! allocates comes from a pool that serves nothing else, and that keeps all its memory where it is
//! until PyTorch says that the last graph is gone and the last block is freed. Within the pool
//! memory is used again in stream order, as the capture records it.
//!
//! # Invariants
//!
//! 1. `of_block` has exactly the live blocks of these pools, and `live` counts them, blocks that
//!    are being made included.
//! 2. A pool closes only while nothing is captured, when `graphs` and `live` are zero.
//! 3. The lock is held neither while a pool allocates or frees nor while one closes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::device::{Device, Observed, Observer, StreamId};
use engine::{Pool, Statistics};
use rustc_hash::FxHashMap;

use super::budget::Budget;
use super::millpond_torch_pool_id as PoolId;
use super::pools::refused;
use super::rules::{Rules, Sort};
use super::underway::Underway;
use crate::status::Failure;

struct CapturePool {
    pool: Pool,
    rules: Arc<Rules>,
    /// Captures that were begun and not released.
    graphs: u64,
    live: u64,
}

#[derive(Default)]
struct State {
    by_id: FxHashMap<PoolId, CapturePool>,
    of_block: FxHashMap<u64, PoolId>,
}

/// The graph pools of one device.
pub(super) struct Captures {
    ordinal: i32,
    device: Arc<dyn Device>,
    underway: Arc<Underway>,
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// As many as `of_block` has, for those who only want to know if there are any.
    blocks: AtomicU64,
}

impl Captures {
    pub(super) fn new(
        ordinal: i32,
        device: Arc<dyn Device>,
        underway: Arc<Underway>,
        budget: Arc<Budget>,
    ) -> Captures {
        Captures {
            ordinal,
            device,
            underway,
            budget,
            state: Mutex::default(),
            blocks: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A graph will use the pool; it is made if it is not there.
    pub(super) fn retain(&self, id: PoolId) -> Result<(), Failure> {
        let mut state = self.lock();
        if let Some(pool) = state.by_id.get_mut(&id) {
            pool.graphs += 1;
            return Ok(());
        }
        let rules = Arc::new(Rules {
            ordinal: self.ordinal,
            kind: self.device.capabilities().kind,
            underway: Arc::clone(&self.underway),
            budget: Arc::clone(&self.budget),
            sort: Sort::Captures(false.into()),
        });
        let observers = vec![Arc::clone(&rules) as Arc<dyn Observer>];
        let device = Arc::new(Observed::new(Arc::clone(&self.device), observers));
        let pool = Pool::builder(device).streams_declared().build()?;
        let graphs = 1;
        let live = 0;
        let made = CapturePool {
            pool,
            rules,
            graphs,
            live,
        };
        state.by_id.insert(id, made);
        Ok(())
    }

    /// A graph that used the pool is gone.
    pub(super) fn release(&self, id: PoolId) -> Result<(), Failure> {
        {
            let mut state = self.lock();
            let pool = state.by_id.get_mut(&id).filter(|pool| pool.graphs > 0);
            let Some(pool) = pool else {
                return Err(unknown(id));
            };
            pool.graphs -= 1;
        }
        self.close_unused();
        Ok(())
    }

    /// Allocates from the pool of a capture under way; with `make_room` called once if there is no
    /// memory.
    pub(super) fn allocate(
        &self,
        id: PoolId,
        size: u64,
        stream: StreamId,
        make_room: impl FnOnce(),
    ) -> Result<u64, Failure> {
        let pool = {
            let mut state = self.lock();
            let Some(pool) = state.by_id.get_mut(&id) else {
                return Err(unknown(id));
            };
            pool.live += 1;
            pool.pool.clone()
        };
        let block = pool.allocate(size, stream).or_else(|_| {
            make_room();
            pool.allocate(size, stream)
        });
        let mut state = self.lock();
        match block {
            Ok(block) => {
                let address = block.into_raw();
                state.of_block.insert(address, id);
                self.blocks.fetch_add(1, Ordering::Release);
                Ok(address)
            }
            Err(error) => {
                if let Some(pool) = state.by_id.get_mut(&id) {
                    pool.live -= 1;
                }
                Err(refused(error))
            }
        }
    }

    /// Frees a block of these pools; false if it is none.
    pub(super) fn free(&self, address: u64) -> Result<bool, Failure> {
        if self.blocks.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        let (id, pool) = {
            let mut state = self.lock();
            let Some(id) = state.of_block.remove(&address) else {
                return Ok(false);
            };
            self.blocks.fetch_sub(1, Ordering::Release);
            let Some(pool) = state.by_id.get(&id) else {
                return Err(unknown(id));
            };
            (id, pool.pool.clone())
        };
        let freed = pool.free(address);
        drop(pool);
        let unused = {
            let mut state = self.lock();
            state.by_id.get_mut(&id).is_some_and(|pool| {
                pool.live -= 1;
                pool.live == 0 && pool.graphs == 0
            })
        };
        if unused {
            self.close_unused();
        }
        freed?;
        Ok(true)
    }

    /// Says that a block of these pools is used on a further stream; false if it is none.
    pub(super) fn use_on(&self, address: u64, stream: StreamId) -> Result<bool, Failure> {
        if self.blocks.load(Ordering::Acquire) == 0 {
            return Ok(false);
        }
        let pool = {
            let state = self.lock();
            let id = state.of_block.get(&address);
            id.and_then(|id| state.by_id.get(id))
                .map(|pool| pool.pool.clone())
        };
        match pool {
            Some(pool) => Ok(pool.use_on(address, stream).map(|()| true)?),
            None => Ok(false),
        }
    }

    /// Gives back the memory of pools that no graph and no block needs any more; later, if a
    /// capture is under way. Gives whether any memory went back.
    pub(super) fn close_unused(&self) -> bool {
        let mut closed = false;
        self.underway.while_quiet(|| {
            let unused: Vec<CapturePool> = {
                let mut state = self.lock();
                let unused =
                    |_: &PoolId, pool: &mut CapturePool| pool.graphs == 0 && pool.live == 0;
                state
                    .by_id
                    .extract_if(unused)
                    .map(|(_, pool)| pool)
                    .collect()
            };
            for pool in unused {
                pool.rules.closing();
                drop(pool.pool);
                closed = true;
            }
        });
        closed
    }

    pub(super) fn statistics(&self) -> Vec<Statistics> {
        self.each().map(|pool| pool.statistics()).collect()
    }

    pub(super) fn reset_peaks(&self) {
        self.each().for_each(|pool| pool.reset_peaks());
    }

    fn each(&self) -> impl Iterator<Item = Pool> {
        let state = self.lock();
        let pools: Vec<Pool> = state.by_id.values().map(|p| p.pool.clone()).collect();
        pools.into_iter()
    }
}

fn unknown(id: PoolId) -> Failure {
    Failure::invalid(format!(
        "graph pool ({}, {}) was not begun, or was released; begin it first",
        id.first, id.second
    ))
}
