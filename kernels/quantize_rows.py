"""Each row in eight bits with a scale of its own: the activations of ``scaled_matmul`` (W8A8).

    scale[t] = max_i |x[t, i]| / m              m = 127 (int8), the largest number of an fp8 (e4m3)
    q[t, i]  = round(x[t, i] / scale[t])        to nearest, ties to even

x: [rows, width] in bf16, fp16 or float32; scale float32. A row of zeros has scale 1.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial
from headway.kernels.eight_bits import LARGEST, EightBits, eight_bit_type
from headway.kernels.launch import Chip, Counts, Launch, chip_of, next_power_of_two
from headway.kernels.triton_language import Operand, constexpr, jit, tl


def quantize_rows_reference(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """The formula."""
    wide = x.float()
    peak = wide.abs().amax(dim=-1)
    scale = torch.where(peak > 0, peak / LARGEST[dtype], 1.0)
    scaled = wide / scale.unsqueeze(1)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype), scale


def quantize_rows(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """(rows in ``dtype``, float32 scales) of x [rows, width]."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    quantize_rows_launch(x, out, scale, chip=chip_of(x.device)).run()
    return out, scale


@jit
def _quantize_rows_kernel(
    x: Operand,
    row_stride: Operand,
    out: Operand,
    scales: Operand,
    width: Operand,
    LARGEST: constexpr,
    BLOCK: constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    peak = tl.max(tl.abs(values), axis=0)
    scale = tl.where(peak > 0, tl.div_rn(peak, LARGEST), 1.0)
    scaled = tl.div_rn(values, scale)
    if out.dtype.element_ty == tl.int8:
        # Adding and taking away 1.5 · 2²³ leaves no fraction in float32: rounding to nearest, ties to even.
        scaled = (scaled + 12582912.0) - 12582912.0
    tl.store(out + row * width + columns, scaled.to(out.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def quantize_rows_launch(x: Tensor, out: Tensor, scale: Tensor, *, chip: Chip) -> Launch:
    """x's rows dense; out contiguous."""
    rows, width = x.shape
    block = next_power_of_two(width)
    return Launch(
        _quantize_rows_kernel,
        (rows,),
        {"x": x, "row_stride": x.stride(0), "out": out, "scales": scale, "width": width},
        {"LARGEST": LARGEST[out.dtype], "BLOCK": block},
        # 16 values per lane: two wide loads.
        num_warps=max(1, min(1024 // chip.warp_size, block // (16 * chip.warp_size))),
    )


def quantize_rows_counts(rows: int, width: int, dtype: torch.dtype) -> Counts:
    """Read once, written once in a byte, a scale per row; a maximum, a division and a rounding each."""
    return Counts(rows * width * dtype.itemsize, rows * (width + 4), 3 * rows * width)


def _prepare(
    device: torch.device, chip: Chip, *, rows: int, width: int, dtype: torch.dtype, kind: EightBits
) -> Trial:
    index = torch.arange(rows * width, device=device)
    x = (((index * 40503) % 8191).float() / 2048 - 2).to(dtype).view(rows, width)
    number = eight_bit_type(kind, chip) or torch.int8
    out = torch.empty((rows, width), dtype=number, device=device)
    scale = torch.empty(rows, dtype=torch.float32, device=device)

    def launch() -> Outputs:
        quantize_rows_launch(x, out, scale, chip=chip).run()
        return out if number == torch.int8 else out.float(), scale

    def reference() -> Outputs:
        expected, scales = quantize_rows_reference(x, number)
        return expected if number == torch.int8 else expected.float(), scales

    return Trial(launch, reference)


def _case(
    label: str, rows: int, width: int, dtype: torch.dtype, kind: EightBits = "int8", *, tiny: bool = False
) -> Case:
    counts = quantize_rows_counts(rows, width, dtype)
    prepare = partial(_prepare, rows=rows, width=width, dtype=dtype, kind=kind)
    return Case(f"row quantisation to {kind}", label, counts, prepare, tiny=tiny)


CASES = (
    _case("Llama 3 8B, 32 rows", 32, 4096, torch.bfloat16),
    _case("Llama 3 8B MLP, 2048 rows", 2048, 14336, torch.bfloat16),
    _case("Llama 3 8B MLP, 2048 rows", 2048, 14336, torch.bfloat16, "fp8"),
    _case("tiny", 5, 70, torch.bfloat16, tiny=True),
    _case("tiny", 5, 70, torch.bfloat16, "fp8", tiny=True),
)
