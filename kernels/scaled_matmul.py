"""Products with weights of one byte: int8 or fp8, against bf16 activations or, int8 by int8, quantised ones.

    out[m, n] = (Σ_k x[m, k] · w[n, k]) · weight_scale[n] · row_scale[m] + bias[n]

    weight only   x bf16 or fp16 (row_scale 1), w int8 or fp8 (e4m3): decoding reads half the bytes
    W8A8          x and w int8, sums in int32; or both in the chip's fp8: twice the rate of bf16

x: [rows, K]; w: [N, K], as torch keeps weights; scales float32; out in bf16 or fp16. For int8 torch has
neither the scales nor few rows (``torch._int_mm`` wants more than 16); fp8 by fp8 is ``torch._scaled_mm``
where N and K are multiples of 16 (``scaled_linear``), and this elsewhere.

The product is made as w · xᵀ: the converted weights stay in registers, where matrix units take their left
operand from, and a few rows fill the narrow side. e4m3 is widened by its bits: as fp16 with the exponent
shifted it is the value · 2⁻⁸, exact with subnormals, on chips without fp8 as well. Up to 64 rows leave few
tiles, so K is split over programs, by weight, tile and chip alone; a second launch adds the parts in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from headway.kernels.launch import Argument, Chip, Launch, chip_of
from headway.kernels.triton_language import Operand, constexpr, jit, tl

WeightKind: TypeAlias = Literal["int8", "fp8"]
FP8_SHIFT = 256.0
"""2⁸: what the fp16 reading of e4m3's bits is smaller by."""
SHORT_SUMS = 128
"""fp8 products that Hopper's matrix unit may add before its short sum goes into a float32, as in cuBLAS."""
GROUP = 8
"""Tiles of rows that share a column of weight tiles in the cache."""
SPLIT_ROWS = 64
"""Up to this many rows the product is bound by memory, and K is split to keep every processor loading."""


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """The part of the product that one program makes."""

    columns: int
    rows: int
    depth: int
    num_warps: int
    num_stages: int


def scaled_matmul_reference(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    *,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """The formula, in float64: exact for int8 by int8."""
    total = x.double() @ weight.double().T * weight_scale.double()
    if row_scale is not None:
        total = total * row_scale.double().unsqueeze(1)
    return (total if bias is None else total + bias.double()).to(dtype)


def scaled_matmul(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    *,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    tile: MatmulTile | None = None,
) -> Tensor:
    """x · weightᵀ with scales; weight int8 or fp8. ``row_scale``: x is of the weight's type.

    ``tile``: one of ``matmul_tiles`` for so many rows; None: ``matmul_tile``.
    """
    chip = chip_of(x.device)
    tile = tile or matmul_tile(x.shape[0], x.element_size(), chip)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=dtype, device=x.device)
    parts = parts_for(x, weight, chip, tile)
    for launch in scaled_matmul_launches(
        x, weight, weight_scale, row_scale, bias, out, parts, tile=tile, chip=chip
    ):
        launch.run()
    return out


@jit
def widened(w: Operand, x: Operand, FP8: constexpr) -> Operand:
    """The weights' values in x's format; numbers of one format stay as they are."""
    if FP8:
        bits = w.to(tl.uint16)
        return (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True).to(x.dtype)
    return w.to(x.dtype)


@jit
def finished(
    total: Operand, n: Operand, m: Operand, weight_scale: Operand, row_scale: Operand, bias: Operand,
    columns: Operand, rows: Operand, SHIFT: constexpr,
) -> Operand:  # fmt: skip
    """[columns, rows] sums as float32 results, rounded alike in every kernel: a bias is a fused addend."""
    total = total.to(tl.float32)
    factor = tl.full([1, 1], 1.0, tl.float32)
    if weight_scale is not None:
        factor = (tl.load(weight_scale + n, mask=n < columns, other=0.0) * SHIFT)[:, None]
    if row_scale is not None:
        total = total * factor
        factor = tl.load(row_scale + m, mask=m < rows, other=0.0)[None, :]
    if bias is not None:
        addend = tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[:, None]
        return tl.fma(total, factor, addend)
    else:  # noqa: RET505  # Triton wants both ends of a compile-time branch
        return total * factor


