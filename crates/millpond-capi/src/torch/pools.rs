//! The pools of one device behind PyTorch's pair: the main one, and those of graphs.

use std::sync::Arc;

use engine::device::{Device, Observed, Observer, Status, StreamId};
use engine::{AllocError, BlockError, Pool};

use super::budget::Budget;
use super::captures::Captures;
use super::filter::Filter;
use super::millpond_torch_pool_id as PoolId;
use super::rules::{Rules, Sort};
use super::underway::Underway;
use crate::statistics::millpond_statistics;
use crate::status::{Failure, millpond_status};

pub(super) struct DevicePools {
    ordinal: i32,
    device: Arc<dyn Device>,
    main: Pool,
    captures: Captures,
    underway: Arc<Underway>,
    budget: Arc<Budget>,
    /// What the caller configured; a memory fraction never goes beyond it.
    configured_limit: u64,
}

impl DevicePools {
    pub(super) fn new(
        ordinal: i32,
        device: Arc<dyn Device>,
        limit: Option<u64>,
        underway: Arc<Underway>,
    ) -> Result<DevicePools, Failure> {
        let limit = limit.unwrap_or(u64::MAX);
        let budget = Arc::new(Budget::new(limit));
        let rules: Arc<dyn Observer> = Arc::new(Rules {
            ordinal,
            kind: device.capabilities().kind,
            underway: Arc::clone(&underway),
            budget: Arc::clone(&budget),
            sort: Sort::Main,
        });
        let observed = Arc::new(Observed::new(Arc::clone(&device), vec![rules]));
        // PyTorch takes its streams from a fixed set that it never destroys.
        let main = Pool::builder(observed)
            .limit(limit)
            .streams_declared()
            .build()?;
        let captures = Captures::new(
            ordinal,
            Arc::clone(&device),
            Arc::clone(&underway),
            Arc::clone(&budget),
        );
        Ok(DevicePools {
            ordinal,
            device,
            main,
            captures,
            underway,
            budget,
            configured_limit: limit,
        })
    }

    pub(super) fn allocate(&self, size: u64, stream: StreamId) -> Result<u64, Failure> {
        if let Some(id) = self.underway.pool_of(self.ordinal, stream) {
            // What the main pool does not use may be what is missing.
            let make_room = || {
                let _ = self.main.trim(0);
            };
            return self.captures.allocate(id, size, stream, make_room);
        }
        let block = self.main.allocate(size, stream).or_else(|error| {
            if self.captures.close_unused() {
                self.main.allocate(size, stream)
            } else {
                Err(error)
            }
        });
        Ok(block.map_err(refused)?.into_raw())
    }

    pub(super) fn free(&self, address: u64) -> Result<(), Failure> {
        if self.captures.free(address)? {
            return Ok(());
        }
        Ok(self.main.free(address)?)
    }

    /// Says that a block is used on a further stream; false if it is not of these pools.
    pub(super) fn use_on(&self, address: u64, stream: StreamId) -> Result<bool, Failure> {
        if self.captures.use_on(address, stream)? {
            return Ok(true);
        }
        match self.main.use_on(address, stream) {
            Ok(()) => Ok(true),
            Err(BlockError::Foreign { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn empty_cache(&self) -> Result<(), Failure> {
        self.captures.close_unused();
        if !self.underway.any() {
            self.main.synchronize()?;
        }
        self.main.trim(0)?;
        Ok(())
    }

    pub(super) fn set_fraction(&self, fraction: f64) -> Result<(), Failure> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Failure::invalid(format!(
                "a memory fraction of {fraction} was asked for; give one from 0 to 1"
            )));
        }
        let total = self.device.capabilities().total_memory;
        let limit = (total as f64 * fraction) as u64;
        let limit = limit.min(self.configured_limit);
        self.budget.set_limit(limit);
        self.main.set_limit(limit);
        Ok(())
    }

    pub(super) fn begin_capture(&self, id: PoolId, filter: Filter) -> Result<(), Failure> {
        self.captures.retain(id)?;
        self.underway.begin(self.ordinal, id, filter);
        Ok(())
    }

    pub(super) fn end_capture(&self, id: PoolId) -> Result<(), Failure> {
        if !self.underway.end(self.ordinal, id) {
            return Err(Failure::new(
                millpond_status::MILLPOND_INVALID_ARGUMENT,
                format!(
                    "no capture into graph pool ({}, {}) is under way on device {}",
                    id.first, id.second, self.ordinal
                ),
            ));
        }
        self.captures.close_unused();
        Ok(())
    }

    pub(super) fn release_capture(&self, id: PoolId) -> Result<(), Failure> {
        self.captures.release(id)
    }

    pub(super) fn statistics(&self) -> millpond_statistics {
        let mut all = millpond_statistics::new(&self.main.statistics(), self.budget.limit());
        for one in self.captures.statistics() {
            all.add(&one);
        }
        all
    }

    pub(super) fn reset_peaks(&self) {
        self.main.reset_peaks();
        self.captures.reset_peaks();
    }
}

/// An allocation's failure. Memory that is there, but cannot be waited for during a capture, is a
/// lack of memory.
pub(super) fn refused(error: AllocError) -> Failure {
    match error {
        AllocError::Device { requested, error } if error.status == Status::CAPTURE_UNSUPPORTED => {
            Failure::new(
                millpond_status::MILLPOND_OUT_OF_MEMORY,
                format!(
                    "out of memory: {requested} bytes asked for while a stream is captured, and \
                     what is free must not be waited for ({error})"
                ),
            )
        }
        error => error.into(),
    }
}
