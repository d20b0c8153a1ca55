"""The C library through ctypes, on the host device."""

import ctypes
import os
import subprocess
import sys
from ctypes import byref, c_uint64, c_void_p

import pytest

import millpond
from millpond import _library
from millpond._library import LIBRARY, PoolOptions, Statistics, sized

MIB = 1 << 20


@pytest.fixture
def device():
    device = c_void_p()
    _library.check(LIBRARY.millpond_device_open_host(256 * MIB, byref(device)))
    yield device
    LIBRARY.millpond_device_close(device)


@pytest.fixture
def pool(device):
    pool = c_void_p()
    options = sized(PoolOptions, limit_bytes=16 * MIB, streams_declared=1)
    _library.check(LIBRARY.millpond_pool_create(device, byref(options), byref(pool)))
    yield pool
    LIBRARY.millpond_pool_destroy(pool)


def alloc(pool, size):
    block = c_void_p()
    _library.check(LIBRARY.millpond_pool_alloc(pool, size, None, byref(block)))
    return block.value


def statistics(pool):
    filled = sized(Statistics)
    _library.check(LIBRARY.millpond_pool_get_statistics(pool, byref(filled)))
    return filled.as_dict()


def test_a_block_holds_bytes_and_is_counted(device, pool):
    block = alloc(pool, 1000)
    assert block % 256 == 0
    written, read = (ctypes.c_char * 1000)(*b"millpond"), (ctypes.c_char * 1000)()
    _library.check(LIBRARY.millpond_host_write(device, block, written, 1000))
    _library.check(LIBRARY.millpond_host_read(device, read, block, 1000))
    assert bytes(read) == bytes(written)
    held = statistics(pool)
    assert (held["live_blocks"], held["live_bytes"]) == (1, 1000)
    assert held["limit_bytes"] == 16 * MIB
    _library.check(LIBRARY.millpond_pool_free(pool, block))
    held = statistics(pool)
    assert (held["live_blocks"], held["live_bytes"], held["peak_live_bytes"]) == (0, 0, 1000)


def test_no_memory_says_where_it_is(pool):
    blocks = [alloc(pool, 8 * MIB), alloc(pool, 4 * MIB)]
    with pytest.raises(millpond.OutOfMemoryError) as caught:
        alloc(pool, 8 * MIB)
    assert isinstance(caught.value, MemoryError)
    text = str(caught.value)
    assert "8.0 MiB asked for" in text and "12.0 MiB live in 2 blocks" in text
    for block in blocks:
        _library.check(LIBRARY.millpond_pool_free(pool, block))
    released = c_uint64()
    _library.check(LIBRARY.millpond_pool_synchronize(pool))
    _library.check(LIBRARY.millpond_pool_trim(pool, 0, byref(released)))
    assert released.value >= 12 * MIB
    assert statistics(pool)["reserved_bytes"] == 0


def test_a_second_free_is_refused(pool):
    block = alloc(pool, 256)
    _library.check(LIBRARY.millpond_pool_free(pool, block))
    with pytest.raises(millpond.MillpondError, match="freed already") as caught:
        _library.check(LIBRARY.millpond_pool_free(pool, block))
    assert caught.value.status == 3


def test_null_pointers_are_refused():
    with pytest.raises(millpond.MillpondError, match="pool is a null pointer"):
        _library.check(LIBRARY.millpond_pool_synchronize(None))
    with pytest.raises(millpond.MillpondError, match="device is a null pointer"):
        _library.check(LIBRARY.millpond_pool_create(None, None, byref(c_void_p())))
    LIBRARY.millpond_pool_destroy(None)
    LIBRARY.millpond_device_close(None)


def test_an_older_struct_is_filled_as_far_as_it_goes(pool):
    class Older(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("live_blocks", c_uint64), ("beyond", c_uint64)]

    block = alloc(pool, 256)
    older = Older(size=16, beyond=7)
    pointer = ctypes.cast(byref(older), ctypes.POINTER(Statistics))
    _library.check(LIBRARY.millpond_pool_get_statistics(pool, pointer))
    assert (older.size, older.live_blocks, older.beyond) == (16, 1, 7)
    older.size = 0
    with pytest.raises(millpond.MillpondError, match="set it to the size"):
        _library.check(LIBRARY.millpond_pool_get_statistics(pool, pointer))
    _library.check(LIBRARY.millpond_pool_free(pool, block))


def in_a_process(program, **environment):
    """Runs a program in a process of its own: the pools behind the pair are the process's."""
    environment = {**os.environ, **environment}
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


PAIR = """
import millpond
from millpond._library import LIBRARY, last_error
assert set(millpond.stats().values()) == {0}
block = LIBRARY.millpond_torch_alloc(3 << 20, 0, None)
assert block
held = millpond.stats()
assert (held["live_blocks"], held["live_bytes"]) == (1, 3 << 20), held
assert held["limit_bytes"] == 32 << 20
assert LIBRARY.millpond_torch_alloc(1 << 30, 0, None) is None
assert "out of memory" in last_error() and LIBRARY.millpond_last_status() == 2
LIBRARY.millpond_torch_free(block, 3 << 20, 0, None)
LIBRARY.millpond_torch_empty_cache()
assert millpond.stats()["reserved_bytes"] == 0
print("done")
"""


def test_the_pair_serves_from_the_device_in_the_environment():
    told = in_a_process(PAIR, MILLPOND_DEVICE="host:64MiB", MILLPOND_LIMIT="32MiB")
    assert told.split() == ["done"]


@pytest.mark.parametrize(
    ("name", "value"), [("MILLPOND_LIMIT", "8 GB"), ("MILLPOND_DEVICE", "host:many")]
)
def test_a_setting_that_is_not_understood_is_refused(name, value):
    program = (
        "from millpond._library import LIBRARY, last_error\n"
        "assert LIBRARY.millpond_torch_alloc(1, 0, None) is None\n"
        "print(last_error())"
    )
    settings = {"MILLPOND_DEVICE": "host:64MiB", name: value}
    assert name in in_a_process(program, **settings)


def test_doctor_says_what_is_there_and_what_is_missing():
    run = [sys.executable, "-m", "millpond", "doctor"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert millpond.__version__ in done.stdout
    assert "a pool in this machine's memory works" in done.stdout
    assert ("PyTorch can run on millpond" in done.stdout) == (done.returncode == 0)


def test_a_missing_library_says_what_to_do():
    program = (
        "try:\n import millpond\n"
        "except ImportError as error: print(error)\n"
        "else: raise SystemExit('imported')"
    )
    told = in_a_process(program, MILLPOND_LIBRARY="/nowhere/libmillpond.so")
    assert "/nowhere/libmillpond.so" in told and "MILLPOND_LIBRARY" in told
