"""Rows of a weight as the CPU kernels take them: plain, int8, or blocks of 32 as GGUF files hold them.

    INT8, INT8_MANY
                w[n, k] ≈ d[n] · q[n, k]                   d = max_k |w[n, k]| / 127,  q in −127 … 127
    Q8_0        w[n, k] ≈ d[n, g] · q[n, k]                g = k // 32, d in float16, the same rule per block
    Q4_0, Q4_1  as the file has them: d · (q − 8), d · q + m; read without loss, never made here

Bytes per weight: F32 4, BF16 2, Q8_0 1.0625, INT8 1, Q4_1 0.625, Q4_0 0.5625. Perplexity of SmolLM2-135M
(its Q4_1 file, 2,048 tokens) against float32, activations rounded as the kernels do (``cpu_gemm``): the
file's own blocks +0.5 %, INT8 +5.3 %, of which 3.2 come from having one activation scale per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, cast

import torch
from torch import Tensor

GROUP: Final = 32
"""Values of one block."""


class WeightKind(IntEnum):
    """``HeadwayWeightKind`` of ``cpu/gemm.h``."""

    BF16 = 0
    INT8 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 4
    F32 = 5
    INT8_MANY = 6
    """INT8's weights for products of many rows: their activations are rounded in blocks."""


BLOCK_BYTES: Final = {WeightKind.Q4_0: 18, WeightKind.Q4_1: 20, WeightKind.Q8_0: 34}


@dataclass(frozen=True, slots=True)
class WeightRows:
    """Some outputs' weights before packing."""

    kind: WeightKind
    inputs: int
    values: Tensor
    """[outputs, inputs] of the kind's numbers, or [outputs, bytes of the row's blocks] uint8; contiguous."""
    scales: Tensor | None = None
    """[outputs] float32, for INT8 and INT8_MANY."""

    @property
    def outputs(self) -> int:
        """How many rows."""
        return self.values.shape[0]


def bf16_rows(weight: Tensor) -> WeightRows:
    """Round [outputs, inputs] to bfloat16."""
    return WeightRows(WeightKind.BF16, weight.shape[1], weight.to(torch.bfloat16).contiguous())


def f32_rows(weight: Tensor) -> WeightRows:
    """[outputs, inputs] as float32."""
    return WeightRows(WeightKind.F32, weight.shape[1], weight.float().contiguous())


def int8_rows(weight: Tensor, kind: WeightKind = WeightKind.INT8) -> WeightRows:
    """Round [outputs, inputs] to int8 with one scale per output; ``kind``: INT8 or INT8_MANY."""
    values, scales = _rounded(weight.float())
    return WeightRows(kind, weight.shape[1], values, scales.squeeze(1))


def q8_0_rows(weight: Tensor) -> WeightRows:
    """Round [outputs, inputs] to int8 with a float16 scale per 32 inputs; ValueError: no multiple of it."""
    outputs, inputs = weight.shape
    if inputs % GROUP:
        raise ValueError(f"{inputs} inputs do not divide into blocks of {GROUP}")
    values, scales = _rounded(weight.float().reshape(-1, GROUP))
    blocks = torch.cat((scales.half().view(torch.uint8), values.view(torch.uint8)), dim=1)
    return WeightRows(WeightKind.Q8_0, inputs, blocks.reshape(outputs, -1))


def gguf_rows(blocks: Tensor, kind: WeightKind) -> WeightRows:
    """A GGUF file's own rows [outputs, bytes] (uint8) of kind Q4_0, Q4_1 or Q8_0."""
    return WeightRows(kind, blocks.shape[1] // BLOCK_BYTES[kind] * GROUP, blocks.contiguous())


def dequantized(rows: WeightRows) -> Tensor:
    """The weights that the rows stand for, float32 [outputs, inputs]."""
    if rows.kind in {WeightKind.BF16, WeightKind.F32}:
        return rows.values.float()
    if rows.kind in {WeightKind.INT8, WeightKind.INT8_MANY}:
        return rows.values.float() * cast(Tensor, rows.scales).unsqueeze(1)
    blocks = rows.values.reshape(-1, BLOCK_BYTES[rows.kind])
    scale = blocks[:, :2].contiguous().view(torch.float16).float()
    if rows.kind is WeightKind.Q8_0:
        values = blocks[:, 2:].contiguous().view(torch.int8).float() * scale
    else:
        packed = blocks[:, -16:]
        quants = torch.cat((packed & 15, packed >> 4), dim=1).float()
        if rows.kind is WeightKind.Q4_0:
            values = (quants - 8) * scale
        else:
            values = quants * scale + blocks[:, 2:4].contiguous().view(torch.float16).float()
    return values.reshape(rows.outputs, rows.inputs)


def _rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 values, float32 scales [rows, 1]), symmetric."""
    largest = weight.abs().amax(dim=1, keepdim=True)
    scales = largest / 127
    # A row of zeros has the scale 0 and stays zero. Half-precision scales may be a little small: clamp.
    values = torch.where(largest > 0, weight / scales, 0.0).round().clamp(-127, 127)
    return values.to(torch.int8), scales
