//! Locks and atomic numbers of what a pool's threads share.
//!
//! In the crate's own tests each is a point where another thread can be let go on, so that
//! `shuttle` can run threads in orders of its choice; everywhere else they are the standard
//! library's.
//!
//! # Invariants
//!
//! 1. All that threads share in a pool goes through here, but for locks under which nothing of
//!    this module is touched (the devices' own).

#![forbid(unsafe_code)]

#[cfg(not(test))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};

#[cfg(test)]
pub(crate) use explored::{AtomicU64, AtomicUsize, Mutex, MutexGuard, explore, point};

#[cfg(test)]
mod explored {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::Ordering;
    use std::sync::{LockResult, PoisonError, TryLockError, atomic};

    use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};

    thread_local! {
        /// Whether this thread of the system's runs a program under shuttle: all threads of such a
        /// program run on it, one at a time.
        static EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a program of several threads in this many random orders of its points: one half of them
    /// changes between threads at any point, the other at few, so that a thread that stands still
    /// is overtaken by all that another does.
    pub(crate) fn explore(orders: usize, program: impl Fn() + Send + Sync + 'static) {
        const SEED: u64 = 0x706f_6e64;
        const CHANGES: usize = 3;
        let program = std::sync::Arc::new(program);
        let half = std::sync::Arc::clone(&program);
        let often = RandomScheduler::new_from_seed(SEED, orders / 2);
        run(often, move || half());
        let seldom = PctScheduler::new_from_seed(SEED, CHANGES, orders - orders / 2);
        run(seldom, move || program());
    }

    fn run(scheduler: impl Scheduler + 'static, program: impl Fn() + Send + Sync + 'static) {
        struct Exploring;
        impl Drop for Exploring {
            fn drop(&mut self) {
                EXPLORING.set(false);
            }
        }
        let mut config = shuttle::Config::new();
        config.stack_size = 1 << 20;
        EXPLORING.set(true);
        let exploring = Exploring;
        shuttle::Runner::new(scheduler, config).run(program);
        drop(exploring);
    }

    /// Lets another thread go on, if that is what is being explored.
    pub(crate) fn point() {
        if EXPLORING.get() && !std::thread::panicking() {
            // Any of shuttle's own operations is a point.
            shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::Relaxed);
        }
    }

    #[derive(Default, Debug)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(std::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            let guard = |guard| MutexGuard(Some(guard));
            if !EXPLORING.get() {
                let locked = self.0.lock();
                return locked
                    .map(guard)
                    .map_err(|e| PoisonError::new(guard(e.into_inner())));
            }
            point();
            loop {
                match self.0.try_lock() {
                    Ok(locked) => return Ok(guard(locked)),
                    Err(TryLockError::Poisoned(error)) => {
                        return Err(PoisonError::new(guard(error.into_inner())));
                    }
                    Err(TryLockError::WouldBlock) => shuttle::thread::yield_now(),
                }
            }
        }

        pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
            self.0.get_mut()
        }
    }

    /// Some until it is dropped.
    pub(crate) struct MutexGuard<'a, T>(Option<std::sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_deref().expect("it is dropped only once")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().expect("it is dropped only once")
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.0 = None;
            point();
        }
    }

    macro_rules! atomics {
        ($($name:ident: $kind:ty),*) => {$(
            #[derive(Default, Debug)]
            pub(crate) struct $name(atomic::$name);

            #[allow(dead_code, reason = "each is used in a part of what it can")]
            impl $name {
                pub(crate) fn new(value: $kind) -> $name {
                    $name(atomic::$name::new(value))
                }

                pub(crate) fn store(&self, value: $kind, ordering: Ordering) {
                    point();
                    self.0.store(value, ordering);
                }

                pub(crate) fn fetch_max(&self, value: $kind, ordering: Ordering) -> $kind {
                    point();
                    self.0.fetch_max(value, ordering)
                }

                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    update: impl FnMut($kind) -> Option<$kind>,
                ) -> Result<$kind, $kind> {
                    point();
                    self.0.fetch_update(set, fetch, update)
                }

                pub(crate) fn load(&self, ordering: Ordering) -> $kind {
                    point();
                    self.0.load(ordering)
                }

                pub(crate) fn fetch_add(&self, value: $kind, ordering: Ordering) -> $kind {
                    point();
                    self.0.fetch_add(value, ordering)
                }

                pub(crate) fn fetch_sub(&self, value: $kind, ordering: Ordering) -> $kind {
                    point();
                    self.0.fetch_sub(value, ordering)
                }
            }
        )*};
    }

    atomics!(AtomicU64: u64, AtomicUsize: usize);

    #[test]
    fn an_update_that_can_be_lost_is_lost_in_some_order_and_not_in_all() {
        let totals = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = std::sync::Arc::clone(&totals);
        explore(100, move || {
            let number = std::sync::Arc::new(Mutex::new(0));
            let add_one = |number: std::sync::Arc<Mutex<u32>>| {
                let known = *number.lock().unwrap();
                *number.lock().unwrap() = known + 1;
            };
            let threads = [(); 2].map(|()| {
                let number = std::sync::Arc::clone(&number);
                shuttle::thread::spawn(move || add_one(number))
            });
            threads.into_iter().for_each(|t| t.join().unwrap());
            seen.lock().unwrap().push(*number.lock().unwrap());
        });
        let totals = totals.lock().unwrap();
        assert_eq!(totals.len(), 100);
        assert!(totals.contains(&1) && totals.contains(&2), "{totals:?}");
    }
}
