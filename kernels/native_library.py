"""The CPU kernels as a shared library: compiled at first use for this very machine, then kept.

``cpu/*.cpp`` (C++17, a C interface, no dependencies) become one library whose name is the hash of all that
it follows from: sources, compiler, flags and the CPU's features. It is written beside its final name and
renamed, so any number of processes may start at once; the loser's copy is the same file. Compiling takes some
ten seconds, a later start 10 ms. ctypes releases the interpreter's lock during every call.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent / "cpu"
COMPILERS: Final = ("g++", "clang++", "c++")
FLAGS: Final = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-fno-math-errno"),
    "-ffp-contract=off",
)
"""No contraction: whether a product and a sum become one rounding must not depend on the compiler's choice in
each copy of a loop, or a row's bits would depend on the size of its batch."""
FEATURES: Final = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16")
"""What the code is written in, as /proc/cpuinfo names them: Zen 4 and later, Cooper Lake, Sapphire Rapids and
later."""
COMPILE_SECONDS: Final = 300.0
CPU_FACTS: Final = Path("/proc/cpuinfo")


class NativeUnavailableError(Exception):
    """The CPU kernels cannot run here; the message says what is missing and what would help."""


def load_native(cache_dir: Path, compilers: Sequence[str] = COMPILERS) -> ctypes.CDLL:
    """The library, compiled if ``cache_dir`` lacks it (and only then does it need one of ``compilers``)."""
    features = cpu_features()
    missing = [feature for feature in FEATURES if feature not in features]
    if missing:
        raise NativeUnavailableError(f"this CPU has no {', '.join(missing)}")
    compiler = find_compiler(compilers)
    target = cache_dir / f"kernels-{_fingerprint(compiler, features)}.so"
    if not target.exists():
        _compile(compiler, target)
    return _load(target)


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
        "Ubuntu: g++, Fedora: gcc-c++) and start again"
    )


def _fingerprint(compiler: str, features: frozenset[str]) -> str:
    digest = hashlib.sha256()
    version = subprocess.run([compiler, "--version"], check=False, capture_output=True).stdout
    for part in (compiler.encode(), version, " ".join(FLAGS).encode(), " ".join(sorted(features)).encode()):
        digest.update(part + b"\0")
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


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
