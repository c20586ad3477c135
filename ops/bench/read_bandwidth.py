"""How fast this machine reads memory with the kernels' threads: a ceiling, measured where it is compared."""

from __future__ import annotations

import ctypes
import tempfile
import weakref
from functools import cache
from pathlib import Path

import torch
from native_code import compiled
from torch import Tensor

LINE = 256
"""Bytes that are read at a time."""


@cache
def compiled_readers() -> ctypes.CDLL:
    """``read_bandwidth.cpp`` with the kernels' threads."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled("read_bandwidth.cpp", Path(folder), "threads.cpp")
    library.bench_open_readers.restype = ctypes.c_void_p
    library.bench_read_all.restype = ctypes.c_double
    return library


class Readers:
    """A team of threads that reads arrays and nothing else; ``close`` ends it."""

    def __init__(self, threads: int) -> None:
        library = compiled_readers()
        self._team = ctypes.c_void_p(library.bench_open_readers(threads))
        self._read = library.bench_read_all
        self._end = weakref.finalize(self, library.bench_close_readers, self._team)

    def seconds(self, values: Tensor) -> float:
        """That it takes to read an array of ``array_of`` once."""
        return self.read(values)[0]

    def read(self, values: Tensor) -> tuple[float, int]:
        """(seconds, sum of its 64-bit words) of such an array."""
        total = ctypes.c_int64()
        seconds = self._read(
            self._team,
            ctypes.c_void_p(values.data_ptr()),
            ctypes.c_int64(values.nbytes),
            ctypes.byref(total),
        )
        return float(seconds), total.value

    def close(self) -> None:
        """End the threads."""
        self._end()


def array_of(byte_count: int) -> Tensor:
    """So many bytes, a little more where that is no multiple of ``LINE``, each page of its own."""
    return torch.ones(-(-byte_count // LINE) * LINE // 8, dtype=torch.int64)
