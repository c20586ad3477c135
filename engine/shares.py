"""How one step's prefill budget is shared among the prompts that want it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHORT_STEPS: Final = 2
"""A prompt is short when so many steps could hold what is left of it."""
LONG_PART: Final = 4
"""One part of so many of the budget is kept for long prompts while short ones are there too."""


def floor_chunk(budget: int, min_chunk_tokens: int) -> int:
    """The chunk that every started prefill is sure of.

    At most half the budget, so that a second prompt can always prefill beside a long one.
    """
    return max(1, min(min_chunk_tokens, budget // 2))


def is_short(pending: int, budget: int) -> bool:
    """Whether a prompt is computed whole, in its turn, rather than side by side with others."""
    return pending <= SHORT_STEPS * budget


def promise(pending: int, budget: int, floor: int) -> int:
    """Tokens of the next step that a started prefill is counted with when others want to start.

    A short one with all that is left of it: prompts of much the same length that share every step all end as
    late as the last of them, one after the other half of them end in half the time. But never with so much
    that nobody could start beside it.
    """
    return min(pending, max(floor, budget - floor) if is_short(pending, budget) else floor)


def share_budget(pending: Sequence[int], budget: int, floor: int) -> list[int]:
    """Tokens for each prefill, first to be served first; the sum is min(budget, sum(pending)).

    Rounds, each in order: everyone up to the floor; long prompts up to their part, each the same; short ones
    whole; long ones up to an equal share of the budget, and what is left. So a 100k-token prompt cannot hold
    up short ones, nor can an endless line of short ones hold it up.
    """
    grants = [0] * len(pending)
    whole = [place for place, wanted in enumerate(pending) if is_short(wanted, budget)]
    split = [place for place, wanted in enumerate(pending) if not is_short(wanted, budget)]
    part = budget // LONG_PART // max(1, len(split))
    equal = budget // max(1, len(split))
    left = budget
    everyone = range(len(pending))
    rounds = ((everyone, floor), (split, part), (whole, budget), (split, equal), (split, budget))
    for places, level in rounds:
        for place in places:
            extra = max(0, min(pending[place], level, grants[place] + left) - grants[place])
            grants[place] += extra
            left -= extra
    return grants
