"""A worker that follows a script instead of a model, over the same protocol as the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headway.queueing.claims import Claim, Emit, Fenced, Finish
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import (
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobError,
    JobResult,
    TokenEvent,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from headway.queueing.messages import Job, Priority, decode_job
from headway.queueing.protocol import Queue
from headway.queueing.worker_card import WorkerCard

MODEL = "tiny"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Script:
    """What to answer: one piece is one token. ``hold_at``: stand still before that piece, until cancelled."""

    pieces: tuple[str, ...] = ("Hel", "lo", ", wor", "ld", "!")
    pieces_of: Callable[[Job], tuple[str, ...]] | None = None
    reason: EndReason = EndReason.STOP
    error: JobError | None = None
    tail: str = ""
    hold_at: int | None = None
    prompt_tokens: int = 7
    cached_tokens: int = 0
    pace: Callable[[], Awaitable[None]] | None = None


def card(worker_id: str = "w1", **changes: object) -> WorkerCard:
    base = WorkerCard(
        worker_id=worker_id,
        model=MODEL,
        state="ready",
        pid=1,
        host="here",
        version="0",
        max_model_len=2048,
        max_running=8,
        running=0,
        waiting=0,
        kv_used_fraction=0.0,
        step_age_seconds=0.0,
        tokens_per_second=0.0,
        created_unix=1_700_000_000,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # the test names real fields


@dataclass(slots=True)
class ScriptedWorker:
    """Claims, emits and finishes; ``ended`` and ``seen`` tell a test what the queue saw."""

    queue: Queue
    script: Script = field(default_factory=Script)
    seen: list[Job] = field(default_factory=list[Job])
    ended: dict[str, EndReason] = field(default_factory=dict[str, EndReason])
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    _cancels: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    @property
    def claimed(self) -> tuple[str, ...]:
        """Ids of the jobs claimed so far."""
        return tuple(self._cancels)

    async def run(self) -> None:
        await self.queue.heartbeat(card(), ttl_seconds=60)
        self.is_up.set()
        async with asyncio.TaskGroup() as jobs:
            while True:
                for claim in await patiently(lambda: self.queue.claim(MODEL, "w1", 64)):
                    self._cancels.setdefault(claim.job_id, asyncio.Event())
                    jobs.create_task(self._answer(claim, self.script))
                wakeup = await patiently(
                    lambda: self.queue.wait(MODEL, "w1", for_work=Priority.BATCH, timeout_seconds=5)
                )
                for job_id in wakeup.cancelled:
                    self._cancels.setdefault(job_id, asyncio.Event()).set()

    async def _answer(self, claim: Claim, script: Script) -> None:
        job = decode_job(claim.body)
        self.seen.append(job)
        run = _Run(claim, job, script)
        for step in range(run.steps):
            if script.hold_at == step:
                await self._cancels[claim.job_id].wait()
            if script.pace is not None:
                await script.pace()
            entries = tuple(run.token(step, choice) for choice in range(job.sampling.n))
            (fenced,) = await self._emit(Emit(claim.job_id, claim.token, entries))
            if fenced is not Fenced.OK or self._cancels[claim.job_id].is_set():
                await self._finish(run, EndReason.CANCELLED)
                return
        if script.hold_at is not None and script.hold_at >= run.steps:
            await self._cancels[claim.job_id].wait()
            await self._finish(run, EndReason.CANCELLED)
            return
        await self._finish(run, run.reason)

    async def _emit(self, emit: Emit) -> tuple[Fenced, ...]:
        return await patiently(lambda: self.queue.emit([emit]))

    async def _finish(self, run: _Run, reason: EndReason) -> None:
        await patiently(lambda: self.queue.finish([run.finish(reason)]))
        self.ended[run.claim.job_id] = reason


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The call's answer, asked again for as long as the queue is away."""
    while True:
        try:
            return await call()
        except QueueUnavailableError:
            await asyncio.sleep(0.05)


def cut_at_stop(pieces: tuple[str, ...], stops: tuple[str, ...]) -> tuple[str, ...]:
    """The pieces up to the first stop string; the token that meets it keeps its place with what is left."""
    text = "".join(pieces)
    found = [text.find(stop) for stop in stops if stop in text]
    if not found:
        return pieces
    kept: list[str] = []
    for piece in pieces:
        before = sum(map(len, kept))
        kept.append(piece[: max(0, min(found) - before)])
        if before + len(piece) > min(found):
            break
    return tuple(kept)


@dataclass(slots=True)
class _Run:
    claim: Claim
    job: Job
    script: Script
    events: list[TokenEvent] = field(default_factory=list[TokenEvent])
    pieces: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    """Before a stop string cut it."""

    def __post_init__(self) -> None:
        self.whole = self.script.pieces_of(self.job) if self.script.pieces_of else self.script.pieces
        self.pieces = cut_at_stop(self.whole, self.job.sampling.stop)

    @property
    def steps(self) -> int:
        return min(len(self.pieces), self.job.sampling.max_tokens or len(self.pieces))

    @property
    def reason(self) -> EndReason:
        return EndReason.LENGTH if self.steps < len(self.pieces) else self.script.reason

    def token(self, step: int, choice: int) -> TokenEvent:
        text = self.pieces[step]
        ends = step == self.steps - 1 and self.script.hold_at is None and not self.script.tail
        event = TokenEvent(
            cursor=Cursor(len(self.events) + 1),
            choice=choice,
            text=text,
            token_ids=(100 + step,),
            logprobs=self._logprobs(step),
            finish_reason=self.reason if ends else None,
        )
        self.events.append(event)
        return event

    def _logprobs(self, step: int) -> tuple[TokenLogprob, ...]:
        wanted = self.job.sampling.logprobs
        if wanted is None:
            return ()
        text = self.whole[step]
        raw = text.encode()
        top = tuple(
            TopLogprob(200 + rank, f"{text}{rank}", raw, -0.5 - rank if rank < 4 else float("-inf"))
            for rank in range(wanted)
        )
        return (TokenLogprob(100 + step, text, raw, -0.25, top),)

    def finish(self, reason: EndReason) -> Finish:
        n = self.job.sampling.n
        tail = self.script.tail
        usage = Usage(self.script.prompt_tokens, len(self.events), self.script.cached_tokens)
        own = [[event for event in self.events if event.choice == choice] for choice in range(n)]
        choices = tuple(
            ChoiceResult(
                text="".join(event.text for event in events) + tail,
                token_ids=tuple(token for event in events for token in event.token_ids),
                finish_reason=reason,
                logprobs=tuple(logprob for event in events for logprob in event.logprobs),
            )
            for events in own
        )
        return Finish(
            job_id=self.claim.job_id,
            token=self.claim.token,
            end=EndEvent(
                Cursor(len(self.events), 1),
                reason,
                tuple(ChoiceEnd(reason, tail) for _ in range(n)),
                usage,
                self.script.error,
            ),
            result=JobResult(self.claim.job_id, reason, choices, usage, self.script.error),
        )
