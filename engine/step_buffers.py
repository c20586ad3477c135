"""What a step reads, in one piece: filled in pinned memory, and carried to the device by a single copy.

A *placement* is where a step's fields lie, one after another, each at a multiple of 16 bytes. Those of a
bucket are made once, at the same addresses every time, so that a graph can read them; the step's own lines
of block tables come last, and only as many bytes are copied as they take.

There are two pinned pieces: while one is still being copied, the next step is written to the other. A piece
is written again when the step before the last has been collected, so nobody has to wait for a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.kernels.host_arrays import as_array

ALIGNED = 16
"""Bytes: what the kernels' wide loads want."""

PIECES = 2
"""Steps that may be under way at once: one runs while the next one is launched."""


Wait: TypeAlias = Callable[[], object]
"""Returns when something has come to its end."""


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a step's inputs; ``padding`` fills the rows that a step leaves."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    padding: float | tuple[int, ...] = 0

    @property
    def byte_count(self) -> int:
        """Of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize


class Placement:
    """Fields in one piece of memory, seen from the host (each of the pieces) and from the device."""

    def __init__(self, fields: Sequence[Field], hosts: Sequence[Tensor], device: Tensor) -> None:
        self.fields = tuple(fields)
        starts: list[int] = []
        end = 0
        for field in fields:
            starts.append(end)
            end += -(-field.byte_count // ALIGNED) * ALIGNED
        self._last_start = starts[-1]
        self._hosts, self._device = tuple(hosts), device
        placed = list(zip(fields, starts, strict=True))
        self.on_device: dict[str, Tensor] = {f.name: _view(device, f, start) for f, start in placed}
        self._on_hosts: list[dict[str, NDArray[Any]]] = [
            {f.name: as_array(_view(host, f, start)) for f, start in placed} for host in hosts
        ]

    @property
    def rows(self) -> int:
        """Of the last field: a step may fill fewer."""
        return self.fields[-1].shape[0]

    @property
    def nothing(self) -> dict[str, NDArray[Any]]:
        """The content of a step of padding alone."""
        return {name: array[:0] for name, array in self._on_hosts[0].items()}

    def upload(self, piece: int, content: Mapping[str, NDArray[Any]]) -> None:
        """Write one step's arrays, pad them, and let the device have them; waits for nothing."""
        arrays = self._on_hosts[piece]
        for field in self.fields[:-1]:
            array, given = arrays[field.name], content[field.name]
            array[: len(given)] = given
            array[len(given) :] = field.padding
        last = self.fields[-1]
        given = content[last.name]
        arrays[last.name][: len(given)] = given
        used = self._last_start + given.size * last.dtype.itemsize
        self._device[:used].copy_(self._hosts[piece][:used], non_blocking=True)


class StepBuffers:
    """Memory for placements: ``byte_count`` on the device and twice that on the host."""

    def __init__(self, byte_count: int, device: torch.device) -> None:
        self.byte_count = byte_count
        self._device = device
        self._near = torch.zeros(byte_count, dtype=torch.uint8, device=device)
        self._far = [self._pinned(byte_count) for _ in range(PIECES)]

    def place(self, fields: Sequence[Field]) -> Placement:
        """Where these fields lie in the memory that is kept: at the same place every time."""
        assert _size(fields) <= self.byte_count, "the step is larger than the buffers"
        return Placement(fields, self._far, self._near)

    def place_apart(self, fields: Sequence[Field]) -> Placement:
        """The same in memory of its own, for a step that is larger or comes once."""
        size = _size(fields)
        near = torch.zeros(size, dtype=torch.uint8, device=self._device)
        return Placement(fields, [self._pinned(size)] * PIECES, near)

    def rows_left(self, fields: Sequence[Field], last: Field) -> int:
        """Rows of one more field that fit behind these."""
        return (self.byte_count - _size(fields)) // (math.prod(last.shape[1:]) * last.dtype.itemsize)

    def _pinned(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")


def _size(fields: Sequence[Field]) -> int:
    return sum(-(-field.byte_count // ALIGNED) * ALIGNED for field in fields)


def _view(piece: Tensor, field: Field, start: int) -> Tensor:
    return piece[start : start + field.byte_count].view(field.dtype).view(field.shape)


def mark(device: torch.device) -> Wait:
    """The end of what was launched so far."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    event.record(torch.cuda.current_stream(device))
    return event.synchronize
