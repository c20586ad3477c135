"""Quantized GGUF blocks to float32, equal bit for bit to the ``gguf`` package's dequantizer.

The usual types are done in torch, about twenty times as fast as the package (which works 16 rows at a time in
NumPy); all others are left to the package. Layouts: ggml's ``ggml-common.h``. B is the number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as package_dequantize
from torch import Tensor

from headway.engine.errors import ModelError

PLAIN_DTYPES: Final[Mapping[GGMLQuantizationType, torch.dtype]] = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


# torch takes several threads for more than 32,768 values. Pieces of that size stay on one thread and in its
# cache: SmolLM2 (135 M values) takes 0.6 s of one core, where threads that wait for each other took 13 s
# on two busy cores.
_PIECE_VALUES: Final = 1 << 15


def dequantize(raw: Tensor, kind: GGMLQuantizationType) -> Tensor:
    """Rows of bytes [rows, row bytes] (uint8) to float32 [rows, columns]."""
    unpack = _UNPACK.get(kind)
    if unpack is not None:
        return _in_pieces(raw, kind, unpack).view(raw.shape[0], -1)
    try:
        return torch.as_tensor(package_dequantize(raw.numpy(), kind))
    except NotImplementedError:
        raise ModelError(
            f"quantization {kind.name} is not supported; requantize the model to Q8_0 or Q4_K"
        ) from None


def _in_pieces(raw: Tensor, kind: GGMLQuantizationType, unpack: Callable[[Tensor], Tensor]) -> Tensor:
    """All values in file order, unpacked a few blocks at a time."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = raw.reshape(-1, block_bytes)
    values = torch.empty(len(blocks), block_size)
    step = _PIECE_VALUES // block_size
    for start in range(0, len(blocks), step):
        values[start : start + step] = unpack(blocks[start : start + step]).view(-1, block_size)
    return values


def _halves(blocks: Tensor, start: int, count: int) -> Tensor:
    """``count`` float16 values of each block as float32, [B, count]."""
    return blocks[:, start : start + 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Low half-bytes, then high ones, along the last dimension: [..., n] to [..., 2, n]."""
    return torch.stack((packed & 15, packed >> 4), dim=-2)


def _q4_0(blocks: Tensor) -> Tensor:
    """``d · (q − 8)``; block of 32: d (f16), 16 bytes of q."""
    out = _nibbles(blocks[:, 2:]).flatten(1).float()
    return out.sub_(8).mul_(_halves(blocks, 0, 1))


def _q4_1(blocks: Tensor) -> Tensor:
    """``d · q + m``; block of 32: d, m (f16), 16 bytes of q."""
    scales = _halves(blocks, 0, 2)
    out = _nibbles(blocks[:, 4:]).flatten(1).float()
    return out.mul_(scales[:, :1]).add_(scales[:, 1:])


def _q8_0(blocks: Tensor) -> Tensor:
    """``d · q``; block of 32: d (f16), 32 signed bytes."""
    return blocks[:, 2:].view(torch.int8).float().mul_(_halves(blocks, 0, 1))


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The eight 6-bit scales and minima of a K block, [B, 12] bytes to two of float32 [B, 8]."""
    low, high, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((low & 63, (rest & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((high & 63, (rest >> 4) | ((high >> 2) & 48)), dim=1)
    return scales.float(), minima.float()


def _k_affine(blocks: Tensor, quants: Tensor) -> Tensor:
    """``(d · scale) · q − (dmin · minimum)`` over eight groups of 32; quants [B, 8, 32] as float32."""
    d = _halves(blocks, 0, 2)
    scales, minima = _k_scales(blocks[:, 4:16])
    scale = (d[:, :1] * scales).unsqueeze(2)
    minimum = (d[:, 1:] * minima).unsqueeze(2)
    return quants.mul_(scale).sub_(minimum)


def _q4_k(blocks: Tensor) -> Tensor:
    """Block of 256: d, dmin (f16), 12 bytes of scales, 128 of q (32 low halves, then their 32 high ones)."""
    quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _k_affine(blocks, quants.float())


def _q5_k(blocks: Tensor) -> Tensor:
    """As Q4_K, with 32 bytes of fifth bits before q: group g's bit is bit g of each byte."""
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    fifth = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1
    quants = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _k_affine(blocks, (quants | (fifth << 4)).float())


def _q6_k(blocks: Tensor) -> Tensor:
    """``(d · scale) · (q − 32)`` over 16 groups of 16; 128 bytes low, 64 high, 16 int8 scales, d (f16)."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    scale = (_halves(blocks, 208, 1) * scales).unsqueeze(2)
    return (low | (high << 4)).reshape(-1, 16, 16).float().sub_(32).mul_(scale)


_UNPACK: Final[Mapping[GGMLQuantizationType, Callable[[Tensor], Tensor]]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
}
