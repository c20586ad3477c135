"""Answers that change hands, are cancelled, or meet a queue that is away: exact all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeVar

import pytest

from headway.engine.errors import RequestError
from headway.engine.scripted import ByteTokenizer
from headway.engine.values import Chunk, StepPlan
from headway.queueing.claims import Claim, Emit, Fenced, Finish
from headway.queueing.client import Client
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import Cursor, EndReason, JobState, TokenEvent
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, Priority
from headway.queueing.settings import QueueSettings
from headway.services.claim_table import UNEXPLAINED

if TYPE_CHECKING:
    from tests.services.worker.conftest import JobMaker, ReadAll, StartWorker, ToyText

T = TypeVar("T")


class FlakyQueue(MemoryQueue):
    """Goes away at random, before a call or after it was done: its caller cannot tell which."""

    def __init__(self, rng: Random, failing: float) -> None:
        super().__init__(QueueSettings(lease_seconds=5.0))
        self._draw = rng
        self.failing = failing

    async def _flaky(self, call: Callable[[], Awaitable[T]]) -> T:
        fate = self._draw.random()
        await asyncio.sleep(0)
        if fate < self.failing / 2:
            raise QueueUnavailableError("away before")
        done = await call()
        if fate < self.failing:
            raise QueueUnavailableError("away after")
        return done

    async def claim(
        self, model: str, worker_id: str, room: int, *, least: Priority = Priority.BATCH
    ) -> tuple[Claim, ...]:
        if (
            self._draw.random() < self.failing / 2
        ):  # only before: a lost reply costs a lease, tested elsewhere
            raise QueueUnavailableError("away before")
        return await super().claim(model, worker_id, room, least=least)

    async def emit(self, emits: Sequence[Emit]) -> tuple[Fenced, ...]:
        return await self._flaky(lambda: super(FlakyQueue, self).emit(emits))

    async def finish(self, finishes: Sequence[Finish]) -> tuple[Fenced, ...]:
        return await self._flaky(lambda: super(FlakyQueue, self).finish(finishes))

    async def release(self, claims: Sequence[tuple[str, str]]) -> tuple[Fenced, ...]:
        return await self._flaky(lambda: super(FlakyQueue, self).release(claims))


async def committed(client: Client, job_id: str, tokens: int) -> None:
    while (await client.status(job_id)).committed_tokens < tokens:
        await asyncio.sleep(0.002)


async def test_the_next_worker_continues_the_answer_of_one_that_vanished(
    start_worker: StartWorker,
    queue: MemoryQueue,
    client: Client,
    job: JobMaker,
    read_all: ReadAll,
    toy_text: ToyText,
) -> None:
    submitted = await client.submit(job("go on", 60))
    async with start_worker(worker_id="w-1") as first:
        await committed(client, submitted.job_id, 10)
        await first.vanish()
    assert await queue.expire_worker("scripted", "w-1") == 1
    async with start_worker(worker_id="w-2"):
        tokens, end = await read_all(client, submitted.job_id)
    assert "".join(event.text for event in tokens) == toy_text("go on", 60)
    assert end.usage.completion_tokens == 60
    assert (await client.status(submitted.job_id)).attempts == 1


async def test_resumed_draws_choices_stops_and_logprobs_equal_a_calm_run(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    drawn = job(
        "many things", 50, n=3, temperature=1.0, seed=11, logprobs=1, stop=["qq", "zx"], stop_token_ids=[101]
    )
    async with start_worker(worker_id="calm"):
        calm = await client.run(drawn)
    submitted = await client.submit(drawn)
    for life in range(4):
        async with start_worker(worker_id=f"w-{life}") as worker:
            already = (await client.status(submitted.job_id)).committed_tokens
            await committed(client, submitted.job_id, min(already + 9, calm.usage.completion_tokens))
            await worker.vanish()
        await queue.expire_worker("scripted", f"w-{life}")
        if life >= 2:  # given up after three crashes: enough for this test
            break
        assert (await client.status(submitted.job_id)).state in {JobState.QUEUED, JobState.FINISHED}
    tokens, _ = await read_all(client, submitted.job_id)
    for index, choice in enumerate(calm.choices):
        mine = [event for event in tokens if event.choice == index]
        ids = tuple(token for event in mine for token in event.token_ids)
        assert ids == choice.token_ids[: len(ids)]
        assert tuple(entry for event in mine for entry in event.logprobs) == choice.logprobs[: len(ids)]
        assert choice.text.startswith("".join(event.text for event in mine))


@pytest.mark.parametrize("seed", range(6))
async def test_an_unreliable_queue_changes_no_answer(
    start_worker: StartWorker, job: JobMaker, read_all: ReadAll, toy_text: ToyText, seed: int
) -> None:
    queue = FlakyQueue(Random(seed), failing=0.4)
    client = Client(queue)
    async with start_worker(on=queue, lease_seconds=5.0, unacknowledged_tokens=16):
        submitted = [(await client.submit(job(f"{seed}-{i}", 25))).job_id for i in range(4)]
        for i, job_id in enumerate(submitted):
            tokens, _ = await read_all(client, job_id)
            assert "".join(event.text for event in tokens) == toy_text(f"{seed}-{i}", 25)
            assert (await client.result(job_id)).choices[0].text == toy_text(f"{seed}-{i}", 25)
        queue.failing = 0.0


async def test_a_job_that_runs_ahead_of_the_queue_is_held_and_goes_on_after(
    start_worker: StartWorker, job: JobMaker, read_all: ReadAll, toy_text: ToyText
) -> None:
    queue = FlakyQueue(Random(0), failing=0.0)
    client = Client(queue)
    async with start_worker(on=queue, unacknowledged_tokens=20, lease_seconds=5.0) as running:
        submitted = await client.submit(job("wait for me", 200))
        await committed(client, submitted.job_id, 5)
        queue.failing = 2.0  # always away
        while running.host.engine.load.held == 0:
            await asyncio.sleep(0.002)
        generated = running.host.engine.load.steps
        await asyncio.sleep(0.1)
        assert running.host.engine.load.steps == generated, "nothing is computed that nobody can be told"
        queue.failing = 0.0
        tokens, _ = await read_all(client, submitted.job_id)
    assert "".join(event.text for event in tokens) == toy_text("wait for me", 200)


async def test_a_worker_that_lost_its_claim_falls_silent(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    async with start_worker(worker_id="w-1") as running:
        submitted = await client.submit(job("mine", 300))
        await committed(client, submitted.job_id, 5)
        # No other task runs between these two, so this worker cannot take the job again first.
        await queue.expire_worker("scripted", "w-1")
        (claim,) = await queue.claim("scripted", "other", 1)
        while running.worker.card().running:
            await asyncio.sleep(0.002)
        before = (await client.status(submitted.job_id)).committed_tokens
        assert before == sum(len(event.token_ids) for event in claim.committed)
        assert 'headway_claims_lost_total{model="scripted"} 1.0' in running.worker.render_metrics().decode()


async def test_a_drain_hands_back_what_it_cannot_finish(
    start_worker: StartWorker,
    queue: MemoryQueue,
    client: Client,
    job: JobMaker,
    read_all: ReadAll,
    toy_text: ToyText,
) -> None:
    async with start_worker(worker_id="w-1", drain_seconds=1.0) as running:
        submitted = await client.submit(job("long", 3000))
        queued = await client.submit(job("waits", 3000))
        await committed(client, submitted.job_id, 10)
        await running.drained()
        depth = await queue.depth("scripted")
        assert (depth.running, sum(depth.queued.values())) == (0, 2)
        assert (await client.status(submitted.job_id)).attempts == 0
    await client.cancel(queued.job_id, "enough")
    async with start_worker(worker_id="w-2", model="scripted:ms_per_step=0"):
        tokens, _ = await read_all(client, submitted.job_id)
    assert "".join(event.text for event in tokens) == toy_text("long", 3000)


async def test_a_drain_finishes_what_is_nearly_done(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    async with start_worker(model="scripted:ms_per_step=5", drain_seconds=10.0) as running:
        submitted = await client.submit(job("short", 40))
        await committed(client, submitted.job_id, 5)
        await running.drained()
        status = await client.status(submitted.job_id)
        assert (status.state, status.reason) == (JobState.FINISHED, EndReason.LENGTH)


async def test_a_job_of_which_a_choice_failed_is_ended_by_the_drain_and_keeps_its_reason(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    """Handed back, it would go on elsewhere and end as an error of which nobody knows why."""

    def fail_the_first_choice(chunk: Chunk) -> Exception | None:
        is_late = chunk.key.request_id.endswith("#0") and chunk.start >= 12
        return RequestError("drill: this choice fails") if is_late else None

    async with start_worker(worker_id="w-1", drain_seconds=0.0) as running:
        running.host.engine._runner._fails = fail_the_first_choice  # type: ignore[attr-defined]  # the toy's
        submitted = await client.submit(job("two", 3000, n=2))
        while not (running.worker.card().running == 1 and running.host.engine.load.steps > 12):
            await asyncio.sleep(0.002)
        await running.drained()
        tokens, end = await read_all(client, submitted.job_id)
    assert end.reason is EndReason.ERROR
    assert end.error is not None
    assert (end.error.code, end.error.message) == ("engine_error", "drill: this choice fails")
    assert {event.choice for event in tokens} == {0, 1}, "what was said is kept"
    assert [letter.reason for letter in await queue.dead_letters("scripted")] == ["engine_error"]
    assert (await queue.depth("scripted")).running == 0


async def test_a_cancelled_job_ends_in_whatever_phase_it_is(
    start_worker: StartWorker, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    async with start_worker(max_sequences=1) as running:
        running_job = await client.submit(job("runs", 3000))
        await committed(client, running_job.job_id, 5)
        in_engine = await client.submit(job("is ahead", 3000))
        while running.worker.card().waiting < 1:
            await asyncio.sleep(0.002)
        in_queue = await client.submit(job("queued", 3000))
        for submitted in (in_queue, in_engine, running_job):
            await client.cancel(submitted.job_id, "not needed")
            _, end = await read_all(client, submitted.job_id)
            assert end.reason is EndReason.CANCELLED
        while running.worker.card().kv_used_fraction:
            await asyncio.sleep(0.002)


async def test_a_job_cancelled_while_it_is_prepared_never_reaches_the_engine(
    start_worker: StartWorker,
    client: Client,
    job: JobMaker,
    read_all: ReadAll,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go_on = threading.Event()

    def slow(self: ByteTokenizer, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        may_go_on.wait(10)
        return (1,)

    monkeypatch.setattr(ByteTokenizer, "encode", slow)
    async with start_worker() as running:
        submitted = await client.submit(job("never mind"))
        while not (await client.status(submitted.job_id)).started_ms:
            await asyncio.sleep(0.002)
        await client.cancel(submitted.job_id, "never mind")
        await asyncio.sleep(0.02)  # the word reaches the worker
        may_go_on.set()
        _, end = await read_all(client, submitted.job_id)
        assert end.reason is EndReason.CANCELLED
        assert running.host.engine.load.steps == 0


async def test_a_deadline_ends_a_running_job_with_what_it_has(
    start_worker: StartWorker, client: Client, job: JobMaker, read_all: ReadAll, toy_text: ToyText
) -> None:
    async with start_worker():
        late = Job.model_validate({**job("late", 3000).model_dump(), "deadline_seconds": 0.15})
        submitted = await client.submit(late)
        tokens, end = await read_all(client, submitted.job_id)
        text = "".join(event.text for event in tokens)
        assert end.reason is EndReason.DEADLINE
        assert 0 < len(text) < 3000
        assert toy_text("late", 3000).startswith(text)


async def test_a_job_that_took_workers_with_it_runs_alone(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker
) -> None:
    suspect = await client.submit(job("suspect", 20))
    for life in range(2):
        await queue.claim("scripted", f"dead-{life}", 1)
        await queue.expire_worker("scripted", f"dead-{life}")
    others = [(await client.submit(job(f"other {i}", 20))).job_id for i in range(6)]
    async with start_worker() as running:
        plans: list[StepPlan] = []
        running.host.engine._runner.steps = plans  # type: ignore[attr-defined]  # the toy's record
        for job_id in (suspect.job_id, *others):
            assert (await client.result(job_id)).reason is EndReason.LENGTH
        batches = [{chunk.key.request_id for chunk in plan.chunks} for plan in plans]
        assert all(len(batch) == 1 for batch in batches if f"{suspect.job_id}#0" in batch)
        assert any(len(batch) > 1 for batch in batches), "the others did share steps"


async def test_an_answer_that_only_lacks_its_last_word_is_ended_and_not_run(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    submitted = await client.submit(job("all said", 2))
    (claim,) = await queue.claim("scripted", "dead", 1)
    said = TokenEvent(Cursor(2), 0, "ab", (97, 98), finish_reason=EndReason.LENGTH)
    await queue.emit([Emit(claim.job_id, claim.token, (said,))])
    await queue.expire_worker("scripted", "dead")
    async with start_worker() as running:
        tokens, end = await read_all(client, submitted.job_id)
        assert tokens == [said]
        assert (end.reason, end.usage.completion_tokens) == (EndReason.LENGTH, 2)
        assert running.host.engine.load.steps == 0


async def test_a_job_of_which_a_choice_failed_ends_with_an_error_even_if_its_reason_was_lost(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    submitted = await client.submit(job("two", 3000, n=2))
    (claim,) = await queue.claim("scripted", "dead", 1)
    said = TokenEvent(Cursor(2), 1, "ab", (97, 98), finish_reason=EndReason.ERROR)
    await queue.emit([Emit(claim.job_id, claim.token, (said,))])
    await queue.expire_worker("scripted", "dead")
    async with start_worker():
        _, end = await read_all(client, submitted.job_id)
        assert (end.reason, end.error) == (EndReason.ERROR, UNEXPLAINED)
        assert [letter.reason for letter in await queue.dead_letters("scripted")] == ["engine_error"]
