//! The scenario of NVIDIA's streamOrderedAllocationP2P with real data: memory of one GPU is read
//! and written by another, which was given access after the memory was already in use; and once
//! more after that access was taken away and given again.

mod support;

use millpond::device::{AccessGrant, Accessor, Device, DeviceError, HandleProperties, Protection};
use support::{Gpu, Note, Outcome, skipped};

const BYTES: u64 = 32 << 20;

fn main() -> Outcome {
    let Some(first) = Gpu::open(0)? else {
        return Ok(());
    };
    if first.device.driver().device_count()? < 2 {
        skipped("peer access needs a second GPU");
        return Ok(());
    }
    let Some(second) = Gpu::open(1)? else {
        return Ok(());
    };
    if !second.device.can_access_peer(0)? {
        skipped("device 1 cannot reach device 0");
        return Ok(());
    }
    let (streams, note) = ([first.stream()?, second.stream()?], Note::new()?);
    let device = &*first.device;
    let base = device.reserve(BYTES, 0)?;
    let handle = device.create(BYTES, HandleProperties::default())?;
    device.map(base, BYTES, handle)?;
    let grant = |ordinal, protection| -> Result<(), DeviceError> {
        let accessor = Accessor::Device(ordinal);
        device.set_access(
            base,
            BYTES,
            &[AccessGrant {
                accessor,
                protection,
            }],
        )
    };
    grant(0, Protection::ReadWrite)?;
    for round in 0..4_u32 {
        let values = [1 + 2 * round, 2 + 2 * round].map(|number| number << 24);
        first.write(streams[0], base, BYTES, values[0])?;
        if round % 2 == 0 {
            grant(1, Protection::ReadWrite)?;
        }
        let written = device.create_event()?;
        device.record_event(written, streams[0])?;
        second.device.wait_event(streams[1], written)?;
        second.check(streams[1], base, BYTES, values[0], &note)?;
        second.write(streams[1], base, BYTES, values[1])?;
        second.synchronize(streams[1])?;
        first.check(streams[0], base, BYTES, values[1], &note)?;
        first.synchronize(streams[0])?;
        device.destroy_event(written)?;
        note.clean(format!("round {round}"))?;
        if round % 2 == 1 {
            grant(1, Protection::None)?;
        }
    }
    device.unmap(base, BYTES)?;
    device.release(handle)?;
    device.free_reservation(base, BYTES)?;
    println!("every word as the other GPU wrote it");
    Ok(())
}
