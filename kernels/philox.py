"""Philox4x32-10, a counter-based random number generator (Salmon et al., SC'11, "Parallel random numbers: as
easy as 1, 2, 3").

    (c0, c1, c2, c3), (k0, k1) → 4 words; ten rounds of
        hi0, lo0 = mulhilo(0xD2511F53, c0);  hi1, lo1 = mulhilo(0xCD9E8D57, c2)
        c ← (hi1 ⊕ c1 ⊕ k0, lo1, hi0 ⊕ c3 ⊕ k1, lo0);  k ← (k0 + 0x9E3779B9, k1 + 0xBB67AE85)   (mod 2³²)

There is no state: a number is a function of its key and counter. Draws are keyed by (seed, position in the
answer), so they depend neither on the batch nor on the worker, and a resumed answer continues the same
draws. Words live in the low 32 bits of int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Four random words per element; all arguments are int64 tensors of one shape holding 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The 64-bit product wraps into the sign bit; shifting and masking recovers its high word all the
        # same.
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        high0, high1 = (product0 >> 32) & WORD, (product1 >> 32) & WORD
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & WORD, high0 ^ c3 ^ k1, product0 & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def uniforms(seeds: Tensor, positions: Tensor, stream: int = 0) -> Tensor:
    """One float64 in [0, 1) with 53 random bits per (seed, position); int64 tensors of one shape.

    Negative seeds are the 64-bit pattern they stand for. ``stream`` separates independent uses of one
    position.
    """
    zeros = torch.zeros_like(positions)
    counter = (positions & WORD, (positions >> 32) & WORD, zeros + stream, zeros)
    first, second, _, _ = philox4x32(counter, (seeds & WORD, (seeds >> 32) & WORD))
    # 27 + 26 bits, as C++'s and NumPy's 53-bit doubles are made.
    return ((first >> 5) * 2.0**26 + (second >> 6)).double() * 2.0**-53
