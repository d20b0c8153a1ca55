"""What this machine has for millpond: the library, the devices, PyTorch, and the shim."""

import os
import platform
from ctypes import byref, c_uint64, c_void_p

from . import _library, _shim
from ._library import LIBRARY, DeviceInfo, sized

MIB = 1 << 20


def report(out):
    """Writes the report; gives 0 if PyTorch can run on millpond here, and 1 if not."""

    def line(name, text):
        print(f"{name:<12}{text}", file=out)

    line("millpond", f"{_library.version()}, {_library.library_path()}")
    line("system", f"Python {platform.python_version()}, {platform.platform()}")
    for name in sorted(name for name in os.environ if name.startswith("MILLPOND_")):
        line("setting", f"{name}={os.environ[name]}")
    line("host", _host())
    devices = _cuda_devices()
    for text in devices:
        line("device", text)
    if not devices:
        line("device", f"none: {_library.last_error()}")
    torch_text, shim_text, usable = _torch()
    line("torch", torch_text)
    line("shim", shim_text)
    usable = usable and bool(devices)
    line("result", "PyTorch can run on millpond" if usable else "PyTorch cannot run on millpond")
    return 0 if usable else 1


def _host():
    """Whether a pool works at all: one allocation on the host device."""
    device, pool, block = c_void_p(), c_void_p(), c_void_p()
    try:
        _library.check(LIBRARY.millpond_device_open_host(64 * MIB, byref(device)))
        _library.check(LIBRARY.millpond_pool_create(device, None, byref(pool)))
        _library.check(LIBRARY.millpond_pool_alloc(pool, MIB, None, byref(block)))
        _library.check(LIBRARY.millpond_pool_free(pool, block))
        return "a pool in this machine's memory works"
    except _library.MillpondError as error:
        return f"a pool in this machine's memory fails: {error}"
    finally:
        LIBRARY.millpond_pool_destroy(pool)
        LIBRARY.millpond_device_close(device)


def _cuda_devices():
    described = []
    while True:
        device = c_void_p()
        if LIBRARY.millpond_device_open_cuda(len(described), byref(device)) != _library.OK:
            return described
        info, free, total = sized(DeviceInfo), c_uint64(), c_uint64()
        _library.check(LIBRARY.millpond_device_get_info(device, byref(info)))
        memory = LIBRARY.millpond_device_memory(device, byref(free), byref(total))
        there = f"{free.value // MIB} MiB free" if memory == _library.OK else _library.last_error()
        how = "mapping" if info.mapping else "no mapping: plain allocations"
        name = info.name.decode(errors="replace")
        size = info.total_memory_bytes // MIB
        described.append(f"cuda:{len(described)} {name}, {size} MiB, {there}, {how}")
        LIBRARY.millpond_device_close(device)


def _torch():
    """What to say of PyTorch, of the shim, and whether the pair can be used."""
    try:
        import torch
    except ImportError as error:
        return f"not there: {error}", "not needed without PyTorch", False
    found = f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}"
    try:
        shim = str(_shim.compiled(torch))
    except _shim.ShimUnavailable as missing:
        shim = f"missing: {missing}; a lack of memory will be a RuntimeError"
    return found, shim, torch.version.cuda is not None
