"""What operators see and set on a RedisQueue: depth, who waits, what runs, ends, dead letters, weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final, cast

from headway.queueing.backlog import EndedJob, Settlement, TenantBacklog
from headway.queueing.codec import decode_status, pairs
from headway.queueing.day_usage import COUNTED, DayUsage, day_number, usage_of
from headway.queueing.errors import unknown_job
from headway.queueing.events import EndReason, JobState, JobStatus
from headway.queueing.ids import JobId, check_entry_id, lane_of
from headway.queueing.keys import JobKeys, LaneKeys
from headway.queueing.messages import Priority
from headway.queueing.protocol import DeadLetter, LaneDepth
from headway.queueing.redis_side import RedisSide
from headway.queueing.server import Argument, Reply
from headway.queueing.tenants import check_tenant

_COMMANDS_PER_ROUND: Final = 500
_RECORDS_PER_ROUND: Final = 64
"""Decoding one takes a tenth of a millisecond, in which the readers of this process get nothing."""


class ListingSide(RedisSide):
    """What operators call. Nothing here is atomic: jobs move on between two commands."""

    async def status(self, job_id: str) -> JobStatus:
        """See ``Queue.status``."""
        (status,) = await self._statuses([job_id])
        if status is None:
            raise unknown_job(job_id)
        return status

    async def depth(self, model: str) -> LaneDepth:
        """See ``Queue.depth``."""
        keys = LaneKeys(lane_of(model))
        books, running, dead, rate = await self._all(
            [("HGETALL", keys.books), ("ZCARD", keys.lease), ("XLEN", keys.dead_letters), ("GET", keys.rate)]
        )
        return _depth(pairs(books), running, dead, _number(rate, 0.0))

    async def dead_letters(self, model: str, limit: int = 100) -> tuple[DeadLetter, ...]:
        """See ``Queue.dead_letters``."""
        keys = LaneKeys(lane_of(model))
        entries = await self._newest(keys.dead_letters, limit)
        return tuple(_dead_letter(keys.lane, entry_id, entry) for entry_id, entry in entries)

    async def purge(self, model: str, entry_ids: Sequence[str] | None = None) -> int:
        """See ``Queue.purge``."""
        ids = [check_entry_id(entry_id) for entry_id in entry_ids or ()]
        if entry_ids is not None and not ids:
            return 0
        return cast("int", await self._server.fcall("headway_purge", LaneKeys(lane_of(model)).tag, *ids))

    async def set_weights(self, model: str, weights: Mapping[str, float]) -> None:
        """See ``Queue.set_weights``."""
        flat: list[Argument] = [part for pair in weights.items() for part in pair]
        await self._server.fcall("headway_weights", LaneKeys(lane_of(model)).tag, *flat)

    async def tenants(self, model: str) -> tuple[TenantBacklog, ...]:
        """See ``Queue.tenants``."""
        keys = LaneKeys(lane_of(model))
        turns = await self._turns(keys)
        asked: list[tuple[Argument, ...]] = []
        for band, tenant, _ in turns:
            asked += [
                ("ZCARD", keys.waiting(band, tenant)),
                ("HGET", keys.tenant(tenant), f"tokens:{band}"),
                ("HGET", keys.weights, tenant),
                ("ZRANGE", keys.waiting(band, tenant), 0, 0),
            ]
        replies = iter(await self._all(asked))
        found = list(zip(turns, replies, replies, replies, replies, strict=True))
        created = await self._created(keys, [first for *_, first in found])
        return tuple(
            TenantBacklog(
                tenant,
                band,
                jobs=jobs,
                tokens=_whole(tokens),
                next_created_ms=_whole(created_ms),
                virtual_time=at,
                weight=_number(weight, 1.0),
            )
            for ((band, tenant, at), jobs, tokens, weight, _), created_ms in zip(found, created, strict=True)
            if jobs
        )

    async def _created(self, keys: LaneKeys, firsts: Sequence[list[bytes]]) -> list[bytes | None]:
        """When the first job of each backlog was accepted; None where there is none that is ours."""
        ids = [f"{keys.lane}:{key.decode(errors='replace')}" for first in firsts for key in first or [b""]]
        records = [JobKeys(JobId.parse(each)).record if JobId.is_one(each) else "" for each in ids]
        replies = iter(await self._rounds([("HGET", record, "created") for record in records if record]))
        created = (next(replies) if record else None for record in records)
        return [reply if isinstance(reply, bytes) else None for reply in created]

    async def waiting_jobs(
        self, model: str, *, tenant: str | None = None, limit: int = 100
    ) -> tuple[JobStatus, ...]:
        """See ``Queue.waiting_jobs``."""
        keys = LaneKeys(lane_of(model))
        turns = await self._turns(keys)
        asked: list[tuple[Argument, ...]] = []
        for band in Priority:
            asked.append(("LRANGE", keys.returned(band), 0, -1))
            tenants = [name for each, name, _ in turns if each is band and tenant in {None, name}]
            asked += [("ZRANGE", keys.waiting(band, name), 0, limit - 1) for name in tenants]
        found = [key for reply in await self._all(asked) for key in reply]
        waiting = await self._in_state(keys, found if tenant else found[:limit], JobState.QUEUED)
        return tuple(job for job in waiting if tenant in {None, job.tenant})[:limit]

    async def running_jobs(self, model: str, limit: int = 100) -> tuple[JobStatus, ...]:
        """See ``Queue.running_jobs``."""
        keys = LaneKeys(lane_of(model))
        (found,) = await self._all([("ZRANGE", keys.lease, 0, limit - 1)])
        return tuple(await self._in_state(keys, found, JobState.RUNNING))

    async def recent_jobs(self, model: str, limit: int = 100) -> tuple[EndedJob, ...]:
        """See ``Queue.recent_jobs``."""
        keys = LaneKeys(lane_of(model))
        ended = (_ended(keys.lane, entry) for _, entry in await self._newest(keys.recent, limit))
        return tuple(job for job in ended if job is not None)

    async def usage(
        self, model: str, days: Sequence[date], tenant: str | None = None
    ) -> tuple[DayUsage, ...]:
        """See ``Queue.usage``."""
        keys = LaneKeys(lane_of(model))
        if tenant is not None:
            return await self._usage_of(keys, model, days, tenant)
        replies = await self._rounds([("HGETALL", keys.used(day_number(day))) for day in days])
        return tuple(
            row
            for day, reply in zip(days, replies, strict=True)
            if isinstance(reply, list)  # what is no hash is somebody else's
            for row in usage_of(model, day, pairs(cast("list[bytes]", reply)))
        )

    async def _usage_of(
        self, keys: LaneKeys, model: str, days: Sequence[date], tenant: str
    ) -> tuple[DayUsage, ...]:
        fields = [f"{what}:{tenant}" for what in COUNTED]
        replies = await self._rounds([("HMGET", keys.used(day_number(day)), *fields) for day in days])
        rows: list[DayUsage] = []
        for day, reply in zip(days, replies, strict=True):
            counts = cast("list[bytes | None]", reply if isinstance(reply, list) else [])
            found = {name: text for name, text in zip(fields, counts, strict=False) if text is not None}
            rows += usage_of(model, day, found)
        return tuple(rows)

    async def settlements(self, model: str, limit: int = 100) -> tuple[Settlement, ...]:
        """See ``Queue.settlements``."""
        keys = LaneKeys(lane_of(model))
        (reply,) = await self._all([("XRANGE", keys.settlements, "-", "+", "COUNT", limit)])
        return tuple(_settlement(keys.lane, entry_id, entry) for entry_id, entry in _entries(reply))

    async def settled(self, model: str, entry_ids: Sequence[str]) -> None:
        """See ``Queue.settled``."""
        if entry_ids:
            await self._all([("XDEL", LaneKeys(lane_of(model)).settlements, *entry_ids)])

    # -- reading --------------------------------------------------------------------------------------

    async def _statuses(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """The records of several jobs of one lane; None where there is none."""
        statuses: list[JobStatus | None] = []
        for first in range(0, len(job_ids), _RECORDS_PER_ROUND):
            some = job_ids[first : first + _RECORDS_PER_ROUND]
            asked: list[tuple[Argument, ...]] = []
            for keys in [JobKeys(JobId.parse(job_id)) for job_id in some]:
                asked += [("HGETALL", keys.record), ("XREVRANGE", keys.stream, "+", "-", "COUNT", 8)]
            replies = iter(await self._server.pipeline(asked))
            statuses += [
                decode_status(job_id, record, entries)
                for job_id, record, entries in zip(some, replies, replies, strict=True)
            ]
        return statuses

    async def _in_state(self, keys: LaneKeys, found: list[bytes], state: JobState) -> list[JobStatus]:
        """The jobs of these keys that are in a state; keys that are none of ours are passed over."""
        ids = [f"{keys.lane}:{key.decode(errors='replace')}" for key in found]
        statuses = await self._statuses([job_id for job_id in ids if JobId.is_one(job_id)])
        return [status for status in statuses if status is not None and status.state is state]

    async def _turns(self, keys: LaneKeys) -> list[tuple[Priority, str, float]]:
        asked = [("ZRANGE", keys.turn(band), 0, -1, "WITHSCORES") for band in Priority]
        turns: list[tuple[Priority, str, float]] = []
        for band, reply in zip(Priority, await self._all(asked), strict=True):
            flat = iter(reply)
            turns += [
                (band, name.decode(errors="replace"), float(at)) for name, at in zip(flat, flat, strict=True)
            ]
        return turns

    async def _newest(self, stream: str, limit: int) -> list[tuple[str, dict[str, str]]]:
        (reply,) = await self._all([("XREVRANGE", stream, "+", "-", "COUNT", limit)])
        return list(_entries(reply))

    async def _all(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """The replies to commands of one lane; raises the first that is an error."""
        replies = await self._rounds(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _rounds(self, commands: Sequence[tuple[Argument, ...]]) -> list[Reply]:
        replies: list[Reply] = []
        for first in range(0, len(commands), _COMMANDS_PER_ROUND):
            replies += await self._server.pipeline(commands[first : first + _COMMANDS_PER_ROUND])
        return replies


def _entries(reply: Any) -> Iterable[tuple[str, dict[str, str]]]:
    for entry_id, flat in reply:
        texts = {name: value.decode(errors="replace") for name, value in pairs(flat).items()}
        yield entry_id.decode(), texts


def _depth(books: Mapping[str, bytes], running: int, dead: int, rate: float) -> LaneDepth:
    def count(field: str) -> int:
        return _whole(books.get(field))

    tokens = sum(count(f"tokens:{band}") for band in Priority)
    estimated, answered = _number(books.get("estimated"), 0.0), _number(books.get("answered"), 0.0)
    ratio = answered / estimated if estimated > 0 else 1.0
    return LaneDepth(
        queued={band: count(f"jobs:{band}") + count(f"returned:{band}") for band in Priority},
        running=running,
        dead_letters=dead,
        queued_tokens=tokens,
        tokens_per_second=rate,
        wait_seconds=tokens * ratio / rate if rate > 0 else None,
    )


def _dead_letter(lane: str, entry_id: str, entry: Mapping[str, str]) -> DeadLetter:
    return DeadLetter(
        entry_id=entry_id,
        job_id=f"{lane}:{entry['job']}" if entry.get("job") else "",
        tenant=entry.get("tenant", ""),
        reason=entry.get("reason", ""),
        attempts=_whole(entry.get("attempts")),
        committed_tokens=_whole(entry.get("tokens")),
    )


def _ended(lane: str, entry: Mapping[str, str]) -> EndedJob | None:
    try:
        return EndedJob(
            job_id=f"{lane}:{entry['job']}",
            tenant=entry["tenant"],
            priority=Priority(entry["band"]),
            reason=EndReason(entry["reason"]),
            completion_tokens=_whole(entry["tokens"]),
            created_ms=_whole(entry["created"]),
            ended_ms=_whole(entry["ended"]),
        )
    except (KeyError, ValueError):
        return None  # somebody else's entry


def _settlement(lane: str, entry_id: str, entry: Mapping[str, str]) -> Settlement:
    try:
        return Settlement(
            entry_id=entry_id,
            job_id=f"{lane}:{entry['job']}",
            tenant=check_tenant(entry["tenant"]),
            reserved=entry["reserved"],
            prompt_tokens=_whole(entry["prompt"]),
            completion_tokens=_whole(entry["completion"]),
            reason=EndReason(entry["reason"]),
        )
    except (KeyError, ValueError):
        # Somebody else's entry: to be removed like ours, or a crowd of them would be in the way.
        return Settlement(entry_id, "", "", "", prompt_tokens=0, completion_tokens=0, reason=EndReason.ERROR)


def _whole(text: str | bytes | None) -> int:
    """A number that we wrote; 0 for what anybody else put there."""
    return max(0, int(_number(text, 0.0)))


def _number(text: str | bytes | None, missing: float) -> float:
    try:
        value = float(text) if text is not None else missing
    except ValueError:
        return missing
    return value if abs(value) < 1e15 else missing
