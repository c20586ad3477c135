"""Swaps of KV blocks to host memory and back, three ways, against one plain copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpu_checks.ceilings import Ceilings
from gpu_checks.timing import Stopwatch

from headway.engine.kv_cache import KVCache
from headway.engine.model_config import ModelConfig
from headway.kernels.block_copy import gather_blocks, scatter_blocks


@dataclass(frozen=True, slots=True)
class SwapCheck:
    """One way and direction, in bytes per second."""

    way: str
    bytes_per_second: float
    limit: float
    is_right: bool


def check_swaps(
    config: ModelConfig, watch: Stopwatch, ceilings: Ceilings, *, blocks: int, repeats: int
) -> list[SwapCheck]:
    """``blocks`` scattered blocks out and in; what comes back must be what went."""
    device, is_gpu = watch.device, watch.device.type == "cuda"
    dtype = torch.bfloat16
    cache = KVCache(config, block_count=3 * blocks, block_size=16, dtype=dtype, device=device)
    cache.pools.copy_(torch.arange(cache.pools[0, 0].numel(), device=device).view(cache.pools.shape[2:]))
    cache.pools.mul_(torch.arange(1, config.layer_count + 1, device=device).view(-1, 1, 1, 1, 1, 1))
    chosen = torch.arange(blocks, device=device) * 2 + 1
    expected = cache.gather(range(1, 2 * blocks, 2)).cpu()
    host = torch.empty(expected.shape, dtype=dtype, pin_memory=is_gpu)
    near = torch.empty(expected.shape, dtype=dtype, device=device)
    checks: list[SwapCheck] = []

    def out(way: str, call: Callable[[], object]) -> None:
        host.zero_()
        seconds = watch.time(call, repeats=repeats, graph=False).seconds
        right = torch.equal(host, expected)
        checks.append(SwapCheck(f"out: {way}", host.nbytes / seconds, ceilings.to_host_bytes, right))

    def back(way: str, call: Callable[[], object]) -> None:
        cache.pools[:, :, chosen] = 0
        seconds = watch.time(call, repeats=repeats, graph=False).seconds
        right = torch.equal(cache.gather(range(1, 2 * blocks, 2)).cpu(), expected)
        checks.append(SwapCheck(f"in: {way}", host.nbytes / seconds, ceilings.to_device_bytes, right))

    def gather_then_copy() -> None:
        gather_blocks(cache.pools, chosen, near)
        host.copy_(near, non_blocking=True)

    def copy_then_scatter() -> None:
        near.copy_(host, non_blocking=True)
        scatter_blocks(cache.pools, chosen, near)

    out("gathered, then one copy", gather_then_copy)
    out("gathered by the kernel into host memory", lambda: gather_blocks(cache.pools, chosen, host))
    back("one copy, then scattered", copy_then_scatter)
    back("scattered by the kernel from host memory", lambda: scatter_blocks(cache.pools, chosen, host))
    return checks
