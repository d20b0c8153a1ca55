"""The C library, through ctypes.

Each function of ``include/millpond.h`` that this package uses is declared here once; the structs
carry their size, so that a library of another version fills what it knows.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_ssize_t, c_uint32
from ctypes import c_uint64, c_void_p
from pathlib import Path

OK, OUT_OF_MEMORY, TOO_LATE = 0, 2, 8


class MillpondError(RuntimeError):
    """A call of the library that failed: ``status`` is its number in ``millpond.h``."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class OutOfMemoryError(MillpondError, MemoryError):
    """There is no memory for a request; the message says where the memory is."""


class PoolOptions(ctypes.Structure):
    """``millpond_pool_options``."""

    _fields_ = [
        ("size", c_size_t),
        ("limit_bytes", c_uint64),
        ("streams_declared", c_uint32),
        ("reserved", c_uint32),
        ("location_type", c_uint32),
        ("location_id", c_uint32),
        ("handle_types", c_uint32),
        ("reserved_2", c_uint32),
        ("budget", c_void_p),
    ]


class _Told(ctypes.Structure):
    """What the library fills in."""

    def as_dict(self):
        """The values by name, without the struct's own size."""
        return {name: getattr(self, name) for name, _ in self._fields_[1:]}


class TrimReport(_Told):
    """``millpond_trim_report``."""

    _fields_ = [
        ("size", c_size_t),
        *(
            (name, c_uint64)
            for name in (
                "released_bytes",
                "reserved_bytes",
                "in_live_blocks",
                "beside_live_blocks",
                "pending",
                "kept_as_asked",
                "in_graphs",
                "withheld",
            )
        ),
    ]


class BudgetUsage(_Told):
    """``millpond_budget_usage``."""

    _fields_ = [
        ("size", c_size_t),
        *(
            (name, c_uint64)
            for name in ("limit_bytes", "reserved_current", "reserved_high", "used_current", "pools")
        ),
    ]


class PointerInfo(_Told):
    """``millpond_pointer_info``."""

    _fields_ = [
        ("size", c_size_t),
        ("pool_id", c_uint64),
        ("block", c_void_p),
        ("block_bytes", c_uint64),
        ("offset", c_uint64),
        ("stream", c_void_p),
        ("handle", c_uint64),
        ("handle_offset", c_uint64),
        ("handle_bytes", c_uint64),
        ("device", c_uint32),
        ("state", c_uint32),
        ("location_type", c_uint32),
        ("location_id", c_uint32),
    ]


class Access(ctypes.Structure):
    """``millpond_access``."""

    _fields_ = [("location_type", c_uint32), ("location_id", c_uint32), ("protection", c_uint32)]


class TorchOptions(ctypes.Structure):
    """``millpond_torch_options``."""

    _fields_ = [("size", c_size_t), ("device", c_char_p), ("limit_bytes", c_uint64)]


class DeviceInfo(ctypes.Structure):
    """``millpond_device_info``."""

    _fields_ = [
        ("size", c_size_t),
        ("total_memory_bytes", c_uint64),
        ("granularity_bytes", c_uint64),
        ("kind", c_uint32),
        ("ordinal", c_uint32),
        ("mapping", c_uint32),
        ("reserved", c_uint32),
        ("name", ctypes.c_char * 256),
    ]


class Statistics(ctypes.Structure):
    """``millpond_statistics``."""

    _fields_ = [
        ("size", c_size_t),
        *(
            (name, c_uint64)
            for name in (
                "live_blocks",
                "live_bytes",
                "live_rounded_bytes",
                "peak_live_bytes",
                "reserved_bytes",
                "peak_reserved_bytes",
                "free_bytes",
                "pending_bytes",
                "unmapped_bytes",
                "in_transit_bytes",
                "limit_bytes",
                "handles",
                "address_space_bytes",
                "waits_inserted",
                "events_recorded",
                "event_queries",
            )
        ),
    ]

    def as_dict(self):
        """The values by name, without the struct's own size."""
        return {name: getattr(self, name) for name, _ in self._fields_[1:]}


def sized(struct, **values):
    """An instance of a struct that says how long it is."""
    return struct(size=ctypes.sizeof(struct), **values)


def library_path():
    """Where the C library is: ``MILLPOND_LIBRARY``, or beside this file."""
    chosen = os.environ.get("MILLPOND_LIBRARY")
    return Path(chosen) if chosen else Path(__file__).with_name("libmillpond.so")


