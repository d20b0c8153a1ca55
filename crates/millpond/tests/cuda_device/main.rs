//! What is the cuda device's own, on a real GPU. Where there is none, each test says so and does
//! nothing. The contract's rules are tested by the conformance suites of `millpond-check`.
//!
//! The tests take turns: some look at what the whole process holds.

use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond::device::cuda::CudaDevice;
use millpond::device::{
    AccessGrant, Accessor, Device, DeviceError, Findings, HandleId, HandleProperties, Pattern,
    Protection, Status, StreamId,
};

mod process;
mod sharing;
mod streams;

const PATTERN: Pattern = Pattern(0x8877_6655_4433_2211);
const OTHER: Pattern = Pattern(0x0123_4567_89ab_cdef);

/// The device, for one test at a time.
struct Turn {
    device: Arc<CudaDevice>,
    granularity: u64,
    _turn: MutexGuard<'static, ()>,
}

fn device() -> Option<Turn> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDevice::open(0) {
        Ok(device) => Some(Turn {
            granularity: device.capabilities().granularity,
            device: Arc::new(device),
            _turn: turn,
        }),
        Err(error)
            if [Status::NOT_FOUND, Status::STUB_LIBRARY, Status::NO_DEVICE]
                .contains(&error.status) =>
        {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// As [`device`], if it can map.
fn mapping_device() -> Option<Turn> {
    let turn = device()?;
    if !turn.device.capabilities().mapping {
        eprintln!("skipped: this device cannot map");
        return None;
    }
    Some(turn)
}

/// Runs one of the ignored tests of this file in a process of its own.
fn in_own_process(test: &str, environment: &[(&str, String)]) -> (ExitStatus, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned());
    (output.status, said.concat())
}

fn passes_in_own_process(test: &str) {
    let (status, said) = in_own_process(test, &[]);
    assert!(status.success() && said.contains("1 passed"), "{said}");
}

fn grant(device: &CudaDevice) -> [AccessGrant; 1] {
    [AccessGrant {
        accessor: Accessor::Device(device.capabilities().ordinal),
        protection: Protection::ReadWrite,
    }]
}

fn status<T: std::fmt::Debug>(result: Result<T, DeviceError>) -> Status {
    let error = result.unwrap_err();
    eprintln!("as it should be: {error}");
    error.status
}

/// A reservation with handles mapped in it, one after the other.
struct Mapped<'a> {
    device: &'a CudaDevice,
    base: u64,
    size: u64,
    handles: Vec<(HandleId, u64)>,
}

impl<'a> Mapped<'a> {
    fn new(device: &'a CudaDevice, sizes: &[u64], properties: HandleProperties) -> Mapped<'a> {
        let handles: Vec<(HandleId, u64)> = sizes
            .iter()
            .map(|&size| (device.create(size, properties).unwrap(), size))
            .collect();
        Mapped::of(device, handles)
    }

    fn of(device: &'a CudaDevice, handles: Vec<(HandleId, u64)>) -> Mapped<'a> {
        let size = handles.iter().map(|(_, size)| size).sum();
        let base = device.reserve(size, 0).unwrap();
        let mut address = base;
        for &(handle, size) in &handles {
            device.map(address, size, handle).unwrap();
            address += size;
        }
        device.set_access(base, size, &grant(device)).unwrap();
        Mapped {
            device,
            base,
            size,
            handles,
        }
    }

    fn take_down(mut self) {
        self.device.unmap(self.base, self.size).unwrap();
        self.device.free_reservation(self.base, self.size).unwrap();
        for (handle, _) in self.handles.drain(..) {
            self.device.release(handle).unwrap();
        }
    }
}

/// What a range holds that is not the pattern, in bytes.
fn wrong(device: &CudaDevice, stream: StreamId, address: u64, size: u64, pattern: Pattern) -> u64 {
    let findings = Findings::new();
    device
        .verify(stream, address, size, pattern, &findings)
        .unwrap();
    device.synchronize_stream(stream).unwrap();
    findings.wrong_bytes()
}
