"""Bounds of one gateway process: open requests of a tenant, bodies, and which web pages may call."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.gateway.conftest import Rig, gateway_of, over, until
from tests.gateway.scripted_worker import Script
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_tenants import add_key, error_of

from headway.gateway.open_requests import OpenRequests
from headway.queueing.memory_queue import MemoryQueue

PAGE = "https://app.example"


async def test_a_tenant_over_its_open_requests_is_told_so_and_others_are_served() -> None:
    async with over(MemoryQueue(), Script(hold_at=2)) as rig:
        app = rig.app(max_requests_per_tenant=2)
        async with rig.serve(app) as url, httpx.AsyncClient(base_url=url) as http:
            acme, other = await add_key(rig, "acme"), await add_key(rig, "other")
            bodies = [CHAT | {"stream": streams} for streams in (False, True)]
            held = [asyncio.create_task(http.post(CHAT_URL, json=body, headers=acme)) for body in bodies]
            await rig.until_seen(2)
            refused = await http.post(CHAT_URL, json=CHAT, headers=acme)
            assert (refused.status_code, error_of(refused)["code"]) == (429, "too_many_connections")
            assert refused.headers["x-headway-reason"] == "too_many_connections"
            assert int(refused.headers["retry-after"]) >= 1
            assert (await http.get("/v1/models", headers=other)).status_code == 200
            for each in held:
                each.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            await rig.until_ended(2)
            await until(lambda: _open(gateway_of(app).callers, "acme") == 0)
            assert (await http.get("/v1/models", headers=acme)).status_code == 200


def _open(callers: object, tenant: str) -> int:
    counted = callers._open_requests  # type: ignore[attr-defined]  # its books, from outside
    assert isinstance(counted, OpenRequests)
    return counted.of(tenant)


async def test_whatever_ends_a_request_it_no_longer_counts(rig: Rig) -> None:
    app = rig.app(max_requests_per_tenant=1)
    async with rig.client(app) as http:
        for _ in range(3):
            assert (await http.post(CHAT_URL, json=CHAT)).status_code == 200
            assert (await http.post(CHAT_URL, json=CHAT | {"stream": True})).status_code == 200
            assert (await http.post(CHAT_URL, content="{")).status_code == 400
            assert (await http.get("/v1/jobs/nonsense")).status_code == 404
    assert _open(gateway_of(app).callers, "default") == 0


async def test_a_body_over_the_operators_bound_is_refused(rig: Rig) -> None:
    async with rig.client(rig.app(max_body_bytes=1000)) as http:
        refused = await http.post(CHAT_URL, json=CHAT | {"user": "x" * 1000})
    assert (refused.status_code, error_of(refused)["code"]) == (413, "body_too_large")
    assert "1000 bytes" in error_of(refused)["message"]


async def test_no_web_page_may_call_unless_an_operator_says_so(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT_URL, json=CHAT, headers={"Origin": PAGE})
    asked = await http.options(CHAT_URL, headers={"Origin": PAGE, "Access-Control-Request-Method": "POST"})
    for response in (answer, asked):
        assert "access-control-allow-origin" not in response.headers
    assert asked.status_code == 405


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
async def test_a_web_page_that_an_operator_names_may_call(origins: tuple[str, ...], rig: Rig) -> None:
    async with rig.client(rig.app(cors_origins=origins)) as http:
        asked = await http.options(
            CHAT_URL,
            headers={
                "Origin": PAGE,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
            },
        )
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] in {PAGE, "*"}
        assert "access-control-allow-credentials" not in asked.headers
        answer = await http.post(CHAT_URL, json=CHAT, headers={"Origin": PAGE})
        assert answer.headers["access-control-allow-origin"] in {PAGE, "*"}
        assert "x-headway-job-id" in answer.headers["access-control-expose-headers"].lower()
        refused = await http.post(CHAT_URL, content="{", headers={"Origin": PAGE})
        assert refused.headers["access-control-allow-origin"] in {PAGE, "*"}, "a script can read errors too"
        other = await http.post(CHAT_URL, json=CHAT, headers={"Origin": "https://evil.example"})
        assert ("access-control-allow-origin" in other.headers) == (origins == ("*",))
