"""What every Triton launcher makes first: the launch as a value, and what it moves and computes.

A launcher is ``name_launch(tensors…, chip) -> Launch``, and the operation runs it. The compile check calls
the same function with tensors on torch's ``meta`` device, so what it compiles is what is launched, by
construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Argument: TypeAlias = Tensor | int | float
Constant: TypeAlias = int | float | bool | str | None

DEFAULT_TILE = "default"
"""Of the launch configurations that a kernel may have, the one that it has where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Chip:
    """What a launch configuration depends on."""

    name: str
    backend: Literal["cuda", "hip"]
    architecture: int | str
    warp_size: int
    processors: int
    """Streaming multiprocessors, or compute units."""
    shared_bytes: int
    """Most shared memory (LDS) of one program."""


# NVIDIA: CUDA C++ programming guide, "technical specifications per compute capability"; AMD: CDNA 3 ISA.
A100 = Chip("A100", "cuda", 80, 32, 108, 163 << 10)
H100 = Chip("H100", "cuda", 90, 32, 132, 227 << 10)
B200 = Chip("B200", "cuda", 100, 32, 148, 227 << 10)
MI300X = Chip("MI300X", "hip", "gfx942", 64, 304, 64 << 10)
CHIPS = (A100, H100, B200, MI300X)


@dataclass(frozen=True, slots=True)
class Counts:
    """Least traffic to and from device memory, and arithmetic, of one operation."""

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def bytes_moved(self) -> int:
        """Read and written together."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one kernel, everything by keyword."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument | None]
    """Run-time arguments; None: not used with these constants."""
    constants: Mapping[str, Constant]
    num_warps: int
    num_stages: int = 1

    def run(self) -> None:
        """Launch on the arguments' device; an empty grid launches nothing."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](
            **self.arguments, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages
        )


def chip_of(device: torch.device) -> Chip:
    """The table's chip nearest to a device. Others than GPUs run in the interpreter, with H100's table."""
    return _gpu(device.index or 0) if device.type == "cuda" else H100


@cache
def _gpu(index: int) -> Chip:
    if torch.version.hip is not None:
        return MI300X
    major, _ = torch.cuda.get_device_capability(index)
    return {9: H100, 10: B200}.get(major, A100)


def next_power_of_two(count: int) -> int:
    """Smallest power of two that is at least ``count``; Triton's tiles have such sides."""
    return 1 << max(0, count - 1).bit_length()
