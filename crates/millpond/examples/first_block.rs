//! The pool in ten lines, on real bytes of this machine: `cargo run --example first_block`.

use std::sync::Arc;

use millpond::Pool;
use millpond::device::host::HostDevice;
use millpond::device::{Device, Findings, Pattern, StreamOrder};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // On a GPU: `millpond::device::CudaDevice::open(0)?`, and any stream of the program's.
    let device = Arc::new(HostDevice::new(256 << 20)?);
    let stream = device.create_stream(StreamOrder::Independent)?;
    let pool = Pool::builder(Arc::clone(&device) as Arc<dyn Device>).build()?;

    let block = pool.allocate(10 << 20, stream)?;
    let findings = Findings::new();
    device.fill(stream, block.address(), block.size(), Pattern(42))?;
    device.verify(
        stream,
        block.address(),
        block.size(),
        Pattern(42),
        &findings,
    )?;
    let address = block.address();
    // Freed while the stream still works on it: the stream may have it again at once.
    drop(block);
    let again = pool.allocate(10 << 20, stream)?;
    assert_eq!(again.address(), address);

    pool.synchronize()?;
    assert_eq!(findings.wrong_bytes(), 0);
    println!("{:#?}", pool.statistics());
    Ok(())
}
