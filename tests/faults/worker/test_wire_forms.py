"""What real workers leave in a server is what the AsyncAPI document says, in every key that it names."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis
from tests.faults.worker.conftest import Committed, Follow, SpawnWorker, ToyJob

from headway.queueing import asyncapi
from headway.queueing.client import Client
from headway.queueing.messages import Job
from headway.queueing.redis_queue import RedisQueue

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT: dict[str, Any] = json.loads((ROOT / "queueing" / "wire.asyncapi.json").read_text(encoding="utf-8"))


def test_the_committed_document_is_current() -> None:
    committed = (ROOT / "queueing" / "wire.asyncapi.json").read_text(encoding="utf-8")
    assert committed == asyncapi.text(), (
        "run: python -m headway.queueing.asyncapi > queueing/wire.asyncapi.json"
    )


async def test_real_workers_write_nothing_that_the_document_does_not_describe(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    toy_job: ToyJob,
    follow: Follow,
    committed: Committed,
) -> None:
    """Choices, log-probabilities, held-back text, a killed worker, cancels, refusals, reservations."""
    queue = client.queue
    assert isinstance(queue, RedisQueue)
    stray = await queue.submit(toy_job("x", 4), reserved="a-nonce")
    await queue.cancel(stray.job_id, "nobody wants it")
    early = await asyncio.to_thread(check_server, redis_url)
    assert (early["Settlement"], early["EndedJob"]) == (1, 1), "before a worker takes it in"
    first = spawn_worker(redis_url, "w-1")
    plain = Job.model_validate(
        toy_job("abc", 12, n=2, logprobs=2, stop=["zz"]).model_dump()
        | {"metadata": {"a": "1"}, "on_disconnect": "detach", "deadline_seconds": 60}
    )
    ended = [(await queue.submit(plain)).job_id]
    ended.append(
        (await queue.submit_body("scripted", b'{"model":"scripted","prompt":"x","nonsense":1}')).job_id
    )
    for job_id in ended:
        await follow(client, job_id)
    long = await queue.submit(toy_job("long", 60))
    await committed(client, long.job_id, 5)
    await first.kill()
    spawn_worker(redis_url, "w-2")
    await follow(client, long.job_id)
    endless = await queue.submit(toy_job("endless", 3000))
    await committed(client, endless.job_id, 3)
    assert (await queue.cancel(endless.job_id, "enough")).value == "running"
    await follow(client, endless.job_id)
    waits = await queue.submit(toy_job("waits", 3000))
    await committed(client, waits.job_id, 1)
    seen = await asyncio.to_thread(check_server, redis_url)
    assert {form for form, count in seen.items() if count} == {
        *("TokenEntry", "TerminalEntry", "Answer", "JobRecord", "EndedJob", "DeadLetter", "Told"),
        *("WorkerCard", "Job"),
    }
    assert seen["JobRecord"] == 6
    assert seen["TerminalEntry"] == seen["Answer"] == 5


FORMS = {
    "p": "Job",
    "r": "Answer",
    "w": "WorkerCard",
    "j": "JobRecord",
    "o": "",
    "recent": "EndedJob",
    "dlq": "DeadLetter",
    "settle": "Settlement",
    "ctl": "Told",
}
"""What a key's first word says that it holds."""


def check_server(url: str) -> Counter[str]:
    """Hold every key of the document against it; how many there were of each form."""
    seen: Counter[str] = Counter()
    with redis.Redis.from_url(url, protocol=2) as raw:
        for key in map(bytes.decode, raw.scan_iter()):
            form = FORMS.get(key.partition(":")[0])
            if form is None:
                continue
            for value in values(raw, key):
                named = form or ("TerminalEntry" if value["i"] == "-1" else "TokenEntry")
                if named == "Job" and "nonsense" in value:
                    continue  # what a producer sent, as it sent it
                check(named, value)
                seen[named] += 1
    return seen


def values(raw: Any, key: str) -> list[Any]:
    match raw.type(key):
        case b"string":
            return [json.loads(raw.get(key))]
        case b"hash":
            return [texts(raw.hgetall(key))]
        case _:
            entries = [(entry_id, texts(fields)) for entry_id, fields in raw.xrange(key)]
            return [fields if "o:" not in key else {"i": "0"} | fields for _, fields in entries]


def texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


def check(form: str, value: Any) -> None:
    """Strictly: a field that the document does not have is a gap in the document."""
    schema = {"$ref": f"#/components/schemas/{form}", "components": {"schemas": SCHEMAS}}
    validator = jsonschema.Draft202012Validator(schema)
    problems = [f"{form}.{error.json_path}: {error.message}" for error in validator.iter_errors(value)]
    assert problems == []
    if isinstance(value, dict):
        for name, text in value.items():
            inside = json_inside(SCHEMAS[form]["properties"].get(name, {}))
            if inside is not None and text:
                jsonschema.Draft202012Validator({**inside, "components": {"schemas": SCHEMAS}}).validate(
                    json.loads(text)
                )


def json_inside(field: dict[str, Any]) -> dict[str, Any] | None:
    """What the JSON in a text field must be."""
    ways = [field, *field.get("anyOf", ())]
    return next((way["contentSchema"] for way in ways if "contentSchema" in way), None)


def closed(schema: Any) -> Any:
    """The schema, but with no room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        inner.setdefault("additionalProperties", False)
    return inner


SCHEMAS: dict[str, Any] = closed(DOCUMENT["components"]["schemas"])


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("TokenEntry", {"t": "a", "k": "1,"}),
        ("TokenEntry", {"t": "a", "k": "1", "e": "done"}),
        ("TokenEntry", {"t": "a", "k": "1", "l": '[[1, "a", "zz", 0.0, []]]'}),
        ("TerminalEntry", {"t": "", "k": "", "i": "-1", "e": '{"reason": "stop"}'}),
        ("JobRecord", {"state": "lost", "tenant": "a", "band": "batch", "created": "1"}),
        ("JobRecord", {"state": "queued", "tenant": "a", "band": "batch", "created": "1", "new": "1"}),
        ("Answer", {"reason": "stop", "choices": [{"text": "a"}], "usage": {}, "error": None}),
    ],
)
def test_the_check_finds_what_is_wrong(form: str, value: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, jsonschema.ValidationError)):
        check(form, value)


def test_the_page_names_the_document_and_every_channel() -> None:
    page = (ROOT / "docs" / "wire-protocol.md").read_text(encoding="utf-8")
    assert "(../queueing/wire.asyncapi.json)" in page
    for name, channel in DOCUMENT["channels"].items():
        word = channel["address"].partition("{")[0].strip()
        assert word in page, f"{name}: {word}"
