"""The official client against everything for real: the processes of one ``headway up``."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from openai.types.completion import Completion
from tests.services.up.headway_up import HeadwayUp, eventually, running_up

MODEL = "scripted"
CONTEXT = 4096
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[HeadwayUp]:
    with running_up(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def client(up: HeadwayUp) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


def job_of(up: HeadwayUp, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = httpx.get(f"{up.url}/v1/jobs/{job_id}", timeout=10).raise_for_status().json()
    return job


def text_of(chunks: list[ChatCompletionChunk], choice: int = 0) -> str:
    pieces = [each.delta.content or "" for chunk in chunks for each in chunk.choices if each.index == choice]
    return "".join(pieces)


def test_a_chat_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HI, temperature=0, max_tokens=12)
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=HI, temperature=0, max_tokens=12, stream=True)
    )
    (choice,) = whole.choices
    assert choice.message.role == chunks[0].choices[0].delta.role == "assistant"
    assert len(choice.message.content or "") == 12
    assert text_of(chunks) == choice.message.content
    assert choice.finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.prompt_tokens > 2) == (12, True)
    assert all(chunk.usage is None for chunk in chunks)


def test_a_completion_is_the_same_whole_and_streamed(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="once", temperature=0, max_tokens=12)
    stream: Stream[Completion] = client.completions.create(
        model=MODEL, prompt="once", temperature=0, max_tokens=12, stream=True
    )
    assert len(whole.choices[0].text) == 12
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_several_prompts_keep_their_places(client: OpenAI) -> None:
    prompts = ["once", "twice", "thrice"]
    apart = [
        client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=6).choices[0].text
        for prompt in prompts
    ]
    together = client.completions.create(model=MODEL, prompt=prompts, temperature=0, max_tokens=6)
    assert [choice.text for choice in together.choices] == apart
    assert len(set(apart)) == 3


def test_include_usage_adds_one_last_chunk(client: OpenAI) -> None:
    *chunks, last = client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 7
    assert last.usage.total_tokens == 7 + last.usage.prompt_tokens


@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_ends_the_answer_before_it_whole_and_streamed(client: OpenAI, length: int) -> None:
    free = client.completions.create(model=MODEL, prompt="once", temperature=0, max_tokens=40).choices[0].text
    stop = free[20 : 20 + length]
    expected = free[: free.index(stop)]
    asked: dict[str, Any] = {"model": MODEL, "prompt": "once", "temperature": 0, "max_tokens": 40}
    whole = client.completions.create(**asked, stop=["never!", stop])
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (expected, "stop")
    chunks = list(client.completions.create(**asked, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_two_choices_differ_and_stream_side_by_side(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": HI, "n": 2, "seed": 5, "max_tokens": 10}
    whole = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert texts[0] != texts[1]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 20
    chunks: list[ChatCompletionChunk] = list(client.chat.completions.create(**asked, stream=True))
    assert [text_of(chunks, choice) for choice in range(2)] == texts


def test_logprobs_come_with_each_token(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=HI, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content or []
    assert "".join(each.token for each in content) == chat.choices[0].message.content
    for each in content:
        assert (each.top_logprobs[0].token, len(each.top_logprobs)) == (each.token, 3)
        assert each.logprob == each.top_logprobs[0].logprob < 0
    completion = client.completions.create(
        model=MODEL, prompt="once", temperature=0, max_tokens=5, logprobs=2
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == completion.choices[0].text
    assert logprobs.text_offset == [0, 1, 2, 3, 4]


def test_a_seed_repeats_its_answer_and_another_one_does_not(client: OpenAI) -> None:
    def draw(seed: int) -> str | None:
        answer = client.chat.completions.create(model=MODEL, messages=HI, seed=seed, max_tokens=12)
        return answer.choices[0].message.content

    assert draw(1) == draw(1) != draw(2)


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-5", messages=HI)
    assert (error.value.code, error.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"temperature": 9}, "temperature"), ({"n": 0}, "n"), ({"tools": [{}]}, "tools[0].type")],
)
def test_a_bad_parameter_is_named(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=HI, **fields)
    assert error.value.param == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"prompt": "x" * CONTEXT}, {"prompt": "x", "max_tokens": CONTEXT}])
def test_a_context_too_long_is_a_bad_request_in_words(
    client: OpenAI, stream: bool, fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {CONTEXT} tokens") as error:
        client.completions.create(model=MODEL, stream=stream, **fields)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")


def test_a_passed_deadline_is_a_gateway_timeout_and_what_was_said_is_kept(
    client: OpenAI, up: HeadwayUp
) -> None:
    with pytest.raises(openai.InternalServerError) as error:
        client.chat.completions.create(
            model=MODEL, messages=HI, max_tokens=3000, extra_headers={"X-Deadline": "0.5"}
        )
    assert (error.value.status_code, error.value.code) == (504, "deadline_exceeded")
    assert error.value.response.headers["x-should-retry"] == "false"
    job_id = error.value.response.headers["x-headway-job-id"]
    result = httpx.get(f"{up.url}/v1/jobs/{job_id}/result", timeout=10).json()
    assert result["reason"] == "deadline"
    assert 0 < result["usage"]["completion_tokens"] < 3000


def test_leaving_in_mid_stream_cancels_the_job(client: OpenAI, up: HeadwayUp) -> None:
    with client.chat.completions.create(model=MODEL, messages=HI, max_tokens=4000, stream=True) as stream:
        job_id = stream.response.headers["x-headway-job-id"]
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        assert job_of(up, job_id)["status"] == "running"
        assert running_jobs(up) == 1
    eventually("the job has ended", lambda: job_of(up, job_id)["status"] == "finished", 10)
    job = job_of(up, job_id)
    assert job["reason"] == "cancelled"
    assert 0 < job["committed_tokens"] < 4000


def test_a_timeout_of_the_client_cancels_the_job(client: OpenAI, up: HeadwayUp) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(
            model=MODEL, messages=HI, max_tokens=4000, extra_headers={"X-Tenant": "impatient"}
        )
    cancelled = f'headway_gateway_jobs_total{{model="{MODEL}",reason="cancelled",tenant="impatient"}}'
    eventually("the gateway has cancelled it", lambda: metric(up, cancelled) == 1, 10)
    # Left alone it would run for twenty seconds.
    eventually("no worker holds a job", lambda: running_jobs(up) == 0, 10)


def running_jobs(up: HeadwayUp) -> float:
    return metric(up, f'headway_queue_running{{model="{MODEL}"}}')


def metric(up: HeadwayUp, name: str) -> float:
    """A figure of the gateway's; 0 before it is first counted."""
    lines = httpx.get(f"{up.url}/metrics", timeout=10).text.splitlines()
    return float(next((line.split()[-1] for line in lines if line.startswith(f"{name} ")), 0))
