"""Step times of the CPU paths, taking turns in one run: native kernels by weight kind, and torch in bfloat16.

    python ops/bench/cpu_step.py                      # none, int8, auto and torch at 1, 4, 16, 32 sequences
    python ops/bench/cpu_step.py --paths auto-kv16,auto-kv8 --rounds 30 --threads 2

A step is what the runner does for a plan: decodes at a context of 225 tokens, and prompts of 180 and 512.
Native paths also tell where the calling thread's time went. Compare within one run only: cores may be shared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.cpu_kernels import CpuSettings, KvCacheDType, Quantization
from headway.engine.model_source import resolve_model
from headway.engine.native_model import NativeModel
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.services.settings import default_cache_dir

PATHS: dict[str, Quantization | None] = {
    "torch": None,
    "none": "none",
    "int8": "int8",
    "q4": "q4",
    "q4-int8": "q4-int8",
    "auto": "auto",
}
"""None: torch; else the weights of the native kernels."""
KV: dict[str, KvCacheDType] = {"-kv8": "int8", "-kv16": "bf16", "": "auto"}
"""What may stand behind a path: numbers of keys and values; without it those that a worker would take."""
CASES = ((1, 225, 1), (4, 225, 1), (16, 225, 1), (32, 225, 1), (1, 180, 180), (1, 512, 512))
"""Sequences, context, new tokens of each."""


def load(checkpoint: Checkpoint, path: str) -> TorchRunner:
    """The runner that computes by this path."""
    ending = next(ending for ending in KV if path.endswith(ending))
    quantization = PATHS[path.removesuffix(ending)]
    cpu = (
        CpuSettings(kernels="torch")
        if quantization is None
        else CpuSettings("native", quantization, default_cache_dir(), kv_cache_dtype=KV[ending])
    )
    return TorchRunner.load(
        checkpoint, dtype="bfloat16", kv_cache_bytes=400 << 20, max_model_len=2048, cpu=cpu
    )


def step(sequences: int, context: int, new: int, vocab: int) -> tuple[tuple[Admitted, ...], StepPlan]:
    """A plan in which every sequence computes its last ``new`` tokens."""
    random, per = Random(0), -(-context // 16)
    keys = [RequestKey(f"s{index}", 0) for index in range(sequences)]
    admitted = tuple(Admitted(key, (1,) * context, (), Sampling(temperature=0.0)) for key in keys)
    chunks = tuple(
        Chunk(
            key,
            start=context - new,
            token_ids=tuple(random.choices(range(vocab), k=new)),
            block_table=tuple(range(index * per, (index + 1) * per)),
            samples=True,
        )
        for index, key in enumerate(keys)
    )
    return admitted, StepPlan(0, chunks)


def measure(runners: dict[str, TorchRunner], plan: StepPlan, rounds: int) -> dict[str, list[list[float]]]:
    """By path, rows of milliseconds: all; products, attention, head, other in the call, around the call."""
    times: dict[str, list[list[float]]] = {path: [] for path in runners}
    for _ in range(rounds):
        for path, runner in runners.items():
            started = time.perf_counter()
            runner.execute(plan)
            spent = time.perf_counter() - started
            parts: Sequence[float] = ()
            if isinstance(runner._model, NativeModel):
                own = runner._model.times
                inside = own.products + own.attention + own.head
                parts = (own.products, own.attention, own.head, own.total - inside, spent - own.total)
            times[path].append([1e3 * value for value in (spent, *parts)])
    return times


def main() -> None:
    """Print a line per case and path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--paths", default="none,int8,auto,torch")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    checkpoint = open_checkpoint(Path(resolve_model(given.model).path))
    runners = {path: load(checkpoint, path) for path in given.paths.split(",")}
    for path, runner in runners.items():
        print(f"{path}: {runner.kernels}")
    print("sequences x new @ context  path   step ms (least)  products attention head other around")
    for sequences, context, new in CASES:
        admitted, plan = step(sequences, context, new, checkpoint.config.vocab_size)
        for runner in runners.values():
            runner.execute(StepPlan(0, plan.chunks, admitted))
        rounds = given.rounds if new == 1 else max(2, given.rounds // 4)
        for path, rows in measure(runners, plan, rounds).items():
            medians = [statistics.median(column) for column in zip(*rows, strict=True)]
            parts = " ".join(f"{value:8.2f}" for value in medians[1:])
            least = min(row[0] for row in rows)
            print(
                f"{sequences:3d} x {new:3d} @ {context}  {path:9s} {medians[0]:8.2f} ({least:.2f})  {parts}"
            )


if __name__ == "__main__":
    main()
