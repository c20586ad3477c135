"""CPU products against their limits and oneDNN's, on a chain of SmolLM2-135M's shapes.

    .venv/bin/python ops/bench/cpu_gemm.py [--rows 1 4 8 32 128 512] [--kinds q4 q8_0 int8 bf16] [--rounds 7]

Every round runs the whole chain of matrices once with each arm, so that nothing stays in the last-level cache
from one product to the next. One thread, in its own CPU time: on a machine shared with others that is steady
where wall time is not. Columns: milliseconds of the chain (median), GOP/s, GB/s of weights; the median of the
rounds' ratios to reading the same bytes and doing nothing else (``of read``: 1 is memory's limit), and of the
speeds against oneDNN's bfloat16 and int8 (u8 · s8 ``qlinear``, its activations rounded beforehand; ours as
well) products in the same round. More than 64 rows: two layers and no head, as prefill has it.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from native_code import compiled
from torch import Tensor

from headway.kernels.cpu_gemm import OutputRecord, PackedWeight, WeightRecord, quantize_rows
from headway.kernels.native_library import load_native
from headway.kernels.weight_rows import BLOCK_BYTES, GROUP, WeightKind, WeightRows, bf16_rows, gguf_rows

LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49_152, 576)
KINDS = {
    "q4": (WeightKind.Q4_1, WeightKind.Q8_0),  # the demo model's file: Q4_1 layers, a Q8_0 head
    "q8_0": (WeightKind.Q8_0, WeightKind.Q8_0),
    "int8": (WeightKind.INT8, WeightKind.INT8),
    "int8_many": (WeightKind.INT8_MANY, WeightKind.Q8_0),  # q4-int8 where tokens are many
    "bf16": (WeightKind.BF16, WeightKind.BF16),
}
MOST_DECODE_ROWS = 64


def shapes(rows: int) -> list[tuple[int, int]]:
    """(outputs, inputs) of the chain."""
    return [*LAYER * 30, HEAD] if rows <= MOST_DECODE_ROWS else [*LAYER * 2]


def random_weight(kind: WeightKind, outputs: int, inputs: int) -> WeightRows:
    """Speed does not depend on values, as long as they are ordinary numbers."""
    if kind is WeightKind.BF16:
        return bf16_rows(torch.rand(outputs, inputs))
    if kind in {WeightKind.INT8, WeightKind.INT8_MANY}:
        values = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
        return WeightRows(kind, inputs, values, torch.rand(outputs))
    blocks = torch.randint(0, 256, (outputs * inputs // GROUP, BLOCK_BYTES[kind]), dtype=torch.uint8)
    halves = 2 if kind is WeightKind.Q4_1 else 1
    blocks[:, : 2 * halves] = torch.rand(len(blocks), halves).half().view(torch.uint8)
    return gguf_rows(blocks.view(outputs, -1), kind)


class Chain:
    """One kind's matrices with inputs and outputs in place."""

    def __init__(self, native: ctypes.CDLL, loop: ctypes.CDLL, name: str, rows: int) -> None:
        body, head = KINDS[name]
        self._native, self._loop, self._rows = native, loop, rows
        self.weights = [
            PackedWeight(native, [random_weight(head if size == HEAD else body, *size)])
            for size in shapes(rows)
        ]
        self._inputs = {
            (w.kind, w.inputs): quantize_rows(native, torch.randn(rows, w.inputs), w.kind)
            for w in self.weights
        }
        self._outputs = {w.outputs: torch.empty(rows, w.outputs) for w in self.weights}
        count = len(self.weights)
        self._records = (WeightRecord * count)(*[w.record for w in self.weights])
        self._pointers = (ctypes.c_void_p * count)(
            *[self._inputs[(w.kind, w.inputs)].data_ptr() for w in self.weights]
        )
        self._targets = (OutputRecord * count)(
            *[OutputRecord(self._outputs[w.outputs].data_ptr(), w.outputs, 0, 0) for w in self.weights]
        )
        self._sizes = (ctypes.c_int64 * count)(*[w.buffer.numel() for w in self.weights])
        self.bytes = sum(self._sizes)

    def multiply(self) -> float:
        """Seconds of all products."""
        part = self._native.headway_gemm_part
        return float(
            self._loop.bench_products(
                part, self._records, self._pointers, self._targets, len(self.weights), self._rows, 0, 1
            )
        )

    def read(self) -> float:
        """Seconds of reading the weights."""
        total = ctypes.c_int64()
        return float(
            self._loop.bench_read(self._records, self._sizes, len(self.weights), 0, 1, ctypes.byref(total))
        )