@jit
def _matmul_kernel(
    x: Operand,
    x_stride: Operand,
    weight: Operand,
    weight_scale: Operand,
    row_scale: Operand,
    bias: Operand,
    out: Operand,
    rows: Operand,
    columns: Operand,
    depth: Operand,
    split_depth: Operand,
    BLOCK_N: constexpr,
    BLOCK_M: constexpr,
    BLOCK_K: constexpr,
    FP8: constexpr,
    SHIFT: constexpr,
    IS_SPLIT: constexpr,
    SHORT_SUMS: constexpr,
    EVEN: constexpr,
    GROUP: constexpr,
) -> None:
    program, part = tl.program_id(0), tl.program_id(1)
    row_tiles, column_tiles = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    # Neighbouring programs take the same weights with different rows, so those are read once from memory.
    group = program // (GROUP * column_tiles)
    first = group * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    within = program % (GROUP * column_tiles)
    m = (first + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (within // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = part * split_depth + tl.arange(0, BLOCK_K)
    # Rows past the end read the last one: no mask inside the loop, and what they give is not stored.
    w_at = weight + tl.minimum(n, columns - 1).to(tl.int64)[:, None] * depth + k[None, :]
    x_at = x + tl.minimum(m, rows - 1).to(tl.int64)[None, :] * x_stride + k[:, None]
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32)
    for start in range(0, split_depth, BLOCK_K):
        if EVEN:
            w, rights = tl.load(w_at), tl.load(x_at)
        else:
            inside = part * split_depth + start + tl.arange(0, BLOCK_K) < depth
            w = tl.load(w_at, mask=inside[None, :], other=0.0)
            rights = tl.load(x_at, mask=inside[:, None], other=0.0)
        left = widened(w, rights, FP8)
        total = tl.dot(left, rights, total, out_dtype=total.dtype, max_num_imprecise_acc=SHORT_SUMS)
        w_at += BLOCK_K
        x_at += BLOCK_K
    stored = (n < columns)[:, None] & (m < rows)[None, :]
    at = m.to(tl.int64)[None, :] * columns + n[:, None]
    if IS_SPLIT:
        tl.store(out + part.to(tl.int64) * rows * columns + at, total, mask=stored)
    else:
        done = finished(total, n, m, weight_scale, row_scale, bias, columns, rows, SHIFT)
        tl.store(out + at, done.to(out.dtype.element_ty), mask=stored)


@jit
def sum_kernel(
    parts: Operand,
    weight_scale: Operand,
    row_scale: Operand,
    bias: Operand,
    out: Operand,
    rows: Operand,
    columns: Operand,
    SHIFT: constexpr,
    PARTS: constexpr,
    BLOCK: constexpr,
) -> None:
    """One program: some results of a row, their parts added in order."""
    m = tl.program_id(0) + tl.arange(0, 1)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = m.to(tl.int64)[None, :] * columns + n[:, None]
    # From zero on, as a program that makes all parts itself adds them (``fixed_matmul``).
    total = tl.zeros([BLOCK, 1], parts.dtype.element_ty)
    for part in tl.static_range(0, PARTS):
        total += tl.load(parts + part * rows * columns + at, mask=(n < columns)[:, None], other=0)
    done = finished(total, n, m, weight_scale, row_scale, bias, columns, rows, SHIFT)
    tl.store(out + at, done.to(out.dtype.element_ty), mask=(n < columns)[:, None])


def sum_launch(
    parts: Tensor, scales: Mapping[str, Argument | None], out: Tensor, shift: float, chip: Chip
) -> Launch:
    """Adds parts [count, rows, columns] into ``out``; ``scales``: the product's other arguments by name."""
    count, rows, columns = parts.shape
    block = 256
    return Launch(
        sum_kernel,
        (rows, -(-columns // block)),
        {"parts": parts, **scales, "out": out},
        {"SHIFT": shift, "PARTS": count, "BLOCK": block},
        num_warps=128 // chip.warp_size,
    )


def matmul_tile(rows: int, x_bytes: int, chip: Chip) -> MatmulTile:
    """By the rows: up to 64 the weights' bytes are the time, above it the matrix units'."""
    # HIP pipelines through registers; one buffer is all that 64 KiB of shared memory hold besides.
    deep = chip.backend == "cuda"
    if rows <= SPLIT_ROWS:
        side = max(16, 1 << (rows - 1).bit_length())
        return MatmulTile(64, side, 128, 4, 4 if deep else 2)
    if rows <= 128:
        return MatmulTile(128, 64, 128 // x_bytes, 4, 4 if deep else 2)
    return MatmulTile(128, 128, 128 // x_bytes, 8, 3 if deep else 2)


def split_count(columns: int, depth: int, tile: MatmulTile, chip: Chip) -> int:
    """Into how many parts K is split for few rows: two programs per processor, 512 of K at least for each."""
    wanted = 2 * chip.processors // max(1, columns // tile.columns)
    return max(1, min(16, wanted, depth // 512))


def parts_for(x: Tensor, weight: Tensor, chip: Chip, tile: MatmulTile) -> Tensor | None:
    """Room for the parts' sums; None: K is not split."""
    rows, (columns, depth) = x.shape[0], weight.shape
    count = split_count(columns, depth, tile, chip) if rows <= SPLIT_ROWS else 1
    kind = torch.int32 if x.dtype == torch.int8 else torch.float32
    return None if count == 1 else torch.empty((count, rows, columns), dtype=kind, device=x.device)


def scaled_matmul_launches(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    row_scale: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    parts: Tensor | None,
    *,
    tile: MatmulTile,
    chip: Chip,
) -> tuple[Launch, ...]:
    """weight and out contiguous, x's rows dense; ``parts`` from ``parts_for``."""
    rows, (columns, depth) = x.shape[0], weight.shape
    is_fp8 = weight.dtype == torch.float8_e4m3fn and x.dtype != weight.dtype
    count = 1 if parts is None else parts.shape[0]
    split = -(-depth // (count * tile.depth)) * tile.depth
    scales: dict[str, Argument | None] = {
        "weight_scale": weight_scale, "row_scale": row_scale, "bias": bias, "rows": rows, "columns": columns,
    }  # fmt: skip
    shift = FP8_SHIFT if is_fp8 else 1.0
    product = Launch(
        _matmul_kernel,
        (-(-rows // tile.rows) * -(-columns // tile.columns), count),
        {
            "x": x,
            "x_stride": x.stride(0),
            "weight": weight.view(torch.uint8) if is_fp8 else weight,
            **scales,
            "out": out if parts is None else parts,
            "depth": depth,
            "split_depth": split,
        },
        {
            "BLOCK_N": tile.columns,
            "BLOCK_M": tile.rows,
            "BLOCK_K": tile.depth,
            "FP8": is_fp8,
            "SHIFT": shift,
            "IS_SPLIT": parts is not None,
            "SHORT_SUMS": SHORT_SUMS if x.dtype.is_floating_point and x.element_size() == 1 else None,
            "EVEN": depth == count * split,
            "GROUP": GROUP,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return (product,) if parts is None else (product, sum_launch(parts, scales, out, shift, chip))
