"""Products whose every result is summed in one order, whatever rows are beside it (``--deterministic``).

    out[m, n] = (Σ_p Σ_{k in part p} x[m, k] · w[n, k]) · weight_scale[n] · row_scale[m] + bias[n]

x: [rows, K]; w: [N, K]. x and w are of one dtype (bf16, fp16, float32, or fp8 with both scales), or w is int8
or fp8 with a scale per output and x bf16 or fp16. out: x's dtype or wider.

There is one tile for every number of rows, so a result always comes from the same instructions of the matrix
unit, and K is cut into parts by the weight and the chip alone. Up to ``SPLIT_ROWS`` rows each part is a
program of its own, which keeps every processor loading, and a second launch adds them in order; above
that a program makes all parts of its tile, one after another, and adds them in the same order. The vendors'
libraries choose tile and parts by the rows instead. Int8 by int8 needs none of this: its sums are exact
(``scaled_matmul``).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial, Unit, noise
from headway.kernels.eight_bits import fp8_type
from headway.kernels.launch import Argument, Chip, Counts, Launch, chip_of
from headway.kernels.scaled_matmul import (
    FP8_SHIFT,
    GROUP,
    SHORT_SUMS,
    SPLIT_ROWS,
    MatmulTile,
    finished,
    scaled_matmul_reference,
    sum_launch,
    widened,
)
from headway.kernels.triton_language import Operand, constexpr, jit, tl


def fixed_matmul(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor | None = None,
    *,
    row_scale: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x · weightᵀ with scales, in ``dtype`` (None: x's)."""
    chip = chip_of(x.device)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=dtype or x.dtype, device=x.device)
    parts = fixed_parts(x, weight, chip)
    for launch in fixed_matmul_launches(x, weight, weight_scale, row_scale, bias, out, parts, chip=chip):
        launch.run()
    return out


