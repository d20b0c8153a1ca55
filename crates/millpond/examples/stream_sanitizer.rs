//! What the stream sanitizer says of a missing wait: `cargo run --example stream_sanitizer`.

use std::sync::Arc;

use millpond::device::host::HostDevice;
use millpond::device::{Device, Pattern, StreamId, StreamOrder};
use millpond::{Access, Hazard, Pool, Request};

/// Stream `a` makes a batch, stream `b` uses it. Without the wait, `b` may be too early; on most
/// days it is not.
fn hand_a_batch_over(
    pool: &Pool,
    [a, b]: [StreamId; 2],
    with_wait: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let device = pool.device();
    let batch = pool.allocate_with(Request::new(1 << 20, a).name("batch"))?;
    batch.use_on(b)?;

    batch.access(a, Access::Write);
    device.fill(a, batch.address(), batch.size(), Pattern(1))?;

    if with_wait {
        let filled = device.create_event()?;
        pool.record_event(filled, a)?;
        pool.wait_event(b, filled)?;
        pool.forget_event(filled);
        device.destroy_event(filled)?;
    }

    batch.access(b, Access::Write);
    device.fill(b, batch.address(), batch.size(), Pattern(2))?;
    batch.free()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // On a GPU: `millpond::device::CudaDevice::open(0)?`, and any streams of the program's.
    let device: Arc<dyn Device> = Arc::new(HostDevice::new(256 << 20)?);
    let stream = || device.create_stream(StreamOrder::Independent);
    let streams = [stream()?, stream()?];
    let pool = Pool::builder(Arc::clone(&device))
        .stream_sanitizer()
        .build()?;

    hand_a_batch_over(&pool, streams, true)?;
    assert!(pool.order_reports().is_empty());

    hand_a_batch_over(&pool, streams, false)?;
    let reports = pool.order_reports();
    for report in &reports {
        println!("{report}");
    }
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].hazard, Hazard::UseNotOrderedAfterAllocation);
    pool.synchronize()?;
    Ok(())
}
