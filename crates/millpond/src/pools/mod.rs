//! The pools of a program: the default pool of every place, the current one, those that were made
//! besides, and which of them an address belongs to.
//!
//! What CUDA keeps for the process (`cuDeviceGetDefaultMemPool`, `cuDeviceSetMemPool`,
//! `cuMemGetMemPool` and their like) is an object here, so that emulated devices, of which a process
//! can have many of the same ordinal, do not get into each other's way.
//!
//! # Invariants
//!
//! 1. A place has one default pool, which is never destroyed. A current pool is local to its place;
//!    where it was destroyed the default pool is the current one again (DRV `cuMemPoolDestroy`).
//! 2. A pool is found by an address as long as it has memory, whether it was destroyed or not.
//! 3. No lock of this room is held while a device or a pool is called.

#![forbid(unsafe_code)]

mod error;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use error::PoolsError;

use crate::device::{Device, EventId, StreamId};
use crate::pool::{Block, BlockError, Pointer, Pool, PoolBuilder, PoolLocation, Request};
use crate::pool::{WaitFor, WeakPool, wait_for};

/// The pools of a set of devices. Clones are the same.
#[derive(Clone)]
pub struct Pools {
    shared: Arc<Shared>,
}

struct Shared {
    /// By ordinal.
    devices: BTreeMap<u32, Arc<dyn Device>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    places: BTreeMap<PoolLocation, Place>,
    /// All pools that were made here, as long as they are there.
    known: Vec<WeakPool>,
}

struct Place {
    default: Pool,
    current: Option<Pool>,
}

