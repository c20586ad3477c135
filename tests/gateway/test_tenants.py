"""Keys over HTTP: who is let in, and whose jobs they see."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from structlog.typing import EventDict
from tests.gateway.conftest import Rig, post_job
from tests.gateway.scripted_worker import Script
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_completions import URL as COMPLETIONS_URL

from headway.queueing.tenant_book import TenantBook

JOB = {"model": "tiny", "prompt": "a"}


async def limit(rig: Rig, tenant: str = "acme", **limits: Any) -> None:
    await rig.queue.tenant_store.set(tenant, limits)


async def add_key(rig: Rig, tenant: str) -> dict[str, str]:
    """The header of a new key."""
    secret = f"hw-{tenant}"
    await rig.queue.tenant_store.add_key(tenant, "", secret)
    return {"Authorization": f"Bearer {secret}"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


async def test_a_key_that_cannot_be_read_is_told_once_and_lets_nobody_in(
    rig: Rig, http: httpx.AsyncClient, logs: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def book() -> TenantBook:
        return TenantBook(broken_keys={"ab" * 32: "its name is no text"}, broken_tenants={"acme": "rpm"})

    monkeypatch.setattr(rig.queue.tenant_store, "book", book)
    for _ in range(2):
        assert (await http.post("/v1/jobs", json=JOB)).status_code == 401
    told = [line["event"] for line in logs if "cannot be read" in line["event"]]
    assert [("tenant acme" in line, "API key abab" in line) for line in told] == [
        (True, False),
        (False, True),
    ]


async def test_while_no_key_exists_the_request_is_taken_at_its_word(
    rig: Rig, http: httpx.AsyncClient, logs: list[EventDict]
) -> None:
    for headers, body, tenant in [
        ({}, {}, "default"),
        ({"X-Tenant": "header"}, {}, "header"),
        ({}, {"tenant": "body"}, "body"),
        ({"Authorization": "Bearer whatever"}, {"tenant": "body"}, "body"),
    ]:
        accepted = await http.post("/v1/jobs", json=JOB | body, headers=headers)
        assert (await rig.queue.status(accepted.json()["id"])).tenant == tenant
    told = [line for line in logs if line["event"].startswith("open mode")]
    assert len(told) == 1
    assert "headway keys create" in told[0]["event"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT_URL),
        ("POST", COMPLETIONS_URL),
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs/tiny:0:k"),
        ("GET", "/v1/jobs/tiny:0:k/stream"),
        ("GET", "/v1/jobs/tiny:0:k/result"),
        ("POST", "/v1/jobs/tiny:0:k/cancel"),
        ("DELETE", "/v1/jobs/tiny:0:k"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
    ],
)
async def test_once_a_key_exists_every_v1_route_wants_one(
    rig: Rig, http: httpx.AsyncClient, method: str, path: str
) -> None:
    await add_key(rig, "acme")
    for headers, code in [
        ({}, "missing_api_key"),
        ({"Authorization": "Basic aGk6aGk="}, "missing_api_key"),
        ({"Authorization": "Bearer hw-unknown"}, "invalid_api_key"),
        ({"Authorization": "Bearer "}, "invalid_api_key"),
    ]:
        response = await http.request(method, path, headers={"X-Tenant": "acme", **headers})
        assert response.status_code == 401
        error = error_of(response)
        assert (error["code"], error["type"]) == (code, "invalid_request_error")
        assert response.headers["www-authenticate"] == "Bearer"


async def test_probes_and_metrics_need_no_key(rig: Rig, http: httpx.AsyncClient) -> None:
    await add_key(rig, "acme")
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/"):
        assert (await http.get(path)).status_code == 200


async def test_the_index_says_whether_the_service_is_open(rig: Rig, http: httpx.AsyncClient) -> None:
    assert (await http.get("/")).json()["open_mode"] is True
    await add_key(rig, "acme")
    assert (await http.get("/")).json()["open_mode"] is False


async def test_the_key_decides_whatever_header_and_body_say(rig: Rig, http: httpx.AsyncClient) -> None:
    key = await add_key(rig, "acme")
    for headers, body in [({}, {}), ({"X-Tenant": "other"}, {}), ({"X-Tenant": "x"}, {"tenant": "other"})]:
        job = await http.post("/v1/jobs", json=JOB | body, headers=key | headers)
        assert (await rig.queue.status(job.json()["id"])).tenant == "acme"
        chat = await http.post(CHAT_URL, json=CHAT | body, headers=key | headers)
        assert chat.status_code == 200
    assert {job.tenant for job in rig.worker.seen} == {"acme"}


async def test_other_tenants_jobs_are_not_there(rig: Rig, http: httpx.AsyncClient) -> None:
    rig.worker.script = Script(hold_at=2)
    job_id = await post_job(rig, tenant="other")
    mine, theirs = await add_key(rig, "acme"), await add_key(rig, "other")
    await rig.until_seen()
    at = f"/v1/jobs/{job_id}"
    for method, path in [("GET", at), ("GET", f"{at}/stream"), ("GET", f"{at}/result"), ("DELETE", at)]:
        unknown = await http.request(method, path.replace(job_id, "tiny:0:nope"), headers=mine)
        foreign = await http.request(method, path, headers=mine)
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.text.replace(job_id, "tiny:0:nope") == unknown.text
    assert (await http.get(at, headers=theirs)).status_code == 200
    assert (await http.request("DELETE", at, headers=theirs)).json()["status"] == "cancelling"
    await rig.until_ended()


async def test_keys_come_and_go_without_a_restart(rig: Rig, http: httpx.AsyncClient) -> None:
    key = await add_key(rig, "acme")
    second = await add_key(rig, "b")
    assert (await http.get("/v1/models", headers=key)).status_code == 200
    for digest, made in (await rig.queue.tenant_store.book()).keys.items():
        if made.tenant == "acme":
            await rig.queue.tenant_store.revoke_key(digest)
    assert (await http.get("/v1/models", headers=key)).status_code == 401
    assert (await http.get("/v1/models", headers=second)).status_code == 200


async def test_openais_client_meets_its_own_errors(rig: Rig) -> None:
    await add_key(rig, "acme")
    await limit(rig, rpm=1)
    async with rig.serve() as url:
        asking = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="hw-wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.chat.completions.create(**asking)  # type: ignore[call-overload]  # plain fields
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="hw-acme", max_retries=0) as client:
            await client.chat.completions.create(**asking)  # type: ignore[call-overload]  # the same
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(**asking)  # type: ignore[call-overload]  # the same
    assert refused.value.code == "requests_per_minute_exceeded"
