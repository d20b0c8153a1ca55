//! What the acceptance programs share: a GPU with the program's own kernels, which are launched on
//! the program's own streams, through another binding than the pool's.
//!
//! Nothing here is needed to use the pool; it stands for the program around it.
#![allow(dead_code, reason = "each program uses a part")]

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::fmt::Debug;
use std::ptr;
use std::slice;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUcontext, CUfunction, CUresult, CUstream};

pub(crate) mod graph;
use millpond::device::{CudaDevice, Device, StreamId};
use millpond::device::{DeviceError, Status};

/// What a program ends with: an error makes it exit with a code that is not zero.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");
const THREADS: u32 = 256;
/// Nanoseconds after which a held stream goes on by itself, so that no program hangs.
const LONGEST_HOLD: u64 = 5_000_000_000;

/// Fails with a text, unless something holds.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    match holds {
        true => Ok(()),
        false => Err(otherwise().into()),
    }
}

/// Says that a program, or a part of it, has nothing to do here.
pub(crate) fn skipped(reason: impl std::fmt::Display) {
    println!("skipped: {reason}");
}

fn ok(code: CUresult, call: &str) -> Outcome {
    ensure(code == CUresult::CUDA_SUCCESS, || {
        format!("{call}: {code:?}")
    })
}

/// A kernel of `kernels.ptx`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    /// left, right, sum: floats; their number.
    VectorAdd,
    /// words, their number, the first value.
    Write,
    /// words, their number, the first value, where to note what is wrong.
    Check,
    /// the flag that ends it, the most nanoseconds.
    Hold,
}

/// A GPU, and the program's kernels on it.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) device: Arc<CudaDevice>,
    context: CUcontext,
    functions: [CUfunction; 4],
}

