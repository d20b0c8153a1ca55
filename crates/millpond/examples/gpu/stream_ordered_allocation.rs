//! The scenario of NVIDIA's sample of that name, with checks that fail.
//!
//! (a) Three buffers on one stream, two copies to the device, a kernel, and two frees before the
//! third buffer is copied back; what was freed is written over by its next owner at once.
//! (b) Twenty rounds with a synchronisation each: what the pool has stays as it is, nothing is
//! live after each; with a trim after each round everything goes back. The same rounds with the
//! driver's own pool are timed beside it.

mod support;

use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use millpond::device::{Device, StreamId};
use millpond::{Block, Pool};
use support::{Gpu, Kernel, Outcome, Pinned, ensure, raw};

const FLOATS: u32 = 1 << 20;
const BYTES: u64 = FLOATS as u64 * 4;
const ROUNDS: u32 = 20;
const MIB: u64 = 1 << 20;

fn main() -> Outcome {
    let Some(gpu) = Gpu::open(0)? else {
        return Ok(());
    };
    let stream = gpu.stream()?;
    let data = Data::new()?;
    frees_before_the_result_is_fetched(&gpu, stream, &data)?;
    let kept = rounds(&gpu, stream, &data, false)?;
    let trimmed = rounds(&gpu, stream, &data, true)?;
    let driver = rounds_of_the_driver(&gpu, stream, &data)?;
    println!(
        "{ROUNDS} rounds: {:.3} ms; giving all back after each: {:.3} ms; the driver's own pool, \
         keeping all: {:.3} ms",
        kept.as_secs_f64() * 1e3,
        trimmed.as_secs_f64() * 1e3,
        driver.as_secs_f64() * 1e3,
    );
    Ok(())
}

/// Two inputs, and where the result goes.
struct Data {
    left: Pinned<f32>,
    right: Pinned<f32>,
    sum: Pinned<f32>,
}

impl Data {
    fn new() -> Outcome<Data> {
        let mut left = Pinned::new(FLOATS as usize, 0.0)?;
        let mut right = Pinned::new(FLOATS as usize, 0.0)?;
        for (index, (x, y)) in left
            .as_mut_slice()
            .iter_mut()
            .zip(right.as_mut_slice())
            .enumerate()
        {
            *x = (index % 1013) as f32 / 7.0 + 1.0;
            *y = (index % 773) as f32 / 3.0 - 100.0;
        }
        let sum = Pinned::new(FLOATS as usize, f32::NAN)?;
        Ok(Data { left, right, sum })
    }

    /// The relative error of the sum, in the L2 norm, must be below 1e-6.
    fn check(&self) -> Outcome {
        let (mut error, mut norm) = (0.0_f64, 0.0_f64);
        let inputs = self.left.as_slice().iter().zip(self.right.as_slice());
        for ((x, y), sum) in inputs.zip(self.sum.as_slice()) {
            let expected = f64::from(x + y);
            error += (f64::from(*sum) - expected).powi(2);
            norm += expected.powi(2);
        }
        let relative = (error / norm).sqrt();
        ensure(norm > 0.0 && relative < 1e-6, || {
            format!("the relative error is {relative}")
        })
    }

    /// The work of one round, on three device buffers; what was used for input is given to
    /// `free_inputs` before the result is fetched.
    fn run(
        &self,
        gpu: &Gpu,
        stream: StreamId,
        buffers: [u64; 3],
        free_inputs: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let [left, right, sum] = buffers;
        gpu.upload(stream, left, &self.left)?;
        gpu.upload(stream, right, &self.right)?;
        let with = [left, right, sum, FLOATS.into()];
        gpu.launch(Kernel::VectorAdd, stream, FLOATS, &with)?;
        free_inputs()?;
        gpu.download(stream, &self.sum, sum)
    }
}

