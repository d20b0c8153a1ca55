"""``millpond.torch.enable()`` against a stand-in for PyTorch, which records what is asked of it."""

import shutil
import subprocess
import sys
import types

import pytest

import millpond.torch as door
from millpond import _library, _shim

HEADER = """
#pragma once
#include <cstdint>
#include <exception>
#include <string>
namespace c10 {
struct SourceLocation { const char* function; const char* file; uint32_t line; };
class Error : public std::exception {
  public:
    Error(SourceLocation, std::string text) : text_(std::move(text)) {}
    const char* what() const noexcept override { return text_.c_str(); }
  private:
    std::string text_;
};
class OutOfMemoryError : public Error { using Error::Error; };
}
"""


class Allocator:
    """What PyTorch makes of a pair."""

    def __init__(self, path, alloc, free):
        self.path, self.alloc, self.free, self.hooks = path, alloc, free, {}

    def allocator(self):
        return self

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda address: self.hooks.update({name: address})


class Current:
    def __init__(self, allocator):
        self._allocator = allocator

    def allocator(self):
        return self._allocator


@pytest.fixture
def torch(monkeypatch, tmp_path):
    """A stand-in for PyTorch as it is before CUDA is used."""
    fake = types.ModuleType("torch")
    fake.__version__, fake.__file__ = "0.0+test", str(tmp_path / "torch" / "__init__.py")
    fake.version = types.SimpleNamespace(cuda="13.0")
    fake._C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
    fake.installed = None
    fake.cuda = types.SimpleNamespace(is_initialized=lambda: False)
    fake.cuda.memory = types.SimpleNamespace(
        CUDAPluggableAllocator=Allocator,
        change_current_allocator=lambda allocator: setattr(fake, "installed", allocator),
        _get_current_allocator=lambda: Current(fake.installed),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(door, "_allocator", None)
    monkeypatch.setenv("MILLPOND_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MILLPOND_SHIM", raising=False)
    return fake


@pytest.fixture
def compiling(torch, tmp_path):
    """The stand-in with headers and a library that the shim can be compiled against."""
    if shutil.which("g++") is None:
        pytest.fail("these tests need g++")
    header = tmp_path / "torch" / "include" / "c10" / "util" / "Exception.h"
    header.parent.mkdir(parents=True)
    header.write_text(HEADER)
    library = tmp_path / "torch" / "lib" / "libc10.so"
    library.parent.mkdir()
    empty = ["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(library)]
    subprocess.run(empty, check=True)
    return torch


def test_without_a_shim_the_plain_pair_serves(torch):
    door.enable(shim=False)
    assert door.is_enabled()
    allocator = torch.installed
    assert allocator.path == str(_library.library_path())
    assert allocator.alloc == "millpond_torch_alloc_or_throw"
    assert allocator.free == "millpond_torch_free"


def test_every_hook_is_set(torch):
    door.enable(shim=False)
    assert torch.installed.hooks == {
        "set_record_stream_fn": _library.address("millpond_torch_record_stream"),
        "set_reset_fn": _library.address("millpond_torch_empty_cache"),
        "set_memory_fraction_fn": _library.address("millpond_torch_memory_fraction"),
        "set_begin_allocate_to_pool": _library.address("millpond_torch_begin_allocate_to_pool"),
        "set_end_allocate_to_pool_fn": _library.address("millpond_torch_end_allocate_to_pool"),
        "set_release_pool": _library.address("millpond_torch_release_pool"),
    }


def test_a_second_call_does_nothing(torch):
    door.enable(shim=False)
    first = torch.installed
    torch.cuda.is_initialized = lambda: True
    door.enable(shim=False)
    assert torch.installed is first


def test_it_is_too_late_once_cuda_is_in_use(torch):
    torch.cuda.is_initialized = lambda: True
    with pytest.raises(RuntimeError, match="too late.*right after the imports"):
        door.enable()
    assert torch.installed is None and not door.is_enabled()


def test_another_allocator_is_not_replaced(torch):
    torch.installed = other = object()
    with pytest.raises(RuntimeError, match="another allocator"):
        door.enable()
    assert torch.installed is other and not door.is_enabled()


def test_a_build_without_cuda_is_refused(torch):
    torch.version.cuda = None
    with pytest.raises(RuntimeError, match="built without CUDA"):
        door.enable()


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, 0), (4096, 4096), ("8GiB", 8 << 30), ("512 M", 512 << 20), ("7", 7), ("2TiB", 2 << 40)],
)
def test_limits(limit, expected):
    assert door._bytes(limit) == expected


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "", "8GB", "1.5GiB", "GiB", 1 << 64, b"1"])
def test_limits_that_are_none(torch, limit):
    with pytest.raises(ValueError, match="give whole bytes"):
        door.enable(limit=limit, shim=False)
    assert torch.installed is None


