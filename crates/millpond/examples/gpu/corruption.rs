//! The field's own corruption cases, under kernels that run while the pool hands memory out:
//! three streams merging (rmm#2489), two streams that reuse each other's memory, memory freed and
//! reused under a running kernel, one handle under two addresses.
//!
//! Streams are the program's own. Where a tool makes kernels run one at a time (compute-sanitizer),
//! a held stream goes on by itself; set `MILLPOND_HOLD_MAY_END` to let that pass.

mod support;

use millpond::device::{AccessGrant, Accessor, Device, HandleProperties, Protection, StreamId};
use millpond::{Block, Pool};
use support::{Gpu, Hold, Note, Outcome, ensure};

const MIB: u64 = 1 << 20;

type Case = fn(&Gpu) -> Outcome;

fn main() -> Outcome {
    let Some(gpu) = Gpu::open(0)? else {
        return Ok(());
    };
    let cases: [(&str, Case); 4] = [
        ("three streams merging", three_streams_merging),
        (
            "two streams reusing while a kernel runs",
            two_streams_reusing,
        ),
        (
            "freed and reused under a running kernel",
            reused_under_a_kernel,
        ),
        ("one handle under two addresses", two_addresses),
    ];
    for (name, case) in cases {
        case(&gpu).map_err(|error| format!("{name}: {error}"))?;
        println!("{name}: nothing corrupt");
    }
    Ok(())
}

fn pool(gpu: &Gpu, limit: u64) -> Outcome<Pool> {
    Ok(Pool::builder(gpu.shared()).limit(limit).build()?)
}

/// Lets a held stream go on, and fails if it had gone on before.
fn release(gpu: &Gpu, hold: Hold, stream: StreamId) -> Outcome {
    let held = hold.release(gpu, stream)?;
    ensure(
        held || std::env::var_os("MILLPOND_HOLD_MAY_END").is_some(),
        || "the held kernel ended by itself, so nothing was put to the test".into(),
    )
}

/// A's memory goes through B, which does nothing with it, to C.
fn three_streams_merging(gpu: &Gpu) -> Outcome {
    let pool = pool(gpu, 32 * MIB)?;
    let [a, b, c] = [gpu.stream()?, gpu.stream()?, gpu.stream()?];
    let note = Note::new()?;
    for round in 0..10_u32 {
        let value = round << 20;
        let halves = [pool.allocate(16 * MIB, a)?, pool.allocate(16 * MIB, a)?];
        let hold = gpu.hold(a)?;
        for half in &halves {
            gpu.write(a, half.address(), half.size(), value)?;
            gpu.check(a, half.address(), half.size(), value, &note)?;
        }
        drop(halves);
        drop(pool.allocate(32 * MIB, b)?);
        let last = pool.allocate(32 * MIB, c)?;
        gpu.write(c, last.address(), last.size(), !value)?;
        ensure(!gpu.is_idle(c)? || gpu.is_idle(a)?, || {
            format!("round {round}: the third stream did not wait for the first")
        })?;
        release(gpu, hold, a)?;
        gpu.check(c, last.address(), last.size(), !value, &note)?;
        gpu.synchronize(c)?;
        note.clean(round)?;
    }
    Ok(())
}

/// Two streams take each other's memory while both have kernels running.
fn two_streams_reusing(gpu: &Gpu) -> Outcome {
    let pool = pool(gpu, 64 * MIB)?;
    let streams = [gpu.stream()?, gpu.stream()?];
    let note = Note::new()?;
    for round in 0..400_u32 {
        let stream = streams[round as usize % 2];
        let sizes = match round % 3 {
            0 => [36 * MIB, 4 * MIB],
            1 => [24 * MIB, 16 * MIB],
            _ => [8 * MIB, 32 * MIB],
        };
        let blocks = [
            pool.allocate(sizes[0], stream)?,
            pool.allocate(sizes[1], stream)?,
        ];
        for (block, number) in blocks.iter().zip(0_u32..) {
            let value = (2 * round + number) << 20;
            gpu.write(stream, block.address(), block.size(), value)?;
            gpu.check(stream, block.address(), block.size(), value, &note)?;
        }
    }
    for stream in streams {
        gpu.synchronize(stream)?;
    }
    note.clean("two streams")?;
    let statistics = pool.statistics();
    ensure(statistics.peak_reserved_bytes <= 64 * MIB, || {
        format!("{statistics:?}")
    })
}

/// A block is freed while the kernel that uses it has not even begun; its memory serves the same
/// stream at once, and another stream only after that.
fn reused_under_a_kernel(gpu: &Gpu) -> Outcome {
    let pool = pool(gpu, 32 * MIB)?;
    let (stream, other) = (gpu.stream()?, gpu.stream()?);
    let note = Note::new()?;
    let whole = |stream| pool.allocate(32 * MIB, stream);
    let address = whole(stream)?.address();
    let fill = |block: &Block, stream, value| -> Outcome {
        gpu.write(stream, block.address(), block.size(), value)?;
        gpu.check(stream, block.address(), block.size(), value, &note)
    };
    for round in 0..10_u32 {
        let hold = gpu.hold(stream)?;
        for owner in 0..5 {
            let block = whole(stream)?;
            ensure(block.address() == address, || {
                "the memory was not used again".into()
            })?;
            fill(&block, stream, (round * 8 + owner) << 20)?;
        }
        let block = whole(other)?;
        fill(&block, other, (round * 8 + 7) << 20)?;
        release(gpu, hold, stream)?;
        gpu.synchronize(other)?;
        note.clean(round)?;
    }
    Ok(())
}

/// A handle that stands under two addresses is one memory for kernels that are ordered, and one
/// address goes while a kernel uses the other.
fn two_addresses(gpu: &Gpu) -> Outcome {
    let device = &*gpu.device;
    let (a, b) = (gpu.stream()?, gpu.stream()?);
    let note = Note::new()?;
    let size = 32 * MIB;
    let handle = device.create(size, HandleProperties::default())?;
    let grant = AccessGrant {
        accessor: Accessor::Device(device.capabilities().ordinal),
        protection: Protection::ReadWrite,
    };
    let map = || -> Outcome<u64> {
        let base = device.reserve(size, 0)?;
        device.map(base, size, handle)?;
        device.set_access(base, size, &[grant])?;
        Ok(base)
    };
    let event = device.create_event()?;
    let mut current = map()?;
    for round in 0..100_u32 {
        let value = round << 20;
        let next = map()?;
        gpu.write(a, current, size, value)?;
        device.record_event(event, a)?;
        device.wait_event(b, event)?;
        gpu.check(b, next, size, value, &note)?;
        gpu.write(b, next, size, !value)?;
        device.record_event(event, b)?;
        device.wait_event(a, event)?;
        gpu.check(a, next, size, !value, &note)?;
        // All use through the older address is over; b's through the newer may not be.
        gpu.synchronize(a)?;
        gpu.check(b, next, size, !value, &note)?;
        device.unmap(current, size)?;
        device.free_reservation(current, size)?;
        current = next;
    }
    gpu.synchronize(b)?;
    note.clean("two addresses")?;
    device.destroy_event(event)?;
    device.unmap(current, size)?;
    device.free_reservation(current, size)?;
    device.release(handle)?;
    Ok(())
}