fn frees_before_the_result_is_fetched(gpu: &Gpu, stream: StreamId, data: &Data) -> Outcome {
    let pool = Pool::builder(gpu.shared()).build()?;
    let allocate = || pool.allocate(BYTES, stream);
    let (left, right, sum) = (allocate()?, allocate()?, allocate()?);
    let buffers = [&left, &right, &sum].map(Block::address);
    data.run(gpu, stream, buffers, || {
        drop((left, right));
        // The next owners of the same memory, in stream order.
        for _ in 0..2 {
            let next = allocate()?;
            let known = buffers.contains(&next.address());
            ensure(known, || "freed memory was not used again".into())?;
            gpu.write(stream, next.address(), next.size(), 0xdead_beef)?;
        }
        Ok(())
    })?;
    drop(sum);
    gpu.synchronize(stream)?;
    data.check()?;
    println!("frees before the result is fetched: right to 1e-6");
    Ok(())
}

fn rounds(gpu: &Gpu, stream: StreamId, data: &Data, trim: bool) -> Outcome<Duration> {
    let free = || gpu.device.memory_info().map(|info| info.free);
    let before = free()?;
    let pool = Pool::builder(gpu.shared()).build()?;
    let mut reserved = None;
    let mut round = || -> Outcome {
        let allocate = || pool.allocate(BYTES, stream);
        let (left, right, sum) = (allocate()?, allocate()?, allocate()?);
        let buffers = [&left, &right, &sum].map(Block::address);
        data.run(gpu, stream, buffers, || {
            drop((left, right));
            Ok(())
        })?;
        drop(sum);
        pool.synchronize_stream(stream)?;
        if trim {
            pool.trim(0)?;
        }
        let now = pool.statistics();
        let kept = *reserved.get_or_insert(now.reserved_bytes);
        ensure(now.live_bytes == 0 && now.reserved_bytes == kept, || {
            format!("{kept} bytes were reserved after the first round: {now:?}")
        })?;
        ensure(!trim || kept == 0, || format!("trimmed, but {now:?}"))
    };
    round()?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        round()?;
    }
    let elapsed = start.elapsed();
    data.check()?;
    pool.trim(0)?;
    let after = free()?;
    ensure(after + 32 * MIB >= before, || {
        format!("{before} bytes were free, and {after} are after all was given back")
    })?;
    Ok(elapsed)
}

fn rounds_of_the_driver(gpu: &Gpu, stream: StreamId, data: &Data) -> Outcome<Duration> {
    gpu.enter()?;
    let ok = |code: CUresult, call: &str| {
        ensure(code == CUresult::CUDA_SUCCESS, || {
            format!("{call}: {code:?}")
        })
    };
    let mut pool = std::ptr::null_mut();
    // SAFETY: a context is current, and its device is 0.
    let code = unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, 0) };
    ok(code, "cuDeviceGetDefaultMemPool")?;
    let mut keep = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a 64-bit number, which outlives the call.
    let code = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut keep).cast()) };
    ok(code, "cuMemPoolSetAttribute")?;
    let allocate = || {
        let mut address = 0;
        // SAFETY: a context is current, and the stream is one of it.
        let code = unsafe { sys::cuMemAllocAsync(&raw mut address, BYTES as usize, raw(stream)) };
        ok(code, "cuMemAllocAsync").map(|()| address)
    };
    let free = |address| {
        // SAFETY: the address came from the pool, and what uses it is queued on this stream.
        ok(
            unsafe { sys::cuMemFreeAsync(address, raw(stream)) },
            "cuMemFreeAsync",
        )
    };
    let round = || -> Outcome {
        let buffers = [allocate()?, allocate()?, allocate()?];
        data.run(gpu, stream, buffers, || {
            free(buffers[0])?;
            free(buffers[1])
        })?;
        free(buffers[2])?;
        gpu.synchronize(stream)
    };
    round()?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        round()?;
    }
    let elapsed = start.elapsed();
    data.check()?;
    Ok(elapsed)
}
