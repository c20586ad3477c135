"""The CPU kernels as a shared library: installed beside the package, or compiled at first use, then kept.

``cpu/*.cpp`` (C++17, a C interface, no dependencies) become one library whose name is the hash of what it
follows from: sources, flags and compiler. Its code is the same for every CPU that has ``FEATURES``. It is
written beside its final name and renamed, so any number of processes may start at once; the loser's copy is
the same file. Compiling takes some ten seconds, a later start 10 ms. ctypes releases the interpreter's lock
during every call.

An image compiles them when it is built, and needs no compiler to run:

    python -m headway.kernels.native_library [FOLDER]      # default: INSTALLED
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent / "cpu"
INSTALLED: Final = Path(sys.prefix) / "lib" / "headway"
"""Of this Python's environment. A library there goes by sources and flags alone: whoever put it there chose
the compiler."""
COMPILERS: Final = ("g++", "clang++", "c++")
FLAGS: Final = (
    *(
        "-std=c++17",
        "-O3",
        "-march=x86-64-v4",
        "-mavx512vnni",
        "-mavx512bf16",
        "-fPIC",
        "-shared",
        "-pthread",
    ),
    *("-fno-math-errno", "-ffp-contract=off"),
)
"""One target for every CPU (decision 0035): -march=native was no faster, and would be another library, with
other bits, on each kind of machine. No contraction: whether a product and a sum become one rounding must not
depend on the compiler's choice in each copy of a loop, or a row's bits would follow the size of its batch."""
FEATURES: Final = (
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"),
)
"""What FLAGS let the compiler use, as /proc/cpuinfo names it: Zen 4 and later, Cooper Lake, Sapphire Rapids
and later. The second line comes with the first, unless a hypervisor hides it."""
COMPILE_SECONDS: Final = 300.0
CPU_FACTS: Final = Path("/proc/cpuinfo")


class NativeUnavailableError(Exception):
    """The CPU kernels cannot run here; the message says what is missing and what would help."""


def load_native(
    cache_dir: Path, compilers: Sequence[str] = COMPILERS, *, installed: Path = INSTALLED
) -> ctypes.CDLL:
    """The library that is ``installed``, else ``cache_dir``'s, compiled there if need be by one of
    ``compilers``. NativeUnavailableError: this machine cannot have it."""
    features = cpu_features()
    missing = [feature for feature in FEATURES if feature not in features]
    if missing:
        raise NativeUnavailableError(f"this CPU has no {', '.join(missing)}")
    target = installed / _name()
    if not target.exists():
        target = compile_native(cache_dir, find_compiler(compilers))
    return _load(target)


def compile_native(folder: Path, compiler: str) -> Path:
    """The library in a cache folder, compiled if it is not there. NativeUnavailableError: it cannot be."""
    version = subprocess.run([compiler, "--version"], check=False, capture_output=True).stdout
    target = folder / _name(compiler.encode(), version)
    if not target.exists():
        _compile(compiler, target)
    return target


def install_native(folder: Path = INSTALLED, compilers: Sequence[str] = COMPILERS) -> Path:
    """Compile the library for an environment whose INSTALLED is ``folder``, whatever this CPU has."""
    target = folder / _name()
    _compile(find_compiler(compilers), target)
    return target


@cache
def _load(target: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise NativeUnavailableError(
            f"{target} cannot be loaded ({error}); remove it to have it compiled again"
        ) from error


def cpu_features() -> frozenset[str]:
    """The CPU's feature flags; empty where there is no /proc/cpuinfo of the x86 kind."""
    try:
        text = CPU_FACTS.read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, colon, values = line.partition(":")
        if colon and name.strip() == "flags":
            return frozenset(values.split())
    return frozenset()


def find_compiler(compilers: Sequence[str]) -> str:
    """Path of the first C++ compiler that is installed."""
    for name in compilers:
        found = shutil.which(name)
        if found:
            return found
    raise NativeUnavailableError(
        f"no C++ compiler ({', '.join(compilers) or 'none given'}) is installed; install one (Debian and "
        "Ubuntu: g++, Fedora: gcc-c++) and start again; an image gets them when it is built: "
        "python -m headway.kernels.native_library"
    )


def _name(*made_by: bytes) -> str:
    digest = hashlib.sha256()
    for part in (" ".join(FLAGS).encode(), *made_by):
        digest.update(part + b"\0")
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"kernels-{digest.hexdigest()[:24]}.so"


def _compile(compiler: str, target: Path) -> None:
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # On the same file system as the target, so that the rename is atomic.
        folder = tempfile.mkdtemp(prefix=".compiling-", dir=target.parent)
    except OSError as error:
        raise NativeUnavailableError(
            f"the cache folder {target.parent} cannot be written: {error}"
        ) from error
    try:
        made = Path(folder) / target.name
        done = subprocess.run(
            [compiler, *FLAGS, *sources, "-o", str(made)],
            check=False,
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
        )
        if done.returncode != 0:
            raise NativeUnavailableError(
                f"{compiler} could not compile the CPU kernels: {_first_error(done.stderr)}"
            )
        os.replace(made, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailableError(f"the CPU kernels could not be compiled: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first_error(text: str) -> str:
    lines = text.splitlines()
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no reason given")


def main(arguments: Sequence[str]) -> int:
    """Install the library where the first argument says, print its path; 1 and the reason if that fails."""
    try:
        print(install_native(Path(arguments[0]) if arguments else INSTALLED))
    except NativeUnavailableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
