"""Chat over a real queue: what the answer looks like, and what the job was."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import chat_text, parse

from headway.queueing.messages import Objective, Priority

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
URL = "/v1/chat/completions"


async def chunks_of(http: httpx.AsyncClient, **fields: Any) -> list[Any]:
    response = await http.post(URL, json=CHAT | {"stream": True} | fields)
    assert response.status_code == 200, response.text
    events = parse(response.text)
    assert events[-1].data == "[DONE]"
    return [event.json for event in events[:-1]]


async def test_a_whole_answer_has_openais_shape(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json=CHAT)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["id"].startswith("chatcmpl-")
    assert response.headers["x-headway-job-id"].endswith(answer["id"].removeprefix("chatcmpl-"))
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["system_fingerprint"] == "headway-1.2"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_stream_opens_with_the_role_and_closes_with_the_reason(http: httpx.AsyncClient) -> None:
    chunks = await chunks_of(http)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chat_text(chunks) == "Hello, world!"
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_when_asked_for_is_null_until_the_last_chunk(http: httpx.AsyncClient) -> None:
    chunks = await chunks_of(http, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 12


async def test_stream_headers_keep_proxies_from_buffering(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json=CHAT | {"stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert [event.id for event in parse(response.text)[:2]] == ["1-0.1", "1-0"]


async def test_several_choices_keep_their_places(http: httpx.AsyncClient) -> None:
    answer = (await http.post(URL, json=CHAT | {"n": 3})).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 15
    chunks = await chunks_of(http, n=3)
    assert [chat_text(chunks, index) for index in range(3)] == ["Hello, world!"] * 3
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons.count("stop") == 3


async def test_stop_strings_and_limits_end_the_answer(http: httpx.AsyncClient) -> None:
    stopped = (await http.post(URL, json=CHAT | {"stop": " wor"})).json()["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("Hello,", "stop")
    cut = (await http.post(URL, json=CHAT | {"max_completion_tokens": 2})).json()["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == ("Hello", "length")


async def test_logprobs_carry_bytes_and_alternatives(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(pieces=("é", "!"))
    asked = {"logprobs": True, "top_logprobs": 5}
    choice = (await http.post(URL, json=CHAT | asked)).json()["choices"][0]
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == ("é", -0.25, [0xC3, 0xA9])
    assert [top["logprob"] for top in first["top_logprobs"]] == [-0.5, -1.5, -2.5, -3.5, -9999.0]
    chunks = await chunks_of(http, **asked)
    streamed = [
        item
        for chunk in chunks
        for choice in chunk["choices"]
        for item in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == choice["logprobs"]["content"]


async def test_every_option_reaches_the_job(http: httpx.AsyncClient, rig: Rig) -> None:
    fields: dict[str, Any] = {
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "hi", "name": "ann"},
        ],
        "temperature": 0,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "seed": 42,
        "stop": ["x", "y"],
        "stop_token_ids": [5],
        "min_tokens": 1,
        "max_tokens": 9,
        "ignore_eos": True,
        "logit_bias": {"50": -100, "51": 2.5},
        "metadata": {"k": "v"},
        "user": "somebody",
        "tenant": "acme",
        "priority": "batch",
        "deadline_seconds": 60,
        "demotable": True,
        "objective": {"ttft_seconds": 2, "tpot_seconds": 0.25},
        "on_disconnect": "detach",
        "tools": [],
        "response_format": {"type": "text"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": None,
    }
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    response = await http.post(URL, json=CHAT | fields, headers={"traceparent": traceparent})
    assert response.status_code == 200, response.text
    (job,) = rig.worker.seen
    assert job.messages is not None
    assert [(m.role, m.content, m.name) for m in job.messages] == [
        ("developer", "a\nb", None),
        ("user", "hi", "ann"),
    ]
    sampling = job.sampling.model_dump()
    for name in ("top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"):
        assert sampling[name] == fields[name]
    assert (sampling["temperature"], sampling["top_k"], sampling["max_tokens"]) == (0, 0, 9)
    assert (sampling["stop"], sampling["stop_token_ids"]) == (("x", "y"), (5,))
    assert (sampling["min_tokens"], sampling["ignore_eos"]) == (1, True)
    assert sampling["logit_bias"] == {50: -100, 51: 2.5}
    assert (job.tenant, job.priority, job.deadline_seconds) == ("acme", Priority.BATCH, 60)
    assert (job.on_disconnect, job.metadata, job.traceparent) == ("detach", {"k": "v"}, traceparent)
    assert (job.demotable, job.objective) == (True, Objective(ttft_seconds=2, tpot_seconds=0.25))


async def test_defaults_are_interactive_and_cancel(http: httpx.AsyncClient, rig: Rig) -> None:
    await http.post(URL, json=CHAT, headers={"traceparent": "nonsense"})
    (job,) = rig.worker.seen
    assert (job.tenant, job.priority, job.on_disconnect) == ("default", Priority.INTERACTIVE, "cancel")
    assert (job.sampling.max_tokens, job.traceparent, job.deadline_seconds) == (None, None, None)


async def test_headers_set_the_terms(http: httpx.AsyncClient, rig: Rig) -> None:
    headers = {"X-Tenant": "acme", "X-Priority": "standard", "X-Deadline": "2.5"}
    assert (await http.post(URL, json=CHAT, headers=headers)).status_code == 200
    (job,) = rig.worker.seen
    assert (job.tenant, job.priority, job.deadline_seconds) == ("acme", Priority.STANDARD, 2.5)


@pytest.mark.parametrize("streams", [False, True])
async def test_one_idempotency_key_is_one_job(http: httpx.AsyncClient, rig: Rig, streams: bool) -> None:
    headers = {"Idempotency-Key": "k1"}
    answers = [
        (await http.post(URL, json=CHAT | {"stream": streams}, headers=headers)).headers["x-headway-job-id"]
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert len(rig.worker.seen) == 1
    assert rig.worker.seen[0].on_disconnect == "detach"
    other = await http.post(URL, json=CHAT | {"stream": streams, "seed": 1}, headers=headers)
    assert other.status_code == 409
    assert other.json()["error"]["code"] == "idempotency_conflict"
    assert other.headers["x-should-retry"] == "false"
