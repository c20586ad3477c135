"""The same gateway over a real server: tokens cross processes' borders, and connections are shared."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig, over, post_job
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import chat_text, events, parse
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL

from headway.gateway import chat
from headway.gateway.translate import chat_job
from headway.queueing.events import EndReason
from headway.queueing.messages import Job
from headway.queueing.redis_queue import RedisQueue

READERS = 40


@pytest.fixture
async def redis_rig(each_redis_url: str) -> AsyncGenerator[Rig]:
    queue = RedisQueue(each_redis_url)
    await queue.check_server()
    async with over(queue, Script()) as rig:
        yield rig
    await queue.close()


async def test_whole_streamed_and_resumed_answers_agree(redis_rig: Rig) -> None:
    async with redis_rig.client() as http:
        whole = (await http.post(CHAT_URL, json=CHAT | {"n": 2, "logprobs": True, "top_logprobs": 1})).json()
        assert [choice["message"]["content"] for choice in whole["choices"]] == ["Hello, world!"] * 2
        streamed = parse((await http.post(CHAT_URL, json=CHAT | {"stream": True})).text)
        assert chat_text([event.json for event in streamed[:-1]]) == "Hello, world!"
        job_id = await post_job(redis_rig)
        every = parse((await http.get(f"/v1/jobs/{job_id}/stream")).text)
        for position, event in enumerate(every[:-1]):
            rest = await http.get(f"/v1/jobs/{job_id}/stream", headers={"Last-Event-ID": event.id or ""})
            assert parse(rest.text) == every[position + 1 :]
        last = await http.get(f"/v1/jobs/{job_id}/stream", headers={"Last-Event-ID": every[-1].id or ""})
        assert last.status_code == 204


async def test_a_stream_under_way_holds_nothing_of_its_prompt(
    redis_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt may be a megabyte, and thousands of answers may run."""
    made: list[weakref.ref[Job]] = []

    def remembered(*asked: Any, **terms: Any) -> Job:
        job = chat_job(*asked, **terms)
        made.append(weakref.ref(job))
        return job

    monkeypatch.setattr(chat, "chat_job", remembered)
    redis_rig.worker.script = Script(hold_at=3)
    async with (
        redis_rig.serve() as url,
        httpx.AsyncClient(base_url=url) as http,
        http.stream("POST", CHAT_URL, json=CHAT | {"stream": True}) as response,
    ):
        arriving = events(response)
        assert (await anext(arriving)).json["choices"]
        gc.collect()
        assert [job() for job in made] == [None]


@pytest.mark.parametrize("hold_at", [0, 3])
@pytest.mark.parametrize("streams", [False, True])
async def test_leaving_cancels_the_job(redis_rig: Rig, hold_at: int, streams: bool) -> None:
    redis_rig.worker.script = Script(hold_at=hold_at)
    async with redis_rig.serve() as url, httpx.AsyncClient(base_url=url) as http:
        asking = asyncio.create_task(http.post(CHAT_URL, json=CHAT | {"stream": streams}))
        await redis_rig.until_seen()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await redis_rig.until_ended()
    assert list(redis_rig.worker.ended.values()) == [EndReason.CANCELLED]


async def test_readers_that_leave_at_random_never_mix_up_the_others(redis_rig: Rig) -> None:
    """A read that was cut off must not hand its reply to the next user of its connection."""
    rng = random.Random(7)

    def own_words(job: Job) -> tuple[str, ...]:
        return (f"<{job.tenant}>",) * 30

    async def pace() -> None:
        await asyncio.sleep(rng.random() / 100)

    async def read(http: httpx.AsyncClient, tenant: str, leave_after: int | None) -> str:
        text = ""
        body = CHAT | {"stream": True, "tenant": tenant}
        async with http.stream("POST", CHAT_URL, json=body) as response:
            async for event in events(response):
                if event.data == "[DONE]":
                    break
                text += event.json["choices"][0]["delta"].get("content", "")
                if leave_after is not None and len(text) >= leave_after:
                    break
        return text

    redis_rig.worker.script = Script(pieces_of=own_words, pace=pace)
    limits = httpx.Limits(max_connections=READERS)
    async with redis_rig.serve() as url, httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as http:
        leaving = [rng.randrange(100) if index % 2 else None for index in range(READERS)]
        texts = await asyncio.gather(*(read(http, f"t{i}", after) for i, after in enumerate(leaving)))
    for index, (text, after) in enumerate(zip(texts, leaving, strict=True)):
        whole = f"<t{index}>" * 30
        assert text == whole if after is None else whole.startswith(text)
