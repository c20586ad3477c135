"""A form that no answer can be held to is refused at the door, not after a wait in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from headway.gateway.errors import invalid_request, unavailable
from headway.queueing.messages import Constraint, Job

Refusal: TypeAlias = Callable[[Constraint], str | None]
"""Why no answer can be held to it; None: some can. Pure, and slow enough for a thread of its own."""

THREADS: Final = 2
"""Checks at once: each may take a core for seconds, beside the event loop."""
MOST_SECONDS: Final = 10.0


class ConstraintChecks:
    """Checks constraints beside the event loop. ``refusal`` None: whoever runs the job will say it."""

    def __init__(self, refusal: Refusal | None) -> None:
        self._refusal = refusal
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="constraints")

    async def check(self, jobs: Sequence[Job], param: str | None = None) -> None:
        """Raise ApiError 400 with the reason, its param the one given or the contract's own field.

        503 where others' checks take all the time that there is. All jobs of one request have one constraint.
        """
        constraint = jobs[0].constraint
        if constraint is None or self._refusal is None:
            return
        begun = self._threads.submit(self._refusal, constraint)
        try:
            reason = await asyncio.wait_for(asyncio.wrap_future(begun), MOST_SECONDS)
        except TimeoutError:
            if begun.cancelled():
                raise unavailable(
                    "too many forms of answers are being checked at the moment",
                    reason="constraint_checks_busy",
                    retry_after_seconds=1,
                ) from None
            reason = f"it takes more than {MOST_SECONDS:.0f} s to check: make it smaller"
        if reason is not None:
            raise invalid_request(
                f"no answer can be held to this {_noun(constraint)}: {reason}",
                param=param or f"constraint.{_field(constraint)}",
                code="invalid_grammar",
            )

    def close(self) -> None:
        """Check nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _field(constraint: Constraint) -> str:
    return next(name for name in Constraint.model_fields if getattr(constraint, name) is not None)


def _noun(constraint: Constraint) -> str:
    return {"json_schema": "JSON Schema", "choice": "list of choices"}.get(
        _field(constraint), _field(constraint)
    )
