"""``kernels.sampling`` as five launches: the same choice from the same (seed, position), on a GPU.

The definitions are those of ``kernels.sampling``; this is how they are found without a sort. Tokens lie in
tiles of 128. With s = (z − max z) / T, the key of a token is the bit pattern of |s|: an integer that orders
tokens from the most likely (0) down.

    statistics   per tile: largest z, Σ e^((z − largest) / T)
    candidates   per row: which tokens may have the threshold        (``truncation_search``)
    threshold    per row: found among them                            (``truncation_search``)
    weights      per tile: Σ e^s over s ≥ threshold, in float64
    pick         per row: the draw's inverse over tiles, then within one; log-probability of the choice

A row of temperature 0 takes its most likely token, of equals the first. Nothing here waits for the host, and
every sum has one order, so a row's choice is the same in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headway.kernels.triton_language import Operand, constexpr, jit, tl

TILES_PER_PROGRAM = 16
"""2,048 tokens: 8 KiB of logits, enough programs for one row to occupy a chip's sixteenth."""

IN_PROMPT = 1 << 30
"""In a token's count: the prompt holds it."""


@dataclass(frozen=True, slots=True)
class RowPenalties:
    """What penalties need, on the device, so that a step needs no token that the host has not seen yet.

    The first launch penalises the logits in place; the last one counts the token that it picks.
    """

    counts: Tensor
    """int32 [slots, vocab]: occurrences in the answer, plus ``IN_PROMPT`` if the prompt has the token."""
    slots: Tensor
    """int32 [rows]: which row of ``counts`` is the request's, no two alike; -1: it has no penalties."""
    repetition: Tensor
    """float32 [rows], as the two below."""
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How each row is drawn; all [rows], on the logits' device."""

    temperature: Tensor
    """float32; 0: greedy."""
    top_k: Tensor
    """int32; 0: all."""
    top_p: Tensor
    """float32."""
    floor: Tensor
    """float32, ln(min_p); -inf: none."""
    seeds: Tensor
    """int64."""
    positions: Tensor
    """int64, of the token in the answer."""
    penalties: RowPenalties | None = None
    """None: no row has any."""


@jit
def tempered(z: Operand, peak: Operand, temperature: Operand) -> Operand:
    """s, rounded as IEEE says: the same in every launch, and as on the CPU. T = 0 is not used."""
    return tl.div_rn(z - peak, tl.where(temperature > 0, temperature, 1.0))


@jit
def _penalised(
    z: Operand,
    count: Operand,
    repetition: Operand,
    presence: Operand,
    frequency: Operand,
    IN_PROMPT: constexpr,
) -> Operand:
    """The formulas of ``kernels.sampling``, for tokens with these counts."""
    in_answer = (count & (IN_PROMPT - 1)).to(tl.float32)
    repeated = tl.where(z > 0, tl.div_rn(z, repetition), z * repetition)
    z = tl.where(count > 0, repeated, z)
    return z - in_answer * frequency - tl.where(in_answer > 0, presence, 0.0)


@jit
def statistics_kernel(
    logits: Operand,
    row_stride: Operand,
    vocab: Operand,
    temperature: Operand,
    tile_peaks: Operand,
    tile_sums: Operand,
    tiles: Operand,
    counts: Operand,
    slots: Operand,
    repetition: Operand,
    presence: Operand,
    frequency: Operand,
    TILE: constexpr,
    GROUP: constexpr,
    IN_PROMPT: constexpr,
) -> None:
    """One program: ``GROUP`` tiles of a row."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    tokens = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    z = tl.load(logits + row * row_stride + tokens, mask=tokens < vocab, other=float("-inf"))
    if counts is not None:
        slot = tl.load(slots + row).to(tl.int64)
        if slot >= 0:
            count = tl.load(counts + slot * vocab + tokens, mask=tokens < vocab, other=0)
            each = tl.load(repetition + row), tl.load(presence + row), tl.load(frequency + row)
            z = _penalised(z, count, each[0], each[1], each[2], IN_PROMPT)
            tl.store(logits + row * row_stride + tokens, z, mask=tokens < vocab)
    peaks = tl.max(z, axis=1)
    # A tile in which every token is forbidden: −inf − −inf would be no number.
    origin = tl.where(peaks == float("-inf"), 0.0, peaks)
    weights = tl.exp(tempered(z, origin[:, None], tl.load(temperature + row)))
    tl.store(tile_peaks + row * tiles + tile, peaks, mask=tile < tiles)
    tl.store(tile_sums + row * tiles + tile, tl.sum(weights.to(tl.float64), axis=1), mask=tile < tiles)


@jit
def weights_kernel(
    logits: Operand,
    row_stride: Operand,
    vocab: Operand,
    temperature: Operand,
    thresholds: Operand,
    row_peaks: Operand,
    tile_sums: Operand,
    tile_shares: Operand,
    tiles: Operand,
    TILE: constexpr,
    GROUP: constexpr,
) -> None:
    """One program: ``GROUP`` tiles of a row."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    tokens = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    z = tl.load(logits + row * row_stride + tokens, mask=tokens < vocab, other=float("-inf"))
    peak = tl.load(row_peaks + row)
    s = tempered(z, peak, tl.load(temperature + row))
    weights = tl.where(s >= tl.load(thresholds + row), tl.exp(s), 0.0)
    tl.store(tile_sums + row * tiles + tile, tl.sum(weights.to(tl.float64), axis=1), mask=tile < tiles)
    if tile_shares is not None:
        shares = tl.sum(tl.exp(z - peak).to(tl.float64), axis=1)
        tl.store(tile_shares + row * tiles + tile, shares, mask=tile < tiles)


