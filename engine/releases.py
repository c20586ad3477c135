"""When room comes by itself: the ends of running requests that are near enough to wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from headway.engine.memory import Memory
from headway.engine.request import Request

MOST_DEFERRED_STEPS: Final = 8
"""A prediction that failed so often in a row is not believed again until there was room."""


def release_seconds(
    computing: Iterable[Request], memory: Memory, *, blocks: int, sequences: int, step_seconds: float
) -> float:
    """Predicted time until enough of them have ended for so many blocks and places; infinite: not for sure.

    ``computing``: who gets on in this step. An answer gets as long as its tenant's usually do, one token per
    step. Who is held or is in its prefill is not counted on.
    """
    ends = sorted(
        (
            memory.quantiles.remaining_tokens(r.spec.tenant, r.generated_tokens, r.spec.max_tokens),
            r.serial,
            r,
        )
        for r in computing
        if r.table is not None and r.pending_tokens == 1 and not r.is_held
    )
    freed = 0
    for count, (steps, _, request) in enumerate(ends, start=1):
        freed += 0 if request.table is None else memory.ledger.reclaimable_blocks([request.table])
        if freed >= blocks and count >= sequences:
            return steps * step_seconds
    return math.inf
