"""Thoughts that an answer begins with are a reasoning item, whole, streamed, resumed and gone on from."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from tests.gateway.conftest import Rig, over
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import parse
from tests.gateway.test_responses import HI, URL, answered, streamed

from headway.gateway.answer_form import AnswerForm
from headway.gateway.response_events import STRIDE
from headway.gateway.response_item_events import ItemEvents
from headway.gateway.response_items import output_items
from headway.queueing.events import ChoiceResult, EndReason, JobResult, TokenLogprob, Usage
from headway.queueing.memory_queue import MemoryQueue

THINKS = Script(pieces=("<th", "ink>", "\nTwo ", "and two", "\n</thi", "nk>\n\nFo", "ur", "."))
KINDS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.content_part.added",
    *["response.output_text.delta"] * 3,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


@pytest.fixture
async def thinking() -> AsyncGenerator[Rig]:
    async with over(MemoryQueue(), THINKS) as rig:
        yield rig


@pytest.fixture
async def http(thinking: Rig) -> AsyncGenerator[httpx.AsyncClient]:
    async with thinking.client() as made:
        yield made


async def test_the_official_client_sees_thoughts_apart_from_the_message(thinking: Rig) -> None:
    async with thinking.serve() as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        whole = await client.responses.create(model="tiny", input="hi")
        async with client.responses.stream(model="tiny", input="hi") as stream:
            kinds = [event.type async for event in stream]
            helped = await stream.get_final_response()
    for answer in (whole, helped):
        thoughts, message = answer.output
        assert thoughts.type == "reasoning"
        assert thoughts.content is not None
        assert ([part.text for part in thoughts.content], thoughts.summary) == (["Two and two"], [])
        assert message.type == "message"
        assert answer.output_text == "Four."
    assert kinds == KINDS


async def test_a_stream_goes_on_after_any_of_its_events(http: httpx.AsyncClient) -> None:
    made = await answered(http)
    everything = await streamed(http, made["id"])
    assert [event.event for event in everything] == KINDS
    assert everything[-1].json["response"]["output"] == made["output"]
    done = [event.json["item"] for event in everything if event.event == "response.output_item.done"]
    assert done == made["output"]
    for index, event in enumerate(everything[:-1]):
        assert await streamed(http, made["id"], int(event.id or "")) == everything[index + 1 :]


async def test_thoughts_are_not_shown_again_to_whom_a_conversation_goes_on(
    thinking: Rig, http: httpx.AsyncClient
) -> None:
    made = await answered(http)
    await answered(http, previous_response_id=made["id"], input="and three?")
    back = [{"role": "user", "content": "hi"}, *made["output"], {"role": "user", "content": "and three?"}]
    await answered(http, input=back)
    for job in thinking.worker.seen[1:]:
        assert [turn.content for turn in job.messages or ()] == ["hi", "Four.", "and three?"]


async def test_thoughts_that_never_end_are_an_incomplete_item_and_no_message(
    thinking: Rig, http: httpx.AsyncClient
) -> None:
    made = await answered(http, max_output_tokens=4)
    (item,) = made["output"]
    assert (made["status"], item["type"], item["status"]) == ("incomplete", "reasoning", "incomplete")
    events = await streamed(http, made["id"])
    assert [event.json["item"] for event in events if event.event == "response.output_item.done"] == [item]


async def test_log_probabilities_are_those_of_the_message(http: httpx.AsyncClient) -> None:
    asked = {"include": ["message.output_text.logprobs"]}
    made = await answered(http, **asked)
    (part,) = made["output"][1]["content"]
    assert "".join(each["token"] for each in part["logprobs"]) == "ur."
    response = await http.post(URL, json=HI | asked | {"stream": True})
    deltas = [event.json for event in parse(response.text) if event.event == "response.output_text.delta"]
    assert [each for delta in deltas for each in delta["logprobs"]] == part["logprobs"]


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "think>", " ", "\n", "a", "b", ""]),
        max_size=12,
    ),
    st.sampled_from(list(EndReason)),
    st.sampled_from(["auto", "none"]),
)
def test_however_the_text_is_cut_the_events_add_up_to_the_items(
    pieces: list[str], reason: EndReason, reasoning: Any
) -> None:
    """Items, texts and log-probabilities; and no token brings more events than have numbers."""
    form = AnswerForm(reasoning_format=reasoning)
    tokens = [TokenLogprob(number, piece, piece.encode(), -1.0) for number, piece in enumerate(pieces)]
    choice = ChoiceResult("".join(pieces), (), reason, tuple(tokens))
    result = replace(RESULT, reason=reason, choices=(choice,))
    events = ItemEvents("tiny:0:1", form)
    steps = [events.text(token.text, (token,)) for token in tokens] + [events.end("", result)]
    assert all(len(step) < STRIDE for step in steps)
    made = [event for step in steps for event in step]
    items = output_items(form, result)
    assert [body["item"] for kind, body in made if kind == "response.output_item.done"] == items
    for index, item in enumerate(items):
        own = [body for _, body in made if body["output_index"] == index]
        content: Any = item["content"]
        assert "".join(str(body.get("delta", "")) for body in own) == content[0]["text"]
        shown: Any = [body["logprobs"] for body in own if "delta" in body and "logprobs" in body]
        assert [each for some in shown for each in some] == content[0].get("logprobs", [])


RESULT = JobResult("tiny:0:1", EndReason.STOP, (), Usage(1, 1))
