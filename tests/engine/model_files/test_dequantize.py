"""Dequantized values equal an independent computation after ggml's C code, and the gguf package's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as package_dequantize
from numpy.typing import NDArray

from headway.engine.dequantize import dequantize
from headway.engine.errors import ModelError

Q = GGMLQuantizationType
Block = NDArray[np.uint8]
f32 = np.float32

# Byte offsets of the float16 scales in a block.
SCALES = {
    Q.Q4_0: (0,),
    Q.Q4_1: (0, 2),
    Q.Q5_0: (0,),
    Q.Q5_1: (0, 2),
    Q.Q8_0: (0,),
    Q.Q2_K: (80, 82),
    Q.Q3_K: (108,),
    Q.Q4_K: (0, 2),
    Q.Q5_K: (0, 2),
    Q.Q6_K: (208,),
    Q.IQ4_NL: (0,),
    Q.IQ4_XS: (0,),
}


def random_rows(kind: Q, rows: int = 3, blocks: int = 2) -> NDArray[np.uint8]:
    """Rows of random blocks with finite scales."""
    rng = np.random.default_rng(int(kind))
    size = GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    for offset in SCALES[kind]:
        scale = rng.standard_normal(rows * blocks).astype(np.float16)
        raw[:, offset : offset + 2] = scale.view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, blocks * size)


def half(block: Block, offset: int) -> np.float32:
    return f32(block[offset : offset + 2].view(np.float16)[0])


def by_hand_q4_0(block: Block) -> list[np.float32]:
    d, qs = half(block, 0), [int(byte) for byte in block[2:]]
    return [d * f32((q & 15) - 8) for q in qs] + [d * f32((q >> 4) - 8) for q in qs]


def by_hand_q4_1(block: Block) -> list[np.float32]:
    d, m, qs = half(block, 0), half(block, 2), [int(byte) for byte in block[4:]]
    return [d * f32(q & 15) + m for q in qs] + [d * f32(q >> 4) + m for q in qs]


def by_hand_q8_0(block: Block) -> list[np.float32]:
    return [half(block, 0) * f32(q) for q in block[2:].view(np.int8)]


def scale_min_k4(j: int, q: list[int]) -> tuple[int, int]:
    """``get_scale_min_k4`` of ggml-quants.c."""
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return (q[j + 4] & 15) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4)


def by_hand_q4_k(block: Block) -> list[np.float32]:
    d, low, q = half(block, 0), half(block, 2), [int(byte) for byte in block]
    out: list[np.float32] = []
    for group in range(8):
        scale, minimum = scale_min_k4(group, q[4:16])
        quants = q[16 + 32 * (group // 2) :][:32]
        nibbles = [x >> 4 if group % 2 else x & 15 for x in quants]
        out += [d * f32(scale) * f32(x) - low * f32(minimum) for x in nibbles]
    return out


def by_hand_q5_k(block: Block) -> list[np.float32]:
    d, low, q = half(block, 0), half(block, 2), [int(byte) for byte in block]
    high = q[16:48]
    out: list[np.float32] = []
    for group in range(8):
        scale, minimum = scale_min_k4(group, q[4:16])
        quants = q[48 + 32 * (group // 2) :][:32]
        for x, h in zip(quants, high, strict=True):
            value = (x >> 4 if group % 2 else x & 15) + (16 if h >> group & 1 else 0)
            out.append(d * f32(scale) * f32(value) - low * f32(minimum))
    return out


def by_hand_q6_k(block: Block) -> list[np.float32]:
    q, scales, d = [int(byte) for byte in block], block[192:208].view(np.int8), half(block, 208)
    out = [f32(0)] * 256
    for half_block in range(2):
        ql, qh, sc = q[64 * half_block :], q[128 + 32 * half_block :], scales[8 * half_block :]
        for l in range(32):  # noqa: E741 - ggml's name
            parts = (ql[l] & 15, ql[l + 32] & 15, ql[l] >> 4, ql[l + 32] >> 4)
            for k, low in enumerate(parts):
                value = (low | ((qh[l] >> 2 * k & 3) << 4)) - 32
                out[128 * half_block + 32 * k + l] = d * f32(sc[l // 16 + 2 * k]) * f32(value)
    return out


BY_HAND: dict[Q, Callable[[Block], list[np.float32]]] = {
    Q.Q4_0: by_hand_q4_0,
    Q.Q4_1: by_hand_q4_1,
    Q.Q8_0: by_hand_q8_0,
    Q.Q4_K: by_hand_q4_k,
    Q.Q5_K: by_hand_q5_k,
    Q.Q6_K: by_hand_q6_k,
}


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.name)
def test_values_are_those_of_ggml_computed_by_hand(kind: Q) -> None:
    raw = random_rows(kind)
    blocks = raw.reshape(-1, GGML_QUANT_SIZES[kind][1])
    by_hand = np.array([BY_HAND[kind](block) for block in blocks], dtype=np.float32).reshape(raw.shape[0], -1)
    assert torch.equal(dequantize(torch.from_numpy(raw), kind), torch.from_numpy(by_hand))


@pytest.mark.parametrize("kind", SCALES, ids=lambda kind: kind.name)
def test_values_are_those_of_the_gguf_package(kind: Q) -> None:
    raw = random_rows(kind, rows=5, blocks=3)
    ours = dequantize(torch.from_numpy(raw), kind)
    assert ours.dtype is torch.float32
    assert torch.equal(ours, torch.from_numpy(package_dequantize(raw, kind)))


@pytest.mark.parametrize("kind", BY_HAND, ids=lambda kind: kind.name)
def test_tensors_of_many_pieces_are_whole(kind: Q) -> None:
    raw = random_rows(kind, rows=50, blocks=41)
    assert torch.equal(
        dequantize(torch.from_numpy(raw), kind), torch.from_numpy(package_dequantize(raw, kind))
    )


def test_a_type_that_nobody_can_dequantize_says_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"Q8_1.*requantize"):
        dequantize(torch.zeros(1, 36, dtype=torch.uint8), Q.Q8_1)
