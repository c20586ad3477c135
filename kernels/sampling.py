"""Choosing the next token: penalties, truncation, the draw, log-probabilities. All in float32, one row per
request.

Penalties on logits z [rows, vocab], for a token that was seen (prompt or answer) or occurs n times in the
answer:

    z ← z / r if z > 0 else z · r      repetition r, seen tokens                    (CTRL, arXiv 1909.05858)
    z ← z − n · frequency − presence   tokens with n > 0                            (OpenAI's API reference)

Truncation keeps { i : s_i ≥ threshold } of the tempered logits s = (z − max z) / T, where the threshold is
the largest of

    top-k   the k-th largest s
    top-p   the smallest s of the k kept whose more likely ones hold less than top_p of their mass
            (arXiv 1904.09751)
    min-p   ln(min_p)                                                               (arXiv 2407.01082)

The most likely token is always kept, and so are ties with the threshold: the kept set never depends on an
order.

The draw inverts the cumulative distribution of the kept weights w_i = e^s_i, in order of token id, at u ·
Σw, with one uniform u from ``philox``. One number per row instead of a Gumbel field over the vocabulary
(49,152 ten-round Philox words are 0.7 ms of a CPU core per row; the scan is a twentieth of that), and no
sort. Sums run in float64 over fixed tiles of 128 tokens and then over tiles, so a GPU block scan has the
same definition. Exact up to the rounding of e^x in float32 and u's 2⁻⁵³.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headway.kernels.host_arrays import as_float32, float_list, int_list, to_device

TILE = 128
"""Tokens summed before the sums are scanned; part of the draw's definition."""

CANDIDATES = 256
"""Most likely tokens looked at before a row's nucleus is searched in the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class PenaltyEntries:
    """Tokens that a penalty touches, flattened over rows: each (row, token) at most once."""

    rows: Tensor
    tokens: Tensor
    answer_counts: Tensor
    """Occurrences in the answer so far; 0: only in the prompt."""
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


def apply_penalties(logits: Tensor, entries: PenaltyEntries) -> None:
    """Penalise in place."""
    picked = logits[entries.rows, entries.tokens]
    picked = torch.where(picked > 0, picked / entries.repetition, picked * entries.repetition)
    picked -= entries.answer_counts * entries.frequency
    picked -= (entries.answer_counts > 0) * entries.presence
    logits[entries.rows, entries.tokens] = picked


def temper(logits: Tensor, temperature: Tensor) -> Tensor:
    """s = (z − max z) / T [rows, vocab]. Shifted before it is divided, so a small T costs no precision."""
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature.unsqueeze(1)


def truncation_reference(tempered: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Thresholds [rows] by a full sort, row by row."""
    thresholds: list[Tensor] = []
    filters = zip(int_list(top_k), float_list(top_p), float_list(min_p), strict=True)
    for row, (k, p, m) in zip(tempered, filters, strict=True):
        ordered = row.sort(descending=True).values
        kept = ordered[ordered >= ordered[min(k, len(ordered)) - 1]] if k > 0 else ordered
        mass = torch.softmax(kept.double(), dim=0)
        before = torch.cat((mass.new_zeros(1), mass.cumsum(0)[:-1]))
        nucleus = kept[: max(1, int((before < p).sum()))] if p < 1.0 else kept
        floor = math.log(m) if m > 0 else -math.inf
        thresholds.append(nucleus[-1].clamp(min=floor))
    return torch.stack(thresholds)


