"""A model on the native CPU kernels: which form its weights take, and where they come from."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from headway.engine.checkpoint import Checkpoint
from headway.engine.cpu_kernels import Computation, CpuSettings, choose_kv_dtype, kv_int8_obstacle
from headway.engine.errors import ModelError
from headway.engine.kv_cache import INT8, KVCache, block_bytes
from headway.engine.model_config import ModelConfig
from headway.engine.native_model import NativeModel
from headway.engine.native_weights import kinds_of
from headway.engine.quantization_check import WINDOW
from headway.engine.quantization_choice import OF_MANY_TOKENS, Load, choose_form, forms_of
from headway.engine.weight_cache import WeightSource, load_cached_weights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and for people what computes it and where its weights are."""

    model: NativeModel
    kernels: str
    weights: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Settings without ``auto``, the KV pools' dtype, and why these."""

    cpu: CpuSettings
    kv: torch.dtype
    reason: str


def settle(
    cpu: CpuSettings,
    chosen: Computation,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    load: Load,
    *,
    block_size: int,
    is_deterministic: bool = False,
) -> Settled:
    """A form of weights, keys and values instead of ``auto``; float32 keeps all of them as they are.

    ModelError: there is no room to measure; the form named breaks what ``is_deterministic`` promises, or
    cannot be had.
    """
    if is_deterministic and cpu.quantization in OF_MANY_TOKENS:
        raise ModelError(
            f"--deterministic does not go with --quantization {cpu.quantization}, which computes steps of "
            "many tokens with other weights than steps of few; take q4, or auto"
        )
    config, reason = checkpoint.config, ""
    choose_kv_dtype(cpu, chosen, config, dtype=dtype, block_size=block_size)  # refused before it is measured
    if chosen.library is not None and cpu.cache_dir is not None and dtype == torch.bfloat16:
        kv, obstacle = cpu.kv_cache_dtype, ""
        if kv == "auto":
            obstacle = kv_int8_obstacle(chosen, config, dtype=dtype, block_size=block_size)
            kv = "bf16" if obstacle else kv
        forms = forms_of(checkpoint, cpu.quantization, kv, is_deterministic=is_deterministic)
        choice = choose_form(checkpoint, cpu.cache_dir, load, forms, threads=torch.get_num_threads())
        cpu = replace(cpu, quantization=choice.form.quantization, kv_cache_dtype=choice.form.kv_cache_dtype)
        reason = "; ".join(part for part in (choice.reason, obstacle and f"no int8 KV: {obstacle}") if part)
    elif cpu.quantization == "auto":
        cpu = replace(cpu, quantization="none")
    return Settled(cpu, choose_kv_dtype(cpu, chosen, config, dtype=dtype, block_size=block_size), reason)


def window_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """KV that the measurement of a form needs, in the computation's own ``dtype``."""
    return (-(-WINDOW // block_size) + 1) * block_bytes(config, block_size, dtype)


def load_native_model(
    library: ctypes.CDLL,
    checkpoint: Checkpoint,
    cache: KVCache,
    cpu: CpuSettings,
    *,
    positions: int,
    dtype: torch.dtype,
    reason: str,
) -> LoadedModel:
    """On this cache, for ``positions``; ``reason``: why its weights have the form that they have."""
    threads = torch.get_num_threads()
    folder: Path | None = cpu.cache_dir if cpu.keeps_weights else None
    source = WeightSource(library, checkpoint, positions, cpu.quantization, dtype, threads)
    loaded = load_cached_weights(source, folder)
    return LoadedModel(
        NativeModel(library, loaded.model, cache, threads, cpu.cores),
        kernels=f"native ({kinds_of(loaded.model)}{', KV int8' if cache.pools.dtype == INT8 else ''})",
        weights="; ".join(part for part in (reason, loaded.place) if part),
    )
