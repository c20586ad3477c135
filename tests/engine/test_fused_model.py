"""The model on the GPU's kernels (interpreted here) computes what it computes on torch's operations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.engine.fused_rig import fused_runner, torch_runner
from tests.engine.test_torch_runner import CONFIG
from torch import Tensor

from headway.engine.fused_runner import FusedRunner
from headway.engine.model_config import ModelConfig
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.launch import H100, MI300X, Chip

pytest.importorskip("triton")

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


def logits(runner: FusedRunner | TorchRunner) -> list[Tensor]:
    """Of every token of every step."""
    admitted = tuple(Admitted(RequestKey(name, 0), (5,), (), Sampling()) for name in "ab")
    return [
        runner.logits(StepPlan(step, chunks, admitted=() if step else admitted))
        for step, chunks in enumerate(STEPS)
    ]


VARIANTS = {
    "plain": CONFIG,
    "q/k norm": replace(CONFIG, qk_norm=True),
    "window": replace(CONFIG, sliding_window=6),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_logits_are_torchs(variant: str) -> None:
    config: ModelConfig = VARIANTS[variant]
    for ours, expected in zip(logits(fused_runner(config)), logits(torch_runner(config)), strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("chip", [H100, MI300X], ids=lambda chip: chip.name)
def test_bfloat16_logits_err_no_more_than_twice_torchs(chip: Chip) -> None:
    exact = torch.cat(logits(torch_runner(CONFIG)))
    torchs = (torch.cat(logits(torch_runner(CONFIG, "bfloat16"))) - exact).abs().mean()
    ours = (torch.cat(logits(fused_runner(CONFIG, torch.bfloat16, chip=chip))) - exact).abs().mean()
    assert float(ours) <= 2 * float(torchs)
