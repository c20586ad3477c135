"""The native CPU kernels for tests, compiled once per version of the sources: mostly by ``ops/setup``."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from headway.kernels.native_library import FEATURES, NativeUnavailableError, cpu_features, load_native
from headway.services.settings import default_cache_dir

CACHE_DIR = Path(tempfile.gettempdir()) / f"headway-test-kernels-{os.getuid()}"


@cache
def native_library() -> ctypes.CDLL:
    """The library; skips where this CPU lacks the instructions, or outside CI the compiler is missing."""
    if not cpu_features().issuperset(FEATURES):
        pytest.skip("this CPU has no AVX-512 with bf16 and VNNI")
    CACHE_DIR.mkdir(parents=True, exist_ok=True)
    try:
        # One compiler for all processes of a run.
        with (CACHE_DIR / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _take_over(default_cache_dir())
            return load_native(CACHE_DIR)
    except NativeUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI tests the native kernels, but: {error}")
        pytest.skip(str(error))


def _take_over(folder: Path) -> None:
    """What is compiled already: a library's name says what it follows from."""
    for library in folder.glob("kernels-*.so"):
        if not (CACHE_DIR / library.name).exists():
            unfinished = CACHE_DIR / f".{library.name}"
            shutil.copy(library, unfinished)
            unfinished.rename(CACHE_DIR / library.name)
