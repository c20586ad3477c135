"""Every refusal has OpenAI's shape, the right status, and words that help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL

from headway.queueing.events import EndReason, JobError


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == ("invalid_request_error" if response.status_code < 500 else "server_error")
    assert response.headers["x-request-id"].startswith("req_")
    assert "openai-processing-ms" in response.headers
    return error


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "function", "content": "", "name": "f"}]}, "messages[0].role", "unsupported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "unsupported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
            "missing_required_parameter",
        ),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"n": 17}, "n", "invalid_value"),
        ({"seed": 10**30}, "seed", "invalid_type"),
        ({"stop": [1]}, "stop[0]", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"max_completion_tokens": 1, "max_tokens": 1}, "max_tokens", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
        ({"store": 0}, "store", "unsupported"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"x" * 1000: 1}, "x" * 100, "unknown_parameter"),
        ({"tenant": "a b"}, "tenant", "invalid_value"),
        ({"priority": "urgent"}, "priority", "invalid_value"),
        ({"deadline_seconds": -1}, "deadline_seconds", "invalid_value"),
        ({"demotable": True}, None, "invalid_value"),
        ({"demotable": "yes", "deadline_seconds": 1}, "demotable", "invalid_type"),
        ({"objective": 2}, "objective", "invalid_type"),
        ({"objective": {"ttft_seconds": 2}}, "objective.tpot_seconds", "missing_required_parameter"),
        (
            {"objective": {"ttft_seconds": 2, "tpot_seconds": 0}},
            "objective.tpot_seconds",
            "invalid_value",
        ),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
        ({"min_tokens": 5, "max_tokens": 2}, None, "invalid_value"),
    ],
)
async def test_a_bad_field_is_named(
    http: httpx.AsyncClient, rig: Rig, fields: dict[str, Any], param: str | None, code: str
) -> None:
    response = await http.post(CHAT_URL, json=CHAT | fields)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["param"], error["code"]) == (param, code), error["message"]
    assert rig.worker.seen == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[1]", 400, "invalid_json"),
        (b'{"model": NaN}', 400, "invalid_json"),
        (b'{"model": "\xff"}', 400, "invalid_json"),
        (b'{"model": "\\ud800"}', 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b" " * (5 << 20), 413, "body_too_large"),
    ],
)
@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/jobs"])
async def test_a_bad_body_is_refused(
    http: httpx.AsyncClient, url: str, body: bytes, status: int, code: str
) -> None:
    response = await http.post(url, content=body, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert error_of(response)["code"] == code


async def test_a_body_without_declared_length_is_bounded_while_it_is_read(http: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while sent < 100 << 20:
            sent += 1 << 20
            yield b" " * (1 << 20)

    response = await http.post(CHAT_URL, content=endless(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert sent <= 6 << 20


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
        ({"content-type": "application/vnd.api+json; charset=utf-8"}, 200),
    ],
)
async def test_media_types(http: httpx.AsyncClient, headers: dict[str, str], status: int) -> None:
    response = await http.post(
        CHAT_URL, content=httpx.Request("POST", "http://x", json=CHAT).content, headers=headers
    )
    assert response.status_code == status, response.text
    if status != 200:
        error_of(response)


@pytest.mark.parametrize(
    ("headers", "fields", "param"),
    [
        ({"X-Deadline": "soon"}, {}, "X-Deadline"),
        ({"X-Deadline": "nan"}, {}, "X-Deadline"),
        ({"X-Tenant": "a/b"}, {}, "tenant"),
        ({"X-Priority": "urgent"}, {}, "priority"),
        ({"X-Tenant": "proxy"}, {"tenant": "me"}, "tenant"),
        ({"Idempotency-Key": "k" * 256}, {}, "Idempotency-Key"),
    ],
)
async def test_a_bad_header_is_named(
    http: httpx.AsyncClient, headers: dict[str, str], fields: dict[str, Any], param: str
) -> None:
    response = await http.post(CHAT_URL, json=CHAT | fields, headers=headers)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    "header", ["X-Tenant", "X-Priority", "X-Deadline", "Idempotency-Key", "X-On-Disconnect"]
)
async def test_a_term_that_comes_twice_with_different_values_is_refused_whichever_comes_first(
    http: httpx.AsyncClient, header: str
) -> None:
    values = {
        "X-Priority": ["batch", "standard"],
        "X-Deadline": ["1", "2"],
        "X-On-Disconnect": ["cancel", "detach"],
    }
    one, other = values.get(header, ["a", "b"])
    for pair in ([(header, one), (header, other)], [(header, other), (header, one)]):
        response = await http.post(CHAT_URL, json=CHAT, headers=pair)
        assert response.status_code == 400
        assert error_of(response)["code"] == "conflicting_terms"
    assert (await http.post(CHAT_URL, json=CHAT, headers=[(header, one), (header, one)])).status_code == 200


async def test_a_body_that_trickles_in_is_given_up(rig: Rig) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    async with rig.client(rig.app(body_seconds=0.1)) as http:
        response = await http.post(CHAT_URL, content=endless(), headers={"content-type": "application/json"})
    assert response.status_code == 408
    assert error_of(response)["code"] == "body_too_slow"


def failing(error: JobError) -> Script:
    return Script(pieces=(), reason=EndReason.ERROR, error=error)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (
            failing(JobError("context_length_exceeded", "too long", "messages")),
            400,
            "context_length_exceeded",
        ),
        (failing(JobError("job_too_large", "too large")), 413, "job_too_large"),
        (failing(JobError("too_many_attempts", "it crashed")), 500, "too_many_attempts"),
        (Script(pieces=(), reason=EndReason.DEADLINE), 504, "deadline_exceeded"),
        (
            Script(pieces=(), reason=EndReason.DEADLINE, error=JobError("deadline_unreachable", "too slow")),
            504,
            "deadline_unreachable",
        ),
        (Script(pieces=(), reason=EndReason.CANCELLED), 409, "cancelled"),
    ],
)
async def test_a_job_that_ends_before_its_first_token_is_a_real_status(
    rig: Rig, streams: bool, script: Script, status: int, code: str
) -> None:
    rig.worker.script = script
    async with rig.client() as http:
        response = await http.post(CHAT_URL, json=CHAT | {"stream": streams})
    assert response.status_code == status
    assert response.headers["x-headway-job-id"] in rig.worker.claimed, "what it said is kept under its id"
    told = error_of(response)
    assert told["code"] == code
    if (error := script.error) is not None:
        assert (told["message"], told["param"]) == (error.message, error.param)
    if status in (409, 500, 504):
        assert response.headers["x-should-retry"] == "false"


async def test_the_clients_own_request_id_is_kept_if_it_is_plain(http: httpx.AsyncClient) -> None:
    assert (await http.get("/", headers={"X-Request-Id": "abc-1"})).headers["x-request-id"] == "abc-1"
    assert (await http.get("/", headers={"X-Request-Id": "a b"})).headers["x-request-id"].startswith("req_")
