"""Takes the steps of the model on a real queue, and asks whether it answers and looks alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol

from tests.model.functions import Outcome
from tests.model.states import ABSENT, END, FINISHED, Action, Call, Given, Job, World

from headway.queueing.claims import Emit, Fenced, Finish
from headway.queueing.errors import UnknownJobError
from headway.queueing.events import (
    START,
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobResult,
    StreamEvent,
    TokenEvent,
    Usage,
)
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.redis_queue import RedisQueue

MODEL: Final = "tiny"
BODY: Final = b'{"model":"tiny","prompt":"x"}'

AnyQueue = RedisQueue | MemoryQueue


class Names(Random):
    """Names claim calls as the model does: a repeat asks with the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 0

    def getrandbits(self, k: int, /) -> int:
        drawn = self.next
        self.next += 2**64  # MemoryQueue draws one for each job: then they only have to differ
        return drawn & ((1 << k) - 1)


class Fate(Protocol):
    """What the model's surroundings do to a server; each implementation has its own means."""

    async def lease_passes(self, key: str, alive: list[tuple[str, str]]) -> None: ...
    async def claim_is_forgotten(self, worker: str) -> None: ...
    async def replica_lags(self) -> None: ...
    async def failover(self) -> None: ...


class Driver:
    """One queue, and the real tokens of the model's owners."""

    def __init__(self, queue: AnyQueue, names: Names, fate: Fate, room: int) -> None:
        self._queue = queue
        self._names = names
        self._fate = fate
        self._room = room
        self._last_tokens: list[str] = []
        self._tokens: dict[int, str] = {}
        self._functions: dict[str, Callable[[Call], Awaitable[Outcome]]] = {
            "submit": self._submit,
            "claim": self._claim,
            "emit": self._emit,
            "finish": self._finish,
            "renew": self._renew,
            "release": self._release,
            "cancel": self._cancel,
            "reap": self._reap,
        }

    async def take(self, action: Action, after: World) -> None:
        """One step; raises AssertionError where the queue differs from the model."""
        if action.call is None:
            await self._happen(action, after)
        elif action.fate != "late" or action.name == "late call":
            await self._call(action, action.call)
        for at, job in enumerate(after.server.jobs):
            await self._compare(at, job)
        waiting = (await self._queue.depth(MODEL)).queued
        assert sum(waiting.values()) == sum(job.places for job in after.server.jobs)

    async def _call(self, action: Action, call: Call) -> None:
        found = await self._functions[call.function](call)
        expected = action.outcome
        if call.function == "claim":
            given = [each for each in expected if isinstance(each, Given)]
            assert found == tuple((each.job, each.attempts, each.tokens) for each in given)
            for each, token in zip(given, self._last_tokens, strict=True):
                self._tokens[each.token] = token
        else:
            assert found == expected

    async def _happen(self, action: Action, after: World) -> None:
        if action.name == "lease passes":
            (at,) = action.outcome
            jobs = enumerate(after.server.jobs)
            alive = [(_id(n), self._tokens[job.token]) for n, job in jobs if job.has_lease]
            await self._fate.lease_passes(f"k{at}", alive)
        elif action.name == "claim is forgotten":
            await self._fate.claim_is_forgotten(f"w{action.outcome[0]}")
        elif action.name == "replica lags":
            await self._fate.replica_lags()
        elif action.name == "failover":
            await self._fate.failover()
        elif action.name == "read":
            at, new = action.outcome
            assert isinstance(at, int)
            seen = after.seen[at][: -len(new)]  # type: ignore[arg-type] # the entries that were read
            cursor = Cursor(max(seen, default=0))
            events = await self._queue.read(_id(at), cursor, wait_seconds=0)
            assert tuple(map(_number, events)) == new

    # -- calls ----------------------------------------------------------------------------------------

    async def _submit(self, call: Call) -> Outcome:
        submitted = await self._queue.submit_body(MODEL, BODY, key=f"k{call.job}")
        return ("created" if submitted.created else "exists",)

    async def _claim(self, call: Call) -> Outcome:
        self._names.next = call.token
        claims = await self._queue.claim(MODEL, f"w{call.worker}", self._room)
        claims = tuple(sorted(claims, key=lambda claim: claim.job_id))
        self._last_tokens = [claim.token for claim in claims]
        return tuple((int(c.job_id[-1]), c.attempts, len(c.committed)) for c in claims)

    async def _emit(self, call: Call) -> Outcome:
        entries = tuple(map(_entry, call.tokens))
        emit = Emit(_id(call.job), self._tokens[call.token], entries, call.before)
        return _answers(await self._queue.emit([emit]))

    async def _finish(self, call: Call) -> Outcome:
        reason, usage = EndReason(call.reason), Usage(1, len(call.tokens))
        text = "".join(_entry(at).text for at in call.tokens)
        choice = ChoiceResult(text, call.tokens, reason)
        finish = Finish(
            _id(call.job),
            self._tokens[call.token],
            EndEvent(Cursor(len(call.tokens), 1), reason, (ChoiceEnd(reason),), usage),
            JobResult(_id(call.job), reason, (choice,), usage),
            tuple(map(_entry, call.tokens[call.before :])),
            entries_before=call.before,
        )
        return _answers(await self._queue.finish([finish]))

    async def _renew(self, call: Call) -> Outcome:
        return _answers(await self._queue.renew([(_id(call.job), self._tokens[call.token])]))

    async def _release(self, call: Call) -> Outcome:
        return _answers(await self._queue.release([(_id(call.job), self._tokens[call.token])]))

    async def _cancel(self, call: Call) -> Outcome:
        try:
            return (str(await self._queue.cancel(_id(call.job), "why")),)
        except UnknownJobError:
            return ("unknown",)

    async def _reap(self, call: Call) -> Outcome:
        del call
        reaped = await self._queue.reap(MODEL)
        return tuple(
            tuple(sorted(int(each[-1]) for each in ids)) for ids in (reaped.requeued, reaped.dead_lettered)
        )

    # -- looks ----------------------------------------------------------------------------------------

    async def _compare(self, at: int, job: Job) -> None:
        try:
            status = await self._queue.status(_id(at))
        except UnknownJobError:
            assert job.state == ABSENT
            return
        looks = (status.state, status.attempts, status.committed_tokens, status.reason or "")
        assert looks == (job.state, job.attempts, job.tokens, job.reason)
        assert (status.cancel_reason is not None) == job.is_cancelled
        events = await self._queue.read(_id(at), START, wait_seconds=0)
        assert tuple(map(_number, events)) == job.stream
        result = await self._queue.result(_id(at))
        assert (result is not None) == (job.state == FINISHED)
        assert result is None or result.choices[0].token_ids == job.answer


def _id(at: int) -> str:
    return f"{MODEL}:0:k{at}"


def _entry(at: int) -> TokenEvent:
    return TokenEvent(Cursor(at), 0, f"t{at} ", (at,))


def _number(event: StreamEvent) -> int:
    return END if isinstance(event, EndEvent) else event.token_ids[0]


def _answers(outcomes: tuple[Fenced, ...]) -> Outcome:
    return tuple(map(str, outcomes))
