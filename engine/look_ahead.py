"""Planning a step while the one before it runs: requests as they will be, and what nobody can know yet.

    under way     step N:    [computed ... end)             its last token's logits choose token ``end``
    planned       step N+1:              [end ... end + 1)  that token is a PLACEHOLDER; the runner knows it

Nothing of this is remembered: the state ahead follows each time from the committed one and the plan under
way. So no count of placeholders can ever be wrong, and a plan ahead that is thrown away leaves none behind.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headway.engine.request import Request
from headway.engine.roster import Roster
from headway.engine.values import PLACEHOLDER, StepPlan


@contextmanager
def as_if_landed(plan: StepPlan, roster: Roster, lands_at: float) -> Generator[set[Request]]:
    """The requests of a plan under way as its result will leave them; afterwards they are as they were.

    Yields those that end with this step whatever it brings: there is nothing more to compute of them.
    """
    landed = [
        (request, chunk, request.is_announced, request.due_seconds)
        for chunk in plan.chunks
        if (request := roster.find(chunk.key)) is not None
    ]
    ending: set[Request] = set()
    for request, chunk, _, _ in landed:
        request.is_announced = True
        request.computed_tokens += len(chunk.token_ids)
        if chunk.samples:
            request.tokens.append(PLACEHOLDER)
            request.pace(lands_at)
            if request.known_tokens >= request.longest_tokens:
                ending.add(request)
    try:
        yield ending
    finally:
        for request, chunk, was_announced, due_seconds in landed:
            request.is_announced, request.due_seconds = was_announced, due_seconds
            request.computed_tokens = chunk.start
            if chunk.samples:
                del request.tokens[-1]
