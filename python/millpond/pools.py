"""Pools as CUDA defines them: default and current pools, attributes, access, budgets.

The names are CUDA's, and so is the meaning; ``docs/pools.md`` says where the library does more.
Streams and events are raw handles (integers): ``torch.cuda.Stream.cuda_stream``,
``cupy.cuda.Stream.ptr``; 0 is the legacy stream. All sizes are in bytes.
"""

from ctypes import byref, c_uint32, c_uint64, c_void_p
from enum import IntEnum

from ._library import (
    LIBRARY,
    Access,
    BudgetUsage,
    PointerInfo,
    PoolOptions,
    TrimReport,
    check,
    sized,
)

__all__ = [
    "AccessFlags",
    "Budget",
    "Device",
    "LocationType",
    "Pool",
    "PoolAttribute",
    "Reaper",
]


class PoolAttribute(IntEnum):
    """``CUmemPool_attribute``."""

    REUSE_FOLLOW_EVENT_DEPENDENCIES = 1
    REUSE_ALLOW_OPPORTUNISTIC = 2
    REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3
    RELEASE_THRESHOLD = 4
    RESERVED_MEM_CURRENT = 5
    RESERVED_MEM_HIGH = 6
    USED_MEM_CURRENT = 7
    USED_MEM_HIGH = 8
    ALLOCATION_TYPE = 9
    EXPORT_HANDLE_TYPES = 10
    LOCATION_ID = 11
    LOCATION_TYPE = 12
    MAX_POOL_SIZE = 13


class LocationType(IntEnum):
    """``CUmemLocationType``."""

    DEVICE = 1
    HOST = 2
    HOST_NUMA = 3


class AccessFlags(IntEnum):
    """``CUmemAccess_flags``."""

    NONE = 0
    READ = 1
    READ_WRITE = 3


class Budget:
    """The most bytes that several pools may take together, under a ``parent`` if there is one."""

    def __init__(self, limit, parent=None):
        self._raw = c_void_p()
        parent = parent._raw if parent is not None else None
        check(LIBRARY.millpond_budget_create(parent, limit, byref(self._raw)))

    def __del__(self):
        LIBRARY.millpond_budget_destroy(self._raw)

    def set_limit(self, limit):
        """Changes the limit; what the pools have beyond it stays until it is trimmed."""
        check(LIBRARY.millpond_budget_set_limit(self._raw, limit))

    def usage(self):
        """What the pools under it have, by name."""
        usage = sized(BudgetUsage)
        check(LIBRARY.millpond_budget_get_usage(self._raw, byref(usage)))
        return usage.as_dict()


class Pool:
    """A pool: made by :meth:`Device.create_pool`, or a default or current pool of a device."""

    def __init__(self, raw, device):
        self._raw = raw
        self._device = device

    def __del__(self):
        LIBRARY.millpond_pool_release(self._raw)

    def __eq__(self, other):
        return isinstance(other, Pool) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    @property
    def id(self):
        """A number that no other pool of the process ever has."""
        value = c_uint64()
        check(LIBRARY.millpond_pool_get_id(self._raw, byref(value)))
        return value.value

    def destroy(self):
        """Destroys the pool at once; its blocks stay, and are freed through their device."""
        check(LIBRARY.millpond_pool_destroy(self._raw))
        self._raw = c_void_p()

    def alloc(self, size, stream=0):
        """The address of a new block for use on a stream."""
        block = c_void_p()
        check(LIBRARY.millpond_pool_alloc(self._raw, size, stream, byref(block)))
        return block.value

    def free(self, block):
        """Frees a block, in the order of the streams that used it."""
        check(LIBRARY.millpond_pool_free(self._raw, block))

    def get_attribute(self, attribute):
        """The value of a :class:`PoolAttribute`."""
        value = c_uint64()
        check(LIBRARY.millpond_pool_get_attribute(self._raw, attribute, byref(value)))
        return value.value

    def set_attribute(self, attribute, value):
        """Sets a :class:`PoolAttribute`: a reuse policy, the release threshold, or a mark to 0."""
        check(LIBRARY.millpond_pool_set_attribute(self._raw, attribute, value))

    def trim_to(self, min_bytes_to_keep=0):
        """Gives back what nothing uses, and says what stays and why, by name."""
        report = sized(TrimReport)
        check(LIBRARY.millpond_pool_trim_to(self._raw, min_bytes_to_keep, byref(report)))
        return report.as_dict()

    def set_access(self, flags, location_id, location_type=LocationType.DEVICE):
        """Says what a device may do with the pool's memory, past and future."""
        access = Access(location_type, location_id, flags)
        check(LIBRARY.millpond_pool_set_access(self._raw, byref(access), 1))

    def get_access(self, location_id, location_type=LocationType.DEVICE):
        """What a device may do with the pool's memory: :class:`AccessFlags`."""
        flags = c_uint32()
        check(LIBRARY.millpond_pool_get_access(self._raw, location_type, location_id, byref(flags)))
        return AccessFlags(flags.value)

    def synchronize_event(self, event):
        """Waits for an event; the pool then knows that what it stands for is done."""
        check(LIBRARY.millpond_pool_synchronize_event(self._raw, event))


