"""What docs/wire-protocol.md says is what the server does, for a producer with nothing but redis-cli."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
import redis
from tests.conftest import missing

from headway.queueing.claims import Emit, Finish
from headway.queueing.events import (
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobResult,
    TokenEvent,
    Usage,
)
from headway.queueing.functions import library
from headway.queueing.memory_band import FORGET_MS
from headway.queueing.memory_bounds import SHARE_OF_FREE
from headway.queueing.memory_lane import AGED_TENANTS, DEAD_LETTERS_KEPT, RECENT_KEPT
from headway.queueing.messages import MAX_JOB_BYTES, Priority
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.schema import schema_text
from headway.queueing.settings import AGED_EVERY, DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RedisServer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "wire-protocol.md").read_text(encoding="utf-8")
MODEL = "smollm2-135m"


def example() -> str:
    found = re.search(r"<!-- test: .*?-->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


async def answer_one_job(queue: RedisQueue) -> None:
    while not (claims := await queue.claim(MODEL, "w1", 1)):
        await queue.wait(MODEL, "w1", for_work=Priority.BATCH, timeout_seconds=10)
    (claim,) = claims
    first = TokenEvent(Cursor(2), 0, "Hi there", (10, 11))
    await queue.emit([Emit(claim.job_id, claim.token, (first,))])
    stop, usage = EndReason.STOP, Usage(5, 2)
    end = EndEvent(Cursor(2, 1), stop, (ChoiceEnd(stop, "!"),), usage)
    result = JobResult(claim.job_id, stop, (ChoiceResult("Hi there!", (10, 11), stop),), usage)
    await queue.finish([Finish(claim.job_id, claim.token, end, result)])


@pytest.mark.parametrize("kind", ["redis7", "valkey9"])
async def test_the_documented_commands_post_a_job_and_read_its_tokens(
    kind: str, shared_redis: Callable[[str], RedisServer]
) -> None:
    if shutil.which("redis-cli") is None:
        missing("redis-cli")
    server = shared_redis(kind)
    queue = RedisQueue(server.url)
    await queue.check_server()
    worker = asyncio.create_task(answer_one_job(queue))
    script = f'redis-cli() {{ command redis-cli -s "{server.socket}" "$@"; }}\n{example()}'
    process = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    await worker
    await queue.close()
    lines = output.decode().split("\n")
    assert lines[:2] == ["created", "order-1042"]
    assert lines[2:4] == ["o:{smollm2-135m:0}:order-1042", "2-0"]
    assert lines[4:8] == ["t", "Hi there", "k", "10,11"]


def test_a_raw_producer_follows_cancels_and_fetches(redis_url: str) -> None:
    """Plain redis-py, no class of ours: submit, repeat, status, cancel, terminal entry, answer."""
    asyncio.run(_load_library(redis_url))
    tag = "{smollm2-135m:0}"
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        body = b'{"model":"smollm2-135m","prompt":"x"}'
        assert raw.fcall("headway_submit", 1, tag, "k", body) == [b"created", b"k"]
        assert raw.fcall("headway_submit", 1, tag, "k", body) == [b"exists", b"k"]
        with pytest.raises(redis.ResponseError, match=r"HEADWAYINVALID tenant: "):
            raw.fcall("headway_submit", 1, tag, "k2", b'{"model":"smollm2-135m","tenant":"a b"}')
        assert raw.hget(f"j:{tag}:k", "state") == b"queued"
        assert raw.zrange(f"q:{tag}:standard:default", 0, -1) == [b"k"]
        assert raw.hmget(f"lane:{tag}", "jobs:standard", "returned:standard") == [b"1", b"0"]
        assert raw.fcall("headway_cancel", 1, tag, "k", "why") == b"queued"
        assert raw.fcall("headway_cancel", 1, tag, "none", "why") == b"unknown"
        ((entry_id, entry),) = raw.xrange(f"o:{tag}:k", "(0-0", "+")
        assert entry_id == b"0-1"
        assert list(entry) == [b"t", b"k", b"i", b"e"]
        terminal = orjson.loads(entry[b"e"])
        assert set(terminal) == {"reason", "choices", "usage", "error"}
        answer = orjson.loads(raw.get(f"r:{tag}:k"))
        assert set(answer["choices"][0]) == {"text", "token_ids", "finish_reason", "logprobs"}
        assert raw.hmget(f"lane:{tag}", "jobs:standard", "returned:standard") == [b"0", b"0"]


async def _load_library(url: str) -> None:
    queue = RedisQueue(url)
    await queue.check_server()
    await queue.close()


def test_the_committed_schema_is_current() -> None:
    committed = (ROOT / "queueing" / "job.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(), "run: python -m headway.queueing.schema > queueing/job.schema.json"


def test_every_function_is_documented() -> None:
    parts = (ROOT / "queueing" / "lua").glob("*.lua")
    names = {name for part in parts for name in re.findall(r"register\('(\w+)'", part.read_text())}
    assert len(names) >= 9
    assert {name for name in names if f"`{name}" not in PAGE and f"FCALL {name}" not in PAGE} == set()


def test_numbers_in_the_library_are_those_of_the_python_side() -> None:
    text = library()

    def number(pattern: str) -> int:
        return int(re.findall(pattern, text)[0])

    assert number(r"local MAX_BODY_BYTES = (\d+)") == MAX_JOB_BYTES
    assert number(r"local DEAD_LETTERS_KEPT = (\d+)") == DEAD_LETTERS_KEPT
    assert number(r"local AGED_EVERY = (\d+)") == AGED_EVERY
    assert number(r"local AGED_TENANTS = (\d+)") == AGED_TENANTS
    assert number(r"local SHARE_OF_FREE = (\d+)") == SHARE_OF_FREE
    assert number(r"local FORGET_MS = (\d+)") == FORGET_MS
    assert number(r"local RECENT_KEPT = (\d+)") == RECENT_KEPT
    # What a raw producer gets that names no limits.
    assert number(r"'max_jobs', 0, 1e15, (\d+)") == DEFAULTS.max_queued_jobs
    assert number(r"'max_tokens_waiting', 0, 1e15, (\d+)") == DEFAULTS.max_queued_tokens
    milliseconds = {
        "idempotency_ms": DEFAULTS.idempotency_seconds,
        "record_retention_ms": DEFAULTS.record_retention_seconds,
        "max_wait_ms": DEFAULTS.max_wait_seconds,
        "patience_ms": DEFAULTS.patience_seconds,
    }
    for name, seconds in milliseconds.items():
        assert number(rf"'{name}', \d, \w+, (\d+)") == seconds * 1000, name
    stream = number(r"'stream_retention_ms', \d, \w+, (\d+)")
    assert stream == DEFAULTS.stream_retention_seconds * 1000
    record = set(re.findall(r"'record_retention_ms', \d, \w+, (\d+)", text))
    assert record == {str(round(DEFAULTS.record_retention_seconds * 1000))}
