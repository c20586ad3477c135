"""What every Triton launcher makes first: the launch as a value, and what it moves and computes.

A launcher is ``name_launch(tensors…, chip) -> Launch``, and the operation runs it. The compile check calls
the same function with tensors on torch's ``meta`` device, so what it compiles is what is launched, by
construction.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, cast

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

    def is_cuda(self, capability: int) -> bool:
        """Whether it is NVIDIA's and has at least this compute capability (90: 9.0)."""
        return self.backend == "cuda" and int(self.architecture) >= capability


# NVIDIA: CUDA C++ programming guide, "technical specifications per compute capability"; AMD: CDNA 3 ISA.
A100 = Chip("A100", "cuda", 80, 32, 108, 163 << 10)
H100 = Chip("H100", "cuda", 90, 32, 132, 227 << 10)
B200 = Chip("B200", "cuda", 100, 32, 148, 227 << 10)
L4 = Chip("L4", "cuda", 89, 32, 58, 99 << 10)
MI300X = Chip("MI300X", "hip", "gfx942", 64, 304, 64 << 10)
CHIPS = (A100, H100, B200, MI300X)
"""That every launch is compiled for; on L4, whose kind has the least shared memory, those that take much."""

LEAST_CAPABILITY = 80
"""Of NVIDIA's chips: the first with bfloat16, and with copies beside the computation."""

LEAST_SHARED_BYTES = L4.shared_bytes

HIP_ARCHITECTURES = ("gfx942",)
"""Of AMD's chips, those that the kernels were compiled for: MI300X, MI300A, MI325X."""


class UnsupportedChipError(RuntimeError):
    """The kernels were not made for this GPU; the message says for which they are."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a driver says of its GPU."""

    name: str
    capability: tuple[int, int]
    """Compute capability; of no meaning on AMD."""
    hip_architecture: str | None
    """``gfx942:sramecc+:xnack-``; None: it is NVIDIA's."""
    warp_size: int
    processors: int
    shared_bytes: int
    """Most that one program may ask for."""


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
    """A GPU by what it says of itself; UnsupportedChipError. Others run in the interpreter, as H100."""
    return _gpu(device.index or 0) if device.type == "cuda" else H100


def chip_from(found: DeviceProperties) -> Chip:
    """The chip that launches are configured for. UnsupportedChipError: the kernels are not made for it."""
    if found.hip_architecture is not None:
        architecture = found.hip_architecture.partition(":")[0]
        if architecture not in HIP_ARCHITECTURES:
            raise UnsupportedChipError(
                f"{found.name} is {architecture}, and the GPU kernels are made for "
                f"{', '.join(HIP_ARCHITECTURES)} (MI300X, MI300A, MI325X)"
            )
        return Chip(found.name, "hip", architecture, found.warp_size, found.processors, found.shared_bytes)
    major, minor = found.capability
    capability = 10 * major + minor
    if capability < LEAST_CAPABILITY or found.shared_bytes < LEAST_SHARED_BYTES:
        raise UnsupportedChipError(
            f"{found.name} has compute capability {major}.{minor} and {found.shared_bytes >> 10} KiB of "
            f"shared memory per block, and the GPU kernels need {LEAST_CAPABILITY / 10} and "
            f"{LEAST_SHARED_BYTES >> 10} KiB (A100, A10, L4, H100, B200 and their relatives)"
        )
    return Chip(found.name, "cuda", capability, found.warp_size, found.processors, found.shared_bytes)


@cache
def _gpu(index: int) -> Chip:
    return chip_from(_properties(index))


def _properties(index: int) -> DeviceProperties:
    found = cast(Any, torch.cuda).get_device_properties(index)  # torch leaves it untyped
    # What a launch may ask for is told by the driver that launches: torch's name for it came late.
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    limits = driver.active.utils.get_device_properties(index)
    return DeviceProperties(
        name=found.name,
        capability=(found.major, found.minor),
        hip_architecture=found.gcnArchName if torch.version.hip is not None else None,
        warp_size=found.warp_size,
        processors=found.multi_processor_count,
        shared_bytes=int(limits["max_shared_mem"]),
    )


def next_power_of_two(count: int) -> int:
    """Smallest power of two that is at least ``count``; Triton's tiles have such sides."""
    return 1 << max(0, count - 1).bit_length()
