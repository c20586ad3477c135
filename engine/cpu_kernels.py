"""Which code computes on a CPU: the native kernels where they can run, else torch; and in which weights."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from headway.engine.errors import ModelError
from headway.engine.kv_cache import INT8
from headway.engine.model_config import ModelConfig
from headway.kernels.native_library import NativeUnavailableError, load_native

CpuKernels: TypeAlias = Literal["auto", "native", "torch"]
Quantization: TypeAlias = Literal["auto", "none", "int8", "q4", "q4-int8"]
"""Of the weights, under the native kernels. ``q4``: a GGUF file's own 4-bit blocks as they are, the rest as
int8. ``q4-int8``: these for steps of few tokens, and for steps of many a second copy of the layers in int8
with one scale per output. ``int8``: blocks of 32 with a scale each (Q8_0). ``auto``: what
``quantization_choice`` says."""


KvCacheDType: TypeAlias = Literal["auto", "bf16", "int8"]
"""Of keys and values under the native kernels in bfloat16. ``int8``: with a scale per token and kv head.
``auto``: what ``quantization_choice`` says; elsewhere the computation's own."""
VECTOR = 16


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
    kv_cache_dtype: KvCacheDType = "auto"


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
        if settings.quantization in {"int8", "q4", "q4-int8"}:
            raise ModelError(
                f"quantization {settings.quantization} needs the native CPU kernels, which cannot run: "
                f"{error}"
            ) from error
        if settings.cores is not None:
            raise ModelError(
                f"only the native CPU kernels' threads can be pinned, and they cannot run: {error}"
            ) from error
        return Computation(None, str(error))


def choose_kv_dtype(
    settings: CpuSettings,
    chosen: Computation,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    block_size: int,
) -> torch.dtype:
    """The KV pools' dtype; of ``auto`` the computation's own. ModelError: one by name that cannot be had."""
    wanted = settings.kv_cache_dtype
    if wanted == "bf16" and dtype != torch.bfloat16:
        raise ModelError(
            f"a KV cache in bf16 needs a computation in bfloat16, and this one is in {_name(dtype)}; "
            "take --dtype bfloat16 or --kv-cache-dtype auto"
        )
    if wanted != "int8":
        return dtype
    obstacle = kv_int8_obstacle(chosen, config, dtype=dtype, block_size=block_size)
    if obstacle:
        raise ModelError(f"no KV cache in int8: {obstacle}; take --kv-cache-dtype auto")
    return INT8


def kv_int8_obstacle(chosen: Computation, config: ModelConfig, *, dtype: torch.dtype, block_size: int) -> str:
    """Why keys and values cannot be kept in 8 bits; empty: they can."""
    if chosen.library is None:
        return f"only the native CPU kernels read one, and they do not run: {chosen.reason}"
    if dtype != torch.bfloat16:
        return f"it goes with --dtype bfloat16, and this computation is in {_name(dtype)}"
    if block_size % VECTOR or config.head_dim % VECTOR:
        return (
            f"blocks ({block_size} tokens) and heads ({config.head_dim}) must be multiples of {VECTOR} long"
        )
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
