"""How a lack of memory ends, on a real GPU under PyTorch.

    python python/tests/gpu/test_oom.py

Each case runs in a process of its own, so that one that dies does so alone; the table says how each
ended. Needs the installed package, PyTorch with CUDA, and g++. Exits with 1 if a case of ours did
not end as it must; the others are there to see what PyTorch itself bears.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Raises in the frames that the name says; serves small blocks with cudaMalloc.
THROWER = r"""
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <sys/types.h>
#include <cstdlib>
static int (*cuda_malloc)(void**, size_t);
static int (*cuda_free)(void*);
static int (*cuda_get_last_error)();
extern "C" void bind(void* runtime) {
    cuda_malloc = (int (*)(void**, size_t))dlsym(runtime, "cudaMalloc");
    cuda_free = (int (*)(void*))dlsym(runtime, "cudaFree");
    cuda_get_last_error = (int (*)())dlsym(runtime, "cudaGetLastError");
}
static void* get(ssize_t size, bool clear) {
    void* block = nullptr;
    if (cuda_malloc(&block, (size_t)size) == 0) return block;
    if (clear) cuda_get_last_error();
    throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory. thrown");
}
extern "C" void* clean(ssize_t size, int, void*) { return get(size, true); }
extern "C" void* uncleared(ssize_t size, int, void*) { return get(size, false); }
extern "C" void* through_noexcept(ssize_t size, int, void*) noexcept { return get(size, true); }
extern "C" void release(void* block, ssize_t, int, void*) { cuda_free(block); }
"""

# The same, from a class derived from PyTorch's pluggable allocator.
DERIVED = r"""
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <cuda_runtime_api.h>
namespace pluggable = torch::cuda::CUDAPluggableAllocator;
static void* get(size_t size, int, cudaStream_t) {
    void* block = nullptr;
    if (cudaMalloc(&block, size) == cudaSuccess) return block;
    (void)cudaGetLastError();
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. thrown in a derived class");
}
static void release(void* block, size_t, int, cudaStream_t) { (void)cudaFree(block); }
struct Derived : pluggable::CUDAPluggableAllocator {
    using pluggable::CUDAPluggableAllocator::CUDAPluggableAllocator;
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
};
extern "C" void install() {
    auto made = std::make_shared<Derived>(
        std::function<void*(size_t, int, cudaStream_t)>(get),
        std::function<void(void*, size_t, int, cudaStream_t)>(release));
    made->init(1);
    pluggable::changeCurrentAllocator(made);
}
"""

# What every case does once its allocator is in place.
BODY = r"""
import gc
def hungry(limit_GiB):
    hoard = []
    while len(hoard) < 100000:
        hoard.append(torch.empty(limit_GiB << 30, dtype=torch.uint8, device="cuda"))
    return hoard
x = torch.ones(1024, device="cuda")
for attempt in range(3):
    try:
        y = torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        print("RESULT a tensor on", hex(y.data_ptr()))
    except Exception as error:
        kind = type(error).__name__
        print(kind, str(error)[:300])
try:
    hungry(4)
except Exception as error:
    kind = type(error).__name__
    print(kind, str(error)[:600])
gc.collect()
# The next kernel works, and what was freed can be had again.
assert float((x + 1).sum()) == 2048.0
z = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
del x, z
# In a backward pass the error comes from another thread.
w = torch.ones(1 << 20, device="cuda", requires_grad=True)
class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): return a * 2
    @staticmethod
    def backward(ctx, g): torch.empty(1 << 50, dtype=torch.uint8, device="cuda"); return g
try:
    Hungry.apply(w).sum().backward()
except Exception as error:
    print("backward:", type(error).__name__)
torch.cuda.synchronize()
print("RESULT", kind)
"""

OTHER = """
import ctypes, torch
runtime = next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line)
library = ctypes.CDLL({so!r})
library.bind(ctypes.c_void_p(ctypes.CDLL(runtime)._handle))
torch.cuda.memory.change_current_allocator(
    torch.cuda.memory.CUDAPluggableAllocator({so!r}, {name!r}, "release"))
"""

INSTALLED = """
import ctypes, torch
ctypes.CDLL({so!r}).install()
"""

OURS = """
import torch
import millpond.torch
millpond.torch.enable(shim={shim})
"""

# The case, its allocator, and how it must end (None: to be seen).
CASES = [
    ("millpond with the shim", OURS.format(shim=True), "OutOfMemoryError"),
    ("millpond without the shim", OURS.format(shim=False), "RuntimeError"),
    ("PyTorch's own allocator", "import torch\n", None),
    ("thrown by a plain function", ("clean",), None),
    ("thrown with CUDA's error not cleared", ("uncleared",), None),
    ("thrown through a noexcept frame", ("through_noexcept",), None),
    ("thrown in a derived class", DERIVED, None),
]


def build(folder, name, text):
    """Compiles a library against PyTorch and the CUDA toolkit; gives its path."""
    import torch

    root = Path(torch.__file__).parent
    source, made = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text)
    toolkits = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *root.parent.glob("nvidia/cu*")]
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", str(source)]
    command += [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    command += [f"-I{toolkit}/include" for toolkit in toolkits]
    command += [f"-L{root / 'lib'}", "-lc10", "-ldl", "-o", str(made)]
    if name == "derived":
        # Its CUDA runtime is the one that PyTorch has loaded.
        command += ["-ltorch_cuda", "-ltorch_cpu", "-lc10_cuda"]
    subprocess.run(command, check=True)
    return str(made)


def main():
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        thrower = build(Path(folder), "thrower", THROWER)
        for name, allocator, must in CASES:
            if allocator is DERIVED:
                try:
                    allocator = INSTALLED.format(so=build(Path(folder), "derived", DERIVED))
                except subprocess.CalledProcessError as error:
                    print(f"{name:<40} not built: {error}")
                    continue
            elif isinstance(allocator, tuple):
                allocator = OTHER.format(so=thrower, name=allocator[0])
            program = Path(folder) / "case.py"
            program.write_text(allocator + BODY)
            done = subprocess.run(
                [sys.executable, str(program)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
            ends = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
            ended = ends[-1][7:] if done.returncode == 0 and ends else f"exit {done.returncode}"
            wrong = must is not None and ended != must
            failed = failed or wrong
            print(f"{name:<40} {ended}{'   MUST BE ' + must if wrong else ''}", flush=True)
            if wrong or done.returncode != 0 or "-v" in sys.argv:
                print("    " + "\n    ".join(done.stdout.splitlines()[-25:]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
