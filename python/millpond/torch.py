"""millpond under PyTorch.

    import millpond.torch
    millpond.torch.enable()

must come before the first use of CUDA. Every tensor's memory then comes from millpond.
"""

import os
import warnings

from . import _library, _shim
from ._library import LIBRARY, TorchOptions, sized

__all__ = ["enable", "is_enabled", "reset_peak_stats"]

_UNITS = {"": 0, "B": 0, "K": 10, "KiB": 10, "M": 20, "MiB": 20, "G": 30, "GiB": 30}
_UNITS |= {"T": 40, "TiB": 40}

# PyTorch's setters on the allocator, and the functions that they get.
_HOOKS = {
    "set_record_stream_fn": "millpond_torch_record_stream",
    "set_reset_fn": "millpond_torch_empty_cache",
    "set_memory_fraction_fn": "millpond_torch_memory_fraction",
    "set_begin_allocate_to_pool": "millpond_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "millpond_torch_end_allocate_to_pool",
    "set_release_pool": "millpond_torch_release_pool",
}

# The allocator must live as long as PyTorch uses it: until the process ends.
_allocator = None


def is_enabled():
    """Whether :func:`enable` has put millpond under PyTorch in this process."""
    return _allocator is not None


def enable(*, limit=None, shim=None):
    """Lets all of PyTorch's CUDA memory come from millpond.

    Must come before the first use of CUDA in the process. A second call does nothing.

    ``limit``: bytes that each device's pools may take at most, as a number or as text such as
    ``"8GiB"``; by default ``MILLPOND_LIMIT``, and without that all that the device has.

    ``shim``: whether to use the C++ shim that raises ``torch.OutOfMemoryError``; by default it is
    used if it can be compiled, and a warning says so if not. ``True`` makes that an error,
    ``False`` (or ``MILLPOND_SHIM=0``) does without: then a lack of memory is a ``RuntimeError``.

    Raises ``RuntimeError`` if it is too late, or if another allocator was put under PyTorch.
    """
    global _allocator
    import torch

    if _allocator is not None:
        return
    limit_bytes = _bytes(limit)
    _refuse_if_too_late(torch)
    options = sized(TorchOptions, limit_bytes=limit_bytes)
    _library.check(LIBRARY.millpond_torch_configure(options))
    allocator = _pluggable(torch, _wanted(shim))
    for setter, function in _HOOKS.items():
        getattr(allocator.allocator(), setter)(_library.address(function))
    torch.cuda.memory.change_current_allocator(allocator)
    _allocator = allocator


def reset_peak_stats(device=0):
    """Begins the peaks in ``millpond.stats(device)`` again at the current values."""
    _library.check(LIBRARY.millpond_torch_reset_peaks(device))


def _refuse_if_too_late(torch):
    if torch.version.cuda is None:
        raise RuntimeError(
            f"this PyTorch ({torch.__version__}) was built without CUDA, so there is nothing to "
            "do for millpond; install a CUDA build"
        )
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "it is too late for millpond.torch.enable(): CUDA is in use in this process already, "
            "and PyTorch cannot change its allocator after that; call it right after the imports, "
            "before any tensor, model or torch.cuda call touches a GPU"
        )
    if torch.cuda.memory._get_current_allocator().allocator() is not None:
        raise RuntimeError(
            "another allocator was put under PyTorch in this process already "
            "(torch.cuda.memory.change_current_allocator, RMM, ...), and PyTorch cannot change it "
            "again; leave that out, or call millpond.torch.enable() instead"
        )


def _wanted(shim):
    if shim is None and os.environ.get("MILLPOND_SHIM") == "0":
        return False
    return shim


def _pluggable(torch, shim):
    make = torch.cuda.memory.CUDAPluggableAllocator
    if shim is not False:
        try:
            return make(str(_shim.load(torch)), "millpond_shim_alloc", "millpond_shim_free")
        except _shim.ShimUnavailable as missing:
            if shim:
                raise RuntimeError(f"millpond's C++ shim cannot be had: {missing}") from None
            warnings.warn(
                "millpond runs without its C++ shim, so a lack of memory is a RuntimeError "
                f"instead of torch.OutOfMemoryError: {missing}",
                stacklevel=3,
            )
    path = str(_library.library_path())
    return make(path, "millpond_torch_alloc_or_throw", "millpond_torch_free")


def _bytes(limit):
    """Bytes of a number, or of text with a unit; 0 for None."""
    if limit is None:
        return 0
    if isinstance(limit, str):
        number = limit.strip().rstrip("".join(set("".join(_UNITS))))
        unit = limit.strip()[len(number) :]
        if number.strip().isdecimal() and unit in _UNITS:
            limit = int(number) << _UNITS[unit]
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit < 1 << 64:
        raise ValueError(f'limit is {limit!r}; give whole bytes, as 8589934592 or "8GiB"')
    return limit