def truncation(tempered: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Thresholds [rows]; top_k int64 (0: all), top_p and min_p float32, [rows].

    Looks at the ``CANDIDATES`` most likely tokens first, and at all of them only for rows whose nucleus is
    wider.
    """
    vocab = tempered.shape[-1]
    limits = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    thresholds, settled = _thresholds_within(tempered, limits, top_p, min(vocab, CANDIDATES))
    wide = (~settled).nonzero().flatten()
    if len(wide):
        thresholds[wide], _ = _thresholds_within(tempered[wide], limits[wide], top_p[wide], vocab)
    return torch.maximum(thresholds, min_p.log())  # ln 0 = -inf: no floor


def _thresholds_within(tempered: Tensor, limits: Tensor, top_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(top-k and top-p thresholds, for which rows the ``width`` most likely tokens suffice to know them)."""
    vocab = tempered.shape[-1]
    best = _most_likely(tempered, width)
    limited = limits < vocab
    kth = best.gather(1, (limits - 1).clamp(max=width - 1).unsqueeze(1))
    kth = torch.where(limited.unsqueeze(1), kth, -math.inf)
    weights = best.exp().double().masked_fill(best < kth, 0.0)
    total = weights.sum(dim=-1)
    # Are all tokens that top-k keeps among the candidates? Ties with the k-th may lie beyond.
    complete = torch.full_like(limited, fill_value=True) if width == vocab else best[:, -1] < kth.squeeze(1)
    if not bool(complete.all()):
        total = torch.where(complete, total, tempered.exp().sum(dim=-1, dtype=torch.float64))
    ends = weights.cumsum(dim=-1)
    goal = top_p.double() * total
    inside = (ends - weights < goal.unsqueeze(1)) & (weights > 0)
    nucleus = best.gather(1, (inside.sum(dim=-1) - 1).clamp(min=0).unsqueeze(1))
    threshold = torch.where(top_p.unsqueeze(1) < 1.0, nucleus, kth).squeeze(1)
    untruncated = (top_p >= 1.0) & (~limited | (limits <= width))
    return threshold, complete | untruncated | (~limited & (ends[:, -1] >= goal))


def _most_likely(tempered: Tensor, width: int) -> Tensor:
    """The largest values of each row, best first."""
    if width < tempered.shape[-1]:
        return tempered.topk(width, dim=-1).values
    if tempered.device.type == "cpu":
        # NumPy's vectorised sort takes 1 ms per row of 49,152 and core, torch's 3.6.
        return to_device(-np.sort(-as_float32(tempered), axis=-1), tempered.device)
    return tempered.sort(dim=-1, descending=True).values


def draw(tempered: Tensor, thresholds: Tensor | None, uniforms: Tensor) -> Tensor:
    """Token ids [rows] from softmax(s) over s ≥ threshold (None: all); uniforms float64 in [0, 1), [rows]."""
    rows, vocab = tempered.shape
    weights = tempered.exp()
    if thresholds is not None:
        weights.masked_fill_(tempered < thresholds.unsqueeze(1), 0.0)
    tiles = functional.pad(weights, (0, -vocab % TILE)).view(rows, -1, TILE)
    tile_ends = tiles.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = uniforms * tile_ends[:, -1]
    tile = _first_above(tile_ends, targets)
    before = functional.pad(tile_ends, (1, 0)).gather(1, tile.unsqueeze(1)).squeeze(1)
    inside = tiles[torch.arange(rows, device=tile.device), tile].double().cumsum(dim=-1)
    return tile * TILE + _first_above(inside, targets - before)


def _first_above(ends: Tensor, targets: Tensor) -> Tensor:
    """Index of the first cumulative sum above the target; if rounding left none, of the last that rose."""
    above = torch.searchsorted(ends, targets.unsqueeze(1), right=True).squeeze(1)
    last_risen = torch.searchsorted(ends, ends[:, -1:].contiguous(), right=False).squeeze(1)
    return torch.minimum(above, last_risen).clamp(max=ends.shape[1] - 1)


def log_probabilities(logits: Tensor, chosen: Tensor, top_count: int) -> tuple[Tensor, Tensor, Tensor]:
    """(chosen [rows], top values [rows, top_count], top ids): natural logs of softmax(logits), best first."""
    total = logits.logsumexp(dim=-1)
    picked = logits.gather(1, chosen.unsqueeze(1)).squeeze(1) - total
    values, ids = logits.topk(min(top_count, logits.shape[-1]), dim=-1)
    return picked, values - total.unsqueeze(1), ids
