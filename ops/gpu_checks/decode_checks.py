"""Decode steps of models of known shapes against what their weights and KV take to be read."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch
from gpu_checks.ceilings import Ceilings
from gpu_checks.random_model import RandomCheckpoint, read_bytes
from gpu_checks.timing import Stopwatch

from headway.engine.kv_cache import KVCache
from headway.engine.model_config import ModelConfig
from headway.engine.rope import rotary_tables
from headway.engine.step_inputs import pack
from headway.engine.torch_model import TorchModel
from headway.engine.torch_runner import TorchRunner
from headway.engine.torch_weights import load_weights, weight_bytes
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.attention_plan import AttentionShape

BLOCK = 16


@dataclass(frozen=True, slots=True)
class DecodeCheck:
    """One batch of one model, in seconds per step."""

    model: str
    rows: int
    context: int
    limit_seconds: float
    """Bytes of weights and KV at the read bandwidth that was measured."""
    forward_seconds: float
    """The model alone, launched kernel by kernel."""
    graph_seconds: float | None
    """The same from a CUDA graph; None: it cannot be captured."""
    step_seconds: float
    """The runner's whole step: packing, model, sampling, tokens on the host."""


def fits(config: ModelConfig, device: torch.device, rows: int, context: int) -> bool:
    """Is there memory for it, twice over for what is made on the way?"""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return 1.3 * (weight_bytes(config, torch.bfloat16) + rows * context * 2**18) < free


@torch.inference_mode()
def check_decode(
    name: str,
    config: ModelConfig,
    watch: Stopwatch,
    ceilings: Ceilings,
    *,
    batches: tuple[tuple[int, int], ...],
    repeats: int,
) -> Iterator[DecodeCheck]:
    """One model, several (rows, context)."""
    device, dtype = watch.device, torch.bfloat16 if watch.device.type == "cuda" else torch.float32
    tables = rotary_tables(config.rope, config.head_dim, config.max_position, dtype, device)
    model = TorchModel(config, load_weights(RandomCheckpoint(config, device), dtype, device), tables)
    for rows, context in batches:
        per_row = context // BLOCK + 1
        cache = KVCache(config, block_count=rows * per_row, block_size=BLOCK, dtype=dtype, device=device)
        shape = AttentionShape(
            query_heads=config.query_head_count,
            kv_heads=config.kv_head_count,
            head_dim=config.head_dim,
            block_size=BLOCK,
            sliding_window=config.sliding_window,
            dtype=dtype,
            device=device,
        )
        plan = _plan(rows, context, per_row)
        tables_of = [np.array(chunk.block_table, dtype=np.int64) for chunk in plan.chunks]
        inputs = pack(plan.chunks, tables_of, shape)

        forward = partial(model.forward, inputs, cache)
        eager = watch.time(forward, repeats=repeats, graph=False)
        replayed = watch.time(forward, repeats=repeats)
        runner = TorchRunner(
            config, model, cache, dtype=dtype, device=device, max_model_len=config.max_position,
            clock=time.perf_counter,
        )  # fmt: skip
        yield DecodeCheck(
            name,
            rows,
            context,
            read_bytes(config, rows, context, dtype.itemsize) / ceilings.read_bytes,
            eager.seconds,
            replayed.seconds if replayed.is_graph else None,
            _step_seconds(runner, plan, repeats),
        )
        del cache, runner, inputs, forward
        release(device)


def release(device: torch.device) -> None:
    """Give memory that nothing holds back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _plan(rows: int, context: int, per_row: int) -> StepPlan:
    """One new token at the end of ``context`` known ones, for each row."""
    keys = [RequestKey(f"decode-{index}", 0) for index in range(rows)]
    return StepPlan(
        step=0,
        chunks=tuple(
            Chunk(key, context - 1, (5,), tuple(range(index * per_row, (index + 1) * per_row)), True)
            for index, key in enumerate(keys)
        ),
        admitted=tuple(Admitted(key, (5,) * context, (), Sampling(temperature=0.0)) for key in keys),
    )


def _step_seconds(runner: TorchRunner, plan: StepPlan, repeats: int) -> float:
    again = StepPlan(step=1, chunks=plan.chunks)
    runner.execute(plan)
    times: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        runner.execute(again)  # its tokens are on the host when it returns
        times.append(time.perf_counter() - started)
    return median(times)
