"""Which code computes on a CPU: the native kernels where they can run, else torch; and in which weights."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from headway.engine.errors import ModelError
from headway.engine.model_config import ModelConfig
from headway.kernels.native_library import NativeUnavailableError, load_native

CpuKernels: TypeAlias = Literal["auto", "native", "torch"]
Quantization: TypeAlias = Literal["auto", "none", "int8", "q4"]
"""Of the weights, under the native kernels. ``q4``: a GGUF file's own 4-bit blocks as they are, the rest as
int8. ``int8``: blocks of 32 with a scale each (Q8_0). ``auto``: what ``quantization_choice`` says."""


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """What the caller wants of a CPU."""

    kernels: CpuKernels = "auto"
    quantization: Quantization = "none"
    cache_dir: Path | None = None
    """Where compiled kernels, packed weights and verdicts are kept; None: torch computes."""
    keeps_weights: bool = True
    """Packed weights as files, mapped at the next start; false: in this process's memory only."""
    cores: tuple[int, ...] | None = None
    """Where the kernels' threads stay, one each (the first is whoever calls: it may go); None: anywhere."""


@dataclass(frozen=True, slots=True)
class Computation:
    """What was chosen. ``library`` None: torch computes, and ``reason`` says why."""

    library: ctypes.CDLL | None
    reason: str


def choose_computation(
    settings: CpuSettings, config: ModelConfig, *, dtype: torch.dtype, device: torch.device, block_size: int
) -> Computation:
    """Load the kernels if they can run. ModelError: they were asked for by name and cannot."""
    try:
        return Computation(_library(settings, config, dtype, device, block_size), "")
    except NativeUnavailableError as error:
        if settings.kernels == "native":
            raise ModelError(f"the native CPU kernels cannot run: {error}") from error
        if settings.quantization in {"int8", "q4"}:
            raise ModelError(
                f"quantization {settings.quantization} needs the native CPU kernels, which cannot run: "
                f"{error}"
            ) from error
        if settings.cores is not None:
            raise ModelError(
                f"only the native CPU kernels' threads can be pinned, and they cannot run: {error}"
            ) from error
        return Computation(None, str(error))


def _library(
    settings: CpuSettings, config: ModelConfig, dtype: torch.dtype, device: torch.device, block_size: int
) -> ctypes.CDLL:
    if settings.kernels == "torch":
        raise NativeUnavailableError("torch was asked for")
    if device.type != "cpu":
        raise NativeUnavailableError(f"they are for CPUs, and the device is {device.type}")
    if dtype not in {torch.bfloat16, torch.float32}:
        raise NativeUnavailableError(f"they compute in bfloat16 and float32, not in {dtype}")
    # Keys lie in pairs along the head, values in pairs along the block.
    if block_size % 2 or config.head_dim % 2:
        raise NativeUnavailableError(f"blocks of {block_size} tokens or heads of {config.head_dim} are odd")
    if settings.cache_dir is None:
        raise NativeUnavailableError("there is no folder to keep them in")
    return load_native(settings.cache_dir)
