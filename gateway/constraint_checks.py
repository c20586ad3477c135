"""A form that no answer can be held to is refused at the door, not after a wait in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from headway.gateway.check_turns import CheckTurns
from headway.gateway.errors import ApiError, TurnsFullError, invalid_request, too_many_requests, unavailable
from headway.queueing.messages import Constraint, Job

Refusal: TypeAlias = Callable[[Constraint], str | None]
"""Why no answer can be held to it; None: some can. Pure, and slow enough for a thread of its own."""

BUSY: Final = "constraint_checks_busy"
THREADS: Final = 2
"""Checks at once: each may take a core for seconds, beside the event loop."""
MOST_SECONDS: Final = 10.0
"""That a check may take, and that it may wait for its turn."""
MOST_WAITING: Final = 16
"""Checks of one tenant: as a rule each takes milliseconds."""


class ConstraintChecks:
    """Checks constraints beside the event loop. ``refusal`` None: whoever runs the job will say it."""

    def __init__(self, refusal: Refusal | None) -> None:
        self._refusal = refusal
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="constraints")
        self._turns = CheckTurns(THREADS, most_waiting=MOST_WAITING)

    async def check(self, jobs: Sequence[Job], param: str | None = None) -> None:
        """Raise ApiError 400 with the reason, its param the one given or the contract's own field.

        429 where the tenant's own checks take all the time that it has, 503 where others' do. All jobs of one
        request have one constraint.
        """
        constraint = jobs[0].constraint
        if constraint is None or self._refusal is None:
            return
        tenant = jobs[0].tenant
        await self._wait_for_turn(tenant)
        reason = await self._reason(self._refusal, constraint, tenant)
        if reason is not None:
            raise invalid_request(
                f"no answer can be held to this {_noun(constraint)}: {reason}",
                param=param or f"constraint.{_field(constraint)}",
                code="invalid_grammar",
            )

    async def _wait_for_turn(self, tenant: str) -> None:
        try:
            await asyncio.wait_for(self._turns.take(tenant), MOST_SECONDS)
        except TurnsFullError:
            raise _busy_with_own() from None
        except TimeoutError:
            if self._turns.is_running(tenant):
                raise _busy_with_own() from None
            raise unavailable(
                "too many forms of answers are being checked at the moment",
                reason=BUSY,
                retry_after_seconds=1,
            ) from None

    async def _reason(self, refusal: Refusal, constraint: Constraint, tenant: str) -> str | None:
        """What the check says, or that it takes too long; the turn ends with the check, which goes on."""
        check = asyncio.wrap_future(self._threads.submit(refusal, constraint))
        check.add_done_callback(lambda _: self._turns.give_back(tenant))
        try:
            return await asyncio.wait_for(asyncio.shield(check), MOST_SECONDS)
        except TimeoutError:
            return f"it takes more than {MOST_SECONDS:.0f} s to check: make it smaller"

    def close(self) -> None:
        """Check nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _busy_with_own() -> ApiError:
    return too_many_requests(
        f"{MOST_WAITING} forms of your answers wait to be checked, or those before take too long: "
        "send fewer at once, or smaller ones",
        reason=BUSY,
        retry_after_seconds=1,
    )


def _field(constraint: Constraint) -> str:
    return next(name for name in Constraint.model_fields if getattr(constraint, name) is not None)


def _noun(constraint: Constraint) -> str:
    return {"json_schema": "JSON Schema", "choice": "list of choices"}.get(
        _field(constraint), _field(constraint)
    )
