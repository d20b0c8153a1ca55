//! What following a long run costs: nanoseconds for one allocation or free, told to the checker.
//!
//! One stream, 64 GiB in handles of 64 MiB, 20,000 live blocks of 512 B to 16 MiB, 1.2 million
//! operations; then the same with four streams, an event a thousand operations, and every reuse
//! judged.

use std::time::Instant;

use millpond::device::{
    AccessGrant, Accessor, CallRecord, Capabilities, DeviceKind, EventId, HandleId,
    HandleProperties, Observer, Outcome, Protection, StreamId,
};
use millpond_check::Checker;

const BASE: u64 = 0x10_0000_0000;
const HANDLE: u64 = 64 << 20;
const HANDLES: u64 = 1024;
const LIVE: usize = 20_000;
const OPERATIONS: u64 = 1_200_000;

fn main() {
    for streams in [1, 4] {
        println!("{streams} streams: {:.0} ns an operation", run(streams));
    }
}

fn run(streams: u64) -> f64 {
    let checker = prepared();
    let made = |call: &CallRecord, outcome| {
        let _ = checker.before(call);
        checker.after(call, outcome, 0, 0);
    };
    let event = EventId(1);
    made(&CallRecord::CreateEvent, Outcome::Value(event.0));

    let mut draw = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        draw
    };
    // Address order as a pool would have it: places of fixed sizes, each with one block at most.
    let mut place = BASE;
    let places: Vec<(u64, u64)> = (0..LIVE)
        .map(|_| {
            let size = 512 << (random() % 13);
            let at = place;
            place += size;
            (at, size)
        })
        .collect();
    let mut live = vec![false; LIVE];
    let mut violations = 0;
    let started = Instant::now();
    for operation in 0..OPERATIONS {
        let index = (random() % LIVE as u64) as usize;
        let (address, size) = places[index];
        if live[index] {
            checker.freeing(address);
        } else {
            let size = size - random() % (size / 2);
            let stream = StreamId(16 + random() % streams);
            violations += checker.allocated(address, size, 256, stream).len();
        }
        live[index] = !live[index];
        if streams > 1 && operation % 1000 == 0 {
            let stream = StreamId(16 + random() % streams);
            made(&CallRecord::RecordEvent { event, stream }, Outcome::Done);
            made(&CallRecord::QueryEvent { event }, Outcome::Completed(true));
        }
    }
    let spent = started.elapsed();
    println!(
        "  {violations} reuses found out of order, {} records kept",
        checker.totals().records_kept
    );
    spent.as_nanos() as f64 / OPERATIONS as f64
}

fn prepared() -> Checker {
    let checker = Checker::new(&Capabilities {
        kind: DeviceKind::Sim,
        name: "by hand".to_owned(),
        ordinal: 0,
        total_memory: 1 << 40,
        granularity: 2 << 20,
        mapping: true,
        share_posix_fd: false,
        share_fabric: false,
        rdma: false,
        host: false,
        host_numa: false,
        stream_values_recur: true,
    });
    let made = |call: &CallRecord, outcome| {
        let _ = checker.before(call);
        checker.after(call, outcome, 0, 0);
    };
    let size = HANDLES * HANDLE;
    made(
        &CallRecord::Reserve { size, alignment: 0 },
        Outcome::Value(BASE),
    );
    for number in 0..HANDLES {
        let (address, size, handle) = (BASE + number * HANDLE, HANDLE, HandleId(number + 1));
        let properties = HandleProperties::default();
        made(
            &CallRecord::Create { size, properties },
            Outcome::Value(handle.0),
        );
        made(
            &CallRecord::Map {
                address,
                size,
                handle,
            },
            Outcome::Done,
        );
    }
    let grants = vec![AccessGrant {
        accessor: Accessor::Device(0),
        protection: Protection::ReadWrite,
    }];
    let address = BASE;
    made(
        &CallRecord::SetAccess {
            address,
            size,
            grants,
        },
        Outcome::Done,
    );
    checker
}
