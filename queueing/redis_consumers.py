"""The consumers' side of RedisQueue: what workers call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from headway.queueing.claims import Claim, Emit, Fenced, Finish
from headway.queueing.codec import (
    decode_events,
    encode_card,
    encode_end,
    encode_error,
    encode_result,
    entry_arguments,
)
from headway.queueing.ear import Ear
from headway.queueing.events import TokenEvent
from headway.queueing.ids import JobId, lane_of
from headway.queueing.intake import seed_of
from headway.queueing.keys import FLEET, WORKERS, LaneKeys, card_key
from headway.queueing.messages import Priority
from headway.queueing.protocol import Wakeup
from headway.queueing.redis_side import RedisSide, fenced, milliseconds
from headway.queueing.server import Argument, Reply
from headway.queueing.worker_card import WorkerCard


class ConsumerSide(RedisSide):
    """What workers call."""

    _unanswered: dict[tuple[str, str], str]
    """Tokens of claims whose reply did not arrive: asked again, they bring the same jobs."""
    _ears: dict[tuple[str, str], Ear]
    """By lane and worker."""

    async def claim(
        self, model: str, worker_id: str, room: int, *, least: Priority = Priority.BATCH
    ) -> tuple[Claim, ...]:
        """See ``Queue.claim``."""
        lane = lane_of(model)
        name = (lane, worker_id)
        token = self._unanswered.pop(name, None) or f"{self._rng.getrandbits(128):032x}"
        try:
            reply = await self._server.fcall(
                "headway_claim",
                LaneKeys(lane).tag,
                worker_id,
                room,
                token,
                milliseconds(self._settings.lease_seconds),
                milliseconds(self._settings.standard_age_seconds),
                milliseconds(self._settings.batch_age_seconds),
                *self._keeps,
                least,
            )
        except BaseException:
            self._unanswered[name] = token
            raise
        now, *items = cast("list[Any]", reply)
        return tuple(_claim(lane, item, int(now)) for item in items)

    async def emit(self, emits: Sequence[Emit]) -> tuple[Fenced, ...]:
        """See ``Queue.emit``."""
        by_lane: dict[str, list[Argument]] = {}
        for emit in emits:  # one without entries says nothing
            job = JobId.parse(emit.job_id)
            arguments = by_lane.get(job.lane)
            if arguments is None:
                arguments = by_lane[job.lane] = [LaneKeys(job.lane).tag]
            for before, event in enumerate(emit.entries, emit.entries_before):
                arguments += (job.key, emit.token, before, *entry_arguments(event))
        replies: list[Reply] = []
        for tag, *arguments in by_lane.values():  # a worker has one lane
            replies.append(await self._server.express_call("FCALL", "headway_emit", 1, tag, *arguments))
        if not any(replies):
            return (Fenced.OK,) * len(emits)
        lost = {
            f"{lane}:{key.decode()}"
            for lane, reply in zip(by_lane, replies, strict=True)
            for key in cast("list[bytes]", reply)
        }
        return tuple([Fenced.LOST if emit.job_id in lost else Fenced.OK for emit in emits])

    async def finish(self, finishes: Sequence[Finish]) -> tuple[Fenced, ...]:
        """See ``Queue.finish``."""
        calls = [self._finish_call(finish) for finish in finishes]
        return tuple(map(fenced, await self._server.fcalls("headway_finish", calls)))

    def _finish_call(self, finish: Finish) -> tuple[Argument, ...]:
        job, end = JobId.parse(finish.job_id), finish.end
        return (
            LaneKeys(job.lane).tag,
            job.key,
            finish.token,
            *self._keeps,
            end.reason,
            encode_end(end),
            encode_result(finish.result),
            encode_error(end.error),
            finish.dead_letter or "",
            end.cursor.tokens,
            end.cursor.part,
            end.usage.prompt_tokens,
            finish.service,
            finish.entries_before,
            *(part for event in finish.entries for part in entry_arguments(event)),
        )

    async def renew(self, claims: Sequence[tuple[str, str]]) -> tuple[Fenced, ...]:
        """See ``Queue.renew``."""
        jobs = [_job(job_id, token) for job_id, token in claims]
        return await self._fenced("headway_renew", jobs, milliseconds(self._settings.lease_seconds))

    async def release(self, claims: Sequence[tuple[str, str]]) -> tuple[Fenced, ...]:
        """See ``Queue.release``."""
        jobs = [_job(job_id, token) for job_id, token in claims]
        return await self._fenced("headway_release", jobs, *self._keeps)

    async def wait(
        self, model: str, worker_id: str, *, for_work: Priority | None, timeout_seconds: float
    ) -> Wakeup:
        """See ``Queue.wait``."""
        name = (lane_of(model), worker_id)
        if name not in self._ears:
            self._ears[name] = Ear(self._server, LaneKeys(name[0]), worker_id)
        return await self._ears[name].wait(for_work=for_work, timeout_seconds=timeout_seconds)

    async def heartbeat(self, card: WorkerCard, *, ttl_seconds: float) -> None:
        """See ``Queue.heartbeat``."""
        ttl_ms = milliseconds(ttl_seconds)
        await self._server.fcall(
            "headway_heartbeat", FLEET, card.worker_id, encode_card(card, ttl_ms), ttl_ms, card.model
        )
        await self._server.fcall(
            "headway_report",
            LaneKeys(lane_of(card.model)).tag,
            card.worker_id,
            card.tokens_per_second,
            ttl_ms,
        )

    async def farewell(self, worker_id: str) -> None:
        """See ``Queue.farewell``."""
        await self._server.pipeline([("DEL", card_key(worker_id)), ("ZREM", WORKERS, worker_id)])


def _job(job_id: str, token: str, *rest: Argument) -> tuple[JobId, tuple[Argument, ...]]:
    job = JobId.parse(job_id)
    return job, (job.key, token, *rest)


def _claim(lane: str, item: list[Any], now_ms: int) -> Claim:
    key, token, epoch, attempts, body, entries, seed, created, deadline, cancel = item
    committed = decode_events(entries)
    return Claim(
        job_id=f"{lane}:{key.decode()}",
        token=token.decode(),
        epoch=int(epoch),
        attempts=int(attempts),
        body=body,
        committed=tuple(event for event in committed if isinstance(event, TokenEvent)),
        seed=seed_of(body, int(seed)),
        created_ms=int(created),
        deadline_ms=int(deadline),
        now_ms=now_ms,
        cancel_reason=cancel.decode(errors="replace") or None,
    )