class Device:
    """A device and its pools: ``Device.cuda(0)``, or ``Device.host()`` of this machine's memory."""

    def __init__(self, raw):
        self._raw = raw

    def __del__(self):
        LIBRARY.millpond_device_close(self._raw)

    @classmethod
    def cuda(cls, ordinal=0):
        """The CUDA device with this ordinal."""
        raw = c_void_p()
        check(LIBRARY.millpond_device_open_cuda(ordinal, byref(raw)))
        return cls(raw)

    @classmethod
    def host(cls, memory=0):
        """A device made of this machine's memory, so many bytes of it."""
        raw = c_void_p()
        check(LIBRARY.millpond_device_open_host(memory, byref(raw)))
        return cls(raw)

    def create_pool(self, limit=0, location_type=0, location_id=0, handle_types=0, budget=None):
        """A pool of its own: ``cuMemPoolCreate``."""
        options = sized(
            PoolOptions,
            limit_bytes=limit,
            location_type=location_type,
            location_id=location_id,
            handle_types=handle_types,
            budget=budget._raw if budget is not None else None,
        )
        raw = c_void_p()
        check(LIBRARY.millpond_pool_create(self._raw, byref(options), byref(raw)))
        return Pool(raw, self)

    def default_pool(self, location_type=LocationType.DEVICE, location_id=0):
        """The default pool of a location."""
        raw = c_void_p()
        function = LIBRARY.millpond_device_get_default_pool
        check(function(self._raw, location_type, location_id, byref(raw)))
        return Pool(raw, self)

    def current_pool(self, location_type=LocationType.DEVICE, location_id=0):
        """The current pool of a location."""
        raw = c_void_p()
        check(LIBRARY.millpond_device_get_pool(self._raw, location_type, location_id, byref(raw)))
        return Pool(raw, self)

    def set_current_pool(self, pool):
        """Makes a pool the current one of its location."""
        check(LIBRARY.millpond_device_set_pool(self._raw, pool._raw))

    def alloc(self, size, stream=0):
        """The address of a new block of the current pool."""
        block = c_void_p()
        check(LIBRARY.millpond_device_alloc(self._raw, size, stream, byref(block)))
        return block.value

    def free(self, block):
        """Frees a block, in whichever pool it is."""
        check(LIBRARY.millpond_device_free(self._raw, block))

    def pointer(self, address):
        """What an address belongs to, by name."""
        info = sized(PointerInfo)
        check(LIBRARY.millpond_device_get_pointer_info(self._raw, address, byref(info)))
        return info.as_dict()

    def synchronize_stream(self, stream=0):
        """Waits for a stream, and tells all pools of the device."""
        check(LIBRARY.millpond_device_synchronize_stream(self._raw, stream))

    def reap(self, wait=False):
        """Gives back what destroyed pools have left; gives how many still have memory."""
        left = c_uint64()
        check(LIBRARY.millpond_device_reap(self._raw, int(wait), byref(left)))
        return left.value


class Reaper:
    """A thread that gives back the memory of destroyed pools, while this lives."""

    def __init__(self):
        self._raw = c_void_p()
        check(LIBRARY.millpond_reaper_start(byref(self._raw)))

    def __del__(self):
        LIBRARY.millpond_reaper_stop(self._raw)
