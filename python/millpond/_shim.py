"""The C++ shim: compiled once against the installed PyTorch, and kept.

Compiled shims lie in ``MILLPOND_CACHE``, or in ``millpond`` under the user's cache folder, each
under a name made of everything that it depends on.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import _library

SOURCE = Path(__file__).with_name("torch_shim") / "shim.cpp"


class ShimUnavailable(Exception):
    """The shim cannot be had here; the message says what is missing."""


def compiler():
    """The command of a C++ compiler: ``CXX``, or the first one found."""
    chosen = os.environ.get("CXX")
    for command in [shlex.split(chosen)] if chosen else [["c++"], ["g++"], ["clang++"]]:
        if command and shutil.which(command[0]):
            return command
    looked_for = f"CXX={chosen}" if chosen else "c++, g++, clang++"
    raise ShimUnavailable(f"no C++ compiler was found ({looked_for}); install g++")


def cache_folder():
    """Where compiled shims are kept."""
    chosen = os.environ.get("MILLPOND_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "millpond"


def _flags(torch):
    root = Path(torch.__file__).parent
    return [
        "-O2",
        "-fPIC",
        "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{root / 'include'}",
        f"-L{root / 'lib'}",
        "-lc10",
    ]


def compiled(torch):
    """The path of the shim for this PyTorch; compiles it if it is not there yet."""
    command = compiler()
    flags = _flags(torch)
    made_of = [SOURCE.read_text(), torch.__version__, *command, *flags]
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    shim = cache_folder() / f"shim-{name}.so"
    if shim.exists():
        return shim
    try:
        shim.parent.mkdir(parents=True, exist_ok=True)
        _compile(command, flags, shim)
    except OSError as error:
        raise ShimUnavailable(
            f"{shim.parent} cannot be written: {error}; set MILLPOND_CACHE to a folder that can"
        ) from None
    return shim


def _compile(command, flags, shim):
    with tempfile.TemporaryDirectory(dir=shim.parent) as folder:
        made = Path(folder) / shim.name
        # Later PyTorch headers need the later standard.
        for standard in ("c++17", "c++20"):
            arguments = [*command, f"-std={standard}", str(SOURCE), *flags, "-o", str(made)]
            run = subprocess.run(arguments, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                # Several ranks may compile at once; the last one to finish stays.
                made.replace(shim)
                return
    told = run.stderr.strip().splitlines()
    first = next((line for line in told if "error" in line), told[0] if told else "no message")
    raise ShimUnavailable(f"{shlex.join(arguments)} failed: {first}")


def load(torch):
    """Compiles the shim if need be, and binds it to the C library. Gives its path."""
    shim = compiled(torch)
    try:
        library = ctypes.CDLL(str(shim))
    except OSError as error:
        raise ShimUnavailable(f"{shim} cannot be loaded: {error}; remove it") from None
    bind = library.millpond_shim_bind
    bind.restype, bind.argtypes = None, [ctypes.c_void_p] * 4
    bind(
        _library.address("millpond_torch_alloc"),
        _library.address("millpond_torch_free"),
        _library.address("millpond_last_error"),
        _library.address("millpond_last_status"),
    )
    return shim
