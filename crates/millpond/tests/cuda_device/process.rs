//! Devices that come and go, forks, and the end of the process.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use millpond::device::cuda::CudaDevice;
use millpond::device::{Device, Findings, Status, StreamId, StreamOrder};

use crate::{OTHER, PATTERN, device, in_own_process, passes_in_own_process, status};

#[test]
fn devices_are_counted_from_zero() {
    let Some(turn) = device() else { return };
    println!("{:?}", turn.device);
    let count = turn.device.driver().device_count().unwrap();
    assert_eq!(
        status(CudaDevice::open(count).map(|_| ())),
        Status::INVALID_DEVICE
    );
    if count < 2 {
        eprintln!("skipped: peers need a second device");
        return;
    }
    println!("peer: {}", turn.device.can_access_peer(1).unwrap());
}

#[test]
fn dropping_lets_queued_work_end() {
    let Some(turn) = device() else { return };
    let keeper = &*turn.device;
    let address = keeper.allocate(256 << 20).unwrap();
    let device = CudaDevice::open(0).unwrap();
    let stream = device.create_stream(StreamOrder::Independent).unwrap();
    let findings = Findings::new();
    for _ in 0..20 {
        device.fill(stream, address, 256 << 20, PATTERN).unwrap();
        device
            .verify(stream, address, 256 << 20, OTHER, &findings)
            .unwrap();
    }
    drop(device);
    assert_eq!(findings.wrong_bytes(), 20 * (256 << 20));
    keeper.destroy_stream(stream).unwrap();
    keeper.free(address).unwrap();
}

#[test]
fn opening_and_closing_keeps_nothing() {
    if device().is_none() {
        return;
    }
    passes_in_own_process("process::a_thousand_openings");
}

#[test]
#[ignore = "run by opening_and_closing_keeps_nothing"]
fn a_thousand_openings() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The primary context stays with this one: what comes and goes is millpond's own.
    let turn = device().unwrap();
    let address = turn.device.allocate(4096).unwrap();
    let round = || {
        let device = CudaDevice::open(0).unwrap();
        let findings = Findings::new();
        device
            .fill(StreamId::PER_THREAD, address, 4096, PATTERN)
            .unwrap();
        device
            .verify(StreamId::PER_THREAD, address, 4096, PATTERN, &findings)
            .unwrap();
        device.synchronize_stream(StreamId::PER_THREAD).unwrap();
        assert_eq!(findings.wrong_bytes(), 0);
    };
    for _ in 0..20 {
        round();
    }
    let before = (
        descriptors(),
        turn.device.memory_info().unwrap().free,
        resident_pages(),
    );
    for _ in 0..1000 {
        round();
    }
    let after = (
        descriptors(),
        turn.device.memory_info().unwrap().free,
        resident_pages(),
    );
    println!("descriptors, free device memory, resident pages: {before:?}, then {after:?}");
    assert_eq!(after.0, before.0);
    assert!(after.1 + (64 << 20) >= before.1);
    // 64 KiB of slots a round would be 16,000 pages.
    assert!(after.2 < before.2 + 8000);
}

fn resident_pages() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn contexts_come_and_go() {
    if device().is_none() {
        return;
    }
    passes_in_own_process("process::contexts_made_and_destroyed");
}

#[test]
#[ignore = "run by contexts_come_and_go"]
fn contexts_made_and_destroyed() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = None;
    for round in 0..12 {
        drop(device().unwrap());
        if round == 1 {
            before = Some(descriptors());
        }
    }
    assert_eq!(Some(descriptors()), before);
}

#[test]
fn a_forked_process_gets_an_error() {
    if device().is_none() {
        return;
    }
    passes_in_own_process("process::in_a_forked_process");
}

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
    fn atexit(function: extern "C" fn()) -> c_int;
}

#[test]
#[ignore = "run by a_forked_process_gets_an_error"]
fn in_a_forked_process() {
    let turn = device().unwrap();
    // SAFETY: the child makes calls that reach no lock of another thread, and ends with `_exit`.
    let child = unsafe { fork() };
    if child == 0 {
        let refused = [
            turn.device.allocate(64).map(|_| ()),
            turn.device.synchronize(),
            CudaDevice::open(0).map(|_| ()),
        ]
        .iter()
        .all(|result| {
            result
                .as_ref()
                .is_err_and(|error| error.status == Status::NOT_INITIALIZED)
        });
        drop(turn);
        // SAFETY: ends the process at once.
        unsafe { _exit(c_int::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    let address = turn.device.allocate(64).unwrap();
    turn.device.free(address).unwrap();
}

/// The driver takes itself down at process exit; whoever still holds a device then must survive.
#[test]
fn process_exit_is_survived() {
    if device().is_none() {
        return;
    }
    let (status, said) = in_own_process("process::a_device_at_process_exit", &[]);
    assert!(status.success() && said.contains("late: "), "{said}");
    println!("{said}");
}

static LATE: Mutex<Option<CudaDevice>> = Mutex::new(None);

extern "C" fn late() {
    let device = LATE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .unwrap();
    match device.synchronize() {
        Ok(()) => eprintln!("late: the driver was still there"),
        Err(error) => eprintln!("late: {error}"),
    }
    drop(device);
}

#[test]
#[ignore = "run by process_exit_is_survived"]
fn a_device_at_process_exit() {
    // Registered before the driver is loaded, so it runs after whatever the driver registers.
    // SAFETY: the function may run at exit: it unwinds only if the test is broken.
    assert_eq!(unsafe { atexit(late) }, 0);
    let device = CudaDevice::open(0).unwrap();
    let address = device.allocate(4096).unwrap();
    device
        .fill(StreamId::DEFAULT, address, 4096, PATTERN)
        .unwrap();
    *LATE.lock().unwrap() = Some(device);
}
