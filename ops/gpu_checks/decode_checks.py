"""Decode steps of models of known shapes against what their weights and KV take to be read."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from gpu_checks.ceilings import Ceilings
from gpu_checks.random_model import RandomCheckpoint, read_bytes
from gpu_checks.rerun_graphs import graphs_of
from gpu_checks.timing import Stopwatch

from headway.engine.fused_loading import attention_shape
from headway.engine.fused_model import FusedModel
from headway.engine.fused_runner import FusedRunner
from headway.engine.kv_cache import KVCache
from headway.engine.model_config import ModelConfig
from headway.engine.rope import rotary_tables
from headway.engine.torch_weights import load_weights, weight_bytes
from headway.engine.values import PLACEHOLDER, Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.launch import chip_of

BLOCK = 16


@dataclass(frozen=True, slots=True)
class DecodeCheck:
    """One batch of one model, in seconds per step: packing, model, sampling, tokens on the host."""

    model: str
    rows: int
    context: int
    limit_seconds: float
    """Bytes of weights and KV at the read bandwidth that was measured."""
    launched_seconds: float
    """Launched kernel by kernel."""
    graph_seconds: float
    """Replayed from a CUDA graph."""
    ahead_seconds: float
    """The same, each step launched before the one before it was read."""
    graphs: int
    """Recorded for it; 0 would mean that nothing was replayed."""


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
    weights = load_weights(RandomCheckpoint(config, device), dtype, device)
    model = FusedModel(config, weights, tables, chip_of(device))
    for rows, context in batches:
        per_row = (context + repeats + 1) // BLOCK + 1
        cache = KVCache(config, block_count=rows * per_row, block_size=BLOCK, dtype=dtype, device=device)
        plain, recorded = (
            FusedRunner(
                config, model, cache, attention_shape(config, BLOCK, dtype, device), chip_of(device),
                max_model_len=config.max_position, graphs=graphs,
            )
            for graphs in (None, graphs_of(device))
        )  # fmt: skip
        plan = _plan(rows, context, per_row)
        launched, replayed = _step_seconds(plain, plan, repeats), _step_seconds(recorded, plan, repeats)
        yield DecodeCheck(
            name,
            rows,
            context,
            read_bytes(config, rows, context, dtype.itemsize) / ceilings.read_bytes,
            launched,
            replayed,
            _ahead_seconds(recorded, plan, repeats),
            recorded.graph_count,
        )
        del cache, plain, recorded
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


def _step_seconds(runner: FusedRunner, plan: StepPlan, repeats: int) -> float:
    again = replace(plan, step=1, admitted=())
    runner.execute(plan)
    for _ in range(2):  # compiled, met often enough, recorded
        runner.execute(again)
    times: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        runner.execute(again)  # its tokens are on the host when it returns
        times.append(time.perf_counter() - started)
    return median(times)


def _ahead_seconds(runner: FusedRunner, plan: StepPlan, repeats: int) -> float:
    """Per step, over a run in which the device always has the next one."""
    runner.execute(replace(plan, admitted=()))
    started = time.perf_counter()
    for ahead in range(1, repeats + 1):
        chunks = tuple(
            chunk._replace(start=chunk.start + ahead, token_ids=(PLACEHOLDER,)) for chunk in plan.chunks
        )
        runner.launch(StepPlan(1 + ahead, chunks))
        if ahead > 1:
            runner.collect()
    runner.collect()
    return (time.perf_counter() - started) / repeats
