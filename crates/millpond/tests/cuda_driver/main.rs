//! The cuda device's surroundings, on a driver's library without a device (`driver.c`):
//! loading and what goes wrong with it, contexts, failures, process end, forks. Needs a C compiler,
//! and says so where there is none.

mod fake;

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use libloading::os::unix::{Library, RTLD_NOW};
use millpond::device::cuda::{CudaDevice, Driver};
use millpond::device::{
    Call, Device, DeviceError, Findings, HandleProperties, Pattern, Status, StreamId, StreamOrder,
};

use fake::{Built, Controls, build};
fn open(built: &Built, ordinal: u32) -> Result<CudaDevice, DeviceError> {
    CudaDevice::open_with(Driver::load_from(&built.path)?, ordinal)
}

fn load_error(defines: &[&str]) -> Option<DeviceError> {
    let built = build(defines)?;
    let error = Driver::load_from(&built.path).unwrap_err();
    assert_eq!(error.call, Call::Open);
    Some(error)
}

// --- Loading ---------------------------------------------------------------------------------

#[test]
fn a_missing_library_says_what_to_install() {
    let error = Driver::load_from(Path::new("/nowhere/libcuda.so.1")).unwrap_err();
    assert_eq!((error.call, error.status), (Call::Open, Status::NOT_FOUND));
    assert!(
        error.detail.contains("install the NVIDIA driver"),
        "{error}"
    );
    assert!(error.detail.contains("/nowhere/libcuda.so.1"), "{error}");
}

#[test]
fn opening_a_device_never_panics_whatever_this_machine_has() {
    match CudaDevice::open(0) {
        Ok(device) => println!("this machine has {}", device.capabilities().name),
        Err(error) => {
            assert_eq!(error.call, Call::Open);
            assert!(error.detail.contains("install") || error.detail.contains("nvidia"));
        }
    }
    // A second attempt answers alike.
    assert!(CudaDevice::open(u32::MAX).is_err());
}

#[test]
fn a_stub_is_told_from_a_driver() {
    let Some(error) = load_error(&["STUB"]) else {
        return;
    };
    assert_eq!(error.status, Status::STUB_LIBRARY);
    assert!(error.detail.contains("LD_LIBRARY_PATH"), "{error}");
}

#[test]
fn a_library_that_is_no_driver_is_refused() {
    let Some(error) = load_error(&["NOT_A_DRIVER"]) else {
        return;
    };
    assert_eq!(error.status, Status::NOT_FOUND);
    assert!(error.detail.contains("cuDriverGetVersion"), "{error}");
}

#[test]
fn an_old_driver_is_refused_with_both_versions() {
    let Some(error) = load_error(&["OLD"]) else {
        return;
    };
    assert_eq!(error.status, Status::NOT_SUPPORTED);
    assert!(error.detail.contains("CUDA 9.0"), "{error}");
    assert!(error.detail.contains("CUDA 10.0"), "{error}");
}

#[test]
fn a_missing_function_is_named() {
    let Some(error) = load_error(&["NO_LAUNCH"]) else {
        return;
    };
    assert_eq!(error.status, Status::NOT_FOUND);
    assert!(error.detail.contains("cuLaunchKernel"), "{error}");
}

#[test]
fn a_machine_without_a_device_says_so() {
    let Some(error) = load_error(&["NO_DEVICE"]) else {
        return;
    };
    assert_eq!(error.status, Status::NO_DEVICE);
    assert!(error.detail.contains("CUDA_VISIBLE_DEVICES"), "{error}");
}

#[test]
fn functions_are_asked_for_by_version_where_the_driver_can() {
    // Here the functions can be found in no other way: their exported names are not the driver's.
    let Some(built) = build(&["PROC_ADDRESS", "STREAM_ID"]) else {
        return;
    };
    let device = open(&built, 0).unwrap();
    assert_eq!(device.driver().version(), 12040);
    assert!(
        !device
            .driver()
            .missing_functions()
            .contains(&"cuStreamGetId")
    );
    let identity = device.stream_identity(StreamId::PER_THREAD).unwrap();
    assert_eq!(identity, 102);
    for order in [StreamOrder::Independent, StreamOrder::WithLegacy] {
        let stream = device.create_stream(order).unwrap();
        assert_eq!(device.stream_order(stream), Some(order));
    }
    let per_thread = device.stream_order(StreamId::PER_THREAD);
    assert_eq!(per_thread, Some(StreamOrder::WithLegacy));
}

