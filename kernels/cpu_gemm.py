"""Products with packed weights on the CPU's vector units: ``cpu/gemm.h`` for Python.

    out[r, n] = epilogue(Σ_k x̂[r, k] · w[n, k] + bias[n])
    BF16          x̂ = bfloat16(x)
    F32           x̂ = x
    INT8          x̂ = d[r] · q[r, k],       d = max_k |x[r, k]| / 127,  q = round(x / d)
    INT8_MANY, Q8_0, Q4_*
                  x̂ = d[r, g] · q[r, k],    the same per group g of 32

Integer sums are exact; float32 sums run over k (or g) in order, whatever the batch and the division of
columns: a row's result is the same bit for bit alone and among others. Weights of other GGUF types (Q5_*, K
and IQ types) are dequantized and rounded to Q8_0 at load.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, cast

import torch
from torch import Tensor

from headway.kernels.weight_rows import GROUP, WeightKind, WeightRows, bf16_rows

PANEL: Final = 32
"""Columns are divided between threads by this many."""


class Epilogue(IntEnum):
    """``HeadwayEpilogue`` of ``cpu/gemm.h``."""

    STORE = 0
    ADD = 1
    SILU_MUL = 2
    GELU_TANH_MUL = 3


class WeightRecord(ctypes.Structure):
    """``struct HeadwayWeight``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "outputs", "inputs", "paired")),
        ("buffer", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class OutputRecord(ctypes.Structure):
    """``struct HeadwayOutput``."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("element", ctypes.c_int32),
        ("epilogue", ctypes.c_int32),
    )


class PackedWeight:
    """One product's weight in panels: parts fused along their outputs, or (paired) gate and up in turns."""

    def __init__(
        self,
        library: ctypes.CDLL,
        parts: Sequence[WeightRows | Tensor],
        is_paired: bool = False,
        bias: Tensor | None = None,
    ) -> None:
        """A plain tensor is rounded to bfloat16. ValueError: the parts differ in kind or inputs, or are too
        wide.
        """
        rows = [bf16_rows(part) if isinstance(part, Tensor) else part for part in parts]
        self.kind, self.inputs = _common(rows)
        self.outputs = sum(part.outputs for part in rows)
        self.is_paired = is_paired
        if is_paired and (len(rows) != 2 or rows[0].outputs != rows[1].outputs):
            raise ValueError("a paired weight is made of a gate and an up of the same size")
        self.buffer = torch.zeros(
            _function(library, "headway_packed_bytes", ctypes.c_int64)(
                int(self.kind), self.outputs, self.inputs, int(is_paired)
            ),
            dtype=torch.uint8,
        )
        self.bias = None if bias is None else bias.float().contiguous()
        self._pack(library, rows)

    @classmethod
    def packed_before(
        cls,
        kind: WeightKind,
        outputs: int,
        inputs: int,
        *,
        is_paired: bool,
        buffer: Tensor,
        bias: Tensor | None,
    ) -> PackedWeight:
        """One with the ``buffer`` and ``bias`` of an earlier one, wherever they lie now."""
        weight = cls.__new__(cls)
        weight.kind, weight.outputs, weight.inputs = kind, outputs, inputs
        weight.is_paired, weight.buffer, weight.bias = is_paired, buffer, bias
        return weight

    def _pack(self, library: ctypes.CDLL, rows: Sequence[WeightRows]) -> None:
        pack, begin = _function(library, "headway_pack_rows", None), 0
        for part in rows:
            values = part.values.contiguous()
            pack(
                int(self.kind),
                self.outputs,
                self.inputs,
                int(self.is_paired),
                _pointer(values),
                None if part.scales is None else _pointer(part.scales),
                begin,
                begin + part.outputs,
                _pointer(self.buffer),
            )
            begin += part.outputs

    @property
    def byte_count(self) -> int:
        """What a product reads of it: the panels, padding and scales among them, and the bias."""
        return self.buffer.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def record(self) -> WeightRecord:
        """For native calls; valid as long as this object lives."""
        return WeightRecord(
            int(self.kind),
            self.outputs,
            self.inputs,
            int(self.is_paired),
            self.buffer.data_ptr(),
            None if self.bias is None else self.bias.data_ptr(),
        )

    def row(self, library: ctypes.CDLL, index: int) -> Tensor:
        """One output's weights, float32 [inputs]: a tied embedding is read from here."""
        out = torch.empty(self.inputs)
        _function(library, "headway_unpack_row", None)(ctypes.byref(self.record), index, _pointer(out))
        return out


def quantize_rows(library: ctypes.CDLL, x: Tensor, kind: WeightKind) -> Tensor:
    """x [rows, inputs] (float32 or bfloat16) for weights of ``kind``: uint8 [rows, row bytes]."""
    rows, inputs = x.shape
    row_bytes = _function(library, "headway_activation_row_bytes", ctypes.c_int64)(int(kind), inputs)
    out = torch.zeros((rows, row_bytes), dtype=torch.uint8)
    element = int(x.dtype == torch.bfloat16)
    _function(library, "headway_quantize_rows", None)(
        int(kind), _pointer(x), element, ctypes.c_int64(x.stride(0)), 0, rows, inputs, _pointer(out)
    )
    return out


def product_part(
    library: ctypes.CDLL,
    weight: PackedWeight,
    activations: Tensor,
    out: Tensor,
    *,
    epilogue: Epilogue = Epilogue.STORE,
    columns: tuple[int, int] | None = None,
) -> None:
    """Columns [begin, end), by default all, of the product into ``out`` (float32 or bfloat16)."""
    begin, end = columns or (0, weight.outputs)
    record = OutputRecord(out.data_ptr(), out.stride(0), int(out.dtype == torch.bfloat16), int(epilogue))
    _function(library, "headway_gemm_part", None)(
        ctypes.byref(weight.record), _pointer(activations), len(activations), begin, end, ctypes.byref(record)
    )


def rounded_reference(x: Tensor, kind: WeightKind) -> Tensor:
    """x̂ of the formula, in float64: what the kernels' activations stand for."""
    if kind is WeightKind.BF16:
        return x.to(torch.bfloat16).double()
    if kind is WeightKind.F32:
        return x.double()
    groups = x.float() if kind is WeightKind.INT8 else x.float().reshape(len(x), -1, 32)
    largest = groups.abs().amax(dim=-1, keepdim=True)
    # Tensor by tensor: `127 / largest` would multiply by a reciprocal, which rounds differently.
    inverse = torch.full_like(largest, 127) / largest
    quants = torch.where(largest > 0, groups * inverse, 0.0).round()
    return (quants.double() * (largest / 127).double()).reshape(x.shape)


def product_reference(x: Tensor, weight: Tensor, kind: WeightKind, bias: Tensor | None = None) -> Tensor:
    """The formula before the epilogue, in float64; ``weight`` [outputs, inputs] is dequantized."""
    sums = rounded_reference(x, kind) @ weight.double().T
    return sums if bias is None else sums + bias.double()


def _common(rows: Sequence[WeightRows]) -> tuple[WeightKind, int]:
    kinds = {(part.kind, part.inputs) for part in rows}
    if len(kinds) != 1:
        found = ", ".join(sorted(f"{kind.name} of {inputs} inputs" for kind, inputs in kinds))
        raise ValueError(f"the parts of one product must be of one kind and width, not {found}")
    kind, inputs = kinds.pop()
    if kind is WeightKind.INT8_MANY and inputs % GROUP:
        raise ValueError(f"{inputs} inputs do not divide into blocks of {GROUP}")
    # 65,536 · 255 · 127 is the most that a sum in int32 holds.
    if kind is WeightKind.INT8 and inputs > 1 << 16:
        raise ValueError(f"int8 products take up to 65,536 inputs, not {inputs}; use Q8_0")
    return kind, inputs


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _function(library: ctypes.CDLL, name: str, result: Any) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype = result
    return cast(Callable[..., Any], function)