def onednn_bf16(rows: int) -> Callable[[], float]:
    """The chain through the layout that torch.compile gives frozen bfloat16 weights."""
    mkldnn = cast(Any, torch.ops.mkldnn)
    inputs = {k: torch.randn(rows, k).bfloat16() for _, k in LAYER}
    weights = [
        (k, mkldnn._reorder_linear_weight(torch.rand(n, k).bfloat16(), min(rows, 32)))
        for n, k in shapes(rows)
    ]
    return lambda: cpu_seconds(
        lambda: [mkldnn._linear_pointwise(inputs[k], w, None, "none", [], "") for k, w in weights]
    )


def onednn_int8(rows: int) -> Callable[[], float]:
    """The chain through u8 activations · s8 weights with one scale per output, to bfloat16."""
    onednn = cast(Any, torch.ops.onednn)
    inputs = {k: torch.randint(0, 256, (rows, k), dtype=torch.uint8) for _, k in LAYER}
    weights: list[tuple[int, Tensor, Tensor, Tensor]] = []
    for n, k in shapes(rows):
        packed = onednn.qlinear_prepack(torch.randint(-127, 128, (n, k), dtype=torch.int8), [rows, k])
        weights.append((k, packed, torch.rand(n), torch.zeros(n, dtype=torch.int64)))

    def run() -> object:
        return [
            onednn.qlinear_pointwise(
                inputs[k], 0.01, 128, w, scales, zeros, None, 1.0, 0, torch.bfloat16, "none", [], ""
            )
            for k, w, scales, zeros in weights
        ]

    return lambda: cpu_seconds(run)


def cpu_seconds(run: Callable[[], object]) -> float:
    """Of this thread."""
    start = time.thread_time()
    run()
    return time.thread_time() - start


def compiled_loop(folder: Path) -> ctypes.CDLL:
    """``cpu_gemm_loop.cpp`` as a library."""
    loop = compiled("cpu_gemm_loop.cpp", folder)
    loop.bench_products.restype = loop.bench_read.restype = ctypes.c_double
    return loop


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Of the rounds' own ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def compare(native: ctypes.CDLL, loop: ctypes.CDLL, rows: int, kinds: Sequence[str], rounds: int) -> None:
    """One line per kind, all arms in turns."""
    chains = {name: Chain(native, loop, name, rows) for name in kinds}
    peers = {"bf16": onednn_bf16(rows), "int8": onednn_int8(rows)}
    times: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        for name, chain in chains.items():
            times.setdefault(f"{name} read", []).append(chain.read())
            times.setdefault(name, []).append(chain.multiply())
        for name, peer in peers.items():
            times.setdefault(f"oneDNN {name}", []).append(peer())
    # The first round warms up: pages, oneDNN's kernels.
    times = {name: values[1:] for name, values in times.items()}
    operations = 2 * rows * sum(n * k for n, k in shapes(rows))
    for name in [*chains, *(f"oneDNN {peer}" for peer in peers)]:
        taken = statistics.median(times[name])
        line = f"{rows:5d}  {name:<12} {taken * 1e3:8.2f} ms {operations / taken / 1e9:6.0f} GOP/s"
        if name in chains:
            line += f" {chains[name].bytes / taken / 1e9:6.1f} GB/s"
            line += f"   of read {median_ratio(times[f'{name} read'], times[name]):4.2f}"
            for other in peers:
                ratio = median_ratio(times[f"oneDNN {other}"], times[name])
                line += f"   against oneDNN {other} {ratio:4.2f}"
        print(line, flush=True)


def main() -> None:
    """Parse, compile, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 32, 128, 512])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        native, loop = load_native(Path(folder)), compiled_loop(Path(folder))
        for rows in given.rows:
            compare(native, loop, rows, given.kinds, given.rounds)


if __name__ == "__main__":
    main()