#[test]
fn a_driver_without_mapping_still_serves() {
    let Some(built) = build(&[]) else {
        return;
    };
    let device = open(&built, 1).unwrap();
    assert!(device.driver().missing_functions().contains(&"cuMemMap"));
    let capabilities = device.capabilities();
    assert!(!capabilities.mapping && !capabilities.share_posix_fd && !capabilities.host_numa);
    assert_eq!(
        (capabilities.name.as_str(), capabilities.ordinal),
        ("Fake 1", 1)
    );
    for error in [
        device.reserve(2 << 20, 0).unwrap_err(),
        device
            .create(2 << 20, HandleProperties::default())
            .unwrap_err(),
        device.unmap(0, 2 << 20).unwrap_err(),
    ] {
        assert_eq!(error.status, Status::NOT_SUPPORTED, "{error}");
    }
    let address = device.allocate(1000).unwrap();
    device.free(address).unwrap();
}

/// Loading through the usual names, as a user does; and the current context, which is the usual
/// driver's. Each in a process of its own.
#[test]
fn the_usual_names_find_the_driver() {
    let Some(built) = build(&["STREAM_ID"]) else {
        return;
    };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "in_a_process_of_its_own", "--ignored"])
        .env("LD_LIBRARY_PATH", built.folder.path())
        .env("FAKE_DRIVER", &built.path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
#[ignore = "run by the_usual_names_find_the_driver"]
fn in_a_process_of_its_own() {
    let path = PathBuf::from(std::env::var_os("FAKE_DRIVER").unwrap());
    // SAFETY: the library is the fake driver; it has no initialisers.
    let controls = Controls(unsafe { Library::open(Some(&path), RTLD_NOW) }.unwrap());
    assert_eq!(Driver::load().unwrap().library(), "libcuda.so.1");
    assert!(Arc::ptr_eq(
        &Driver::load().unwrap(),
        &Driver::load().unwrap()
    ));

    // No current context: an error. One that is not primary: used, and not retained.
    let error = CudaDevice::from_current_context().unwrap_err();
    assert_eq!(error.status, Status::INVALID_CONTEXT);
    controls.set_current(0x5001);
    let device = CudaDevice::from_current_context().unwrap();
    assert_eq!(device.capabilities().ordinal, 1);
    device.synchronize().unwrap();
    assert_eq!((controls.current(), controls.retained(1)), (0x5001, 0));

    // The primary one is kept alive.
    let primary = CudaDevice::open(1).unwrap();
    assert_eq!(controls.retained(1), 1);
    controls.set_current(controls.primary(1));
    let device = CudaDevice::from_current_context().unwrap();
    assert_eq!(controls.retained(1), 2);
    drop((device, primary));
    assert_eq!(controls.retained(1), 0);
}

// --- Devices and contexts ----------------------------------------------------------------------

#[test]
fn a_device_that_is_not_there_is_named_with_the_number_of_devices() {
    let Some(built) = build(&[]) else {
        return;
    };
    for ordinal in [2, u32::MAX] {
        let error = open(&built, ordinal).unwrap_err();
        assert_eq!(error.status, Status::INVALID_DEVICE);
        assert!(error.detail.contains("sees 2"), "{error}");
    }
    let device = open(&built, 0).unwrap();
    assert!(device.can_access_peer(1).unwrap());
    assert!(!device.can_access_peer(0).unwrap());
    let error = device.can_access_peer(2).unwrap_err();
    assert_eq!(error.status, Status::INVALID_DEVICE);
}

#[test]
fn calls_leave_the_threads_current_context_alone() {
    let Some(built) = build(&[]) else {
        return;
    };
    let controls = Controls::of(&built);
    let first = Arc::new(open(&built, 0).unwrap());
    let second = open(&built, 1).unwrap();
    // No context, the other device's, its own; and on a thread that has never seen any.
    assert_eq!(controls.current(), 0);
    first.memory_info().unwrap();
    assert_eq!(controls.current(), 0);
    for device in 0..2 {
        controls.set_current(controls.primary(device));
        first.synchronize().unwrap();
        second.synchronize().unwrap();
        assert!(first.allocate(0).is_err());
        assert_eq!(controls.current(), controls.primary(device));
    }
    let other = Arc::clone(&first);
    std::thread::spawn(move || other.create_event().unwrap())
        .join()
        .unwrap();
}

#[test]
fn opening_and_dropping_keeps_nothing() {
    let Some(built) = build(&[]) else {
        return;
    };
    let controls = Controls::of(&built);
    for _ in 0..3 {
        let device = open(&built, 0).unwrap();
        let address = device.allocate(100).unwrap();
        let findings = Findings::new();
        device
            .fill(StreamId::DEFAULT, address, 100, Pattern(1))
            .unwrap();
        device
            .verify(StreamId::DEFAULT, address, 100, Pattern(1), &findings)
            .unwrap();
        device.free(address).unwrap();
        assert_eq!(controls.count("fake_modules"), 1);
        assert_eq!(controls.count("fake_host_allocations"), 1);
        drop(device);
        assert_eq!(controls.count("fake_modules"), 0);
        assert_eq!(controls.count("fake_host_allocations"), 0);
        assert_eq!(controls.retained(0), 0);
    }
    // A device that cannot be opened after all is given back as well.
    let driver = Driver::load_from(&built.path).unwrap();
    controls.fail(Status::OUT_OF_MEMORY);
    let error = CudaDevice::open_with(driver, 0).unwrap_err();
    assert_eq!(error.status, Status::OUT_OF_MEMORY);
    controls.fail(Status(0));
    assert_eq!(controls.retained(0), 0);
}

#[test]
fn errors_carry_the_drivers_own_words() {
    let Some(built) = build(&[]) else {
        return;
    };
    let error = open(&built, 0).unwrap().allocate(0).unwrap_err();
    assert_eq!(
        error.detail,
        "asked for 0 bytes: CUDA_ERROR_INVALID_VALUE, invalid argument"
    );
}

// --- Work --------------------------------------------------------------------------------------

#[test]
fn verification_counts_every_wrong_byte_at_any_alignment() {
    let Some(built) = build(&[]) else {
        return;
    };
    let device = open(&built, 0).unwrap();
    let stream = device.create_stream(StreamOrder::Independent).unwrap();
    let pattern = Pattern(0x8877_6655_4433_2211);
    let address = device.allocate(4096).unwrap();
    for start in 0..17 {
        for size in [0, 1, 7, 8, 15, 16, 17, 31, 33, 100, 4000] {
            let findings = Findings::new();
            device.fill(stream, address, 4096, Pattern(0)).unwrap();
            device.fill(stream, address + start, size, pattern).unwrap();
            device
                .verify(stream, address + start, size, pattern, &findings)
                .unwrap();
            // Nothing around it was touched.
            device
                .verify(stream, address, start, Pattern(0), &findings)
                .unwrap();
            let end = start + size;
            device
                .verify(stream, address + end, 4096 - end, Pattern(0), &findings)
                .unwrap();
            assert_eq!(findings.wrong_bytes(), 0, "{start} {size}");
            for wrong in [0, size / 2, size.saturating_sub(1)] {
                if size == 0 {
                    continue;
                }
                let findings = Findings::new();
                device
                    .fill(stream, address + start + wrong, 1, Pattern(0xee))
                    .unwrap();
                device
                    .verify(stream, address + start, size, pattern, &findings)
                    .unwrap();
                device.fill(stream, address + start, size, pattern).unwrap();
                let mut word = pattern.0.to_le_bytes();
                word[wrong as usize % 8] = 0xee;
                assert_eq!(findings.wrong_bytes(), 1, "{start} {size} {wrong}");
                assert_eq!(findings.found_word(), Some(u64::from_le_bytes(word)));
            }
        }
    }
    let other = address + 2048;
    device.copy(stream, other, address, 100).unwrap();
    device.free(address).unwrap();
}

#[test]
fn a_host_function_may_not_call_the_device_and_may_panic() {
    let Some(built) = build(&[]) else {
        return;
    };
    let device = Arc::new(open(&built, 0).unwrap());
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&device);
    device
        .host_function(
            StreamId::DEFAULT,
            Box::new(move || {
                sender.send(inner.synchronize()).unwrap();
                panic!("on purpose");
            }),
        )
        .unwrap();
    let error = receiver.recv().unwrap().unwrap_err();
    assert_eq!(error.status, Status::NOT_PERMITTED);
    device.synchronize().unwrap();
}

