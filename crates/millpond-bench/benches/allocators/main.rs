//! The pool beside reference allocators, in one run, with the same sizes in the same order:
//!
//! ```sh
//! cargo bench -p millpond-bench
//! ```
//!
//! The references know nothing of streams, devices or reuse in order. `OffsetAllocator` finds
//! offsets in a range, as the pool does; TLSF and mimalloc manage plain memory of this machine and
//! keep part of their books in it.

mod references;

use divan::{Bencher, black_box};
use millpond_bench::{Allocator, Churning, PoolOnSim};
use references::{MimallocHeap, Offsets, Tlsf};

fn main() {
    divan::main();
}

/// Allocate and free one size, in bytes.
#[divan::bench(sample_size = 1000, types = [PoolOnSim, Offsets, Tlsf, MimallocHeap], args = [512, 1 << 20, 64 << 20])]
fn pair<A: Allocator>(bencher: Bencher, size: u64) {
    let mut allocator = A::new().expect("an allocator");
    // The first one makes the memory.
    let first = allocator.allocate(size).expect("a block");
    allocator.free(first).expect("to free it");
    bencher.bench_local(|| {
        let block = allocator.allocate(black_box(size)).expect("a block");
        allocator.free(black_box(block)).expect("to free it");
    });
}

/// Replace a random one of 1000 live blocks; sizes are from 2^9 up to 2^this bytes.
#[divan::bench(sample_size = 1000, types = [PoolOnSim, Offsets, Tlsf, MimallocHeap], args = [13, 24])]
fn churn<A: Allocator>(bencher: Bencher, largest: u8) {
    let mut churning = Churning::<A>::new(1000, 9, largest).expect("live blocks");
    bencher.bench_local(|| churning.replace().expect("a block"));
}
