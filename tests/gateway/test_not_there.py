"""What is not there, not there yet, or has no room: told in the same shape, and when to come back."""

from __future__ import annotations

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_refusals import error_of

from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.settings import QueueSettings


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/models", 405),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/jobs/nonsense", 404),
        ("GET", "/v1/jobs/tiny:0:01JDZ/stream", 404),
        ("GET", "/v1/jobs/tiny:0:01JDZ/result", 404),
        ("POST", "/v1/jobs/tiny:0:01JDZ/cancel", 404),
        ("DELETE", "/v1/jobs/tiny:0:01JDZ", 404),
    ],
)
async def test_what_is_not_there_says_so_in_the_same_shape(
    http: httpx.AsyncClient, method: str, url: str, status: int
) -> None:
    response = await http.request(method, url)
    assert response.status_code == status
    error_of(response)
    if status == 405:
        assert response.headers["allow"]


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/jobs"])
async def test_an_unknown_model_is_told_what_is_served(http: httpx.AsyncClient, url: str) -> None:
    prompt = {"messages": CHAT["messages"]} if url.endswith("chat/completions") else {"prompt": "a"}
    response = await http.post(url, json={"model": "gpt-5"} | prompt)
    assert response.status_code == 404
    error = error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "tiny" in error["message"]


async def test_before_the_first_worker_a_client_is_asked_to_come_back() -> None:
    queue = MemoryQueue()
    rig = Rig(queue, worker=None)  # type: ignore[arg-type]  # the test needs none
    async with rig.client() as http:
        response = await http.post(CHAT_URL, json=CHAT)
    assert response.status_code == 503
    assert error_of(response)["code"] == "no_worker"
    assert response.headers["retry-after"] == "1"
    assert response.headers["x-headway-reason"] == "no_worker"


async def test_a_model_whose_workers_are_away_is_accepted(rig: Rig) -> None:
    await rig.queue.farewell("w1")
    async with rig.client() as http:
        assert (await http.post("/v1/jobs", json={"model": "tiny", "prompt": "a"})).status_code == 202


async def test_a_full_queue_says_when_to_come_back(rig: Rig) -> None:
    full = MemoryQueue(QueueSettings(max_queued_jobs=1))
    await full.heartbeat((await rig.queue.workers())[0], ttl_seconds=60)
    async with rig.client(rig.app(full)) as http:
        assert (await http.post("/v1/jobs", json={"model": "tiny", "prompt": "a"})).status_code == 202
        response = await http.post(CHAT_URL, json=CHAT)
        several = await http.post("/v1/completions", json={"model": "tiny", "prompt": ["a", "b"]})
    for refused in (response, several):
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "queue_full"
        assert refused.headers["retry-after"] == "2"
        assert refused.headers["retry-after-ms"] == "2000"