impl Pools {
    /// The pools of these devices. Nothing is allocated, and no pool is made, before it is asked
    /// for.
    ///
    /// # Errors
    ///
    /// [`PoolsError::SameDevice`] if two have the same ordinal.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Result<Pools, PoolsError> {
        let mut by_ordinal = BTreeMap::new();
        for device in devices {
            let ordinal = device.capabilities().ordinal;
            if by_ordinal.insert(ordinal, device).is_some() {
                return Err(PoolsError::SameDevice { ordinal });
            }
        }
        Ok(Pools {
            shared: Arc::new(Shared {
                devices: by_ordinal,
                state: Mutex::default(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// The ordinals of the devices, in order.
    pub fn ordinals(&self) -> Vec<u32> {
        self.shared.devices.keys().copied().collect()
    }

    /// The device of an ordinal.
    ///
    /// # Errors
    ///
    /// [`PoolsError::NoSuchDevice`].
    pub fn device(&self, ordinal: u32) -> Result<&Arc<dyn Device>, PoolsError> {
        let device = self.shared.devices.get(&ordinal);
        device.ok_or_else(|| PoolsError::NoSuchDevice {
            ordinal,
            known: self.ordinals(),
        })
    }

    /// The device that pools of a location work with: its own, or for memory of the host the first
    /// that can use it.
    fn device_of(&self, location: PoolLocation) -> Result<&Arc<dyn Device>, PoolsError> {
        if let PoolLocation::Device(ordinal) = location {
            return self.device(ordinal);
        }
        let mut devices = self.shared.devices.values();
        let offers = |device: &&Arc<dyn Device>| {
            let capabilities = device.capabilities();
            capabilities.mapping
                && match location {
                    PoolLocation::Host => capabilities.host,
                    _ => capabilities.host_numa,
                }
        };
        let first = devices.find(offers);
        first.ok_or(PoolsError::NoSuchLocation { location })
    }

    /// Begins to build a pool with memory at a location; [`Pools::create`] makes it.
    ///
    /// # Errors
    ///
    /// [`PoolsError::NoSuchDevice`], [`PoolsError::NoSuchLocation`].
    pub fn builder(&self, location: PoolLocation) -> Result<PoolBuilder, PoolsError> {
        let device = Arc::clone(self.device_of(location)?);
        Ok(Pool::builder(device).location(location))
    }

    /// Makes a pool (`cuMemPoolCreate`) and keeps it known here: addresses lead to it, and it is
    /// told of synchronisations.
    ///
    /// # Errors
    ///
    /// [`PoolsError::Pool`]; [`PoolsError::NotOurs`] if it works with another device.
    pub fn create(&self, builder: PoolBuilder) -> Result<Pool, PoolsError> {
        let pool = builder.build()?;
        self.add(&pool)?;
        Ok(pool)
    }

    /// Makes a pool that was built elsewhere known here.
    ///
    /// # Errors
    ///
    /// [`PoolsError::NotOurs`] if it works with another device.
    pub fn add(&self, pool: &Pool) -> Result<(), PoolsError> {
        let ours = |device: &Arc<dyn Device>| is_same(device, pool.device());
        if !self.shared.devices.values().any(ours) {
            return Err(PoolsError::NotOurs);
        }
        let mut state = self.state();
        let mut known = std::mem::take(&mut state.known);
        // What is dropped here goes after the lock.
        let alive: Vec<Pool> = known.iter().filter_map(WeakPool::upgrade).collect();
        known = alive.iter().map(Pool::downgrade).collect();
        if !alive.contains(pool) {
            known.push(pool.downgrade());
        }
        state.known = known;
        drop(state);
        drop(alive);
        Ok(())
    }

    /// All pools that are known here and have memory, or holders.
    pub fn all(&self) -> Vec<Pool> {
        let state = self.state();
        state.known.iter().filter_map(WeakPool::upgrade).collect()
    }

    /// The default pool of a location (`cuMemGetDefaultMemPool`, `cuDeviceGetDefaultMemPool`): made
    /// when it is first asked for, without a limit of its own and without handle types.
    ///
    /// # Errors
    ///
    /// [`PoolsError::NoSuchDevice`], [`PoolsError::NoSuchLocation`].
    pub fn default_pool(&self, location: PoolLocation) -> Result<Pool, PoolsError> {
        if let Some(place) = self.state().places.get(&location) {
            return Ok(place.default.clone());
        }
        let made = self.builder(location)?.default_pool().build()?;
        let default = {
            let mut state = self.state();
            // Another thread may have been quicker; then this one is dropped unused.
            let place = state.places.entry(location).or_insert(Place {
                default: made.clone(),
                current: None,
            });
            place.default.clone()
        };
        if default == made {
            self.add(&default)?;
        }
        Ok(default)
    }

    /// The current pool of a location (`cuMemGetMemPool`, `cuDeviceGetMemPool`): the one that was
    /// set last, or the default pool if none was, or if that one was destroyed.
    ///
    /// # Errors
    ///
    /// As [`Pools::default_pool`].
    pub fn current_pool(&self, location: PoolLocation) -> Result<Pool, PoolsError> {
        let mut destroyed = None;
        let current = {
            let mut state = self.state();
            let place = state.places.get_mut(&location);
            place.and_then(|place| {
                destroyed = place.current.take_if(|current| current.is_destroyed());
                place.current.clone()
            })
        };
        drop(destroyed);
        match current {
            Some(current) => Ok(current),
            None => self.default_pool(location),
        }
    }

    /// Makes a pool the current one of a location (`cuMemSetMemPool`, `cuDeviceSetMemPool`). What
    /// is allocated already stays where it is.
    ///
    /// # Errors
    ///
    /// [`PoolsError::WrongLocation`] if the pool's memory does not lie there,
    /// [`PoolsError::Destroyed`], [`PoolsError::NotOurs`], and as [`Pools::default_pool`].
    pub fn set_current_pool(&self, location: PoolLocation, pool: &Pool) -> Result<(), PoolsError> {
        if pool.location() != location {
            return Err(PoolsError::WrongLocation {
                pool: pool.location(),
                location,
            });
        }
        if pool.is_destroyed() {
            return Err(PoolsError::Destroyed);
        }
        let default = self.default_pool(location)?;
        self.add(pool)?;
        let chosen = (*pool != default).then(|| pool.clone());
        let former = {
            let mut state = self.state();
            let place = state.places.get_mut(&location);
            place.and_then(|place| std::mem::replace(&mut place.current, chosen))
        };
        drop(former);
        Ok(())
    }

    /// Allocates from the current pool of a device (`cuMemAllocAsync`): of the device named, whose
    /// the stream must be; which context is current does not matter.
    ///
    /// # Errors
    ///
    /// [`PoolsError::WrongStream`] if the device does not know the stream,
    /// [`PoolsError::NoSuchDevice`], [`PoolsError::Alloc`].
    #[track_caller]
    pub fn allocate(&self, ordinal: u32, size: u64, stream: StreamId) -> Result<Block, PoolsError> {
        self.allocate_with(PoolLocation::Device(ordinal), Request::new(size, stream))
    }

    /// Allocates from the current pool of a location, with further wishes.
    ///
    /// # Errors
    ///
    /// As [`Pools::allocate`].
    #[track_caller]
    pub fn allocate_with(
        &self,
        location: PoolLocation,
        request: Request,
    ) -> Result<Block, PoolsError> {
        let device = self.device_of(location)?;
        let stream = request.stream();
        let pool = self.current_pool(location)?;
        if !pool.is_captured(stream) && device.stream_order(stream).is_none() {
            let device = device.capabilities().ordinal;
            return Err(PoolsError::WrongStream { stream, device });
        }
        Ok(pool.allocate_with(request)?)
    }

    /// The pool that an address belongs to, live or not.
    pub fn pool_of(&self, address: u64) -> Option<Pool> {
        self.all().into_iter().find(|pool| pool.contains(address))
    }

    /// What an address belongs to, in whichever pool: see [`Pool::pointer`].
    ///
    /// # Errors
    ///
    /// [`BlockError::Foreign`] if it is no pool's, [`BlockError::NotLive`] if no live block is
    /// there.
    pub fn pointer(&self, address: u64) -> Result<Pointer, BlockError> {
        let pool = self.pool_of(address);
        let pool = pool.ok_or(BlockError::Foreign { address })?;
        pool.pointer(address)
    }

    /// Frees the block that starts at an address, in whichever pool (`cuMemFreeAsync`): see
    /// [`Pool::free`].
    ///
    /// # Errors
    ///
    /// [`BlockError`]: the address is no pool's, no live block is there, or it lies inside one.
    #[track_caller]
    pub fn free(&self, address: u64) -> Result<(), BlockError> {
        let pool = self.pool_of(address);
        let pool = pool.ok_or(BlockError::Foreign { address })?;
        pool.free(address)
    }

    /// Waits on the host for a stream of a device, once, and tells all pools of the device: what it
    /// covers is free for all, and what they have above their thresholds goes back.
    ///
    /// # Errors
    ///
    /// [`PoolsError::NoSuchDevice`], [`PoolsError::Device`].
    pub fn synchronize_stream(&self, ordinal: u32, stream: StreamId) -> Result<(), PoolsError> {
        self.wait(ordinal, WaitFor::Stream(stream))
    }

    /// The same for an event. A pool knows what it covers if it was recorded through that pool.
    ///
    /// # Errors
    ///
    /// [`PoolsError::NoSuchDevice`], [`PoolsError::Device`].
    pub fn synchronize_event(&self, ordinal: u32, event: EventId) -> Result<(), PoolsError> {
        self.wait(ordinal, WaitFor::Event(event))
    }

    /// The same for all that a device has to do.
    ///
    /// # Errors
    ///
    /// [`PoolsError::NoSuchDevice`], [`PoolsError::Device`].
    pub fn synchronize(&self, ordinal: u32) -> Result<(), PoolsError> {
        self.wait(ordinal, WaitFor::Device)
    }

    fn wait(&self, ordinal: u32, wait: WaitFor) -> Result<(), PoolsError> {
        let device = self.device(ordinal)?;
        let mut pools = self.all();
        pools.retain(|pool| is_same(pool.device(), device));
        Ok(wait_for(device, &pools, wait)?)
    }
}

fn is_same(one: &Arc<dyn Device>, other: &Arc<dyn Device>) -> bool {
    Arc::as_ptr(one).cast::<()>() == Arc::as_ptr(other).cast::<()>()
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools")
            .field("devices", &self.ordinals())
            .field("pools", &self.all())
            .finish()
    }
}

#[cfg(test)]
mod tests;