@jit
def _fixed_matmul_kernel(
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
    parts_each: Operand,
    BLOCK_N: constexpr,
    BLOCK_M: constexpr,
    BLOCK_K: constexpr,
    FP8: constexpr,
    SHIFT: constexpr,
    PRECISION: constexpr,
    SHORT_SUMS: constexpr,
    IS_WHOLE: constexpr,
    EVEN: constexpr,
    GROUP: constexpr,
) -> None:
    program, first_part = tl.program_id(0), tl.program_id(1)
    row_tiles, column_tiles = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    # Neighbouring programs take the same weights with different rows, so those are read once from memory.
    group = program // (GROUP * column_tiles)
    height = tl.minimum(row_tiles - group * GROUP, GROUP)
    within = program % (GROUP * column_tiles)
    m = (group * GROUP + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (within // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows past the end read the last one: no mask inside the loop, and what they give is not stored.
    w_rows = weight + tl.minimum(n, columns - 1).to(tl.int64)[:, None] * depth
    x_rows = x + tl.minimum(m, rows - 1).to(tl.int64)[None, :] * x_stride
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for part in range(first_part, first_part + parts_each):
        partial = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for start in range(0, split_depth, BLOCK_K):
            k = part * split_depth + start + tl.arange(0, BLOCK_K)
            if EVEN:
                w, rights = tl.load(w_rows + k[None, :]), tl.load(x_rows + k[:, None])
            else:
                w = tl.load(w_rows + k[None, :], mask=(k < depth)[None, :], other=0.0)
                rights = tl.load(x_rows + k[:, None], mask=(k < depth)[:, None], other=0.0)
            left = widened(w, rights, FP8)
            partial = tl.dot(
                left, rights, partial, input_precision=PRECISION, max_num_imprecise_acc=SHORT_SUMS
            )
        total += partial
    stored = (n < columns)[:, None] & (m < rows)[None, :]
    at = m.to(tl.int64)[None, :] * columns + n[:, None]
    if IS_WHOLE:
        done = finished(total, n, m, weight_scale, row_scale, bias, columns, rows, SHIFT)
        tl.store(out + at, done.to(out.dtype.element_ty), mask=stored)
    else:
        tl.store(out + first_part.to(tl.int64) * rows * columns + at, total, mask=stored)


def fixed_tile(weight: Tensor, chip: Chip) -> MatmulTile:
    """By the weight alone: rows of 128 bytes, as many results as registers hold twice."""
    # The only one: a measurement comes out otherwise on the next machine, and with it the order of the sums.
    deep = chip.backend == "cuda"
    wide = weight.dtype == torch.float32
    return MatmulTile(64, 64, 128 // weight.element_size(), 4, 2 if wide or not deep else 3)


def fixed_count(weight: Tensor, tile: MatmulTile, chip: Chip) -> int:
    """Into how many parts K is cut: two programs per processor, 512 of K at least for each."""
    columns, depth = weight.shape
    wanted = 2 * chip.processors // max(1, columns // tile.columns)
    return max(1, min(16, wanted, depth // 512))


def fixed_parts(x: Tensor, weight: Tensor, chip: Chip) -> Tensor | None:
    """Room for the parts' sums of few rows; None: each program adds its own."""
    count = fixed_count(weight, fixed_tile(weight, chip), chip)
    if count == 1 or len(x) > SPLIT_ROWS:
        return None
    return torch.empty((count, len(x), len(weight)), dtype=torch.float32, device=x.device)


def fixed_matmul_launches(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor | None,
    row_scale: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    parts: Tensor | None,
    *,
    chip: Chip,
) -> tuple[Launch, ...]:
    """weight and out contiguous, x's rows dense; ``parts`` from ``fixed_parts``."""
    rows, (columns, depth) = x.shape[0], weight.shape
    tile = fixed_tile(weight, chip)
    count = fixed_count(weight, tile, chip)
    split = -(-depth // (count * tile.depth)) * tile.depth
    is_narrow = x.element_size() == 1
    is_widened = weight.dtype == torch.float8_e4m3fn and not is_narrow
    scales: dict[str, Argument | None] = {
        "weight_scale": weight_scale, "row_scale": row_scale, "bias": bias, "rows": rows, "columns": columns,
    }  # fmt: skip
    shift = FP8_SHIFT if is_widened else 1.0
    product = Launch(
        _fixed_matmul_kernel,
        (-(-rows // tile.rows) * -(-columns // tile.columns), 1 if parts is None else count),
        {
            "x": x,
            "x_stride": x.stride(0),
            "weight": weight.view(torch.uint8) if is_widened else weight,
            **scales,
            "out": out if parts is None else parts,
            "depth": depth,
            "split_depth": split,
            "parts_each": count if parts is None else 1,
        },
        {
            "BLOCK_N": tile.columns,
            "BLOCK_M": tile.rows,
            "BLOCK_K": tile.depth,
            "FP8": is_widened,
            "SHIFT": shift,
            # Three products of rounded halves: float32's accuracy on the matrix unit, as in attention.
            "PRECISION": "tf32x3" if chip.backend == "cuda" and x.dtype == torch.float32 else "ieee",
            "SHORT_SUMS": SHORT_SUMS if is_narrow else None,
            "IS_WHOLE": parts is None,
            "EVEN": depth == count * split,
            "GROUP": GROUP,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return (product,) if parts is None else (product, sum_launch(parts, scales, out, shift, chip))


Form: TypeAlias = Literal["bfloat16", "float32", "fp8 weights", "fp8 by fp8"]
UNITS: dict[Form, Unit] = {
    "bfloat16": "bfloat16", "float32": "float32", "fp8 weights": "bfloat16", "fp8 by fp8": "fp8",
}  # fmt: skip


def _prepare(device: torch.device, chip: Chip, *, form: Form, rows: int, columns: int, depth: int) -> Trial:
    plain = torch.float32 if form == "float32" else torch.bfloat16
    # A100 multiplies no fp8: what would be refused there is compiled as weights only.
    narrow = fp8_type(chip) if form == "fp8 by fp8" else None
    x = noise((rows, depth), plain, device, seed=0)
    weight = noise((columns, depth), plain, device, seed=1)
    weight_scale = row_scale = None
    if form.startswith("fp8"):
        weight = weight.to(narrow or torch.float8_e4m3fn)
        weight_scale = noise((columns,), torch.float32, device, seed=2).abs()
    if narrow is not None:
        x, row_scale = x.to(narrow), noise((rows,), torch.float32, device, seed=3).abs()
    bias = noise((columns,), plain, device, seed=4)
    out = torch.empty((rows, columns), dtype=plain, device=device)
    parts = fixed_parts(x, weight, chip)

    def launch() -> Outputs:
        for each in fixed_matmul_launches(x, weight, weight_scale, row_scale, bias, out, parts, chip=chip):
            each.run()
        return (out,)

    def reference() -> Outputs:
        ones = torch.ones(columns, device=device) if weight_scale is None else weight_scale
        return (scaled_matmul_reference(x, weight, ones, row_scale=row_scale, bias=bias, dtype=plain),)

    return Trial(launch, reference)


def fixed_matmul_counts(rows: int, columns: int, depth: int, form: Form) -> Counts:
    """Weights, activations and their scales read once, results written once."""
    plain = 4 if form == "float32" else 2
    weight_bytes = 1 if form.startswith("fp8") else plain
    x_bytes = 1 if form == "fp8 by fp8" else plain
    scales = (4 * columns if weight_bytes == 1 else 0) + (4 * rows if x_bytes == 1 else 0)
    read = columns * depth * weight_bytes + rows * depth * x_bytes + scales
    return Counts(read, plain * rows * columns, 2 * rows * columns * depth)


def _case(form: Form, label: str, rows: int, columns: int, depth: int, *, tiny: bool = False) -> Case:
    return Case(
        f"product in fixed order, {form}",
        label,
        fixed_matmul_counts(rows, columns, depth, form),
        partial(_prepare, form=form, rows=rows, columns=columns, depth=depth),
        UNITS[form],
        tiny=tiny,
        relative_tolerance=1e-5 if form == "float32" else 2**-7 if form == "fp8 by fp8" else 2**-8,
    )


CASES = (
    _case("bfloat16", "Llama 3 8B down, 32 rows", 32, 4096, 14_336),
    _case("fp8 by fp8", "Llama 3 8B down, 32 rows", 32, 4096, 14_336),
    _case("float32", "Llama 3 8B gate and up, 512 rows", 512, 28_672, 4096),
    _case("fp8 weights", "Llama 3 8B gate and up, 512 rows", 512, 28_672, 4096),
    *(_case(form, "tiny", 5, 70, 1100, tiny=True) for form in UNITS),
)
