"""A tenant over one of its limits is told which, for how long, and what helps."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig, until
from tests.gateway.scripted_worker import Script
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_completions import URL as COMPLETIONS_URL
from tests.gateway.test_tenants import JOB, error_of, limit

from headway.gateway.errors import QUOTA_CODES
from headway.gateway.quota_headers import duration
from headway.queueing.events import EndReason
from headway.queueing.quota_values import QuotaLimit
from headway.queueing.settling import settle


async def test_200_parallel_requests_against_50_a_minute_are_50_answers(rig: Rig) -> None:
    await limit(rig, rpm=50)
    async with rig.client() as http:
        asking = [http.post("/v1/jobs", json=JOB | {"tenant": "acme"}) for _ in range(200)]
        statuses = [response.status_code for response in await asyncio.gather(*asking)]
    assert (statuses.count(202), statuses.count(429)) == (50, 150)


@pytest.mark.parametrize("url", [CHAT_URL, COMPLETIONS_URL, "/v1/jobs"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_refusal_names_the_limit_the_wait_and_the_remedy(
    rig: Rig, http: httpx.AsyncClient, url: str, streams: bool
) -> None:
    if url == "/v1/jobs" and streams:
        return
    await limit(rig, rpm=2, tpm=10_000)
    body = (CHAT if url == CHAT_URL else JOB) | ({"stream": True} if streams else {})
    first = await http.post(url, json=body, headers={"X-Tenant": "acme"})
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    assert first.headers["x-ratelimit-limit-tokens"] == "10000"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 10_000
    await http.post(url, json=body, headers={"X-Tenant": "acme"})
    refused = await http.post(url, json=body, headers={"X-Tenant": "acme"})
    assert refused.status_code == 429
    error = error_of(refused)
    assert (error["code"], error["type"]) == ("requests_per_minute_exceeded", "requests")
    assert "2 requests per minute" in error["message"]
    assert "headway tenants set acme --rpm" in error["message"]
    assert refused.headers["x-headway-reason"] == error["code"]
    assert 0 < int(refused.headers["retry-after"]) <= 30
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-should-retry" not in refused.headers


@pytest.mark.parametrize(
    ("limits", "code", "kind"),
    [
        ({"tpm": 100}, "tokens_per_minute_exceeded", "tokens"),
        ({"concurrency": 1}, "concurrency_exceeded", "requests"),
        ({"queued_jobs": 1}, "queued_jobs_exceeded", "requests"),
        ({"queued_tokens": 100}, "queued_tokens_exceeded", "tokens"),
        ({"daily_tokens": 100}, "daily_tokens_exceeded", "tokens"),
    ],
)
async def test_each_limit_has_its_own_code(
    rig: Rig, http: httpx.AsyncClient, limits: dict[str, Any], code: str, kind: str
) -> None:
    await limit(rig, **limits)
    waiting = JOB | {"tenant": "acme", "sampling": {"max_tokens": 90}}
    rig.worker.script = Script(hold_at=0)
    if code.startswith("queued"):
        # A model that was served once and has no worker now: its jobs wait.
        await rig.queue.heartbeat(await _gone_card(), ttl_seconds=60)
        waiting |= {"model": "gone"}
    assert (await http.post("/v1/jobs", json=waiting)).status_code == 202
    refused = await http.post("/v1/jobs", json=waiting)
    assert refused.status_code == 429
    assert (error_of(refused)["code"], error_of(refused)["type"]) == (code, kind)


async def _gone_card() -> Any:
    from tests.gateway.scripted_worker import card

    return card("w-gone", model="gone")


def test_every_limit_has_a_code() -> None:
    assert set(QUOTA_CODES) == set(QuotaLimit)


async def test_a_wait_of_hours_is_not_retried_by_itself(rig: Rig, http: httpx.AsyncClient) -> None:
    await limit(rig, daily_tokens=10_000)
    await http.post("/v1/jobs", json=JOB | {"tenant": "acme"})
    await rig.until_ended()
    await settle(rig.queue, "tiny")
    await limit(rig, daily_tokens=5)
    refused = await http.post("/v1/jobs", json=JOB | {"tenant": "acme"})
    assert error_of(refused)["code"] == "daily_tokens_exceeded"
    # Within two minutes of midnight the wait is short, and says so.
    assert (int(refused.headers["retry-after"]) <= 120) == ("x-should-retry" not in refused.headers)


async def test_a_model_or_class_that_is_not_allowed_is_a_403(rig: Rig, http: httpx.AsyncClient) -> None:
    await limit(rig, models=["other"])
    refused = await http.post(CHAT_URL, json=CHAT | {"tenant": "acme"})
    assert refused.status_code == 403
    assert (error_of(refused)["code"], error_of(refused)["param"]) == ("not_allowed", "model")
    await limit(rig, models=None, classes=["batch"])
    refused = await http.post(CHAT_URL, json=CHAT | {"tenant": "acme"})
    assert (refused.status_code, error_of(refused)["param"]) == (403, "priority")
    allowed = await http.post(CHAT_URL, json=CHAT | {"tenant": "acme", "priority": "batch"})
    assert allowed.status_code == 200


async def test_no_room_stays_a_503_whoever_asks(rig: Rig) -> None:
    from headway.queueing.memory_queue import MemoryQueue
    from headway.queueing.settings import QueueSettings

    full = MemoryQueue(QueueSettings(max_queued_jobs=1))
    await full.heartbeat(await _gone_card(), ttl_seconds=60)
    await full.tenant_store.set("acme", {"rpm": 10, "concurrency": 5})
    async with rig.client(rig.app(full)) as http:
        body = {"model": "gone", "prompt": "a", "tenant": "acme"}
        assert (await http.post("/v1/jobs", json=body)).status_code == 202
        refused = await http.post("/v1/jobs", json=body)
    assert (refused.status_code, error_of(refused)["code"]) == (503, "queue_full")
    limits = (await full.tenant_store.book()).limits_of("acme")
    assert (await full.quota_store.usage("acme", limits)).in_flight == 1


async def test_the_longest_answer_is_the_tenants(rig: Rig, http: httpx.AsyncClient) -> None:
    await limit(rig, max_tokens=2, deadline_seconds=60.0)
    answer = (await http.post(CHAT_URL, json=CHAT | {"tenant": "acme"})).json()
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "length"
    (seen,) = rig.worker.seen
    assert (seen.sampling.max_tokens, seen.deadline_seconds) == (2, 60.0)


async def test_a_lost_reply_followed_by_a_repost_is_one_job_and_one_bill(rig: Rig) -> None:
    await limit(rig, rpm=1, tpm=10_000, concurrency=1)
    rig.worker.script = Script(hold_at=3)
    headers = {"Idempotency-Key": "order-7", "X-Tenant": "acme"}
    async with rig.serve() as url, httpx.AsyncClient(base_url=url) as http:
        lost = asyncio.create_task(http.post(CHAT_URL, json=CHAT, headers=headers))
        await rig.until_seen()
        lost.cancel()  # the answer never arrives
        await asyncio.gather(lost, return_exceptions=True)
        again = asyncio.create_task(http.post(CHAT_URL, json=CHAT, headers=headers))
        other = await http.post(CHAT_URL, json=CHAT | {"seed": 1}, headers=headers)
        assert other.status_code == 409
        await asyncio.sleep(0.05)
        (job_id,) = rig.worker.claimed
        await rig.queue.cancel(job_id, "the script holds until then")
        assert (await again).headers["x-headway-job-id"] == job_id
    assert rig.worker.ended == {job_id: EndReason.CANCELLED}
    await settle(rig.queue, "tiny")
    limits = (await rig.queue.tenant_store.book()).limits_of("acme")
    usage = await rig.queue.quota_store.usage("acme", limits)
    assert (usage.in_flight, usage.spent_tokens) == (0, 7 + 4)


async def test_one_request_after_another_never_meets_its_own_concurrency(rig: Rig) -> None:
    await limit(rig, concurrency=1)
    async with rig.client() as http:
        for _ in range(10):
            answered = await http.post(CHAT_URL, json=CHAT | {"tenant": "acme"})
            assert answered.status_code == 200


async def test_a_client_that_leaves_gives_its_place_back(rig: Rig) -> None:
    await limit(rig, concurrency=1)
    rig.worker.script = Script(hold_at=0)
    async with rig.serve() as url, httpx.AsyncClient(base_url=url) as http:
        asking = asyncio.create_task(http.post(CHAT_URL, json=CHAT | {"tenant": "acme"}))
        await rig.until_seen()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await rig.until_ended()
        rig.worker.script = Script()
        answered = await http.post(CHAT_URL, json=CHAT | {"tenant": "acme"})
    assert answered.status_code == 200
    await until(lambda: len(rig.worker.ended) == 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0201, "21ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (59.2, "1m0s"),
        (360, "6m0s"),
        (3661, "1h1m1s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
