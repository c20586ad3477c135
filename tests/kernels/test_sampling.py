"""Penalties, truncation, the draw and log-probabilities against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.kernels.philox import uniforms
from headway.kernels.sampling import (
    CANDIDATES,
    PenaltyEntries,
    apply_penalties,
    draw,
    log_probabilities,
    temper,
    truncation,
    truncation_reference,
)


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def ones(count: int) -> Tensor:
    return torch.ones(count)


# -- Truncation ----------------------------------------


@given(
    vocab=st.sampled_from([1, 2, 5, CANDIDATES - 1, CANDIDATES, CANDIDATES + 1, 1000]),
    filters=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 7, CANDIDATES - 1, CANDIDATES, CANDIDATES + 1, 5000]),
            st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.999, 1.0]),
            st.sampled_from([0.0, 0.001, 0.3, 1.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    spread=st.sampled_from([0.05, 1.0, 6.0]),
    ties=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=150, deadline=None)
def test_truncation_keeps_what_the_full_sort_keeps(
    vocab: int, filters: list[tuple[int, float, float]], spread: float, ties: bool, seed: int
) -> None:
    logits = random_logits(len(filters), vocab, seed, spread)
    if ties:
        logits = (logits * 2).round() / 2
    tempered = temper(logits, ones(len(filters)))
    top_k = torch.tensor([k for k, _, _ in filters])
    top_p, min_p = (torch.tensor([f[i] for f in filters], dtype=torch.float32) for i in (1, 2))
    found = truncation(tempered, top_k, top_p, min_p)
    expected = truncation_reference(tempered, top_k, top_p, min_p)
    kept, wanted = tempered >= found.unsqueeze(1), tempered >= expected.unsqueeze(1)
    assert torch.equal(kept, wanted)
    assert bool(kept.any(dim=-1).all())


def test_truncations_mean_what_their_names_say() -> None:
    probabilities = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]])
    tempered = temper(probabilities.log(), ones(1))

    def kept(top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> int:
        thresholds = truncation(tempered, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
        return int((tempered >= thresholds.unsqueeze(1)).sum())

    assert kept() == 5
    assert kept(top_k=2) == 2
    assert kept(top_p=0.69) == 2
    assert kept(top_p=0.71) == 3
    assert kept(min_p=0.3) == 3
    assert kept(top_k=3, top_p=0.81) == 2, "0.7 / 0.85 of the mass of three tokens is in two of them"
    assert kept(top_p=0.0) == 1


def test_a_small_temperature_keeps_its_precision() -> None:
    logits = torch.tensor([[500.0, 500.001, 0.0]])
    tempered = temper(logits, torch.tensor([1e-5]))
    assert int(draw(tempered, None, torch.tensor([0.5], dtype=torch.float64))) == 1


# -- The draw ----------------------------------------


def chi_square(tempered: Tensor, threshold: float, draws: int) -> tuple[float, int]:
    """(statistic, degrees of freedom) of one seed's draws at successive positions; rare ones share a bin."""
    rows = tempered.expand(draws, -1)
    thresholds = torch.full((draws,), threshold)
    positions = torch.arange(draws)
    chosen = draw(rows, thresholds, uniforms(torch.full_like(positions, 20260), positions))
    weights = tempered[0].double().exp().masked_fill(tempered[0] < threshold, 0.0)
    expected = weights / weights.sum() * draws
    observed = torch.bincount(chosen, minlength=tempered.shape[1]).double()
    assert int(observed[weights == 0].sum()) == 0, "a token that was cut off was drawn"
    common = expected >= 10
    bins = [(observed[common], expected[common])]
    if bool((~common & (expected > 0)).any()):
        bins.append((observed[~common].sum()[None], expected[~common].sum()[None]))
    seen, wanted = (torch.cat(parts) for parts in zip(*bins, strict=True))
    return float(((seen - wanted) ** 2 / wanted).sum()), len(seen) - 1


