"""The GPU's sampler, in the interpreter, against the CPU's: same tokens from same seeds and positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from headway.kernels.fused_sampling import RowPenalties, RowSampling
from headway.kernels.launch import H100
from headway.kernels.philox import uniforms
from headway.kernels.sampling import (
    PenaltyEntries,
    apply_penalties,
    draw,
    temper,
    truncation_reference,
)
from headway.kernels.sampling_launches import SamplingBuffers, count_tokens, sampling_launches

pytest.importorskip("triton")

Filter = tuple[int, float, float]

FILTERS: tuple[Filter, ...] = (
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (0, 0.0, 0.0),
    (7, 1.0, 0.0),
    (0, 0.5, 0.0),
    (0, 0.999, 0.0),
    (0, 1.0, 0.1),
    (40, 0.8, 0.0),
    (5000, 0.9, 0.001),
    (3, 0.0, 1.0),
)
"""(top-k, top-p, min-p)."""


def make_rows(filters: Sequence[Filter], temperature: float = 0.8) -> RowSampling:
    count = len(filters)
    return RowSampling(
        temperature=torch.full((count,), temperature),
        top_k=torch.tensor([k for k, _, _ in filters], dtype=torch.int32),
        top_p=torch.tensor([p for _, p, _ in filters]),
        floor=torch.tensor([math.log(m) if m > 0 else -math.inf for _, _, m in filters]),
        seeds=torch.arange(count) * 104729 - 5,
        positions=torch.arange(count) + 2**32 - 3,
    )


def launch(logits: Tensor, rows: RowSampling, *, logprobs: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, log-probabilities, thresholds)."""
    count, vocab = logits.shape
    buffers = SamplingBuffers.make(count, vocab, logits.device)
    chosen, picked = torch.full((count,), -1), torch.full((count,), math.nan)
    wanted = picked if logprobs else None
    for each in sampling_launches(logits, rows, buffers, chosen, wanted, chip=H100):
        each.run()
    return chosen, picked, buffers.thresholds


def random_logits(rows: int, vocab: int, seed: int, spread: float) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize(
    ("vocab", "spread", "ties"),
    [(1, 1.0, False), (127, 3.0, False), (129, 0.05, True), (500, 6.0, True), (2300, 2.0, False)],
)
def test_each_row_keeps_and_draws_what_the_cpu_keeps_and_draws(vocab: int, spread: float, ties: bool) -> None:
    logits = random_logits(len(FILTERS), vocab, seed=vocab, spread=spread)
    if ties:
        logits = (logits * 4).round() / 4
    rows = make_rows(FILTERS)
    chosen, picked, thresholds = launch(logits, rows)
    tempered = temper(logits, rows.temperature)
    expected = truncation_reference(tempered, rows.top_k, rows.top_p, rows.floor.exp())
    # Weights of e^-104 and less are zero: whether such tokens are kept changes nothing.
    drawable = tempered > -104
    kept, wanted = (tempered >= cut.unsqueeze(1) for cut in (thresholds, expected))
    assert torch.equal(kept & drawable, wanted & drawable)
    assert torch.equal(chosen, draw(tempered, expected, uniforms(rows.seeds, rows.positions)))
    exact = torch.log_softmax(logits.double(), dim=-1).gather(1, chosen.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(picked.double(), exact, atol=1e-5, rtol=1e-5)


def test_a_cold_row_takes_the_first_of_the_most_likely() -> None:
    logits = random_logits(3, 400, seed=1, spread=1.0)
    logits[0, [390, 130]] = 9.0
    logits[1, 399] = 9.0
    logits[2, :256] = -math.inf
    logits[2, 300] = 9.0
    chosen, _, _ = launch(logits, make_rows([(0, 1.0, 0.0)] * 3, temperature=0.0), logprobs=False)
    assert chosen.tolist() == [130, 399, 300]


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = torch.full((4, 300), -math.inf)
    logits[:, 200:203] = 1.0
    chosen, picked, _ = launch(
        logits, make_rows([(0, 1.0, 0.0), (2, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.5)])
    )
    assert set(chosen.tolist()) <= {200, 201, 202}
    torch.testing.assert_close(picked, torch.full((4,), -math.log(3.0)))


def test_a_row_draws_alone_what_it_draws_in_a_batch() -> None:
    logits = random_logits(len(FILTERS), 300, seed=8, spread=2.0)
    together, _, _ = launch(logits, make_rows(FILTERS), logprobs=False)
    rows = make_rows(FILTERS)
    for index in (0, 4, 7):
        only = slice(index, index + 1)
        alone = RowSampling(
            rows.temperature[only],
            rows.top_k[only],
            rows.top_p[only],
            rows.floor[only],
            rows.seeds[only],
            rows.positions[only],
        )
        chosen, _, _ = launch(logits[only], alone, logprobs=False)
        assert int(chosen) == int(together[index])


def test_logits_may_be_views_whose_rows_lie_apart() -> None:
    wide = random_logits(4, 640, seed=2, spread=2.0)
    view = wide[::2, :500]
    rows = make_rows([(0, 0.9, 0.0), (20, 1.0, 0.0)])
    assert torch.equal(launch(view, rows)[0], launch(view.contiguous(), rows)[0])


def test_penalties_follow_their_formulas_and_the_choice_is_counted() -> None:
    vocab = 150
    logits = random_logits(3, vocab, seed=3, spread=3.0)
    counts = torch.full((4, vocab), 99, dtype=torch.int32)
    count_tokens(counts, 2, torch.tensor([5, 5, 7]), torch.tensor([7, 9, 9]))
    count_tokens(counts, 0, torch.tensor([140]), torch.tensor([], dtype=torch.int64))
    before = counts.clone()
    rows = make_rows([(1, 1.0, 0.0)] * 3)
    penalties = RowPenalties(
        counts=counts,
        slots=torch.tensor([2, -1, 0], dtype=torch.int32),
        repetition=torch.tensor([1.5, 2.0, 2.0]),
        presence=torch.tensor([0.25, 1.0, 1.0]),
        frequency=torch.tensor([0.5, 1.0, 1.0]),
    )
    expected = logits.clone()
    entries = PenaltyEntries(
        rows=torch.tensor([0, 0, 0, 2]),
        tokens=torch.tensor([5, 7, 9, 140]),
        answer_counts=torch.tensor([0.0, 1.0, 2.0, 0.0]),
        repetition=torch.tensor([1.5, 1.5, 1.5, 2.0]),
        presence=torch.tensor([0.25, 0.25, 0.25, 1.0]),
        frequency=torch.tensor([0.5, 0.5, 0.5, 1.0]),
    )
    apply_penalties(expected, entries)
    chosen, picked, _ = launch(logits, replace(rows, penalties=penalties))
    torch.testing.assert_close(logits, expected)
    assert torch.equal(chosen, expected.argmax(dim=-1))
    exact = torch.log_softmax(expected, dim=-1).gather(1, chosen.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(picked, exact)
    before[2, chosen[0]] += 1
    before[0, chosen[2]] += 1
    assert torch.equal(counts, before), "the row without penalties counts nothing"
