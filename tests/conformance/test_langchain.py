"""langchain-openai as a client: chains, agents' tool turns, structured output, and its exceptions."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_openai import OpenAI as Completions
from pydantic import BaseModel, Field
from tests.conformance.service import Service, say_call
from tests.gateway.scripted_worker import Script

from headway.queueing.events import EndReason, JobError

pytestmark = pytest.mark.filterwarnings("default")  # of its own and its libraries'; ours are errors elsewhere


class City(BaseModel):
    """A city."""

    name: str = Field(description="Its name")
    people: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"say {city} is sunny"


def chat_model(service: Service, **fields: Any) -> ChatOpenAI:
    asked: dict[str, Any] = {
        "model": "tiny",
        "base_url": service.base_url,
        "api_key": service.key,
        "max_retries": 0,
        "timeout": 20,
    }
    return ChatOpenAI(**(asked | fields))


async def test_invoke_stream_and_batch(service: Service) -> None:
    model = chat_model(service, temperature=0.1, seed=3, stop=["never"], logprobs=True, top_logprobs=1)
    answer = model.invoke([SystemMessage("Be short."), HumanMessage("say Hello, chain!")])
    assert answer.content == "Hello, chain!"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 5
    assert len(answer.response_metadata["logprobs"]["content"]) == 5
    chunks = list(chat_model(service, stream_usage=True).stream("say Bit by bit"))
    assert "".join(str(chunk.content) for chunk in chunks) == "Bit by bit"
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 4
    assert [each.content for each in chat_model(service).batch(["say one", "say two"])] == ["one", "two"]
    assert (await chat_model(service).ainvoke("say later")).content == "later"


@pytest.mark.parametrize("streams", [False, True])
def test_an_agents_tool_turns(service: Service, streams: bool) -> None:
    model = chat_model(service).bind_tools([get_weather])
    asked: list[Any] = [HumanMessage(say_call("get_weather", city="Paris")[0]["content"])]
    if streams:
        answer: Any = reduce(operator.add, model.stream(asked))
    else:
        answer = model.invoke(asked)
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert model.invoke([*asked, answer, result]).content == "Paris is sunny"


def test_a_forced_tool(service: Service) -> None:
    model = chat_model(service).bind_tools([get_weather], tool_choice="get_weather")
    (call,) = model.invoke('say {"city": "Oslo"}').tool_calls
    assert call["args"] == {"city": "Oslo"}


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(service: Service, method: Any) -> None:
    model = chat_model(service).with_structured_output(City, method=method)
    assert model.invoke('say {"name": "Paris", "people": 2}') == City(name="Paris", people=2)
    assert service.seen[-1].constraint is not None


def test_the_responses_api_and_completions(service: Service) -> None:
    answer = chat_model(service, use_responses_api=True).invoke("say a response")
    assert answer.text == "a response"
    pieces = chat_model(service, use_responses_api=True).stream("say bit by bit")
    assert "".join(chunk.text for chunk in pieces) == "bit by bit"
    plain = Completions(model="tiny", base_url=service.base_url, api_key=service.key, max_retries=0)  # type: ignore[arg-type]  # a plain text is taken
    assert plain.invoke("say words") == "words"


def test_errors_are_the_official_clients(service: Service) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat_model(service, temperature=3).invoke("hi")
    with pytest.raises(openai.NotFoundError):
        chat_model(service, model="gpt-x").invoke("hi")
    with pytest.raises(openai.AuthenticationError):
        chat_model(service, api_key="hw-not-a-key").invoke("hi")
    broken = Script(reason=EndReason.ERROR, error=JobError("engine_error", "out of memory"))
    with service.following(broken), pytest.raises(openai.APIError, match="out of memory"):
        list(chat_model(service).stream("hi"))
    with service.following(Script(hold_at=0)), pytest.raises(openai.APITimeoutError):
        chat_model(service, timeout=0.3).invoke("hi")
    with service.limited(rpm=1):
        chat_model(service).invoke("hi")
        with pytest.raises(openai.RateLimitError):
            chat_model(service).invoke("hi")
