"""The official client, every endpoint that is served; what it reads is held to its own types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import (
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
)
from pydantic import BaseModel
from tests.conformance.conftest import strict
from tests.conformance.service import Service, say, say_call

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class City(BaseModel):
    name: str
    people: int


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index
    )


def only_call(message: ChatCompletionMessage) -> ChatCompletionMessageFunctionToolCall:
    (call,) = message.tool_calls or []
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    return call


def test_chat_whole_with_every_common_field(client: OpenAI, service: Service) -> None:
    answer = strict(
        client.chat.completions.create(
            model="tiny",
            messages=[
                {"role": "developer", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "say Hello there"}]},
            ],
            n=2,
            seed=5,
            temperature=0.3,
            top_p=0.9,
            stop=["there"],
            max_completion_tokens=50,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            logit_bias={"7": -1},
            logprobs=True,
            top_logprobs=2,
            metadata={"run": "1"},
            user="someone",
            store=False,
            parallel_tool_calls=True,
            service_tier="auto",
        )
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello "] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content or ())
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    job = service.seen[-1]
    assert (job.sampling.seed, job.sampling.n, job.sampling.max_tokens) == (5, 2, 50)
    assert job.tenant == "acme"


def test_chat_streams_and_the_last_chunk_has_the_exact_usage(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=say("Hello, streamed world!"),
        n=2,
        logprobs=True,
        top_logprobs=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [strict(chunk) for chunk in stream]
    assert {text_of(chunks, index) for index in range(2)} == {"Hello, streamed world!"}
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage and last.usage.completion_tokens) == ([], 16)
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends == ["stop", "stop"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_conversation_with_tools_goes_through_both_turns(client: OpenAI, service: Service) -> None:
    messages = say_call("get_weather", city="Paris")
    answer = strict(client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER]))
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    call = only_call(choice.message)
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages.append(choice.message.to_dict())  # as the client's users do
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "say 22 degrees"})
    second = strict(client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER]))
    assert second.choices[0].message.content == "22 degrees"
    turns = service.seen[-1].messages or ()
    assert [turn.role for turn in turns] == ["user", "assistant", "tool"]
    assert turns[1].tool_calls[0].id == turns[2].tool_call_id == call.id


def test_the_streaming_helper_puts_calls_together(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=say_call("get_weather", city="Rome"), tools=[WEATHER]
    ) as stream:
        events = [event.type for event in stream]
        whole = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in events
    assert "tool_calls.function.arguments.done" in events
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == {"city": "Rome"}
    assert whole.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("is_named", [False, True])
def test_a_forced_call(client: OpenAI, service: Service, is_named: bool) -> None:
    call = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    answer = strict(
        client.chat.completions.create(
            model="tiny",
            messages=say(json.dumps(call["arguments"] if is_named else [call])),
            tools=[WEATHER],
            tool_choice=named if is_named else "required",
            parallel_tool_calls=False,
        )
    )
    made = only_call(answer.choices[0].message)
    assert json.loads(made.function.arguments) == {"city": "Oslo"}
    assert service.seen[-1].constraint is not None


def test_parse_gives_an_object_of_the_users_class(client: OpenAI, service: Service) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=say('{"name": "Paris", "people": 2100000}'), response_format=City
    )
    assert answer.choices[0].message.parsed == City(name="Paris", people=2100000)
    constraint = service.seen[-1].constraint
    assert constraint is not None
    assert isinstance(constraint.json_schema, dict)
    assert set(constraint.json_schema["properties"]) == {"name", "people"}
    with client.chat.completions.stream(
        model="tiny", messages=say('{"name": "Rome", "people": 3}'), response_format=City
    ) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == City(name="Rome", people=3)


def test_thoughts_come_beside_the_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=say("<think>Hm.</think>Yes."), reasoning_effort="low"
    )
    message = strict(answer).choices[0].message
    assert message.content == "Yes."
    assert (message.model_extra or {})["reasoning_content"] == "Hm."


def test_completions_of_texts_and_token_ids(client: OpenAI) -> None:
    answer = strict(
        client.completions.create(
            model="tiny", prompt=["say one", "say two!!"], n=2, echo=True, max_tokens=5, temperature=0
        )
    )
    assert [choice.text for choice in answer.choices] == ["say oneone"] * 2 + ["say two!!two!!"] * 2
    scored = strict(client.completions.create(model="tiny", prompt=[5, 6, 7], logprobs=2))
    assert scored.choices[0].logprobs is not None
    assert scored.choices[0].logprobs.text_offset == [0, 3, 6, 9, 12]
    stream = client.completions.create(model="tiny", prompt="say streamed", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "streamed"


def test_responses_whole_streamed_stored_and_continued(client: OpenAI, service: Service) -> None:
    first = strict(
        client.responses.create(
            model="tiny", input="say The first answer", instructions="Be short.", metadata={"a": "b"}
        )
    )
    assert (first.output_text, first.status) == ("The first answer", "completed")
    assert first.usage is not None
    assert strict(client.responses.retrieve(first.id)).output_text == "The first answer"
    items = list(client.responses.input_items.list(first.id))
    assert [item.type for item in items] == ["message"]
    second = strict(
        client.responses.create(model="tiny", input="say More", previous_response_id=first.id, store=True)
    )
    assert [turn.content for turn in service.seen[-1].messages or ()] == [
        "say The first answer",
        "The first answer",
        "say More",
    ]
    assert second.previous_response_id == first.id
    client.responses.delete(second.id)
    events = [
        strict(event) for event in client.responses.create(model="tiny", input="say Bit by bit", stream=True)
    ]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Bit by bit"
    )
    made = events[0].response.id  # type: ignore[union-attr]  # the first is response.created
    resumed = list(client.responses.retrieve(made, stream=True, starting_after=numbers[4]))
    assert [event.sequence_number for event in resumed] == numbers[5:]


def test_responses_in_the_background_and_parsed(client: OpenAI) -> None:
    posted = strict(client.responses.create(model="tiny", input="say later", background=True))
    assert posted.status in {"queued", "in_progress", "completed"}
    stream = client.responses.retrieve(posted.id, stream=True)
    assert [event.type for event in stream][-1] == "response.completed"
    assert strict(client.responses.cancel(posted.id)).status == "completed"
    parsed = client.responses.parse(
        model="tiny", input='say {"name": "Bonn", "people": 330000}', text_format=City
    )
    assert parsed.output_parsed == City(name="Bonn", people=330000)


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert strict(model).id == "tiny"
    assert strict(client.models.retrieve("tiny")).owned_by == "headway"


def test_files_and_batches(client: OpenAI) -> None:
    body = {"model": "tiny", "messages": say("hi")}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = strict(
        client.files.create(
            file=("in.jsonl", json.dumps(line).encode()),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 172_800},
        )
    )
    assert client.files.content(file.id).text == json.dumps(line)
    assert [strict(each).id for each in client.files.list(purpose="batch")] == [file.id]
    batch = strict(
        client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"a": "b"},
        )
    )
    assert batch.status == "validating"
    assert [strict(each).id for each in client.batches.list(limit=1)] == [batch.id]
    assert strict(client.batches.cancel(batch.id)).status == "cancelling"
    assert strict(client.batches.retrieve(batch.id)).input_file_id == file.id
    assert strict(client.files.delete(file.id)).deleted