def _load():
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"millpond's C library cannot be loaded from {path}: {error}; install the wheel that "
            "was built for this platform, or set MILLPOND_LIBRARY to a libmillpond.so"
        ) from None
    status = c_int
    declarations = {
        "millpond_last_error": (c_char_p, []),
        "millpond_last_status": (status, []),
        "millpond_status_text": (c_char_p, [c_int]),
        "millpond_version": (c_char_p, []),
        "millpond_device_open_cuda": (status, [c_uint32, POINTER(c_void_p)]),
        "millpond_device_open_host": (status, [c_uint64, POINTER(c_void_p)]),
        "millpond_device_close": (None, [c_void_p]),
        "millpond_device_get_info": (status, [c_void_p, POINTER(DeviceInfo)]),
        "millpond_device_memory": (status, [c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
        "millpond_host_read": (status, [c_void_p, c_void_p, c_void_p, c_uint64]),
        "millpond_host_write": (status, [c_void_p, c_void_p, c_void_p, c_uint64]),
        "millpond_pool_create": (status, [c_void_p, POINTER(PoolOptions), POINTER(c_void_p)]),
        "millpond_pool_destroy": (status, [c_void_p]),
        "millpond_pool_release": (None, [c_void_p]),
        "millpond_pool_get_id": (status, [c_void_p, POINTER(c_uint64)]),
        "millpond_pool_get_attribute": (status, [c_void_p, c_uint32, POINTER(c_uint64)]),
        "millpond_pool_set_attribute": (status, [c_void_p, c_uint32, c_uint64]),
        "millpond_pool_trim_to": (status, [c_void_p, c_uint64, POINTER(TrimReport)]),
        "millpond_pool_set_access": (status, [c_void_p, POINTER(Access), c_size_t]),
        "millpond_pool_get_access": (status, [c_void_p, c_uint32, c_uint32, POINTER(c_uint32)]),
        "millpond_pool_synchronize_event": (status, [c_void_p, c_void_p]),
        "millpond_budget_create": (status, [c_void_p, c_uint64, POINTER(c_void_p)]),
        "millpond_budget_destroy": (None, [c_void_p]),
        "millpond_budget_set_limit": (status, [c_void_p, c_uint64]),
        "millpond_budget_get_usage": (status, [c_void_p, POINTER(BudgetUsage)]),
        "millpond_device_get_default_pool": (
            status,
            [c_void_p, c_uint32, c_uint32, POINTER(c_void_p)],
        ),
        "millpond_device_get_pool": (status, [c_void_p, c_uint32, c_uint32, POINTER(c_void_p)]),
        "millpond_device_set_pool": (status, [c_void_p, c_void_p]),
        "millpond_device_alloc": (status, [c_void_p, c_uint64, c_void_p, POINTER(c_void_p)]),
        "millpond_device_free": (status, [c_void_p, c_void_p]),
        "millpond_device_get_pointer_info": (status, [c_void_p, c_void_p, POINTER(PointerInfo)]),
        "millpond_device_synchronize_stream": (status, [c_void_p, c_void_p]),
        "millpond_device_reap": (status, [c_void_p, c_uint32, POINTER(c_uint64)]),
        "millpond_reaper_start": (status, [POINTER(c_void_p)]),
        "millpond_reaper_stop": (None, [c_void_p]),
        "millpond_pool_alloc": (status, [c_void_p, c_uint64, c_void_p, POINTER(c_void_p)]),
        "millpond_pool_free": (status, [c_void_p, c_void_p]),
        "millpond_pool_trim": (status, [c_void_p, c_uint64, POINTER(c_uint64)]),
        "millpond_pool_synchronize": (status, [c_void_p]),
        "millpond_pool_get_statistics": (status, [c_void_p, POINTER(Statistics)]),
        "millpond_torch_configure": (status, [POINTER(TorchOptions)]),
        "millpond_torch_alloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
        "millpond_torch_free": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
        "millpond_torch_record_stream": (None, [c_void_p, c_void_p]),
        "millpond_torch_empty_cache": (None, []),
        "millpond_torch_memory_fraction": (None, [c_double, c_int]),
        "millpond_torch_get_statistics": (status, [c_int, POINTER(Statistics)]),
        "millpond_torch_reset_peaks": (status, [c_int]),
    }
    for name, (result, arguments) in declarations.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = _load()


def address(name):
    """The address of one of the library's functions, as PyTorch takes it."""
    return ctypes.cast(getattr(LIBRARY, name), c_void_p).value


def last_error():
    """The message of the last call that failed on this thread."""
    return LIBRARY.millpond_last_error().decode(errors="replace")


def check(status):
    """Raises what a status stands for."""
    if status == OUT_OF_MEMORY:
        raise OutOfMemoryError(status, last_error())
    if status != OK:
        raise MillpondError(status, last_error())


def version():
    """The library's version."""
    return LIBRARY.millpond_version().decode()


def stats(device=0):
    """What the pools of CUDA device number ``device`` hold: bytes and counts by name.

    The names are those of ``millpond_statistics`` in ``millpond.h``. All values are zero if nothing
    was allocated there yet.
    """
    statistics = sized(Statistics)
    check(LIBRARY.millpond_torch_get_statistics(device, byref(statistics)))
    return statistics.as_dict()
