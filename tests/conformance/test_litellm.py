"""litellm as a client: what it makes of our answers, and which of its exceptions our errors become."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel
from tests.conformance.service import Service, say, say_call
from tests.conformance.test_openai import WEATHER
from tests.gateway.scripted_worker import Script

from headway.queueing.events import EndReason, JobError

pytestmark = pytest.mark.filterwarnings("default")  # of its own and its libraries'; ours are errors elsewhere


class City(BaseModel):
    name: str
    people: int


@pytest.fixture(scope="module")
def litellm() -> Any:
    import litellm

    litellm.suppress_debug_info = True
    return litellm


@pytest.fixture
def at(service: Service) -> dict[str, Any]:
    """Where to ask, and with which key."""
    return {"api_base": service.base_url, "api_key": service.key, "timeout": 20, "max_retries": 0}


def test_chat_whole_and_streamed(litellm: Any, at: dict[str, Any]) -> None:
    asked = {"model": "openai/tiny", "messages": say("Hello, litellm!")}
    whole = litellm.completion(**asked, **at, n=2, logprobs=True, top_logprobs=1, seed=1, stop=["never"])
    assert [choice.message.content for choice in whole.choices] == ["Hello, litellm!"] * 2
    assert whole.usage.completion_tokens == 10
    chunks = list(litellm.completion(**asked, **at, stream=True, stream_options={"include_usage": True}))
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == "Hello, litellm!"
    )
    built = litellm.stream_chunk_builder(chunks)
    assert (built.choices[0].finish_reason, built.usage.completion_tokens) == ("stop", 5)
    later = asyncio.run(litellm.acompletion(**asked, **at))
    assert later.choices[0].message.content == "Hello, litellm!"


@pytest.mark.parametrize("streams", [False, True])
def test_tools_through_both_turns(litellm: Any, at: dict[str, Any], streams: bool) -> None:
    messages = say_call("get_weather", city="Paris")
    answer = litellm.completion(
        model="openai/tiny", messages=messages, tools=[WEATHER], tool_choice="auto", stream=streams, **at
    )
    whole = litellm.stream_chunk_builder(list(answer)) if streams else answer
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = whole.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    messages += [
        whole.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "say warm"},
    ]
    second = litellm.completion(model="openai/tiny", messages=messages, tools=[WEATHER], **at)
    assert second.choices[0].message.content == "warm"


def test_structured_output_and_thoughts(litellm: Any, at: dict[str, Any], service: Service) -> None:
    answer = litellm.completion(
        model="openai/tiny", messages=say('{"name": "Paris", "people": 2}'), response_format=City, **at
    )
    assert City.model_validate_json(answer.choices[0].message.content) == City(name="Paris", people=2)
    assert service.seen[-1].constraint is not None
    thinking = litellm.completion(model="openai/tiny", messages=say("<think>Hm.</think>Yes."), **at)
    assert thinking.choices[0].message.reasoning_content == "Hm."


def test_completions_and_responses(litellm: Any, at: dict[str, Any]) -> None:
    text = litellm.text_completion(model="text-completion-openai/tiny", prompt="say words", **at)
    assert text.choices[0].text == "words"
    response = litellm.responses(model="openai/tiny", input="say a response", **at)
    assert (response.status, response.output[0].content[0].text) == ("completed", "a response")
    events = list(litellm.responses(model="openai/tiny", input="say bit by bit", stream=True, **at))
    assert "".join(getattr(event, "delta", "") for event in events) == "bit by bit"


def test_errors_become_its_exceptions(litellm: Any, at: dict[str, Any], service: Service) -> None:
    asked: dict[str, Any] = {"model": "openai/tiny", "messages": say("hi")}
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**asked | at | {"temperature": 3})
    with pytest.raises(litellm.NotFoundError, match="does not exist here"):
        litellm.completion(**asked | at | {"model": "openai/gpt-x"})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**asked | at | {"api_key": "hw-not-a-key"})
    too_long = JobError("context_length_exceeded", "This model's maximum context length is 4096", "messages")
    with (
        service.following(Script(pieces=(), reason=EndReason.ERROR, error=too_long)),
        pytest.raises(litellm.ContextWindowExceededError),
    ):
        litellm.completion(**asked, **at)
    failed = Script(pieces=(), reason=EndReason.ERROR, error=JobError("engine_error", "out of memory"))
    with service.following(failed), pytest.raises(litellm.InternalServerError, match="out of memory"):
        litellm.completion(**asked, **at)
    with service.limited(rpm=1):
        litellm.completion(**asked, **at)
        with pytest.raises(litellm.RateLimitError):
            litellm.completion(**asked, **at)
    with service.following(Script(hold_at=0)), pytest.raises(litellm.Timeout):
        litellm.completion(**asked | at | {"timeout": 0.3})
