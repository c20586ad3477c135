"""The whole path with the real model: what `make up` starts answers, and a killed worker changes no word."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from tests.conftest import missing
from tests.native_kernels import CACHE_DIR, native_library
from tests.services.up.headway_up import HeadwayUp, running_up

from headway.engine.errors import ModelError
from headway.engine.model_source import resolve_model
from headway.kernels.native_library import FEATURES, cpu_features
from headway.queueing.events import Cursor, TokenEvent
from headway.queueing.sync import SyncClient

IS_NATIVE = cpu_features().issuperset(FEATURES)
"""Elsewhere in float32, where a recomputed context may round in another way, but seldom to another word."""
PROMISE = ("--deterministic", "--quantization", "none") if IS_NATIVE else ("--dtype", "float32")
ARGUMENTS = ("--model", "smollm2-135m", "--kv-cache", "64MiB", "--threads", "2", *PROMISE)
ASKED: dict[str, Any] = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 100,
    "ignore_eos": True,
}


SAMPLED: dict[str, Any] = {
    "n": 2,
    "temperature": 0.8,
    "seed": 11,
    "max_tokens": 60,
    "ignore_eos": True,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
    "logprobs": 2,
}
STOP_FROM, STOP_TO = 24, 44
"""The tokens of the first choice whose text is the stop string: the kill falls between them."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[HeadwayUp]:
    try:
        resolve_model("smollm2-135m")
    except ModelError:
        missing("the model smollm2-135m")
    if IS_NATIVE:
        native_library()  # compiled before the clock of the start runs
    kept = {"HEADWAY_CACHE_DIR": str(CACHE_DIR)}
    with running_up(tmp_path_factory.mktemp("up"), *ARGUMENTS, env=kept) as running:
        yield running


@pytest.mark.timeout(180)
def test_the_real_model_answers_and_goes_on_with_the_same_words_after_its_worker_is_killed(
    up: HeadwayUp,
) -> None:
    calm = httpx.post(f"{up.url}/v1/chat/completions", json=ASKED, timeout=60).json()
    text = calm["choices"][0]["message"]["content"]
    assert "Paris" in text
    assert calm["usage"]["completion_tokens"] == 100
    assert streamed_over_a_kill(up) == text


@pytest.mark.timeout(180)
def test_draws_penalties_stop_strings_and_logprobs_of_two_choices_survive_a_kill(up: HeadwayUp) -> None:
    with SyncClient.connect(up.redis_url) as client:
        stop = text_of_tokens(client, STOP_FROM, STOP_TO)
        calm = client.result(asked_for(client, stop), timeout_seconds=60)
        job_id = asked_for(client, stop)
        cursors = killed_between(client, up, job_id)
        resumed = client.result(job_id, timeout_seconds=60)
        (lost,) = client.status(job_id).history
    published = sum(cursor.tokens <= lost.committed_tokens for cursor in cursors)
    assert STOP_FROM < published < STOP_TO, "the kill did not fall into the stop string"
    assert calm.choices[0].finish_reason == "stop"
    assert stop not in calm.choices[0].text
    assert calm.choices[1].finish_reason == "length"
    assert resumed.usage.completion_tokens == calm.usage.completion_tokens
    for before, after in zip(calm.choices, resumed.choices, strict=True):
        assert (after.text, after.token_ids) == (before.text, before.token_ids)
        assert after.finish_reason == before.finish_reason
        assert len(after.logprobs) == len(after.token_ids)
        for one, other in zip(before.logprobs, after.logprobs, strict=True):
            assert [each.token_id for each in other.top] == [each.token_id for each in one.top]
            assert other.logprob == pytest.approx(one.logprob, abs=0.0 if IS_NATIVE else 1e-3)


def asked_for(client: SyncClient, *stops: str) -> str:
    """A job that draws two answers."""
    sampling = {**SAMPLED, "stop": stops}
    prompt = "Once upon a time, in a village by the sea,"
    return client.submit(model="smollm2-135m", prompt=prompt, sampling=sampling).job_id


def text_of_tokens(client: SyncClient, first: int, last: int) -> str:
    """What the first choice says in these tokens; it says that nowhere before."""
    pieces: list[str] = []
    for event in client.stream(asked_for(client)):
        if isinstance(event, TokenEvent) and event.choice == 0:
            pieces += [event.text, *[""] * (len(event.token_ids) - 1)]
    assert len(pieces) == SAMPLED["max_tokens"]
    text = "".join(pieces[first:last])
    assert "".join(pieces).index(text) == len("".join(pieces[:first]))
    return text


def killed_between(client: SyncClient, up: HeadwayUp, job_id: str) -> list[Cursor]:
    """Where each token of the first choice stands in the stream; its worker is killed in the stop string."""
    cursors: list[Cursor] = []
    victim = up.worker_pid
    for event in client.stream(job_id):
        if isinstance(event, TokenEvent) and event.choice == 0:
            cursors += [event.cursor] * len(event.token_ids)
        if len(cursors) > STOP_FROM and victim:
            os.kill(victim, signal.SIGKILL)
            victim = 0
    return cursors


def streamed_over_a_kill(up: HeadwayUp) -> str:
    """The same answer as a stream, with SIGKILL for its worker after the first words."""
    text, victim = "", up.worker_pid
    asked = {**ASKED, "stream": True}
    with httpx.stream("POST", f"{up.url}/v1/chat/completions", json=asked, timeout=90) as reply:
        job_id = reply.headers["x-headway-job-id"]
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
                if len(text) > 20 and victim:
                    os.kill(victim, signal.SIGKILL)
                    victim = 0
    job = httpx.get(f"{up.url}/v1/jobs/{job_id}", timeout=10).json()
    assert job["attempts"] == 1, "the answer had ended before its worker was killed"
    return text
