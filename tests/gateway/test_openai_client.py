"""The official client against a real server: what most users will run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script

from headway.queueing.events import EndReason, JobError

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(rig: Rig) -> AsyncGenerator[AsyncOpenAI]:
    async with rig.serve() as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_chat(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=HI, n=2, stop=["!"], seed=1)
    assert [choice.message.content for choice in answer.choices] == ["Hello, world"] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    assert answer._request_id is not None


async def test_chat_stream_with_usage_and_logprobs(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny",
        messages=HI,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == "Hello, world!"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12
    logprobs = [chunk.choices[0].logprobs for chunk in chunks[:-1] if chunk.choices[0].logprobs]
    first = (logprobs[0].content or [])[0]
    assert (first.token, first.bytes, len(first.top_logprobs)) == ("Hel", [72, 101, 108], 2)


async def test_the_clients_own_stream_helper_assembles_the_answer(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="tiny", messages=HI, n=2) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    assert [choice.message.content for choice in answer.choices] == ["Hello, world!"] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]


async def test_completions(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=["a", "b"], n=2, logprobs=1, max_tokens=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(i, "Hello") for i in range(4)]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.choices[3].logprobs is not None
    assert answer.choices[3].logprobs.tokens == ["Hel", "lo"]


async def test_completions_stream(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="tiny", prompt="a", stream=True, echo=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "aHello, world!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 7


async def test_our_own_fields_travel_as_extra_body(client: AsyncOpenAI, rig: Rig) -> None:
    await client.chat.completions.create(
        model="tiny",
        messages=HI,
        extra_body={"top_k": 5, "min_p": 0.1, "tenant": "acme", "priority": "batch"},
        extra_headers={"X-Deadline": "30"},
    )
    (job,) = rig.worker.seen
    assert (job.sampling.top_k, job.tenant, job.priority, job.deadline_seconds) == (5, "acme", "batch", 30)


async def test_models(client: AsyncOpenAI) -> None:
    models = [model.id async for model in client.models.list()]
    assert models == ["tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "headway"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_errors_have_the_clients_types(client: AsyncOpenAI, rig: Rig) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model="tiny", messages=HI, temperature=9)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-5", messages=HI)
    assert missing.value.code == "model_not_found"
    error = JobError("context_length_exceeded", "too long", "messages")
    rig.worker.script = Script(pieces=(), reason=EndReason.ERROR, error=error)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            await client.chat.completions.create(model="tiny", messages=HI, stream=stream)
        assert long.value.code == "context_length_exceeded"


async def test_trouble_in_mid_stream_is_an_api_error(client: AsyncOpenAI, rig: Rig) -> None:
    rig.worker.script = Script(reason=EndReason.ERROR, error=JobError("engine_failed", "out of memory"))
    stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
    text = ""

    async def read() -> None:
        nonlocal text
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""

    with pytest.raises(openai.APIError, match="out of memory") as failed:
        await read()
    assert text == "Hello, world!"
    assert failed.value.code == "engine_failed"


async def test_a_client_timeout_cancels_the_job(client: AsyncOpenAI, rig: Rig) -> None:
    rig.worker.script = Script(hold_at=2)
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.2).chat.completions.create(model="tiny", messages=HI)
    await rig.until_ended()
    assert list(rig.worker.ended.values()) == [EndReason.CANCELLED]


async def test_closing_a_stream_cancels_the_job(client: AsyncOpenAI, rig: Rig) -> None:
    rig.worker.script = Script(hold_at=2)
    stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content == "lo":
            break
    await stream.close()
    await rig.until_ended()
    assert list(rig.worker.ended.values()) == [EndReason.CANCELLED]


async def test_a_passed_deadline_is_not_retried(client: AsyncOpenAI, rig: Rig) -> None:
    rig.worker.script = Script(pieces=(), reason=EndReason.DEADLINE)
    with pytest.raises(openai.InternalServerError) as late:
        await client.with_options(max_retries=2).chat.completions.create(model="tiny", messages=HI)
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
    assert len(rig.worker.seen) == 1


async def test_the_synchronous_client_works_too(client: AsyncOpenAI) -> None:
    def ask() -> tuple[Any, str]:
        with OpenAI(base_url=str(client.base_url), api_key="none", max_retries=0) as sync:
            whole = sync.chat.completions.create(model="tiny", messages=HI)
            stream = sync.completions.create(model="tiny", prompt="a", stream=True)
            return whole.choices[0].message.content, "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(ask) == ("Hello, world!", "Hello, world!")
