"""The worker's promises to producers and consumers, with everything in one event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from headway.queueing.client import Client
from headway.queueing.events import EndReason
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, Message, Priority, SamplingParams
from headway.services.worker_core import EngineDiedError

if TYPE_CHECKING:
    from tests.services.worker.conftest import JobMaker, ReadAll, StartWorker, ToyText


async def test_a_submitted_job_streams_the_models_answer(
    start_worker: StartWorker, client: Client, job: JobMaker, read_all: ReadAll, toy_text: ToyText
) -> None:
    async with start_worker():
        submitted = await client.submit(job("hello", 30))
        tokens, end = await read_all(client, submitted.job_id)
        assert "".join(event.text for event in tokens) == toy_text("hello", 30)
        assert end.reason is EndReason.LENGTH
        assert end.usage.prompt_tokens == 6  # bytes and BOS
        assert end.usage.completion_tokens == 30
        result = await client.result(submitted.job_id)
        assert result.choices[0].text == toy_text("hello", 30)


async def test_choices_stream_side_by_side_and_draw_apart(
    start_worker: StartWorker, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    async with start_worker():
        drawn = job("two of them", 12, n=2, temperature=1.0, seed=7)
        first, again = [(await client.submit(drawn)).job_id for _ in range(2)]
        tokens, end = await read_all(client, first)
        texts = ["".join(e.text for e in tokens if e.choice == choice) for choice in range(2)]
        assert texts[0] != texts[1]
        assert [choice.finish_reason for choice in end.choices] == [EndReason.LENGTH] * 2
        assert end.usage.completion_tokens == 24
        result, repeated = await client.result(first), await client.result(again)
        assert [choice.text for choice in result.choices] == texts
        assert result.choices == repeated.choices, "the same seed draws the same answers"


async def test_logprobs_travel_with_their_tokens(
    start_worker: StartWorker, client: Client, job: JobMaker, read_all: ReadAll
) -> None:
    async with start_worker():
        submitted = await client.submit(job("why", 8, logprobs=2))
        tokens, _ = await read_all(client, submitted.job_id)
        for event in tokens:
            assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
            assert all(len(entry.top) == 2 and entry.raw.decode() == entry.text for entry in event.logprobs)
        result = await client.result(submitted.job_id)
        assert result.choices[0].logprobs == tuple(entry for event in tokens for entry in event.logprobs)


async def test_a_chat_and_token_ids_are_prompts_too(start_worker: StartWorker, client: Client) -> None:
    short = SamplingParams(max_tokens=5)
    chat = Job(model="scripted", messages=(Message(role="user", content="hi"),), sampling=short)
    ids = Job(model="scripted", prompt_token_ids=(104, 105), sampling=short)
    async with start_worker():
        assert (await client.run(chat)).usage.prompt_tokens > 2
        assert (await client.run(ids)).usage.prompt_tokens == 2


async def test_without_max_tokens_the_answer_may_fill_the_context(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    async with start_worker(model="scripted:ms_per_step=0,max_model_len=64"):
        result = await client.run(job("12345", None))
        assert result.usage.prompt_tokens + result.usage.completion_tokens == 64


@pytest.mark.parametrize(
    ("posted", "code", "param"),
    [
        ({"prompt": "x" * 64}, "context_length_exceeded", "prompt"),
        ({"prompt": "x", "sampling": {"max_tokens": 63}}, "context_length_exceeded", "prompt"),
        ({"prompt_token_ids": [1, 9999]}, "invalid_token_id", "prompt_token_ids"),
        ({"prompt": "x", "sampling": {"min_tokens": 63}}, "invalid_job", "sampling.min_tokens"),
        ({"prompt": "x", "sampling": {"logit_bias": {"300": 1}}}, "invalid_token_id", "sampling.logit_bias"),
    ],
)
async def test_a_job_the_model_cannot_serve_is_answered_with_its_reason(
    start_worker: StartWorker,
    queue: MemoryQueue,
    client: Client,
    posted: dict[str, Any],
    code: str,
    param: str,
) -> None:
    async with start_worker(model="scripted:ms_per_step=0,max_model_len=64"):
        result = await client.run(model="scripted", **posted)
        assert result.reason is EndReason.ERROR
        assert result.error is not None
        assert (result.error.code, result.error.param) == (code, param)
        assert result.error.is_callers_fault
        assert await queue.dead_letters("scripted") == ()
        assert (await client.run(model="scripted", prompt="next", sampling={"max_tokens": 3})).error is None


async def test_a_body_that_breaks_the_contract_ends_and_is_recorded(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, read_all: ReadAll
) -> None:
    async with start_worker():
        body = b'{"model": "scripted", "prompt": "x", "sampling": {"top_p": 7}}'
        submitted = await queue.submit_body("scripted", body)
        _, end = await read_all(client, submitted.job_id)
        assert end.error is not None
        assert (end.error.code, end.error.param) == ("invalid_job", "sampling.top_p")
        (letter,) = await queue.dead_letters("scripted")
        assert (letter.job_id, letter.reason) == (submitted.job_id, "invalid_job")


async def test_a_request_that_fails_ends_alone(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker, toy_text: ToyText
) -> None:
    async with start_worker(model="scripted:ms_per_step=1,fail_on=!"):
        others = [(await client.submit(job(f"fine {i}", 40))).job_id for i in range(3)]
        failed = await client.run(job("not so fine!"))
        assert failed.error is not None
        assert failed.error.code == "engine_error"
        assert [letter.job_id for letter in await queue.dead_letters("scripted")] == [failed.job_id]
        for i, job_id in enumerate(others):
            assert (await client.result(job_id)).choices[0].text == toy_text(f"fine {i}", 40)


async def test_a_broken_device_ends_the_worker(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    async with start_worker(model="scripted:ms_per_step=1,break_on=!") as running:
        await client.submit(job("bad!"))
        with pytest.raises(ExceptionGroup) as died:
            await running.task
        assert died.group_contains(EngineDiedError)
        assert running.worker.health() == (False, "the engine died")


async def test_an_idle_worker_recounts_its_books_and_does_not_go_on_with_wrong_ones(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    async with start_worker() as running:
        await client.run(job("hello", 5))
        running.host.engine._scheduler._memory.ledger._free.pop()
        with pytest.raises(ExceptionGroup) as died:
            await asyncio.wait_for(running.task, 10)
        assert died.group_contains(EngineDiedError)


async def test_a_worker_claims_only_what_it_can_use_soon(
    start_worker: StartWorker, queue: MemoryQueue, client: Client, job: JobMaker
) -> None:
    async with start_worker(max_sequences=2):
        submitted = [(await client.submit(job(f"job {i}", 30))).job_id for i in range(9)]
        last = asyncio.create_task(client.result(submitted[-1]))
        most = 0
        while not last.done():
            most = max(most, (await queue.depth("scripted")).running)
            await asyncio.sleep(0.002)
        assert most == 3, "two slots, and one job ahead"


async def test_choices_count_as_sequences(start_worker: StartWorker, client: Client, job: JobMaker) -> None:
    async with start_worker(max_sequences=4) as running:
        first = await client.submit(job("wide", 200, n=5))
        while running.worker.card().running < 4:
            await asyncio.sleep(0.002)
        later = await client.submit(job("late", 3))
        await asyncio.sleep(0.05)
        assert (await client.status(later.job_id)).started_ms == 0
        assert (await client.result(first.job_id)).usage.completion_tokens == 1000
        assert (await client.result(later.job_id)).error is None


async def test_the_place_of_a_choice_that_has_ended_is_given_away_at_once(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    async with start_worker(model="scripted:ms_per_step=10,ends=1", max_sequences=4) as running:
        # Drawn with this seed, they end after 11, 19, 33, 41, 59 and 94 tokens.
        wide = await client.submit(job("wide", 400, n=6, temperature=1.0, seed=4))
        while running.worker.card().running < 4:
            await asyncio.sleep(0.002)
        later = await client.submit(job("late", 3))
        assert (await client.result(later.job_id)).error is None
        assert (await client.status(wide.job_id)).finished_ms == 0


async def test_a_worker_without_kv_room_leaves_jobs_to_others(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    # The first job reserves the whole pool; the second waits in the engine; the third stays in the queue.
    async with start_worker(model="scripted:ms_per_step=2,blocks=8", max_sequences=8) as running:
        large = [(await client.submit(job("large", 100))).job_id for _ in range(2)]
        while running.worker.card().waiting < 1:
            await asyncio.sleep(0.002)
        large.append((await client.submit(job("large", 100))).job_id)
        await asyncio.sleep(0.02)
        assert (await client.status(large[2])).started_ms == 0
        assert [(await client.result(job_id)).reason for job_id in large] == [EndReason.LENGTH] * 3


async def test_better_bands_go_first(start_worker: StartWorker, client: Client) -> None:
    short = SamplingParams(max_tokens=3)
    batch = await client.submit(Job(model="scripted", prompt="b", sampling=short, priority=Priority.BATCH))
    urgent = await client.submit(
        Job(model="scripted", prompt="i", sampling=short, priority=Priority.INTERACTIVE)
    )
    async with start_worker(max_sequences=1, policy="priority"):
        await client.result(batch.job_id)
        assert (await client.status(urgent.job_id)).finished_ms <= (
            await client.status(batch.job_id)
        ).finished_ms


async def test_the_numbers_add_up(start_worker: StartWorker, client: Client, job: JobMaker) -> None:
    async with start_worker() as running:
        for i in range(3):
            await client.run(job(f"count {i}", 10))
        await client.run(job("x" * 5000))
        scrape = running.worker.render_metrics().decode()
        labels = 'model="scripted"'
        assert f'headway_requests_total{{{labels},reason="length"}} 3.0' in scrape
        assert f'headway_requests_total{{{labels},reason="error"}} 1.0' in scrape
        assert f'headway_tokens_total{{kind="completion",{labels}}} 30.0' in scrape
        assert f"headway_jobs_claimed_total{{{labels}}} 4.0" in scrape
        assert f"headway_ttft_seconds_count{{{labels}}} 3.0" in scrape
        assert f"headway_e2e_seconds_count{{{labels}}} 4.0" in scrape
        assert f"headway_jobs_in_flight{{{labels}}} 0.0" in scrape
        assert f"headway_kv_blocks_used{{{labels}}} 0.0" in scrape
        assert f"headway_scheduler_preemptions_swap{{{labels}}} 0.0" in scrape
        assert f"headway_scheduler_step_prediction_error{{{labels}}}" in scrape
        prompts = sum(1 + len(f"count {i}") for i in range(3))  # each begins with a token of its own
        assert f"headway_scheduler_prefix_lookup_tokens{{{labels}}} {float(prompts)}" in scrape
