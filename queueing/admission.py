"""How a job gets in: under its tenant's limits, which are asked before the queue is.

reserve (on the tenant's slot) ─► submit (on the lane's slot, naming the reservation) ─► its end settles it

The job's key is chosen first. So whoever dies between the two steps leaves a reservation that lapses, or that
the same call repeated finds again; and a repeat under an idempotency key is the same job, reserved once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from random import Random, SystemRandom

from headway.queueing.errors import (
    NotNowError,
    QueueingError,
    QueueUnavailableError,
    QuotaExceededError,
    UnknownJobError,
)
from headway.queueing.ids import JobId, check_key, lane_of, new_key
from headway.queueing.messages import Job, encode_job
from headway.queueing.protocol import Queue, Submitted
from headway.queueing.quota_values import QuotaLimit, Refusal, Reservation
from headway.queueing.settling import catch_up
from headway.queueing.tenants import TenantLimits
from headway.queueing.terms import check_allowed, demand_of, exceeded, with_defaults


class Admission:
    """Posts jobs as their tenants' limits allow. ``clock`` and ``rng`` only name jobs and reservations.

    A tenant without quotas costs no call more than the submit itself.
    """

    def __init__(
        self, queue: Queue, *, clock: Callable[[], float] = time.time, rng: Random | None = None
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._rng = rng or SystemRandom()

    async def submit(self, job: Job, *, key: str | None = None) -> Submitted:
        """Accept a job as ``Queue.submit`` does, or refuse it for its tenant's sake.

        The longest answer and the default deadline of the tenant are filled in. Raises NotAllowedError and
        QuotaExceededError beside what ``Queue.submit`` raises.
        """
        limits = (await self._queue.tenant_store.book()).limits_of(job.tenant)
        check_allowed(job, limits)
        filled = with_defaults(job, limits)
        if not limits.has_quotas:
            return await self._queue.submit(filled, key=key, asked=_if_other(job, filled))
        job_id = JobId(lane_of(job.model), check_key(key) if key is not None else self._key_of(job))
        posted = _if_other(job, filled)
        try:
            reservation = await self._reserve(filled, str(job_id), limits)
        except QuotaExceededError:
            # A repeat asks for nothing more than what was admitted before.
            may_repeat = key is not None or job.idempotency_key is not None
            earlier = (
                await self._queue.repeat_of(filled, key=job_id.key, asked=posted) if may_repeat else None
            )
            if earlier is None:
                raise
            return earlier
        return await self._submit(filled, job_id, reservation, posted)

    def _key_of(self, job: Job) -> str:
        """A fresh key; for the same idempotency key and body the same one, so that a repeat reserves once."""
        if job.idempotency_key is None:
            return new_key(self._clock, self._rng)
        asked = encode_job(job.model_copy(update={"traceparent": None}))
        return "i" + sha256(job.tenant.encode() + b"\0" + asked).hexdigest()[:31]

    async def _reserve(self, job: Job, job_id: str, limits: TenantLimits) -> Reservation:
        """The job's reservation; raises QuotaExceededError."""
        answer = await self._ask(job, job_id, limits)
        # What has ended or started meanwhile may not have been taken in yet.
        is_late = isinstance(answer, Refusal) and answer.limit is not QuotaLimit.RPM
        if is_late and await catch_up(self._queue, job.tenant, job.model):
            answer = await self._ask(job, job_id, limits)
        if isinstance(answer, Refusal):
            raise exceeded(job.tenant, demand_of(job), answer, limits)
        return answer

    async def _ask(self, job: Job, job_id: str, limits: TenantLimits) -> Reservation | Refusal:
        demand = demand_of(job)
        return await self._queue.quota_store.reserve(
            job.tenant,
            job_id,
            f"{self._rng.getrandbits(64):016x}",
            tokens=demand.tokens,
            prompt_tokens=demand.prompt_tokens,
            limits=limits,
        )

    async def _submit(
        self, job: Job, job_id: JobId, reservation: Reservation, asked: Job | None
    ) -> Submitted:
        try:
            submitted = await self._queue.submit(job, key=job_id.key, reserved=reservation.nonce, asked=asked)
        except NotNowError:
            await self._give_back_refused(str(job_id), reservation)
            raise
        except QueueUnavailableError:
            raise  # it may have been accepted all the same: whoever keeps reservations finds out
        except QueueingError:
            await self._give_back(reservation)
            raise
        if not submitted.created and not await self._is_under(submitted.job_id, reservation):
            await self._give_back(reservation)
        return replace(submitted, standing=reservation.standing)

    async def _give_back_refused(self, job_id: str, reservation: Reservation) -> None:
        """What is held for a job that was refused; an earlier try whose answer was lost may have got in."""
        with suppress(QueueUnavailableError):
            if reservation.is_new and not await self._is_under(job_id, reservation):
                await self._give_back(reservation)

    async def _is_under(self, job_id: str, reservation: Reservation) -> bool:
        """Whether the job was accepted under this reservation, by this call or an earlier one."""
        if job_id != reservation.job_id:
            return False
        try:
            return (await self._queue.status(job_id)).reserved == reservation.nonce
        except UnknownJobError:
            return False

    async def _give_back(self, reservation: Reservation) -> None:
        with suppress(QueueUnavailableError):  # then it lapses
            await self._queue.quota_store.unreserve(reservation)


def _if_other(job: Job, filled: Job) -> Job | None:
    """The job as posted, if defaults were filled in."""
    return None if filled is job else job
