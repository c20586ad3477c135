"""The model on the GPU's kernels (interpreted here) computes what it computes on torch's operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint
from torch import Tensor

from headway.engine.kv_cache import KVCache
from headway.engine.model_config import ModelConfig
from headway.engine.rope import rotary_tables
from headway.engine.step_inputs import FusedAttention, TorchAttention, pack
from headway.engine.torch_model import TorchModel
from headway.engine.torch_weights import load_weights
from headway.engine.values import Chunk, RequestKey
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import H100, MI300X, Chip

pytest.importorskip("triton")

CPU = torch.device("cpu")

Steps = tuple[tuple[Chunk, ...], ...]


def chunk(name: str, start: int, count: int, table: tuple[int, ...]) -> Chunk:
    tokens = tuple((7 * position + 13 * table[0]) % 290 + 5 for position in range(start, start + count))
    return Chunk(RequestKey(name, 0), start, tokens, table, samples=True)


STEPS: Steps = (
    (chunk("a", 0, 21, (3, 7, 1, 0, 9, 12)), chunk("b", 0, 3, (2, 11, 5, 4))),
    (chunk("a", 21, 1, (3, 7, 1, 0, 9, 12)), chunk("b", 3, 10, (2, 11, 5, 4))),
    (chunk("b", 13, 1, (2, 11, 5, 4)), chunk("a", 22, 1, (3, 7, 1, 0, 9, 12))),
)
"""A chunked prompt and decodes, in blocks of 4 that lie apart."""


def logits(config: ModelConfig, dtype: torch.dtype, chip: Chip | None) -> list[Tensor]:
    """Of every token of every step, by the chip's kernels or by torch's operations."""
    with torch.inference_mode():
        tables = rotary_tables(config.rope, config.head_dim, 64, dtype, CPU)
        model = TorchModel(config, load_weights(RandomCheckpoint(config), dtype, CPU), tables)
        cache = KVCache(config, block_count=13, block_size=4, dtype=dtype, device=CPU)
        heads = (config.query_head_count, config.kv_head_count, config.head_dim)
        shape = AttentionShape(*heads, 4, config.sliding_window, dtype, CPU)
        found: list[Tensor] = []
        for chunks in STEPS:
            blocks = [np.array(each.block_table, dtype=np.int64) for each in chunks]
            inputs = pack(chunks, blocks, shape, all_logits=True, chip=chip)
            assert isinstance(inputs.attention, TorchAttention if chip is None else FusedAttention)
            found.append(model.forward(inputs, cache))
        return found


VARIANTS = {
    "plain": CONFIG,
    "q/k norm": replace(CONFIG, qk_norm=True),
    "window": replace(CONFIG, sliding_window=6),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_logits_are_torchs(variant: str) -> None:
    config = VARIANTS[variant]
    for ours, expected in zip(
        logits(config, torch.float32, H100), logits(config, torch.float32, None), strict=True
    ):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("chip", [H100, MI300X], ids=lambda chip: chip.name)
def test_bfloat16_logits_err_no_more_than_twice_torchs(chip: Chip) -> None:
    exact = torch.cat(logits(CONFIG, torch.float32, None))
    torchs = (torch.cat(logits(CONFIG, torch.bfloat16, None)) - exact).abs().mean()
    ours = (torch.cat(logits(CONFIG, torch.bfloat16, chip)) - exact).abs().mean()
    assert float(ours) <= 2 * float(torchs)
