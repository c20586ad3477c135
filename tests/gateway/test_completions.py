"""Completions over a real queue."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script
from tests.gateway.sse_reader import parse

URL = "/v1/completions"
ASK: dict[str, Any] = {"model": "tiny", "prompt": "Say: "}


async def texts_of_stream(http: httpx.AsyncClient, **fields: Any) -> dict[int, str]:
    response = await http.post(URL, json=ASK | {"stream": True} | fields)
    assert response.status_code == 200, response.text
    events = parse(response.text)
    assert events[-1].data == "[DONE]"
    texts: dict[int, str] = {}
    for event in events[:-1]:
        for choice in event.json["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def test_a_whole_completion_has_openais_shape(http: httpx.AsyncClient, rig: Rig) -> None:
    answer = (await http.post(URL, json=ASK)).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "Hello, world!", "logprobs": None, "finish_reason": "stop"}
    ]
    assert rig.worker.seen[0].sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "jobs"),
    [
        ("a", [("a", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        ([1, 2], [(None, (1, 2))]),
        ([[1], [2, 3]], [(None, (1,)), (None, (2, 3))]),
    ],
)
async def test_each_prompt_becomes_a_job(
    http: httpx.AsyncClient, rig: Rig, prompt: object, jobs: list[object]
) -> None:
    response = await http.post(URL, json=ASK | {"prompt": prompt})
    assert response.status_code == 200, response.text
    assert [(job.prompt, job.prompt_token_ids) for job in rig.worker.seen] == jobs
    assert len(response.json()["choices"]) == len(jobs)


@pytest.mark.parametrize("echo", [False, True])
async def test_choices_of_several_prompts_are_numbered_through(http: httpx.AsyncClient, echo: bool) -> None:
    fields = {"prompt": ["a", "b", "c"], "n": 2, "echo": echo}
    answer = (await http.post(URL, json=ASK | fields)).json()
    whole = {choice["index"]: choice["text"] for choice in answer["choices"]}
    prompts = ["a", "a", "b", "b", "c", "c"] if echo else [""] * 6
    assert whole == {index: f"{prompt}Hello, world!" for index, prompt in enumerate(prompts)}
    assert await texts_of_stream(http, **fields) == whole
    assert answer["usage"]["prompt_tokens"] == 21
    assert answer["usage"]["completion_tokens"] == 30


async def test_logprobs_have_offsets_in_characters(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = Script(pieces=("é", "lan", "!"))
    choice = (await http.post(URL, json=ASK | {"logprobs": 1})).json()["choices"][0]
    expected = {
        "tokens": ["é", "lan", "!"],
        "token_logprobs": [-0.25] * 3,
        "top_logprobs": [{"é0": -0.5}, {"lan0": -0.5}, {"!0": -0.5}],
        "text_offset": [0, 1, 4],
    }
    assert choice["logprobs"] == expected
    response = await http.post(URL, json=ASK | {"logprobs": 1, "stream": True})
    found: dict[str, list[Any]] = {name: [] for name in expected}
    for event in parse(response.text)[:-1]:
        for name, values in (event.json["choices"][0]["logprobs"] or {}).items():
            found[name] += values
    assert found == expected


async def test_logprobs_zero_shows_the_chosen_token_only(http: httpx.AsyncClient) -> None:
    choice = (await http.post(URL, json=ASK | {"logprobs": 0})).json()["choices"][0]
    assert choice["logprobs"]["top_logprobs"] is None
    assert len(choice["logprobs"]["tokens"]) == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "prompt": [1, 2]}, "echo"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
    ],
)
async def test_what_cannot_be_exact_is_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    response = await http.post(URL, json=ASK | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["code"] == "unsupported"


async def test_values_without_effect_are_accepted(http: httpx.AsyncClient) -> None:
    response = await http.post(URL, json=ASK | {"best_of": 2, "n": 2, "suffix": None, "echo": False})
    assert response.status_code == 200, response.text


async def test_one_idempotency_key_covers_all_prompts_of_a_request(http: httpx.AsyncClient, rig: Rig) -> None:
    for _ in range(2):
        response = await http.post(
            URL, json=ASK | {"prompt": ["a", "b"]}, headers={"Idempotency-Key": "k" * 200}
        )
        assert response.status_code == 200, response.text
    assert len(rig.worker.seen) == 2
