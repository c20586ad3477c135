"""The native CPU kernels for tests, compiled once per version of the sources."""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import cache
from pathlib import Path

import pytest

from headway.kernels.native_library import FEATURES, NativeUnavailableError, cpu_features, load_native

CACHE_DIR = Path(tempfile.gettempdir()) / f"headway-test-kernels-{os.getuid()}"


@cache
def native_library() -> ctypes.CDLL:
    """The library; skips where this CPU lacks the instructions, or outside CI the compiler is missing."""
    if not cpu_features().issuperset(FEATURES):
        pytest.skip("this CPU has no AVX-512 with bf16 and VNNI")
    try:
        return load_native(CACHE_DIR)
    except NativeUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI tests the native kernels, but: {error}")
        pytest.skip(str(error))
