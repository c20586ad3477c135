"""Keeping reservations true to their jobs: ended ones are settled, living ones kept, the rest lapses.

Any number of processes may do this at once. A settlement is applied to its tenant's account, which takes each
once, and only then removed from the lane: whoever dies in between is followed by somebody who repeats it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from headway.queueing.backlog import Settlement
from headway.queueing.errors import QueueUnavailableError, UnknownJobError
from headway.queueing.events import JobState, JobStatus
from headway.queueing.ids import JobId, is_model_name, model_of
from headway.queueing.protocol import Queue
from headway.queueing.quota_values import Alive, Held, Spent
from headway.queueing.settings import DEFAULTS

BATCH: Final = 100
AT_ONCE: Final = 16
ORPHANS_PASSED: Final = 1000
"""Lapsed reservations without a job that one call looks past: most of them never get one."""
LOOKED_AT: Final = 16
"""Waiting jobs of one tenant that are looked up together, the oldest first: those are the ones that start."""


async def settle(queue: Queue, model: str) -> int:
    """Take in the ends of a model's reserved jobs; returns how many. Raises QueueUnavailableError."""
    count = 0
    while ends := await queue.settlements(model, BATCH):
        by_tenant: dict[str, list[Settlement]] = {}
        for end in ends:
            by_tenant.setdefault(end.tenant, []).append(end)
        outcomes = await asyncio.gather(
            *(_settle_tenant(queue, model, tenant, own) for tenant, own in by_tenant.items()),
            return_exceptions=True,
        )
        # One account out of reach holds up no other; it is tried again with the next call.
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            count += outcome
        if len(ends) < BATCH:
            break
    return count


async def _settle_tenant(queue: Queue, model: str, tenant: str, ends: Sequence[Settlement]) -> int:
    spent = [
        Spent(end.job_id, end.reserved, end.prompt_tokens, end.completion_tokens)
        for end in ends
        if end.job_id and end.reserved
    ]
    if tenant and spent:
        await queue.quota_store.settle(tenant, spent)
    await queue.settled(model, [end.entry_id for end in ends])
    return len(ends)


async def catch_up(queue: Queue, tenant: str, model: str) -> bool:
    """Take in what has happened to a tenant's jobs by now; whether anything has.

    So what a client has seen end or start does not count against its next job, however late the keepers are.
    """
    happened, passed = False, 0
    while passed < ORPHANS_PASSED:
        waiting = await queue.quota_store.waiting(tenant, LOOKED_AT, passed)
        states = await _states(queue, waiting)
        running = [
            Alive(held.job_id, held.nonce, is_running=True)
            for held, status in zip(waiting, states, strict=True)
            if status is not None and status.state is JobState.RUNNING
        ]
        if running:
            happened = await queue.quota_store.keep(tenant, running) > 0 or happened
        # Reservations that got no job say nothing about those behind them; a page that waits does.
        orphans = states.count(None)
        if len(running) + orphans < LOOKED_AT:
            break
        passed += orphans
    _, in_flight = await queue.quota_store.ending(tenant, _EVER_SECONDS, BATCH)
    for name in {model} | _models(in_flight):
        happened = await settle(queue, name) > 0 or happened
    return happened


_EVER_SECONDS: Final = 10 * 86_400.0


def _models(reservations: Iterable[Held]) -> set[str]:
    ids = (held.job_id for held in reservations)  # a raw caller may have reserved for anything
    names = (model_of(JobId.parse(job_id).lane) for job_id in ids if JobId.is_one(job_id))
    return set(filter(is_model_name, names))


async def keep_reservations(queue: Queue, lease_seconds: float = DEFAULTS.reservation_seconds) -> int:
    """Keep the reservations of jobs that live, settle those that ended without a word; returns how many.

    Call it every third of a lease; of all processes that do, one acts. Raises QueueUnavailableError.
    """
    store, count = queue.quota_store, 0
    if not await store.elect(lease_seconds / 4):
        return 0
    quiet: list[str] = []
    for tenant in await store.reserving():
        in_flight, kept = await _keep_ending(queue, tenant, lease_seconds * 2 / 3)
        revived = await _revive(queue, tenant)
        count += kept + revived
        if in_flight + revived == 0:
            quiet.append(tenant)
    await store.quiet(quiet)
    return count


async def _keep_ending(queue: Queue, tenant: str, within_seconds: float) -> tuple[int, int]:
    """How many are in flight, and how many were kept or settled. Those passed over have no job, and lapse.

    What ends ``within_seconds`` of now is kept, however long that takes: a server so slow that those kept
    first are due again before the last is reached would else hold the keeper at this tenant for ever.
    """
    count, passed = 0, 0
    until = asyncio.get_running_loop().time() + within_seconds
    while True:
        left = max(0.0, until - asyncio.get_running_loop().time())
        in_flight, ending = await queue.quota_store.ending(tenant, left, BATCH, passed)
        if not ending:
            return in_flight, count
        handled = await _keep_some(queue, tenant, ending)
        count += handled
        passed += len(ending) - handled  # what was handled ends later now, or has gone


async def _revive(queue: Queue, tenant: str) -> int:
    """Make the reservations again that lapsed while nobody kept them, although their jobs are there."""
    count, passed = 0, 0
    while passed < ORPHANS_PASSED and (gone := await queue.quota_store.lapsed(tenant, BATCH, passed)):
        handled = await _keep_some(queue, tenant, gone)
        count += handled
        passed += len(gone) - handled
    return count


async def _keep_some(queue: Queue, tenant: str, reservations: Sequence[Held]) -> int:
    """Keep those whose jobs live, then settle those whose jobs have ended; how many these are."""
    states = await _states(queue, reservations)
    ended: list[Held] = []
    alive: list[Alive] = []
    for held, status in zip(reservations, states, strict=True):
        if status is None or status.reserved != held.nonce:
            continue
        if status.state is JobState.FINISHED:
            ended.append(held)
        else:
            alive.append(Alive(held.job_id, held.nonce, is_running=status.state is JobState.RUNNING))
    kept = await queue.quota_store.keep(tenant, alive) if alive else 0
    spent = [
        Spent(held.job_id, held.nonce, *usage)
        for held in ended
        if (usage := await _usage(queue, held.job_id)) is not None
    ]
    return kept + (await queue.quota_store.settle(tenant, spent) if spent else 0)


async def _usage(queue: Queue, job_id: str) -> tuple[int, int] | None:
    try:
        result = await queue.result(job_id)
    except UnknownJobError:
        return None
    return None if result is None else (result.usage.prompt_tokens, result.usage.completion_tokens)


async def _states(queue: Queue, reservations: Sequence[Held]) -> list[JobStatus | None]:
    """Each job's record, or None for a job that is not there now."""
    found: list[JobStatus | None] = []
    for at in range(0, len(reservations), AT_ONCE):
        some = reservations[at : at + AT_ONCE]
        found += await asyncio.gather(*(_state(queue, held.job_id) for held in some))
    return found


async def _state(queue: Queue, job_id: str) -> JobStatus | None:
    """Of a node that is away: as if it were not there. Its reservation may lapse, and is made again."""
    try:
        return await queue.status(job_id)
    except (UnknownJobError, QueueUnavailableError):
        return None
