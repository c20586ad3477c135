"""How one step's prefill budget is shared among the prompts that want it."""

from __future__ import annotations

from collections.abc import Sequence


def floor_chunk(budget: int, min_chunk_tokens: int) -> int:
    """The chunk that every started prefill is sure of.

    At most half the budget, so that a second prompt can always prefill beside a long one.
    """
    return max(1, min(min_chunk_tokens, budget // 2))


def share_budget(pending: Sequence[int], budget: int, floor: int) -> list[int]:
    """Tokens for each prefill, first to be served first; the sum is min(budget, sum(pending)).

    Three rounds, each in order: everyone up to the floor, everyone up to an equal share, then what is left to
    whoever can use it. So a chunk is longer than max(floor, budget / prefills) only where the others have no
    use for the rest, and a 100k-token prompt cannot hold up short ones.
    """
    grants = [0] * len(pending)
    if not pending:
        return grants
    for level in (floor, max(floor, budget // len(pending)), budget):
        for place, wanted in enumerate(pending):
            extra = max(0, min(wanted, level, grants[place] + budget) - grants[place])
            grants[place] += extra
            budget -= extra
    return grants