#[test]
fn a_query_tells_pending_from_failed() {
    let Some(built) = build(&[]) else {
        return;
    };
    let controls = Controls::of(&built);
    let device = open(&built, 0).unwrap();
    let event = device.create_event().unwrap();
    assert!(device.query_event(event).unwrap());
    controls.hold(true);
    device.record_event(event, StreamId::LEGACY).unwrap();
    assert!(!device.query_event(event).unwrap());
    controls.fail(Status::ILLEGAL_ADDRESS);
    let error = device.query_event(event).unwrap_err();
    assert_eq!(error.status, Status::ILLEGAL_ADDRESS);
    assert!(error.status.is_sticky() && error.detail.contains("lost"));
    controls.fail(Status(0));
    device.synchronize_event(event).unwrap();
    assert!(device.query_event(event).unwrap());
    device.destroy_event(event).unwrap();
}

#[test]
fn default_streams_are_not_destroyed() {
    let Some(built) = build(&[]) else {
        return;
    };
    let device = open(&built, 0).unwrap();
    for stream in [StreamId::DEFAULT, StreamId::LEGACY, StreamId::PER_THREAD] {
        let error = device.destroy_stream(stream).unwrap_err();
        assert_eq!(error.status, Status::INVALID_HANDLE);
    }
    let stream = device.create_stream(StreamOrder::WithLegacy).unwrap();
    device.destroy_stream(stream).unwrap();
}

