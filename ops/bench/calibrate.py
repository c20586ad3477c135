"""Fit this machine's step time and write it for ``headway simulate --hardware this-machine``.

    .venv/bin/python ops/bench/calibrate.py calibration.json [--model smollm2-135m] [--threads 2]

Runs decode batches, prefill chunks and mixtures of both on the real model, and fits
T = a + b·new tokens + c·Σ context + q·Σ m(p + m/2) with coefficients of 0 or more, by relative error. Also
times swaps to host memory. Prints how far the fit is off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from headway.engine.checkpoint import open_checkpoint
from headway.engine.interfaces import Runner
from headway.engine.model_source import resolve_model
from headway.engine.swap_costs import measure_swap_costs
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

KV_CACHE_BYTES = 1 << 30
HOST_CACHE_BYTES = 1 << 28
TOKEN = 11
"""Any token: what is computed does not depend on its meaning."""


@dataclass(frozen=True)
class Shape:
    """Chunks of one step: (context, new tokens) each."""

    chunks: tuple[tuple[int, int], ...]

    @property
    def features(self) -> tuple[float, float, float, float]:
        """1, new tokens, Σ context, Σ pairs."""
        new = sum(m for _, m in self.chunks)
        context = sum(p + m for p, m in self.chunks)
        return 1.0, float(new), float(context), sum(m * (p + 0.5 * m) for p, m in self.chunks)


def shapes() -> list[Shape]:
    """Decodes alone, prefills alone, and prefills beside decodes."""
    decodes = [Shape(((context, 1),) * rows) for rows in (1, 4, 8, 16, 32) for context in (64, 256, 1024)]
    prefills = [Shape(((context, m),)) for m in (16, 64, 256, 512) for context in (0, 512, 1500)]
    mixed = [Shape(((context, 1),) * rows + ((256, 128),)) for rows in (4, 16) for context in (64, 512)]
    return decodes + prefills + mixed


def plan_of(shape: Shape, block_size: int, serial: int) -> StepPlan:
    """A plan of this shape; every chunk has blocks of its own."""
    blocks = count()
    keys = [RequestKey(f"calibrate-{serial}-{place}", 0) for place in range(len(shape.chunks))]
    chunks: list[Chunk] = []
    admitted: list[Admitted] = []
    for key, (context, tokens) in zip(keys, shape.chunks, strict=True):
        table = tuple(next(blocks) for _ in range(-(-(context + tokens) // block_size)))
        chunks.append(Chunk(key, context, (TOKEN,) * tokens, table, samples=True))
        admitted.append(Admitted(key, (TOKEN,) * (context + tokens), (), Sampling(temperature=0.0)))
    return StepPlan(step=serial, chunks=tuple(chunks), admitted=tuple(admitted))


def measure(runner: Runner, repeats: int) -> list[tuple[Shape, float]]:
    """The median time of each shape; the first run of each is thrown away."""
    measured: list[tuple[Shape, float]] = []
    for serial, shape in enumerate(shapes()):
        plan = plan_of(shape, runner.block_size, serial)
        times = [runner.execute(plan).elapsed_seconds for _ in range(repeats + 1)][1:]
        released = tuple(chunk.key for chunk in plan.chunks)
        runner.execute(StepPlan(step=serial, chunks=(), released=released))
        measured.append((shape, statistics.median(times)))
    return measured


def fit(measured: list[tuple[Shape, float]]) -> list[float]:
    """Coefficients of least relative squares; a negative one is left out and the rest fitted again."""
    seconds = np.array([time for _, time in measured])
    rows = np.array([shape.features for shape, _ in measured]) / seconds[:, None]
    kept = list(range(rows.shape[1]))
    while True:
        solved = np.linalg.lstsq(rows[:, kept], np.ones(len(rows)), rcond=None)[0]
        if (solved >= 0).all():
            break
        del kept[int(np.argmin(solved * np.abs(rows[:, kept]).mean(axis=0)))]
    coefficients = [0.0] * rows.shape[1]
    for place, value in zip(kept, solved, strict=True):
        coefficients[place] = float(value)
    return coefficients


def main() -> int:
    """Measure, fit, write and say how good it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    checkpoint = open_checkpoint(resolve_model(options.model).path)
    runner = TorchRunner.load(
        checkpoint,
        kv_cache_bytes=KV_CACHE_BYTES,
        host_cache_bytes=HOST_CACHE_BYTES,
        threads=options.threads,
    )
    swaps = measure_swap_costs(runner)
    assert swaps is not None, "the host cache has room for no block"
    measured = measure(runner, options.repeats)
    coefficients = fit(measured)
    errors = [abs(float(np.dot(shape.features, coefficients)) / time - 1) for shape, time in measured]
    written = {
        "model": options.model,
        "coefficients": dict(zip("abcq", coefficients, strict=True)),
        "kv_tokens": runner.block_count * runner.block_size,
        "max_model_len": runner.max_model_len,
        "host_bandwidth": 2 / (1 / swaps.out_bytes_per_second + 1 / swaps.in_bytes_per_second),
        "copies_beside": swaps.overlap > 0,
        "error_median": round(statistics.median(errors), 4),
        "error_max": round(max(errors), 4),
    }
    options.file.write_text(json.dumps(written, indent=2) + "\n")
    print(json.dumps(written, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