@pytest.mark.parametrize(
    ("vocab", "top_k", "top_p", "min_p"),
    [
        (300, 0, 1.0, 0.0),
        (300, 40, 1.0, 0.0),
        (300, 0, 0.8, 0.0),
        (300, 0, 1.0, 0.05),
        (300, 100, 0.9, 0.01),
        (7, 0, 1.0, 0.0),
    ],
)
def test_draws_follow_the_filtered_softmax(vocab: int, top_k: int, top_p: float, min_p: float) -> None:
    tempered = temper(random_logits(1, vocab, seed=5, spread=1.5), torch.tensor([0.8]))
    threshold = truncation(tempered, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    statistic, freedom = chi_square(tempered, float(threshold), draws=20_000)
    # Wilson and Hilferty: the 99.9 % quantile of chi-square.
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < quantile


def test_the_statistic_sees_a_wrong_distribution() -> None:
    tempered = temper(random_logits(1, 300, seed=5, spread=1.5), torch.tensor([0.8]))
    positions = torch.arange(20_000)
    skewed = uniforms(torch.full_like(positions, 1), positions) ** 1.3
    chosen = draw(tempered.expand(20_000, -1), None, skewed)
    expected = torch.softmax(tempered[0].double(), dim=0) * 20_000
    common = expected >= 10
    observed = torch.bincount(chosen, minlength=300).double()
    statistic = float(((observed - expected) ** 2 / expected)[common].sum())
    assert statistic > 2 * int(common.sum())


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 500])
def test_the_ends_of_the_unit_interval_draw_tokens_that_are_kept(vocab: int) -> None:
    tempered = temper(random_logits(2, vocab, seed=2), ones(2))
    thresholds = truncation(tempered, torch.tensor([3, 3]), ones(2), torch.zeros(2))
    ends = torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64)
    chosen = draw(tempered, thresholds, ends)
    kept = (tempered >= thresholds.unsqueeze(1)).nonzero()
    first, last = (kept[kept[:, 0] == row][:, 1] for row in (0, 1))
    assert chosen.tolist() == [int(first[0]), int(last[-1])]


def test_a_row_draws_alone_what_it_draws_in_a_batch() -> None:
    tempered = temper(random_logits(16, 2000, seed=9), ones(16))
    positions = torch.arange(16)
    draws = uniforms(positions * 7, positions)
    thresholds = truncation(tempered, torch.full((16,), 50), ones(16) * 0.9, torch.zeros(16))
    together = draw(tempered, thresholds, draws)
    for row in range(16):
        only = slice(row, row + 1)
        threshold = truncation(tempered[only], torch.tensor([50]), ones(1) * 0.9, torch.zeros(1))
        assert int(draw(tempered[only], threshold, draws[only])) == int(together[row])


# -- Penalties and log-probabilities ----------------------------------------


def test_penalties_follow_their_formulas() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5], [4.0, -4.0, 1.0, -1.0]])
    entries = PenaltyEntries(
        rows=torch.tensor([0, 0, 1]),
        tokens=torch.tensor([0, 1, 3]),
        answer_counts=torch.tensor([0.0, 3.0, 1.0]),
        repetition=torch.tensor([2.0, 2.0, 1.0]),
        presence=torch.tensor([0.5, 0.5, 0.25]),
        frequency=torch.tensor([0.1, 0.1, 0.0]),
    )
    apply_penalties(logits, entries)
    # Token 0 of row 0 is in the prompt only: repetition, but neither presence nor frequency.
    expected = torch.tensor([[1.0, -2.0 * 2 - 0.3 - 0.5, 1.0, 0.5], [4.0, -4.0, 1.0, -1.25]])
    torch.testing.assert_close(logits, expected)


def test_log_probabilities_are_those_of_the_softmax_best_first() -> None:
    logits = random_logits(5, 700, seed=4)
    chosen = torch.tensor([0, 5, 699, 13, 13])
    picked, values, ids = log_probabilities(logits, chosen, 4)
    exact = torch.log_softmax(logits.double(), dim=-1)
    torch.testing.assert_close(picked.double(), exact[torch.arange(5), chosen], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(values.double(), exact.topk(4, dim=-1).values, atol=1e-5, rtol=1e-5)
    assert torch.equal(ids, exact.topk(4, dim=-1).indices)
    assert log_probabilities(logits, chosen, 5000)[1].shape == (5, 700)
    assert log_probabilities(logits, chosen, 0)[1].shape == (5, 0)