@jit
def _first_above(ends: Operand, target: Operand, total: Operand) -> Operand:
    """Index of the first cumulative sum above the target; if rounding left none, of the last that rose."""
    above = tl.sum((ends <= target).to(tl.int32), axis=0)
    risen = tl.sum((ends < total).to(tl.int32), axis=0)
    return tl.minimum(above, risen)


@jit
def pick_kernel(
    logits: Operand,
    row_stride: Operand,
    vocab: Operand,
    temperature: Operand,
    seeds: Operand,
    positions: Operand,
    thresholds: Operand,
    row_peaks: Operand,
    tile_peaks: Operand,
    tile_sums: Operand,
    tile_shares: Operand,
    tiles: Operand,
    chosen: Operand,
    logprobs: Operand,
    counts: Operand,
    slots: Operand,
    TILE: constexpr,
    TILES: constexpr,
) -> None:
    """One program: a row."""
    row = tl.program_id(0).to(tl.int64)
    divisor, peak = tl.load(temperature + row), tl.load(row_peaks + row)
    tile, inner = tl.arange(0, TILES), tl.arange(0, TILE)
    if divisor > 0:
        ends = tl.cumsum(tl.load(tile_sums + row * tiles + tile, mask=tile < tiles, other=0.0), axis=0)
        total = tl.max(ends, axis=0)
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
        first, second, _, _ = tl.philox(seed, low, high, low * 0, low * 0)
        bits = (first >> 5).to(tl.int64) * 67108864 + (second >> 6).to(tl.int64)
        target = bits.to(tl.float64) * 1.1102230246251565e-16 * total  # 2^−53
        at = _first_above(ends, target, total)
        before = tl.sum(tl.where(tile == at - 1, ends, 0.0), axis=0)
    else:
        all_peaks = tl.load(tile_peaks + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
        at = tl.argmax(all_peaks, axis=0)
        before = tl.zeros((), tl.float64)
        target = before
    tokens = at * TILE + inner
    z = tl.load(logits + row * row_stride + tokens, mask=tokens < vocab, other=float("-inf"))
    if divisor > 0:
        s = tempered(z, peak, divisor)
        weights = tl.where(s >= tl.load(thresholds + row), tl.exp(s), 0.0).to(tl.float64)
        inside = tl.cumsum(weights, axis=0)
        place = _first_above(inside, target - before, tl.max(inside, axis=0))
    else:
        place = tl.argmax(z, axis=0)
    token = (at * TILE + place).to(tl.int64)
    tl.store(chosen + row, token)
    if counts is not None:
        slot = tl.load(slots + row).to(tl.int64)
        if slot >= 0:
            counts += slot * vocab + token
            tl.store(counts, tl.load(counts) + 1)
    if tile_shares is not None:
        own = tl.sum(tl.where(inner == place, z, 0.0), axis=0)
        share = tl.sum(tl.load(tile_shares + row * tiles + tile, mask=tile < tiles, other=0.0), axis=0)
        tl.store(logprobs + row, own - peak - tl.log(share.to(tl.float32)))
