"""Builds the C library with cargo and puts it into the wheel.

The wheel holds a C library and no extension module, so one wheel serves every Python 3 of a
platform: its tag is py3-none-PLATFORM, where the platform names the C library version that the
library was really linked against.
"""

import os
import platform
import re
import subprocess
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildLibrary(BuildHookInterface):
    """Hatchling's hook for a wheel."""

    def initialize(self, version, build_data):
        if version == "editable":
            raise RuntimeError(
                "an editable installation would not notice a changed library; "
                "build a wheel, and set MILLPOND_LIBRARY to try another library"
            )
        repository = Path(self.root).parent
        if not (repository / "crates" / "millpond-capi").is_dir():
            raise RuntimeError(
                "the Rust sources are not beside the package; build it from the repository: "
                "pip wheel --no-deps --wheel-dir dist ./python"
            )
        library = build(repository)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(library)}"
        build_data["force_include"][str(library)] = "millpond/libmillpond.so"


def build(repository):
    """Builds the library, and says where it is."""
    command = ["cargo", "build", "--locked", "--release", "-p", "millpond-capi"]
    try:
        subprocess.run(command, cwd=repository, check=True)
    except FileNotFoundError:
        raise RuntimeError("cargo is not there; install Rust 1.95 or later") from None
    target = Path(os.environ.get("CARGO_TARGET_DIR") or repository / "target")
    return (repository / target / "release" / "libmillpond.so").resolve()


def platform_tag(library):
    """The manylinux tag of the newest glibc symbol that the library needs."""
    versions = re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())
    newest = max((int(minor) for minor in versions), default=17)
    return f"manylinux_2_{max(newest, 17)}_{platform.machine()}"
