"""JSON nested deeper than its readers can follow is refused at the door, by the field's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.test_chat import CHAT
from tests.gateway.test_tenants import error_of

from headway.queueing.errors import InvalidJobError
from headway.queueing.messages import Job, decode_job, encode_job
from headway.queueing.nesting import MOST_LEVELS

DEEP = (125, 130, 240, 260, 600, 1000)
CHAT_URL, RESPONSES_URL, JOBS_URL = "/v1/chat/completions", "/v1/responses", "/v1/jobs"
RESPONSE = {"model": CHAT["model"], "input": "hi"}
JOB = {"model": CHAT["model"], "messages": CHAT["messages"]}


def nested(levels: int) -> bytes:
    """So many objects in each other, as text: few writers go that deep."""
    return b'{"anyOf":[' * ((levels - 1) // 2) + b"{}" + b"]}" * ((levels - 1) // 2)


def with_deep(body: dict[str, Any], levels: int) -> bytes:
    return orjson.dumps(body).replace(b'"DEEP"', nested(levels))


def tools(**more: object) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": "DEEP"}}]} | more


Field = tuple[str, dict[str, Any], str]
FIELDS: tuple[Field, ...] = (
    (CHAT_URL, CHAT | tools(), "tools[0].function.parameters"),
    (CHAT_URL, CHAT | tools(tool_choice="required"), "tools[0].function.parameters"),
    (
        CHAT_URL,
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": "DEEP"}}},
        "response_format.json_schema.schema",
    ),
    (CHAT_URL, CHAT | {"structured_outputs": {"json": "DEEP"}}, "structured_outputs.json"),
    (CHAT_URL, CHAT | {"guided_json": "DEEP"}, "guided_json"),
    (
        RESPONSES_URL,
        RESPONSE | {"text": {"format": {"type": "json_schema", "name": "a", "schema": "DEEP"}}},
        "text.format.schema",
    ),
    (JOBS_URL, JOB | {"tools": ["DEEP"]}, "tools[0]"),
    (JOBS_URL, JOB | {"constraint": {"json_schema": "DEEP"}}, "constraint.json_schema"),
)


@pytest.mark.parametrize(("url", "body", "param"), FIELDS)
async def test_what_is_nested_too_deep_is_refused_by_its_name(
    http: httpx.AsyncClient, rig: Rig, url: str, body: dict[str, Any], param: str
) -> None:
    for levels in DEEP:
        answer = await http.post(
            url, content=with_deep(body, levels), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, (levels, answer.text)
        told = error_of(answer)
        assert told["code"] in {"invalid_value", "invalid_json", "invalid_grammar"}, levels
        assert told["code"] == "invalid_json" or told["param"] == param, levels
    assert not rig.worker.seen


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_schema_as_deep_as_may_be_is_taken(http: httpx.AsyncClient, choice: str) -> None:
    answer = await http.post(CHAT_URL, content=with_deep(CHAT | tools(tool_choice=choice), 100))
    assert answer.status_code == 200, answer.text


def _tool(deep: object) -> dict[str, Any]:
    return {"tools": [deep]}


def _constraint(deep: object) -> dict[str, Any]:
    return {"constraint": {"json_schema": deep}}


@pytest.mark.parametrize("field", [_tool, _constraint])
def test_what_the_contract_takes_its_readers_can_read(field: Callable[[object], dict[str, Any]]) -> None:
    job = Job.model_validate(JOB | field(orjson.loads(nested(MOST_LEVELS - 2))))
    assert decode_job(encode_job(job)) == job
    for levels in (MOST_LEVELS + 2, 250):
        with pytest.raises(ValueError, match="nested deeper"):
            Job.model_validate(JOB | field(orjson.loads(nested(levels))))
        raw = orjson.dumps(JOB | field("DEEP")).replace(b'"DEEP"', nested(levels))
        with pytest.raises(InvalidJobError):
            decode_job(raw)
