"""A form that no answer can be held to is a 400 that names the field, and never reaches the queue."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.gateway.conftest import SETTINGS, Rig
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_refusals import error_of

from headway.gateway import constraint_checks
from headway.gateway.app import create_app
from headway.queueing.messages import Constraint

NO_LOOKING_AHEAD = r"(?=a)b"


@pytest.mark.parametrize(
    ("constraint", "field", "words"),
    [
        ({"regex": NO_LOOKING_AHEAD}, "regex", "look-around"),
        ({"json_schema": {"type": "strin"}}, "json_schema", "strin"),
        ({"json_schema": {"type": "integer", "not": {"const": 3}}}, "json_schema", "not"),
        ({"json_schema": {"$ref": "http://example.org/a.json"}}, "json_schema", "not present"),
        ({"json_schema": False}, "json_schema", "allows no value"),
        ({"grammar": "start: missing"}, "grammar", "missing"),
        ({"grammar": "root ::= ("}, "grammar", "Expected ')'"),
        ({"grammar": "start: a\na: b\nb: a"}, "grammar", "no text at all"),
    ],
)
async def test_a_job_is_refused_with_the_librarys_reason(
    rig: Rig, http: httpx.AsyncClient, constraint: dict[str, Any], field: str, words: str
) -> None:
    answer = await http.post("/v1/jobs", json={"model": "tiny", "prompt": "a", "constraint": constraint})
    assert answer.status_code == 400
    error = error_of(answer)
    assert (error["param"], error["code"]) == (f"constraint.{field}", "invalid_grammar")
    assert words in error["message"]
    assert rig.worker.seen == []


@pytest.mark.parametrize(
    ("url", "fields", "param"),
    [
        (
            CHAT_URL,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "strin"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        (CHAT_URL, {"structured_outputs": {"regex": NO_LOOKING_AHEAD}}, "structured_outputs.regex"),
        (CHAT_URL, {"guided_grammar": "root ::= ("}, "guided_grammar"),
        ("/v1/completions", {"guided_regex": NO_LOOKING_AHEAD}, "guided_regex"),
    ],
)
async def test_the_field_that_asked_for_it_is_named(
    rig: Rig, http: httpx.AsyncClient, url: str, fields: dict[str, Any], param: str
) -> None:
    body = CHAT if url == CHAT_URL else {"model": "tiny", "prompt": "a"}
    answer = await http.post(url, json=body | fields)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert rig.worker.seen == []


async def test_what_a_form_takes_is_paid_beside_the_event_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form that takes too long is refused; while it is looked at others are answered, also with forms."""
    monkeypatch.setattr(constraint_checks, "MOST_SECONDS", 0.5)
    may_end = threading.Event()

    def slow(constraint: Constraint) -> str | None:
        if constraint.regex == "slow":
            may_end.wait(10)
        return None

    app = create_app(
        rig.queue,
        SETTINGS,
        registry=CollectorRegistry(),
        clock=time.monotonic,
        wall_clock=time.time,
        constraint_refusal=slow,
    )

    def job(regex: str) -> dict[str, Any]:
        return {"model": "tiny", "prompt": "a", "constraint": {"regex": regex}}

    async with rig.client(app) as http:
        late = asyncio.create_task(http.post("/v1/jobs", json=job("slow")))
        quick = await http.post("/v1/jobs", json=job("quick"))
        assert quick.status_code == 202
        refused = await late
        assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_grammar")
        more = [asyncio.create_task(http.post("/v1/jobs", json=job("slow"))) for _ in range(2)]
        statuses = sorted([(await answer).status_code for answer in more])
        assert statuses == [400, 503], "one thread is still busy with the first: one of these never began"
    may_end.set()
