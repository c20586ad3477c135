"""One rank's part of a model, loaded on its device: by the GPU's kernels, else by torch's operations."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from headway.engine.checkpoint import Checkpoint
from headway.engine.compute_dtype import compute_dtype
from headway.engine.errors import ModelError
from headway.engine.fused_loading import GpuSettings, can_fuse, load_fused_runner
from headway.engine.interfaces import Runner
from headway.engine.kv_cache import KVCache, block_bytes, block_count_within
from headway.engine.rank_group import RankGroup
from headway.engine.rope import rotary_tables
from headway.engine.scaled_linear import STORED
from headway.engine.shard import Shard
from headway.engine.torch_model import TorchModel
from headway.engine.torch_runner import TorchRunner
from headway.engine.torch_weights import load_weights
from headway.engine.warm_up import warm_up


@dataclass(frozen=True, slots=True)
class RankSettings:
    """What is the same for all ranks; sizes are those of one rank."""

    dtype: str = "auto"
    kv_cache_bytes: int | None = None
    """None: what a GPU has left; a CPU wants a figure."""
    host_cache_bytes: int = 0
    block_size: int = 16
    max_model_len: int | None = None
    threads: int = 1
    """On a CPU, for each rank."""


def load_rank(
    checkpoint: Checkpoint, group: RankGroup, device: torch.device, settings: RankSettings, gpu: GpuSettings
) -> tuple[Runner, str]:
    """(this rank's runner, what computes in words); returns on all ranks or raises ModelError on all."""
    shard = Shard(group.rank, group.size, group)
    if can_fuse(device):
        runner = load_fused_runner(
            checkpoint,
            kv_cache_bytes=settings.kv_cache_bytes,
            host_cache_bytes=settings.host_cache_bytes,
            dtype=settings.dtype,
            device=str(device),
            block_size=settings.block_size,
            max_model_len=settings.max_model_len,
            gpu=gpu,
            shard=shard,
        )
        return runner, runner.kernels
    if gpu.quantization != "none":
        raise ModelError(
            f"quantization {gpu.quantization} over several ranks needs GPUs, and this is {device}"
        )
    if gpu.is_deterministic or gpu.kv_cache_dtype in STORED:
        option = "--deterministic" if gpu.is_deterministic else f"--kv-cache-dtype {gpu.kv_cache_dtype}"
        raise ModelError(f"{option} over several ranks needs GPUs, and this is {device}")
    return _load_torch(checkpoint, shard, device, settings)


def _load_torch(
    checkpoint: Checkpoint, shard: Shard, device: torch.device, settings: RankSettings
) -> tuple[Runner, str]:
    torch.set_num_threads(settings.threads)
    config = shard.config(checkpoint.config)
    number = compute_dtype(settings.dtype, device, torch.cpu.get_capabilities())
    if settings.kv_cache_bytes is None:
        raise ModelError("say how large the KV cache of each rank may be (--kv-cache)")
    size = settings.block_size
    blocks = shard.agree(
        block_count_within(config, kv_cache_bytes=settings.kv_cache_bytes, block_size=size, dtype=number)
    )
    limit = min(config.max_position, settings.max_model_len or config.max_position, blocks * size)
    kernels = f"torch, rank {shard.rank} of {shard.size}"
    with torch.inference_mode():
        tables = rotary_tables(config.rope, config.head_dim, limit, number, device)
        weights = load_weights(checkpoint, number, device, shard=shard)
        cache = KVCache(config, block_count=blocks, block_size=size, dtype=number, device=device)
        runner = TorchRunner(
            config,
            TorchModel(config, weights, tables),
            cache,
            dtype=number,
            device=device,
            max_model_len=limit,
            clock=time.perf_counter,
            host_slots=settings.host_cache_bytes // block_bytes(config, size, number),
            kernels=kernels,
        )
    runner.hold_to_grammars(checkpoint.tokenizer, threads=settings.threads)
    warm_up(runner)  # all ranks at once: their sums meet
    return runner, kernels
