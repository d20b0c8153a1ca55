//! The scenario of NVIDIA's vectorAddMMAP on the device contract: each operand is one range over
//! handles of every device that the first can reach (on one GPU: its own), released as soon as they
//! are mapped. Checked to 1e-7, and that all memory comes back.

mod support;

use millpond::device::{
    AccessGrant, Accessor, CudaDevice, Device, DeviceError, HandleProperties, Protection,
};
use support::{Gpu, Kernel, Outcome, Pinned, ensure};

const FLOATS: u32 = 50_000;
const MIB: u64 = 1 << 20;

fn main() -> Outcome {
    let Some(gpu) = Gpu::open(0)? else {
        return Ok(());
    };
    let count = gpu.device.driver().device_count()?;
    let mut others = Vec::new();
    for ordinal in 1..count {
        if gpu.device.can_access_peer(ordinal)? {
            others.push(CudaDevice::open(ordinal)?);
        }
    }
    println!("over {} devices", others.len() + 1);
    let free = || gpu.device.memory_info().map(|info| info.free);
    let before = free()?;
    let ranges = [(); 3].map(|()| Striped::new(&gpu.device, &others));
    let [left, right, sum] = ranges;
    let (left, right, sum) = (left?, right?, sum?);
    let during = free()?;
    let device_bytes = 3 * gpu.device.capabilities().granularity;
    ensure(during + device_bytes <= before + 32 * MIB, || {
        format!("{before} bytes were free, and {during} are with three ranges")
    })?;

    add(&gpu, left.base, right.base, sum.base)?;
    for range in [left, right, sum] {
        range.take_down(&gpu.device)?;
    }
    let after = free()?;
    ensure(after + 32 * MIB >= before, || {
        format!("{before} bytes were free, and {after} are after all was given back")
    })?;
    println!("right to 1e-7; the memory came back");
    Ok(())
}

/// A range over one handle of each device.
struct Striped {
    base: u64,
    size: u64,
}

impl Striped {
    fn new(device: &CudaDevice, others: &[CudaDevice]) -> Result<Striped, DeviceError> {
        let all = || std::iter::once(device).chain(others);
        let each = all()
            .map(|device| device.capabilities().granularity)
            .fold(0, u64::max);
        let size = each * all().count() as u64;
        let base = device.reserve(size, 0)?;
        for (owner, number) in all().zip(0..) {
            let handle = owner.create(each, HandleProperties::default())?;
            device.map(base + number * each, each, handle)?;
            // The memory lives on under the range.
            owner.release(handle)?;
        }
        let grants: Vec<AccessGrant> = all()
            .map(|device| AccessGrant {
                accessor: Accessor::Device(device.capabilities().ordinal),
                protection: Protection::ReadWrite,
            })
            .collect();
        device.set_access(base, size, &grants)?;
        Ok(Striped { base, size })
    }

    fn take_down(self, device: &CudaDevice) -> Result<(), DeviceError> {
        device.unmap(self.base, self.size)?;
        device.free_reservation(self.base, self.size)
    }
}

fn add(gpu: &Gpu, left: u64, right: u64, sum: u64) -> Outcome {
    let stream = gpu.stream()?;
    let mut inputs = [
        Pinned::new(FLOATS as usize, 0.0_f32)?,
        Pinned::new(FLOATS as usize, 0.0)?,
    ];
    for (input, step) in inputs.iter_mut().zip([0.37_f32, 0.91]) {
        for (index, value) in input.as_mut_slice().iter_mut().enumerate() {
            *value = (index as f32 * step).fract() + 0.001;
        }
    }
    let result = Pinned::new(FLOATS as usize, f32::NAN)?;
    gpu.upload(stream, left, &inputs[0])?;
    gpu.upload(stream, right, &inputs[1])?;
    let with = [left, right, sum, FLOATS.into()];
    gpu.launch(Kernel::VectorAdd, stream, FLOATS, &with)?;
    gpu.download(stream, &result, sum)?;
    gpu.synchronize(stream)?;
    let operands = inputs[0].as_slice().iter().zip(inputs[1].as_slice());
    for (index, ((x, y), found)) in operands.zip(result.as_slice()).enumerate() {
        ensure((x + y - found).abs() <= 1e-7, || {
            format!("element {index}: {x} + {y} gave {found}")
        })?;
    }
    Ok(())
}
