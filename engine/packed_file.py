"""One file with named runs of bytes, written once and mapped by any number of processes.

    MAGIC │ part │ padding │ part │ … │ directory (JSON) │ its offset, length and CRC-32 │ MAGIC

Parts begin at multiples of 64 bytes, as the kernels' vectors want them. The directory stands at the end, so
a part is on its way to the disk before the next one is made. Each part has its CRC-32 there; a file that was
cut off, or holds a wrong byte, is told apart from a whole one.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

import torch
from torch import Tensor

MAGIC: Final = b"hwparts1"
ALIGNMENT: Final = 64
_FOOTER: Final = struct.Struct("<QQI8s")
"""Offset, length and CRC-32 of the directory, then MAGIC."""


class DamagedFileError(Exception):
    """The file is not what ``PackedWriter`` made; the message says where."""


class _Part(NamedTuple):
    """Where a part lies."""

    offset: int
    byte_count: int
    crc: int


class PackedWriter:
    """Writes a file part by part; it is whole after ``finish``. OSError: the disk refuses."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._parts: dict[str, _Part] = {}
        file.write(MAGIC)

    def add(self, name: str, values: Tensor) -> None:
        """Write a contiguous tensor's bytes."""
        content = values.view(-1).view(torch.uint8).numpy().data
        self._file.write(bytes(-self._file.tell() % ALIGNMENT))
        self._parts[name] = _Part(self._file.tell(), content.nbytes, zlib.crc32(content))
        self._file.write(content)

    def finish(self, facts: Mapping[str, object]) -> None:
        """Write the directory, with ``facts`` of the whole (values of JSON)."""
        directory = json.dumps({"parts": self._parts, "facts": facts}).encode()
        start = self._file.tell()
        self._file.write(directory)
        self._file.write(_FOOTER.pack(start, len(directory), zlib.crc32(directory), MAGIC))
        self._file.flush()


class PackedFile:
    """A whole file, mapped; every part was read once and found as it was written."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        """Raises DamagedFileError, and OSError when it cannot be opened."""
        self._map = _mapped(path)
        self._parts, self.facts = _directory(path, self._map)
        self._check(path, threads)

    @property
    def byte_count(self) -> int:
        """Size of the file."""
        return len(self._map)

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """A part's values, in place. KeyError: there is no such part."""
        part = self._parts[name]
        return torch.frombuffer(
            self._map, dtype=dtype, count=part.byte_count // dtype.itemsize, offset=part.offset
        )

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def _check(self, path: Path, threads: int) -> None:
        """Read everything: it is wanted in memory anyway. zlib lets other threads run meanwhile."""
        self._map.madvise(mmap.MADV_WILLNEED)
        with memoryview(self._map) as content, ThreadPoolExecutor(threads) as pool:

            def is_whole(part: _Part) -> bool:
                with content[part.offset : part.offset + part.byte_count] as piece:
                    return zlib.crc32(piece) == part.crc

            for name, whole in zip(self._parts, pool.map(is_whole, self._parts.values()), strict=True):
                if not whole:
                    raise DamagedFileError(f"{path}: {name} is not as it was written")


def _mapped(path: Path) -> mmap.mmap:
    """Private and thus writable for torch; nobody writes, so all processes share the pages."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < len(MAGIC) + _FOOTER.size:
            raise DamagedFileError(f"{path}: cut off")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _directory(path: Path, content: mmap.mmap) -> tuple[dict[str, _Part], Mapping[str, object]]:
    start, length, crc, magic = cast(
        tuple[int, int, int, bytes], _FOOTER.unpack_from(content, len(content) - _FOOTER.size)
    )
    end = start + length
    if magic != MAGIC or content[: len(MAGIC)] != MAGIC or end != len(content) - _FOOTER.size:
        raise DamagedFileError(f"{path}: cut off, or no file of packed parts")
    text = content[start:end]
    if zlib.crc32(text) != crc:
        raise DamagedFileError(f"{path}: its directory is not as it was written")
    directory = cast(dict[str, dict[str, object]], json.loads(text))
    parts = {name: _Part(*cast(list[int], part)) for name, part in directory["parts"].items()}
    return parts, directory["facts"]