def test_without_a_compiler_it_says_what_is_missing(torch, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler was found.*no-such-compiler"):
        door.enable()
    assert torch.installed.alloc == "millpond_torch_alloc_or_throw"


def test_a_shim_that_is_demanded_and_missing_is_an_error(torch, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler"):
        door.enable(shim=True)
    assert torch.installed is None


def test_headers_that_do_not_compile_are_told(torch, recwarn):
    door.enable()
    assert "Exception.h" in str(recwarn.pop(UserWarning).message)


def test_the_environment_can_do_without_the_shim(compiling, monkeypatch):
    monkeypatch.setenv("MILLPOND_SHIM", "0")
    door.enable()
    assert compiling.installed.alloc == "millpond_torch_alloc_or_throw"


def test_the_shim_is_compiled_once(compiling, monkeypatch):
    shim = _shim.compiled(compiling)
    made = shim.stat().st_mtime_ns
    assert _shim.compiled(compiling) == shim and shim.stat().st_mtime_ns == made
    compiling.__version__ = "0.1+test"
    assert _shim.compiled(compiling) != shim


CATCHER = """
#include <c10/util/Exception.h>
#include <sys/types.h>
#include <cstring>
extern "C" int attempt(void* (*alloc)(ssize_t, int, void*), ssize_t size, int device, char* text) {
    try {
        return alloc(size, device, nullptr) == nullptr ? 1 : 0;
    } catch (const c10::OutOfMemoryError& error) {
        std::strncpy(text, error.what(), 1023);
        return 2;
    } catch (const c10::Error& error) {
        std::strncpy(text, error.what(), 1023);
        return 3;
    }
}
"""

SHIM_AT_WORK = """
import ctypes, sys, types
import millpond
from millpond import _shim
torch = types.SimpleNamespace(__version__="0.0+test", __file__=sys.argv[1],
                              _C=types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True))
shim = ctypes.CDLL(str(_shim.load(torch)))
catcher = ctypes.CDLL(sys.argv[2])
text = ctypes.create_string_buffer(1024)
size = ctypes.c_ssize_t
assert catcher.attempt(shim.millpond_shim_alloc, size(1 << 20), 0, text) == 0
assert millpond.stats()["live_bytes"] == 1 << 20
assert catcher.attempt(shim.millpond_shim_alloc, size(0), 0, text) == 1
assert catcher.attempt(shim.millpond_shim_alloc, size(1 << 40), 0, text) == 2
print(text.value.decode())
assert catcher.attempt(shim.millpond_shim_alloc, size(1), 99, text) == 3
print(text.value.decode())
"""


def test_no_memory_is_pytorchs_own_exception(compiling, tmp_path):
    source, catcher = tmp_path / "catcher.cpp", tmp_path / "catcher.so"
    source.write_text(CATCHER)
    include = f"-I{tmp_path / 'torch' / 'include'}"
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", include, str(source), "-o", str(catcher)],
        check=True,
    )
    environment = {
        "PATH": ":".join(["/usr/local/bin", "/usr/bin", "/bin"]),
        "MILLPOND_CACHE": str(tmp_path / "cache"),
        "MILLPOND_DEVICE": "host:64MiB",
        "LD_LIBRARY_PATH": str(tmp_path / "torch" / "lib"),
    }
    run = [sys.executable, "-c", SHIM_AT_WORK, compiling.__file__, str(catcher)]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("CUDA out of memory. millpond: out of memory: 1.0 TiB asked for")
    assert second.startswith("millpond: device 99 was asked for")
