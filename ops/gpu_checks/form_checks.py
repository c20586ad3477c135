"""Forms of numbers and of sums beyond the plain ones: caches and activations of eight bits, fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpu_checks.engine_results import EngineCheck
from torch import Tensor

from headway.engine.errors import ModelError
from headway.engine.fused_loading import GpuSettings
from headway.engine.fused_runner import FusedRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

Load = Callable[[GpuSettings, str], FusedRunner]
"""From settings and dtype to a runner."""

BOUNDS = {
    "int8 keys and values": (GpuSettings(kv_cache_dtype="int8"), 1 / 32),
    "fp8 keys and values": (GpuSettings(kv_cache_dtype="fp8"), 1 / 8),
    "int8-w8a8": (GpuSettings("int8-w8a8"), 1 / 8),
    "fp8-w8a8": (GpuSettings("fp8-w8a8"), 1 / 4),
}
"""By name: how far logits of random models may be from float32's, root mean square as a share of theirs."""
TINY_BOUNDS = {"int8-w8a8, int8 keys and values": (GpuSettings("int8-w8a8", kv_cache_dtype="int8"), 1 / 8)}
"""Where kernels are interpreted: one form that has most of it."""

FIXED = (
    ("bfloat16", GpuSettings()),
    ("float32", GpuSettings()),
    ("bfloat16", GpuSettings("fp8-w8a8", kv_cache_dtype="int8")),
)
FEW, MANY = 2, 70
"""Requests beside each other; many: more rows than products are split for."""


def check_eight_bits(
    load: Load, logits: Callable[[FusedRunner], Tensor], exact: Tensor, *, is_tiny: bool
) -> Iterator[EngineCheck]:
    """Each form against float32; one that the chip has not must be refused."""
    for name, (gpu, bound) in (TINY_BOUNDS if is_tiny else BOUNDS).items():
        promise = f"{name}: logits are within {bound:.3f} of float32's"
        try:
            runner = load(replace(gpu, has_graphs=False), "bfloat16")
        except ModelError as refusal:
            problems = () if "fp8" in name and "kind" in str(refusal) else (str(refusal),)
            yield EngineCheck(promise, problems, f"refused: {refusal}")
            continue
        gap = (logits(runner) - exact).square().mean().sqrt() / exact.square().mean().sqrt()
        off = float(gap)
        yield EngineCheck(promise, () if off <= bound else (f"they are off by {off:.3f}",), f"{off:.4f}")


def check_fixed_order(load: Load, vocab: int, *, is_tiny: bool) -> Iterator[EngineCheck]:
    """Tokens and log-probabilities alone, in two chunks, and among other requests: bit for bit."""
    rows = FEW if is_tiny else MANY
    for dtype, gpu in FIXED[-1:] if is_tiny else FIXED:
        form = f"{dtype}, weights {gpu.quantization}, KV {gpu.kv_cache_dtype}"
        promise = f"deterministic ({form}): the same bits alone, in chunks and in company"
        try:
            runner = load(replace(gpu, has_graphs=False, is_deterministic=True), dtype)
        except ModelError as refusal:
            yield EngineCheck(
                promise, () if "kind" in str(refusal) else (str(refusal),), f"refused: {refusal}"
            )
            continue
        alone = [_told(runner, vocab, (row,), cut=0) for row in range(2)]
        chunked = [_told(runner, vocab, (row,), cut=5) for row in range(2)]
        company = _told(runner, vocab, tuple(range(rows)), cut=0)
        together = [company[:1], company[1:2]]
        wrong = [how for how, told in (("in chunks", chunked), ("in company", together)) if told != alone]
        yield EngineCheck(promise, tuple(f"other bits {how}" for how in wrong), f"{rows} rows")


def _told(runner: FusedRunner, vocab: int, rows: tuple[int, ...], *, cut: int) -> list[object]:
    """What the rows' prompts are answered, one token each."""
    keys = [RequestKey(f"fixed-{row}", 0) for row in rows]
    prompts = [tuple((7919 * place + 31 * row) % vocab for place in range(11 + row % 3)) for row in rows]
    admitted = tuple(
        Admitted(key, prompt, (), Sampling(temperature=1.0, top_p=0.95, seed=row, logprobs=4))
        for key, prompt, row in zip(keys, prompts, rows, strict=True)
    )
    sampled: list[object] = []
    for step, (first, last) in enumerate(((0, cut), (cut, None)) if cut else ((0, None),)):
        chunks = tuple(
            Chunk(key, first, prompt[first:last], (row,), samples=last is None)
            for key, prompt, row in zip(keys, prompts, rows, strict=True)
        )
        result = runner.execute(StepPlan(step, chunks, admitted if step == 0 else ()))
        sampled += [tuple(entry)[1:] for entry in result.sampled]
    runner.execute(StepPlan(2, (), released=tuple(keys)))
    return sampled
