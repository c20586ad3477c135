"""Choosing the next token: penalties, truncation, the draw, log-probabilities. All in float32, one row per request.

Penalties on logits z [rows, vocab], for a token that was seen (prompt or answer) or occurs n times in the answer:

    z ← z / r if z > 0 else z · r      repetition r, seen tokens                    (CTRL, arXiv 1909.05858)
    z ← z − n · frequency − presence   tokens with n > 0                            (OpenAI's API reference)

Truncation keeps { i : z_i / T ≥ threshold }, where with p = softmax(z / T) the threshold is the largest of
    top-k  the k-th largest value
    top-p  the smallest value whose more likely tokens, within the k kept, hold less than top_p of their mass  (arXiv 1904.09751)
    min-p  max(z / T) + ln(min_p)                                                   (arXiv 2407.01082)
The most likely token is always kept, and so are ties with the threshold: the kept set never depends on an order.

The draw inverts the cumulative distribution of the kept weights w_i = e^(z_i/T − max), in order of token id, at u · Σw, with
one uniform u from ``philox``. One number per row instead of a Gumbel field over the vocabulary (49,152 ten-round Philox words are 0.7 ms
of a CPU core per row; the scan is a twentieth of that), and no sort. Sums run in float64 over fixed tiles of 128 tokens and then over tiles, so
a GPU block scan has the same definition. Exact up to the rounding of e^x in float32 and u's 2⁻⁵³.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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


def truncation_reference(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Thresholds [rows] by a full sort of ``scaled`` = z / T, row by row."""
    thresholds: list[Tensor] = []
    for row, k, p, m in zip(scaled, top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True):
        ordered = row.sort(descending=True).values
        kept = ordered[ordered >= ordered[min(k, len(ordered)) - 1]] if k > 0 else ordered
        mass = torch.softmax(kept.double(), dim=0)
        before = torch.cat((mass.new_zeros(1), mass.cumsum(0)[:-1]))
        nucleus = kept[before < p] if p < 1.0 else kept
        floor = ordered[0] + math.log(m) if m > 0 else ordered[-1]
        thresholds.append(torch.maximum(nucleus[-1] if len(nucleus) else ordered[0], floor))
    return torch.stack(thresholds)


def truncation(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Thresholds [rows] for ``scaled`` = z / T [rows, vocab]; top_k int64 (0: all), top_p and min_p float32, [rows].

    Looks at the ``CANDIDATES`` most likely tokens first, and at all of them only for rows whose nucleus is wider.
    """
    vocab = scaled.shape[-1]
    limits = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    peaks = scaled.amax(dim=-1)
    thresholds, settled = _thresholds_within(scaled, peaks, limits, top_p, min(vocab, CANDIDATES))
    wide = (~settled).nonzero().flatten()
    if len(wide):
        thresholds[wide], _ = _thresholds_within(scaled[wide], peaks[wide], limits[wide], top_p[wide], vocab)
    return torch.maximum(thresholds, peaks + min_p.log())  # ln 0 = −inf: no floor


def _thresholds_within(
    scaled: Tensor, peaks: Tensor, limits: Tensor, top_p: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """(top-k and top-p thresholds, for which rows the ``width`` most likely tokens suffice to know them)."""
    vocab = scaled.shape[-1]
    best = scaled.topk(width, dim=-1).values
    limited = limits < vocab
    kth = best.gather(1, (limits - 1).clamp(max=width - 1).unsqueeze(1))
    kth = torch.where(limited.unsqueeze(1), kth, -math.inf)
    weights = torch.exp(best - peaks.unsqueeze(1)).double().masked_fill(best < kth, 0.0)
    total = weights.sum(dim=-1)
    # Are all tokens that top-k keeps among the candidates? Ties with the k-th may lie beyond.
    complete = torch.full_like(limited, fill_value=True) if width == vocab else best[:, -1] < kth.squeeze(1)
    if not bool(complete.all()):
        everything = torch.exp(scaled - peaks.unsqueeze(1)).sum(dim=-1, dtype=torch.float64)
        total = torch.where(complete, total, everything)
    ends = weights.cumsum(dim=-1)
    goal = top_p.double() * total
    inside = (ends - weights < goal.unsqueeze(1)) & (weights > 0)
    last = (inside.sum(dim=-1) - 1).clamp(min=0)
    nucleus = best.gather(1, last.unsqueeze(1))
    threshold = torch.where(top_p.unsqueeze(1) < 1.0, nucleus, kth).squeeze(1)
    plain = (top_p >= 1.0) & (~limited | (limits <= width))
    return threshold, complete | plain | (~limited & (ends[:, -1] >= goal))


def draw(scaled: Tensor, thresholds: Tensor, uniforms: Tensor) -> Tensor:
    """Token ids [rows] drawn from softmax(scaled) over scaled ≥ threshold; uniforms float64 in [0, 1), [rows]."""
    rows, vocab = scaled.shape
    weights = torch.exp(scaled - scaled.amax(dim=-1, keepdim=True))
    weights.masked_fill_(scaled < thresholds.unsqueeze(1), 0.0)
    tiles = functional.pad(weights, (0, -vocab % TILE)).view(rows, -1, TILE)
    tile_ends = tiles.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = uniforms * tile_ends[:, -1]
    tile = _first_above(tile_ends, targets)
    start = torch.where(tile > 0, tile_ends.gather(1, (tile - 1).clamp(min=0).unsqueeze(1)).squeeze(1), 0.0)
    inside = tiles[torch.arange(rows, device=tile.device), tile].double().cumsum(dim=-1)
    return tile * TILE + _first_above(inside, targets - start)


def _first_above(ends: Tensor, targets: Tensor) -> Tensor:
    """Index of the first cumulative sum above the target; if rounding left none, of the last one that rose."""
    above = torch.searchsorted(ends, targets.unsqueeze(1), right=True).squeeze(1)
    last = torch.searchsorted(ends, ends[:, -1:].contiguous(), right=False).squeeze(1)
    return torch.minimum(above, last)


def log_probabilities(logits: Tensor, chosen: Tensor, top_count: int) -> tuple[Tensor, Tensor, Tensor]:
    """(chosen [rows], top values [rows, top_count], top ids): natural logs of softmax(logits), best first."""
    total = logits.logsumexp(dim=-1)
    picked = logits.gather(1, chosen.unsqueeze(1)).squeeze(1) - total
    values, ids = logits.topk(min(top_count, logits.shape[-1]), dim=-1)
    return picked, values - total.unsqueeze(1), ids
