"""Where top-k and top-p cut a row, without a sort: bisection over keys, among candidates.

With s = (z − max z) / T, the key of a token is the bit pattern of |s|: an integer that orders tokens from the
most likely (0) down. The threshold is the smallest key K with

    top-k   #{key ≤ K} ≥ k
    top-p   Σ{key ≤ K} e^s ≥ top_p · Σ{keys that top-k keeps} e^s

Candidates are the tokens with key ≤ B, where B is

    top-k   the k-th smallest among the tiles' smallest keys (k tokens are that likely)
    top-p   the key of e^s = (1 − top_p) · Σ e^s / vocab     (all tokens below hold less than 1 − top_p)

They are listed in scratch; tiles without any are not read. Then eight pivots at a time: ten passes at most
over what is usually a few hundred tokens. Where the bounds tell nothing (k above the number of tiles, a flat
distribution) all tokens are candidates: slower, as exact.
"""

from __future__ import annotations

from headway.kernels.fused_sampling import tempered
from headway.kernels.triton_language import Operand, constexpr, jit, tl

TILES_LISTED = 32
"""Tiles listed together. With fewer, ptxas spills registers for an occupancy that a row cannot use."""
PIVOTS = 8
CHUNK = 1024
"""Candidates looked at together while bisecting."""
ZERO_WEIGHT_KEY = 0x42D00000
"""Bits of 104.0: e^-104 is 0 in float32, so whether such tokens are kept changes nothing."""


@jit
def _key(s: Operand) -> Operand:
    return tl.abs(s).to(tl.int32, bitcast=True)


@jit
def _weight(key: Operand) -> Operand:
    return tl.exp(-key.to(tl.float32, bitcast=True)).to(tl.float64)