impl Gpu {
    /// Opens a GPU. Says that the program is skipped if there is none that can map memory.
    pub(crate) fn open(ordinal: u32) -> Outcome<Option<Gpu>> {
        let none = [
            Status::NOT_FOUND,
            Status::STUB_LIBRARY,
            Status::NO_DEVICE,
            Status::INVALID_DEVICE,
        ];
        let device = match CudaDevice::open(ordinal) {
            Ok(device) if device.capabilities().mapping => device,
            Ok(_) => {
                skipped("the device cannot map memory");
                return Ok(None);
            }
            Err(DeviceError { status, detail, .. }) if none.contains(&status) => {
                skipped(detail);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let mut context = ptr::null_mut();
        // SAFETY: the driver is there and initialised: the device was opened through it.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, ordinal as i32) };
        ok(code, "cuDevicePrimaryCtxRetain")?;
        // SAFETY: the context was just retained, and stays so until the process ends.
        ok(unsafe { sys::cuCtxSetCurrent(context) }, "cuCtxSetCurrent")?;
        let mut module = ptr::null_mut();
        // SAFETY: a context is current, and the text ends with a zero.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, KERNELS.as_ptr().cast()) };
        ok(code, "cuModuleLoadData")?;
        let function = |name: &CStr| {
            let mut function = ptr::null_mut();
            // SAFETY: the module is loaded, and the name ends with a zero.
            let code =
                unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
            ok(code, "cuModuleGetFunction").map(|()| function)
        };
        let functions = [
            function(c"vector_add")?,
            function(c"write")?,
            function(c"check")?,
            function(c"hold")?,
        ];
        let gpu = Gpu {
            device: Arc::new(device),
            context,
            functions,
        };
        gpu.warm_up()?;
        Ok(Some(gpu))
    }

    /// Launches every kernel once: a first launch may wait for work that is held later.
    fn warm_up(&self) -> Outcome {
        let word = Pinned::<u32>::new(4, 1)?;
        let (stream, at) = (StreamId::DEFAULT, word.address());
        self.launch(Kernel::VectorAdd, stream, 1, &[at, at, at, 0])?;
        self.launch(Kernel::Write, stream, 1, &[at, 0, 0])?;
        self.launch(Kernel::Check, stream, 1, &[at, 0, 0, at])?;
        self.launch(Kernel::Hold, stream, 1, &[at, 0])?;
        self.synchronize(stream)
    }

    /// The device as a pool takes it.
    pub(crate) fn shared(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device) as Arc<dyn Device>
    }

    /// Makes the GPU's context current on this thread.
    pub(crate) fn enter(&self) -> Outcome {
        // SAFETY: the context is retained until the process ends.
        ok(
            unsafe { sys::cuCtxSetCurrent(self.context) },
            "cuCtxSetCurrent",
        )
    }

    /// A stream of the program's: not made by millpond, and not known to it before it is used.
    pub(crate) fn stream(&self) -> Outcome<StreamId> {
        self.enter()?;
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current.
        let code = unsafe { sys::cuStreamCreate(&raw mut stream, flags) };
        ok(code, "cuStreamCreate")?;
        Ok(StreamId(stream as u64))
    }

    pub(crate) fn synchronize(&self, stream: StreamId) -> Outcome {
        self.enter()?;
        // SAFETY: the stream is one of this context.
        let code = unsafe { sys::cuStreamSynchronize(raw(stream)) };
        ok(code, "cuStreamSynchronize")
    }

    /// Whether a stream has nothing left to do.
    pub(crate) fn is_idle(&self, stream: StreamId) -> Outcome<bool> {
        self.enter()?;
        // SAFETY: the stream is one of this context.
        match unsafe { sys::cuStreamQuery(raw(stream)) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => ok(code, "cuStreamQuery").map(|()| true),
        }
    }

    /// Launches a kernel with one thread for each of `threads` elements. Its arguments are as
    /// listed at [`Kernel`], addresses and numbers alike.
    pub(crate) fn launch(
        &self,
        kernel: Kernel,
        stream: StreamId,
        threads: u32,
        with: &[u64],
    ) -> Outcome {
        self.enter()?;
        // A 32-bit parameter is read from the first bytes of its argument.
        let mut pointers: Vec<*mut c_void> = with
            .iter()
            .map(|argument| ptr::from_ref(argument).cast_mut().cast())
            .collect();
        let blocks = threads.div_ceil(THREADS).max(1);
        let function = self.functions[kernel as usize];
        let (threads, pointers) = (threads.min(THREADS), pointers.as_mut_ptr());
        let extra = ptr::null_mut();
        let stream = raw(stream);
        // SAFETY: the function has as many parameters as its `Kernel` says, and the driver copies
        // the arguments before the call returns. What they point to is the program's to answer for.
        let code = unsafe {
            sys::cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, extra,
            )
        };
        ok(code, "cuLaunchKernel")
    }

    /// Queues: words at an address become `value`, `value + 1` and so on.
    pub(crate) fn write(&self, stream: StreamId, address: u64, bytes: u64, value: u32) -> Outcome {
        let words = (bytes / 4) as u32;
        self.launch(
            Kernel::Write,
            stream,
            words,
            &[address, words.into(), value.into()],
        )
    }

    /// Queues: notes where words are not `value`, `value + 1` and so on.
    pub(crate) fn check(
        &self,
        stream: StreamId,
        address: u64,
        bytes: u64,
        value: u32,
        note: &Note,
    ) -> Outcome {
        let words = (bytes / 4) as u32;
        let with = [address, words.into(), value.into(), note.0.address()];
        self.launch(Kernel::Check, stream, words, &with)
    }

    /// Keeps a stream busy with a running kernel until what is given is released or dropped.
    pub(crate) fn hold(&self, stream: StreamId) -> Outcome<Hold> {
        let flag = Pinned::new(1, 0_u32)?;
        let with = [flag.address(), LONGEST_HOLD];
        self.launch(Kernel::Hold, stream, 1, &with)?;
        Ok(Hold { flag })
    }