// --- The end -----------------------------------------------------------------------------------

/// Says when it is dropped.
struct Witness(Arc<AtomicUsize>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_lost_context_drops_its_host_functions_uncalled() {
    let Some(built) = build(&[]) else {
        return;
    };
    let controls = Controls::of(&built);
    for status in [Status::ILLEGAL_ADDRESS, Status::DEINITIALIZED] {
        let device = open(&built, 0).unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let called = Arc::new(AtomicBool::new(false));
        controls.hold(true);
        let (witness, told) = (Witness(Arc::clone(&dropped)), Arc::clone(&called));
        device
            .host_function(
                StreamId::DEFAULT,
                Box::new(move || {
                    let _witness = &witness;
                    told.store(true, Ordering::Relaxed);
                }),
            )
            .unwrap();
        controls.fail(status);
        // One that the driver does not take is dropped at once.
        let witness = Witness(Arc::clone(&dropped));
        device
            .host_function(StreamId::DEFAULT, Box::new(move || drop(witness)))
            .unwrap_err();
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        drop(device);
        controls.fail(Status(0));
        controls.hold(false);
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
        assert!(!called.load(Ordering::Relaxed));
    }
}

#[test]
fn a_driver_that_is_gone_is_left_alone() {
    let Some(built) = build(&[]) else {
        return;
    };
    let controls = Controls::of(&built);
    let device = open(&built, 0).unwrap();
    let address = device.allocate(64).unwrap();
    device
        .fill(StreamId::DEFAULT, address, 64, Pattern(1))
        .unwrap();
    controls.fail(Status::DEINITIALIZED);
    let error = device.free(address).unwrap_err();
    assert_eq!(error.status, Status::DEINITIALIZED);
    let before = controls.calls();
    drop(device);
    // The one call is that which shows that the driver is gone.
    assert_eq!(controls.calls(), before + 1);
}

#[test]
fn a_forked_process_gets_an_error_and_calls_nothing() {
    let Some(built) = build(&[]) else {
        return;
    };
    let controls = Controls::of(&built);
    let device = open(&built, 0).unwrap();
    let address = device.allocate(64).unwrap();
    device
        .fill(StreamId::DEFAULT, address, 64, Pattern(1))
        .unwrap();
    let driver = Arc::clone(device.driver());
    let mut device = Some(device);
    let answer = controls.fork(|| {
        let before = controls.calls();
        let Some(device) = device.take() else {
            return 1;
        };
        let findings = Findings::new();
        let errors = [
            device.allocate(64).err(),
            device.memory_info().err(),
            device
                .verify(StreamId::DEFAULT, address, 64, Pattern(1), &findings)
                .err(),
            device
                .host_function(StreamId::DEFAULT, Box::new(|| ()))
                .err(),
            device.can_access_peer(1).err(),
            driver.device_count().err(),
            CudaDevice::open_with(Arc::clone(&driver), 0).err(),
        ];
        let right = |error: &Option<DeviceError>| {
            error.as_ref().is_some_and(|error| {
                error.status == Status::NOT_INITIALIZED && error.detail.contains("before fork")
            })
        };
        if !errors.iter().all(right) || device.attribute(16) != 0 {
            return 2;
        }
        drop(device);
        c_int::from(controls.calls() != before) * 3
    });
    assert_eq!(answer, 0);
    // The parent goes on.
    let device = device.unwrap();
    device.free(address).unwrap();
    drop(device);
    assert_eq!(controls.retained(0), 0);
}
