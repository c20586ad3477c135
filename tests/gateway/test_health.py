"""What machines ask: probes, scrape, index, logs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from structlog.typing import EventDict
from tests.gateway.conftest import Rig, gateway_of
from tests.gateway.scripted_worker import Script, card
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL

from headway.gateway.app import create_app
from headway.gateway.settings import GatewaySettings
from headway.queueing.client import Client
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.worker_card import WorkerCard


class Unreachable(MemoryQueue):
    """A queue whose server is away, or hangs."""

    hangs = False

    async def workers(self) -> tuple[WorkerCard, ...]:
        if self.hangs:
            await asyncio.Event().wait()
        raise QueueUnavailableError("away")


async def test_a_served_model_makes_the_gateway_ready_and_healthy(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok", "queue": "ok", "hung_workers": []}
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"ready": True, "reason": None, "ready_workers": 1})
    assert [(await http.head(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]


async def test_a_hung_engine_is_not_healthy_and_is_named(rig: Rig) -> None:
    await rig.queue.heartbeat(card("w2", step_age_seconds=61.0), ttl_seconds=60)
    async with rig.client() as http:
        response = await http.get("/healthz")
    assert response.status_code == 503
    assert [worker["id"] for worker in response.json()["hung_workers"]] == ["w2"]


async def test_without_a_ready_worker_the_gateway_is_not_ready(rig: Rig) -> None:
    await rig.queue.heartbeat(card("w1", state="draining"), ttl_seconds=60)
    async with rig.client() as http:
        response = await http.get("/readyz")
        assert (await http.get("/healthz")).status_code == 200
    assert response.status_code == 503
    assert response.json()["reason"] == "no worker is ready (1 known)"


async def test_where_workers_scale_to_zero_a_gateway_is_ready_for_the_job_that_wakes_them(rig: Rig) -> None:
    await rig.queue.heartbeat(card("w1", state="draining"), ttl_seconds=60)
    app = rig.app()
    async with rig.client(app) as http:
        assert (await http.get("/readyz?workers=0")).json() == {
            "ready": True, "reason": None, "ready_workers": 0,
        }  # fmt: skip
        refused = await http.get("/readyz?workers=many")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "workers")
        gateway_of(app).stopping.drain()
        assert (await http.get("/readyz?workers=0")).status_code == 503
    async with rig.client(rig.app(Unreachable())) as http:
        assert (await http.get("/readyz?workers=0")).json()["reason"] == "the queue does not answer"


async def test_a_gateway_lives_whatever_becomes_of_the_queue_and_the_workers(rig: Rig) -> None:
    await rig.queue.heartbeat(card("w2", step_age_seconds=61.0), ttl_seconds=60)
    async with rig.client() as http:
        assert (await http.get("/healthz")).status_code == 503
        assert (await http.get("/livez")).status_code == 200
    async with rig.client(rig.app(Unreachable())) as http:
        assert (await http.get("/livez")).json() == {"status": "ok"}
        assert (await http.head("/livez")).status_code == 200


async def test_more_workers_than_are_ready_can_be_asked_for(rig: Rig) -> None:
    async with rig.client() as http:
        answer = await http.get("/readyz?workers=2")
    assert (answer.status_code, answer.json()["reason"]) == (503, "only 1 of 2 workers are ready (1 known)")


async def test_probes_answer_while_the_queue_is_away_or_hangs(rig: Rig) -> None:
    queue = Unreachable()
    async with rig.client(rig.app(queue, probe_seconds=0.1)) as http:
        for queue.hangs in (False, True):
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["reason"]) == (503, "the queue does not answer")
            healthy = await http.get("/healthz")
            assert (healthy.status_code, healthy.json()["queue"]) == (200, "unreachable")
            assert "headway_queue_up 0.0" in (await http.get("/metrics")).text


async def test_a_request_while_the_queue_is_away_is_503(rig: Rig) -> None:
    async with rig.client(rig.app(Unreachable())) as http:
        response = await http.post(CHAT_URL, json=CHAT)
    assert response.status_code == 503
    assert response.headers["x-headway-reason"] == "queue_unavailable"
    assert response.headers["retry-after"] == "1"


async def test_metrics_count_requests_jobs_and_tokens(http: httpx.AsyncClient) -> None:
    await http.post(CHAT_URL, json=CHAT | {"tenant": "acme"})
    await http.post(CHAT_URL, json=CHAT | {"tenant": "acme", "stream": True})
    await http.post(CHAT_URL, json=CHAT | {"temperature": 9})
    text = (await http.get("/metrics")).text
    for line in (
        'headway_http_requests_total{method="POST",route="/v1/chat/completions",status="200"} 2.0',
        'headway_http_requests_total{method="POST",route="/v1/chat/completions",status="400"} 1.0',
        'headway_refused_requests_total{code="invalid_value"} 1.0',
        'headway_gateway_jobs_total{model="tiny",reason="stop",tenant="acme"} 2.0',
        'headway_gateway_jobs_accepted_total{model="tiny",priority="interactive",tenant="acme"} 2.0',
        'headway_gateway_prompt_tokens_total{model="tiny",tenant="acme"} 14.0',
        'headway_gateway_completion_tokens_total{model="tiny",tenant="acme"} 10.0',
        'headway_gateway_time_to_first_token_seconds_count{model="tiny"} 2.0',
        'headway_gateway_inter_token_seconds_count{model="tiny"} 4.0',
        'headway_gateway_job_seconds_count{model="tiny"} 2.0',
        "headway_gateway_open_streams 0.0",
        'headway_queue_depth{model="tiny",priority="batch"} 0.0',
        "headway_queue_up 1.0",
        'headway_workers{model="tiny",state="ready"} 1.0',
    ):
        assert line in text, f"{line}\n{text}"


async def test_open_streams_and_waiting_jobs_show_while_they_last(rig: Rig) -> None:
    rig.worker.script = Script(hold_at=1)
    async with rig.serve() as url, httpx.AsyncClient(base_url=url) as http:
        async with http.stream("POST", CHAT_URL, json=CHAT | {"stream": True}) as response:
            await anext(response.aiter_text())
            text = (await http.get("/metrics")).text
            assert "headway_gateway_open_streams 1.0" in text
            assert 'headway_queue_running{model="tiny"} 1.0' in text
        await rig.until_ended()
        text = (await http.get("/metrics")).text
        assert 'headway_gateway_jobs_total{model="tiny",reason="cancelled",tenant="default"} 1.0' in text
        assert "headway_gateway_open_streams 0.0" in text


async def test_label_values_that_clients_choose_are_bounded(rig: Rig) -> None:
    async with rig.client(rig.app(metric_tenants=2)) as http:
        for index in range(5):
            await http.post(CHAT_URL, json=CHAT | {"tenant": f"t{index}"})
            await http.get(f"/nowhere/{index}")
            await http.request(f"VERB{index}", "/nowhere")
        text = (await http.get("/metrics")).text
    tenants = {line.split('tenant="')[1].split('"')[0] for line in text.splitlines() if 'tenant="' in line}
    assert tenants == {"t0", "t1", "other"}
    assert 'route="unmatched",status="404"} 5.0' in text
    assert "nowhere" not in text
    assert "VERB" not in text


async def test_the_index_and_the_schema_say_what_is_here(http: httpx.AsyncClient) -> None:
    index = (await http.get("/")).json()
    assert index["name"] == "headway"
    schema = (await http.get("/openapi.json")).json()
    described: dict[str, Any] = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    properties = described["content"]["application/json"]["schema"]["properties"]
    assert {"messages", "temperature", "priority"} <= set(properties)
    for endpoint in index["endpoints"].values():
        method, path = endpoint.split()
        if path != "/openapi.json":
            known = [known for known in schema["paths"] if known.split("{")[0] == path.split("{")[0]]
            assert any(method.lower() in schema["paths"][one] for one in known), endpoint


async def test_models_list_what_was_served_and_what_is(rig: Rig) -> None:
    await rig.queue.heartbeat(card("w2", model="org/big"), ttl_seconds=60)
    await rig.queue.farewell("w2")
    async with rig.client() as http:
        models = (await http.get("/v1/models")).json()["data"]
        big = (await http.get("/v1/models/org/big")).json()
    assert [(model["id"], model["ready_workers"]) for model in models] == [("org/big", 0), ("tiny", 1)]
    assert (big["id"], big["max_model_len"]) == ("org/big", None)


async def test_a_log_line_says_who_and_how_long_and_never_what(
    http: httpx.AsyncClient, rig: Rig, logs: list[EventDict]
) -> None:
    body = CHAT | {"messages": [{"role": "user", "content": "my secret"}], "tenant": "acme"}
    trace = "0af7651916cd43dd8448eb211c80319c"
    answer = await http.post(CHAT_URL, json=body, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
    await http.post(CHAT_URL, json=body | {"my secret": 1})
    await http.get("/healthz")
    lines = [line for line in logs if line["event"] == "request"]
    assert (
        lines[0].items()
        >= {
            "log_level": "info",
            "route": CHAT_URL,
            "status": 200,
            "tenant": "acme",
            "model": "tiny",
            "trace": trace,
            "job": answer.headers["x-headway-job-id"],
            "request_id": answer.headers["x-request-id"],
        }.items()
    )
    assert lines[0]["duration_ms"] >= 0
    assert (lines[1]["status"], lines[1]["error"]) == (400, "unknown_parameter")
    assert lines[2]["log_level"] == "debug"
    assert "secret" not in str(logs)
    assert "Hello" not in str(logs)


async def test_the_light_client_can_be_handed_over_as_it_is(rig: Rig) -> None:
    app = create_app(
        Client(rig.queue),
        GatewaySettings(),
        registry=CollectorRegistry(),
        clock=time.monotonic,
        wall_clock=time.time,
    )
    async with rig.client(app) as http:
        assert (await http.post(CHAT_URL, json=CHAT)).status_code == 200


def test_settings_that_would_never_let_anything_through_are_refused() -> None:
    with pytest.raises(ValueError, match="max_body_bytes"):
        GatewaySettings(max_body_bytes=0)