    /// Queues a copy of pinned host memory to the device.
    pub(crate) fn upload<T: Copy>(
        &self,
        stream: StreamId,
        address: u64,
        from: &Pinned<T>,
    ) -> Outcome {
        self.enter()?;
        // SAFETY: the host memory is pinned and as long as said; the program keeps it until the
        // stream has come here.
        let code = unsafe {
            sys::cuMemcpyHtoDAsync_v2(address, from.data.cast(), from.bytes(), raw(stream))
        };
        ok(code, "cuMemcpyHtoDAsync")
    }

    /// Queues a copy of device memory to pinned host memory.
    pub(crate) fn download<T: Copy>(
        &self,
        stream: StreamId,
        into: &Pinned<T>,
        address: u64,
    ) -> Outcome {
        self.enter()?;
        // SAFETY: as for `upload`.
        let code = unsafe {
            sys::cuMemcpyDtoHAsync_v2(into.data.cast(), address, into.bytes(), raw(stream))
        };
        ok(code, "cuMemcpyDtoHAsync")
    }
}

/// A stream in the driver's form.
pub(crate) fn raw(stream: StreamId) -> CUstream {
    stream.0 as CUstream
}

/// A kernel that runs until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    flag: Pinned<u32>,
}

impl Hold {
    /// Whether the kernel still ran when this was asked, as the stream tells; then lets it end.
    pub(crate) fn release(self, gpu: &Gpu, stream: StreamId) -> Outcome<bool> {
        let idle = gpu.is_idle(stream)?;
        self.flag.set(0, 1);
        gpu.synchronize(stream)?;
        Ok(!idle)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.flag.set(0, 1);
        // The kernel reads the flag until it ends, so the flag outlives it.
        // SAFETY: the context is current on the thread that holds; a failure changes nothing here.
        unsafe { sys::cuCtxSynchronize() };
    }
}

/// Where kernels note a word that is wrong.
#[derive(Debug)]
pub(crate) struct Note(Pinned<u32>);

impl Note {
    pub(crate) fn new() -> Outcome<Note> {
        Ok(Note(Pinned::new(3, 0)?))
    }

    /// To be asked when the streams that check are synchronised.
    pub(crate) fn clean(&self, what: impl Debug) -> Outcome {
        ensure(self.0.get(0) == 0, || {
            let (at, word) = (self.0.get(1), self.0.get(2));
            format!("{what:?}: corrupt: word {at} is {word:#x}")
        })
    }
}

/// Pinned host memory, which the device sees under the same address.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    data: *mut T,
    length: usize,
}

impl<T: Copy> Pinned<T> {
    /// Memory for so many elements, all of them `value`.
    pub(crate) fn new(length: usize, value: T) -> Outcome<Pinned<T>> {
        let mut data: *mut c_void = ptr::null_mut();
        let bytes = length * size_of::<T>();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: a context is current: pinned memory is made by those who have opened a GPU.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut data, bytes, flags) };
        ok(code, "cuMemHostAlloc")?;
        let memory = Pinned {
            data: data.cast(),
            length,
        };
        (0..length).for_each(|index| memory.set(index, value));
        Ok(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.data as u64
    }

    fn bytes(&self) -> usize {
        self.length * size_of::<T>()
    }

    /// The elements. The device must not be writing them.
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: the memory is this object's, of this length, and was filled when it was made.
        unsafe { slice::from_raw_parts(self.data, self.length) }
    }

    /// The elements. The device must not be using them.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as for `as_slice`; nobody else has a reference.
        unsafe { slice::from_raw_parts_mut(self.data, self.length) }
    }

    fn get(&self, index: usize) -> T {
        let at = self.data.wrapping_add(index.min(self.length - 1));
        // SAFETY: inside the memory; a kernel may write it at the same time.
        unsafe { at.read_volatile() }
    }

    fn set(&self, index: usize, value: T) {
        let at = self.data.wrapping_add(index.min(self.length - 1));
        // SAFETY: inside the memory; a kernel may read it at the same time.
        unsafe { at.write_volatile(value) };
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // SAFETY: the memory came from `cuMemHostAlloc`, and whoever used it is done: freeing it
        // waits for the device.
        unsafe { sys::cuMemFreeHost(self.data.cast()) };
    }
}
