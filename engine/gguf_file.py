"""The GGUF container: metadata and memory-mapped tensor bytes, one file or a split set read as one.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. We read the header ourselves because the
``gguf`` package builds an array object per string, which costs two seconds for a usual vocabulary.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from headway.engine.errors import ModelError

GgufScalar = str | int | float | bool
GgufValue = GgufScalar | tuple[GgufScalar, ...]

_SCALARS: Final[Mapping[int, struct.Struct]] = {
    number: struct.Struct(f"<{code}") for number, code in enumerate("BbHhIif?")
} | {10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d")}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_MAX_DIMENSIONS = 4
_SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_FETCH_AGAIN = "fetch the file again"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies. ``shape`` is row-major ([out, in]), the reverse of GGUF's own order."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    buffer: mmap.mmap
    offset: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed GGUF; tensors stay on disk until they are asked for."""

    path: Path
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]
    parts: tuple[Path, ...] = ()
    """Of a split set, all of them; else empty."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file that was read."""
        return self.parts or (self.path,)


def open_gguf(path: Path) -> GgufFile:
    """Parse a GGUF, all parts of it when it is split; ModelError says which file is damaged or missing."""
    parts = _parts(path)
    first, *others = (_Header(part).parse() for part in parts)
    tensors = dict(first.tensors)
    for other in others:
        tensors.update(other.tensors)
    wanted = first.metadata.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise ModelError(f"{path}: {len(tensors)} tensors in all parts, {wanted} announced; {_FETCH_AGAIN}")
    return GgufFile(path, first.metadata, tensors, tuple(parts))


def _parts(path: Path) -> list[Path]:
    """The file itself, or all parts of a split set, whichever part was named."""
    match = _SPLIT_NAME.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    return [path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]


def _map(path: Path) -> mmap.mmap:
    """Private mapping: pages come from the file as they are touched, and torch may treat them as writable."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError:
        raise ModelError(f"{path}: the file is empty; {_FETCH_AGAIN}") from None
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); check the path and its rights"
        ) from error


class _Header:
    """A cursor over one file's header."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = _map(path)
        self._at = 0

    def parse(self) -> GgufFile:
        self._check_magic()
        tensor_count, entry_count = self._length(), self._length()
        metadata: dict[str, GgufValue] = {}
        for _ in range(entry_count):
            key = self._string()
            metadata[key] = self._value(self._scalar(4))
        entries = [self._tensor_entry() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise self._damaged(f"alignment {alignment!r}")
        start = -(-self._at // alignment) * alignment
        if any(offset % alignment for *_, offset in entries):
            raise self._damaged("a tensor that is not aligned")
        return GgufFile(self._path, metadata, {e[0]: self._tensor(start, *e) for e in entries})

    def _check_magic(self) -> None:
        if self._buffer[:4] != b"GGUF":
            raise ModelError(f"{self._path}: not a GGUF file (it starts with {self._buffer[:4]!r})")
        self._at = 4
        version = self._scalar(4)
        if version not in {2, 3}:
            what = "big-endian" if version in {2 << 24, 3 << 24} else f"version {version}"
            raise ModelError(
                f"{self._path}: {what} GGUF is not supported; convert it to little-endian version 3"
            )

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: damaged or cut off ({what}); {_FETCH_AGAIN}")

    def _unpack(self, kind: struct.Struct) -> GgufScalar:
        try:
            (value,) = kind.unpack_from(self._buffer, self._at)
        except struct.error:
            raise self._damaged(f"header ends at byte {self._at}") from None
        self._at += kind.size
        return value  # type: ignore[no-any-return]  # struct's formats yield int, float or bool

    def _scalar(self, type_number: int) -> int:
        value = self._unpack(_SCALARS[type_number])
        assert isinstance(value, int)
        return value

    def _length(self) -> int:
        value = self._unpack(_LENGTH)
        # Every counted thing takes at least a byte, so a larger count is damage; found here, before any loop.
        if not isinstance(value, int) or value > len(self._buffer) - self._at:
            raise self._damaged(f"length {value} at byte {self._at}")
        return value

    def _string(self) -> str:
        length = self._length()
        self._at += length
        # Vocabularies hold tokens cut inside a character; surrogateescape keeps their bytes.
        return self._buffer[self._at - length : self._at].decode("utf-8", "surrogateescape")

    def _strings(self, count: int) -> list[str]:
        """As ``_string``, without a call for each: a vocabulary and its merges are 100,000 and more."""
        buffer, at, end = self._buffer, self._at, len(self._buffer)
        length_at, strings = _LENGTH.unpack_from, list[str]()
        for _ in range(count):
            if at + _LENGTH.size > end:
                raise self._damaged(f"header ends at byte {at}")
            start = at + _LENGTH.size
            at = start + length_at(buffer, at)[0]
            if at > end:
                raise self._damaged(f"length {at - start} at byte {start}")
            strings.append(buffer[start:at].decode("utf-8", "surrogateescape"))
        self._at = at
        return strings

    def _value(self, type_number: int) -> GgufValue:
        if type_number == _STRING:
            return self._string()
        if type_number == _ARRAY:
            return self._array()
        if type_number not in _SCALARS:
            raise self._damaged(f"value type {type_number}")
        return self._unpack(_SCALARS[type_number])

    def _array(self) -> tuple[GgufScalar, ...]:
        type_number, count = self._scalar(4), self._length()
        if type_number == _STRING:
            return tuple(self._strings(count))
        if type_number not in _SCALARS:
            raise self._damaged(f"array of type {type_number}")
        kind = struct.Struct(f"<{count}{_SCALARS[type_number].format[1:]}")
        if self._at + kind.size > len(self._buffer):
            raise self._damaged(f"array of {count} values at byte {self._at}")
        values = kind.unpack_from(self._buffer, self._at)
        self._at += kind.size
        return values

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, row-major shape, type number, offset from the start of the tensor bytes."""
        name = self._string()
        dimensions = self._scalar(4)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name!r} with {dimensions} dimensions")
        sizes = [self._scalar(10) for _ in range(dimensions)]
        return name, tuple(reversed(sizes)), self._scalar(4), self._scalar(10)

    def _tensor(
        self, start: int, name: str, shape: tuple[int, ...], type_number: int, offset: int
    ) -> GgufTensor:
        try:
            kind = GGMLQuantizationType(type_number)
        except ValueError:
            raise ModelError(
                f"{self._path}: tensor {name!r} has the unknown type {type_number}; "
                "requantize the model to Q8_0 or Q4_K, or update the gguf package"
            ) from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        values = 1
        for size in shape:
            values *= size
        byte_count = values // block * block_bytes
        if shape[-1] % block or start + offset + byte_count > len(self._buffer):
            raise self._damaged(f"tensor {name!r} does not fit")
        return GgufTensor(name, shape, kind, self._buffer, start + offset, byte_count)
