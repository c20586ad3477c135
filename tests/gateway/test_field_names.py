"""What a worker finds at fault is named as the client's request has it, not as the job contract does."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script, card
from tests.gateway.test_refusals import error_of

from headway.queueing.events import EndReason, JobError

STRICT = [{"type": "function", "function": {"name": "f", "strict": True}}]
FORM = {"format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("path", "asked", "field", "param"),
    [
        ("chat/completions", {"tools": STRICT}, "constraint.grammar", "tools"),
        (
            "chat/completions",
            {"response_format": {"type": "json_object"}},
            "constraint.json_schema",
            "response_format",
        ),
        ("chat/completions", {"stop_token_ids": [9]}, "sampling.stop_token_ids", "stop_token_ids"),
        ("completions", {"prompt": [9]}, "prompt_token_ids", "prompt"),
        ("completions", {"prompt": "hi", "guided_regex": "a"}, "constraint.regex", "guided_regex"),
        ("responses", {"input": "hi"}, "messages", "input"),
        ("responses", {"input": "hi", "stream": True}, "messages", "input"),
        ("responses", {"input": "hi", "text": FORM}, "constraint.json_schema", "text.format.schema"),
    ],
)
async def test_what_a_worker_refuses_is_named_as_the_client_named_it(
    path: str, asked: dict[str, Any], field: str, param: str, rig: Rig
) -> None:
    await rig.queue.heartbeat(card(tool_format="hermes"), ttl_seconds=60)
    rig.worker.script = Script(pieces=(), reason=EndReason.ERROR, error=JobError("unsupported", "no", field))
    body = {"model": "tiny", "max_tokens": 4} | asked
    if path == "chat/completions":
        body["messages"] = [{"role": "user", "content": "hi"}]
    if path == "responses":
        del body["max_tokens"]
    async with rig.client() as http:
        answer = await http.post(f"/v1/{path}", json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
