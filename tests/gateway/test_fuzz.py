"""Malformed bodies with a fixed seed: always a 4xx in OpenAI's shape, never a 500, never a dead process."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.test_refusals import error_of

SEED = 20_260_101
COUNT = 200

SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": 1,
    "stop": ["x"],
    "stop_token_ids": [1],
    "max_tokens": 4,
    "min_tokens": 0,
    "ignore_eos": False,
    "logit_bias": {"1": 1},
    "n": 2,
}
TERMS: dict[str, Any] = {
    "tenant": "t",
    "priority": "batch",
    "deadline_seconds": 60,
    "on_disconnect": "cancel",
    "metadata": {"a": "b"},
}
OPENAI = SAMPLING | TERMS | {"stream": False, "user": "u"}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": OPENAI
    | {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
        ],
        "logprobs": True,
        "top_logprobs": 2,
    },
    "/v1/completions": OPENAI | {"model": "tiny", "prompt": ["a", "b"], "logprobs": 1, "echo": False},
    "/v1/jobs": TERMS | {"model": "tiny", "prompt": "a", "sampling": SAMPLING, "idempotency_key": "k"},
}
REQUIRED = {"/v1/chat/completions": ("model", "messages"), "/v1/completions": ("model", "prompt")}

# Wrong for every field that any endpoint has.
WRONG_VALUES: tuple[Any, ...] = ({"x": [None]}, [{"x": {}}], 1e40, [[[]]], {"a": {"b": {"c": 1}}})
WRONG_LITERALS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 400,
    "-" + "9" * 60,
    "0x10",
    "01",
    "'a'",
    "undefined",
)


def wrong_value(rng: random.Random, url: str, body: dict[str, Any]) -> None:
    place = body["sampling"] if url == "/v1/jobs" and rng.random() < 0.5 else body
    place[rng.choice(sorted(place))] = copy.deepcopy(rng.choice(WRONG_VALUES))


def unknown_field(rng: random.Random, url: str, body: dict[str, Any]) -> None:
    name = "".join(rng.choice("abcé\u0000\n'\"{}.[]%") for _ in range(rng.choice((1, 5, 3000))))
    body["zz" + name] = rng.choice((None, 1, "x", [], {}))


def missing_field(rng: random.Random, url: str, body: dict[str, Any]) -> None:
    del body[rng.choice(REQUIRED.get(url, ("model", "prompt")))]


def out_of_range(rng: random.Random, url: str, body: dict[str, Any]) -> None:
    place = body["sampling"] if url == "/v1/jobs" else body
    name, values = rng.choice(
        (
            ("temperature", (-0.01, 2.01, -1e308)),
            ("top_p", (0, 1.01)),
            ("min_p", (-1, 2)),
            ("n", (0, -1, 17, 2**31)),
            ("max_tokens", (0, -5, 2**31)),
            ("stop", ([""], ["x"] * 17, ["x" * 257])),
            ("stop_token_ids", ([-1], [2**31], [1] * 65)),
            ("logit_bias", ({"1": 101}, {"-1": 0}, {"one": 0})),
            ("seed", (2**63, -(2**63) - 1)),
        )
    )
    place[name] = rng.choice(values)


def deep(rng: random.Random, url: str, body: dict[str, Any]) -> None:
    nested: Any = 1
    for _ in range(rng.choice((10, 200, 800))):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    body[rng.choice(sorted(body))] = nested


def wrong_literal(rng: random.Random, text: bytes) -> bytes:
    name = rng.choice(("temperature", "seed", "n", "deadline_seconds")).encode()
    return text[:-1] + b',"%s":%s}' % (name, rng.choice(WRONG_LITERALS).encode())


def bad_utf8(rng: random.Random, text: bytes) -> bytes:
    return text.replace(
        b'"tiny"', b'"ti' + rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80")) + b'ny"'
    )


def lone_surrogate(rng: random.Random, text: bytes) -> bytes:
    return text.replace(b'"t"', rng.choice((rb'"\ud800"', rb'"\udfff"', rb'"\ud800\u0041"')))


def cut(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randrange(len(text))]


def trailing(rng: random.Random, text: bytes) -> bytes:
    return text + rng.choice((b"x", b"{}", b",", b"]", b"\x00"))


def other_type(rng: random.Random, text: bytes) -> bytes:
    return rng.choice(
        (b"null", b"true", b"1", b'"a"', b"[]", b"[" + text + b"]", b"[" * 5000, b'{"a":' * 5000)
    )


ON_VALUES: tuple[Callable[[random.Random, str, dict[str, Any]], None], ...] = (
    wrong_value,
    wrong_value,
    unknown_field,
    missing_field,
    out_of_range,
    deep,
)
ON_BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    wrong_literal,
    bad_utf8,
    lone_surrogate,
    cut,
    trailing,
    other_type,
)


def malformed(rng: random.Random) -> tuple[str, bytes]:
    url = rng.choice(sorted(VALID))
    body = copy.deepcopy(VALID[url])
    if rng.random() < 0.6:
        rng.choice(ON_VALUES)(rng, url, body)
        return url, json.dumps(body).encode()
    return url, rng.choice(ON_BYTES)(rng, json.dumps(body, separators=(",", ":")).encode())


def cases() -> list[tuple[str, bytes]]:
    rng = random.Random(SEED)
    return [malformed(rng) for _ in range(COUNT)]


@pytest.mark.parametrize("url", sorted(VALID))
async def test_the_bodies_that_are_mutated_are_valid(http: httpx.AsyncClient, url: str) -> None:
    response = await http.post(url, json=VALID[url])
    assert response.status_code in (200, 202), response.text


async def test_200_malformed_bodies_are_all_refused(http: httpx.AsyncClient, rig: Rig) -> None:
    for url, body in cases():
        response = await http.post(url, content=body, headers={"content-type": "application/json"})
        assert 400 <= response.status_code < 500, (response.status_code, url, body[:300])
        error = error_of(response)
        assert len(response.content) < 4000, "an error does not repeat the body"
        assert error["param"] is None or len(error["param"]) < 300
    assert rig.worker.seen == [], "none of them became a job"
    assert (await http.post("/v1/chat/completions", json=VALID["/v1/chat/completions"])).status_code == 200


async def test_randomly_damaged_bytes_never_break_the_gateway(http: httpx.AsyncClient) -> None:
    rng = random.Random(SEED)
    for _ in range(COUNT):
        url = rng.choice(sorted(VALID))
        body = bytearray(json.dumps(VALID[url]).encode())
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        response = await http.post(url, content=bytes(body), headers={"content-type": "application/json"})
        assert response.status_code < 500, (url, bytes(body))
        if response.status_code >= 400:
            error_of(response)
