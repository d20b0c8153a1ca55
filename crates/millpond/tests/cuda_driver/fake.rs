//! Compiling the fake driver, and its controls.

use std::ffi::{c_int, c_long, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::{Library, RTLD_NOW};
use millpond::device::Status;

/// A compiled library, removed when dropped.
pub(crate) struct Built {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

/// Compiles the fake driver; none, with a word, where there is no C compiler.
pub(crate) fn build(defines: &[&str]) -> Option<Built> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libcuda.so.1");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_driver/driver.c");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1"])
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(source)
        .arg("-o")
        .arg(&path)
        .args(["-ldl", "-lpthread"])
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: this test needs a C compiler named cc");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(Built { folder, path })
}

/// The fake driver's controls.
pub(crate) struct Controls(pub(crate) Library);

impl Controls {
    pub(crate) fn of(built: &Built) -> Controls {
        // SAFETY: the library is the one compiled above; it has no initialisers.
        Controls(unsafe { Library::open(Some(&built.path), RTLD_NOW) }.unwrap())
    }

    fn get<F: Copy>(&self, name: &str) -> F {
        // SAFETY: every caller names the type that the function has in `driver.c`.
        *unsafe { self.0.get::<F>(name) }.unwrap()
    }

    pub(crate) fn fail(&self, status: Status) {
        let fail: extern "C" fn(c_int) = self.get("fake_fail");
        fail(status.0.cast_signed());
    }

    pub(crate) fn hold(&self, on: bool) {
        let hold: extern "C" fn(c_int) = self.get("fake_hold");
        hold(on.into());
    }

    pub(crate) fn calls(&self) -> c_long {
        let calls: extern "C" fn() -> c_long = self.get("fake_calls");
        calls()
    }

    pub(crate) fn retained(&self, device: c_int) -> c_int {
        let retained: extern "C" fn(c_int) -> c_int = self.get("fake_retained");
        retained(device)
    }

    pub(crate) fn count(&self, name: &str) -> c_int {
        let count: extern "C" fn() -> c_int = self.get(name);
        count()
    }

    pub(crate) fn current(&self) -> usize {
        let current: extern "C" fn() -> usize = self.get("fake_current");
        current()
    }

    pub(crate) fn primary(&self, device: c_int) -> usize {
        let primary: extern "C" fn(c_int) -> usize = self.get("fake_primary");
        primary(device)
    }

    pub(crate) fn set_current(&self, context: usize) {
        let set: extern "C" fn(usize) = self.get("fake_set_current");
        set(context);
    }

    /// Runs `child` in a forked process and gives what it returned.
    pub(crate) fn fork<F: FnMut() -> c_int>(&self, mut child: F) -> c_int {
        extern "C" fn call<F: FnMut() -> c_int>(argument: *mut c_void) -> c_int {
            // SAFETY: the argument is the closure that `fork` below was given.
            let child = unsafe { &mut *argument.cast::<F>() };
            child()
        }
        let fork: extern "C" fn(extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int =
            self.get("fake_fork");
        fork(call::<F>, (&raw mut child).cast())
    }
}