@jit
def _smallest_key(
    keys: Operand,
    count: Operand,
    highest: Operand,
    goal: Operand,
    MASS: constexpr,
    CHUNK: constexpr,
    PIVOTS: constexpr,
) -> Operand:
    """The smallest K ≤ highest whose tokens number (MASS: weigh) at least ``goal``; else ``highest``."""
    low, high = tl.full((), -1, tl.int32), highest  # the answer lies in (low, high]
    while high - low > 1:
        step = tl.maximum((high - low) // (PIVOTS + 1), 1)
        pivots = low + step * (tl.arange(0, PIVOTS) + 1)
        reached = tl.zeros((PIVOTS,), tl.float64 if MASS else tl.int32)
        for start in range(0, count, CHUNK):
            place = start + tl.arange(0, CHUNK)
            some = tl.load(keys + place, mask=place < count, other=0x7FFFFFFF)
            below = some[:, None] <= pivots[None, :]
            if MASS:
                reached += tl.sum(tl.where(below, _weight(some)[:, None], 0.0), axis=0)
            else:
                reached += tl.sum(below.to(tl.int32), axis=0)
        short = tl.sum((reached < goal).to(tl.int32), axis=0)  # pivots below the answer
        high = tl.where(short < PIVOTS, tl.minimum(high, low + step * (short + 1)), high)
        low += step * short
    return high


@jit
def candidates_kernel(
    logits: Operand,
    row_stride: Operand,
    vocab: Operand,
    temperature: Operand,
    top_k: Operand,
    top_p: Operand,
    tile_peaks: Operand,
    tile_sums: Operand,
    tiles: Operand,
    row_peaks: Operand,
    row_sums: Operand,
    keys: Operand,
    keys_stride: Operand,
    bounds: Operand,
    counts: Operand,
    TILE: constexpr,
    GROUP: constexpr,
    CHUNK: constexpr,
    PIVOTS: constexpr,
    ZERO_WEIGHT_KEY: constexpr,
) -> None:
    """One program: a row; its largest logit, the sum of its weights, its candidates."""
    row = tl.program_id(0).to(tl.int64)
    tile_peaks += row * tiles
    peak = float("-inf")
    for start in range(0, tiles, CHUNK):
        tile = start + tl.arange(0, CHUNK)
        peak = tl.maximum(
            peak, tl.max(tl.load(tile_peaks + tile, mask=tile < tiles, other=float("-inf")), axis=0)
        )
    tl.store(row_peaks + row, peak)
    divisor, k, p = tl.load(temperature + row), tl.load(top_k + row), tl.load(top_p + row)
    limit = tl.where((k > 0) & (k < vocab), k, vocab)
    count = tl.full((), 0, tl.int32)
    if (divisor > 0) & ((limit < vocab) | (p < 1.0)):
        bound = tl.full((), ZERO_WEIGHT_KEY, tl.int32)
        keys += row * keys_stride
        total = tl.zeros((), tl.float64)
        for start in range(0, tiles, CHUNK):
            tile = start + tl.arange(0, CHUNK)
            inside = tile < tiles
            best = tempered(tl.load(tile_peaks + tile, mask=inside, other=float("-inf")), peak, divisor)
            sums = tl.load(tile_sums + row * tiles + tile, mask=inside, other=0.0)
            total += tl.sum(sums * tl.exp(best).to(tl.float64), axis=0)
            tl.store(keys + tile, _key(best), mask=inside)
        tl.store(row_sums + row, total)
        tl.debug_barrier()
        if limit < vocab:
            if limit <= tiles:
                bound = _smallest_key(keys, tiles, bound, limit, False, CHUNK, PIVOTS)
        else:
            rest = (1.0 - p.to(tl.float64)) * total
            least = tl.log(rest.to(tl.float32)) - tl.log(vocab.to(tl.float32))
            # A little lower: logarithms and total are rounded.
            bound = tl.minimum(bound, _key(tl.minimum(least - 0.01, 0.0)))
        tl.debug_barrier()  # the tiles' keys are read: candidates take their place
        tl.store(bounds + row, bound)
        for start in range(0, tiles, GROUP):
            near = start + tl.arange(0, GROUP)
            some = tl.load(tile_peaks + near, mask=near < tiles, other=float("-inf"))
            if _key(tempered(tl.max(some, axis=0), peak, divisor)) <= bound:
                tokens = start * TILE + tl.arange(0, GROUP * TILE)
                z = tl.load(logits + row * row_stride + tokens, mask=tokens < vocab, other=float("-inf"))
                found = _key(tempered(z, peak, divisor))
                chosen = found <= bound
                ends = tl.cumsum(chosen.to(tl.int32), axis=0)
                tl.store(keys + count + ends - 1, found, mask=chosen)
                count += tl.sum(chosen.to(tl.int32), axis=0)
    tl.store(counts + row, count)


@jit
def threshold_kernel(
    vocab: Operand,
    top_k: Operand,
    top_p: Operand,
    floor: Operand,
    row_sums: Operand,
    keys: Operand,
    keys_stride: Operand,
    bounds: Operand,
    counts: Operand,
    thresholds: Operand,
    CHUNK: constexpr,
    PIVOTS: constexpr,
) -> None:
    """One program: a row."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + row)
    threshold = float("-inf")
    if count > 0:
        k, p = tl.load(top_k + row), tl.load(top_p + row)
        bound, total = tl.load(bounds + row), tl.load(row_sums + row)
        keys += row * keys_stride
        if (k > 0) & (k < vocab):
            bound = _smallest_key(keys, count, bound, k, False, CHUNK, PIVOTS)
            total = tl.zeros((), tl.float64)
            for start in range(0, count, CHUNK):
                place = start + tl.arange(0, CHUNK)
                some = tl.load(keys + place, mask=place < count, other=0x7FFFFFFF)
                total += tl.sum(tl.where(some <= bound, _weight(some), 0.0), axis=0)
        if p < 1.0:
            bound = _smallest_key(keys, count, bound, p.to(tl.float64) * total, True, CHUNK, PIVOTS)
        threshold = -bound.to(tl.float32, bitcast=True)
    tl.store(thresholds + row, tl.maximum(threshold, tl.load(floor + row)))
