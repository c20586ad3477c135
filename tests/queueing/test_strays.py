"""Whatever lies in the queue's keys, a claim goes on, and whoever can be told is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from tests.queueing.conftest import BODY, MODEL, TAG, emit, stop

from headway.queueing.claims import Fenced
from headway.queueing.errors import UnknownJobError
from headway.queueing.events import START, Cursor, EndEvent, EndReason, JobState, TokenEvent
from headway.queueing.messages import Priority
from headway.queueing.worker_card import WorkerCard

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

Q = f"q:{TAG}:standard:default"


@pytest.mark.parametrize("member", ["", "a b", "x" * 65, b"\xff\x00\n", "y" * 5000])
async def test_a_member_that_is_no_job_key_becomes_a_dead_letter(
    each_redis_url: str, open_queue: OpenQueue, member: str | bytes
) -> None:
    queue = open_queue(each_redis_url)
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.zadd(Q, {member: 0})
    await queue.submit_body(MODEL, BODY, key="good")
    assert [claim.job_id for claim in await queue.claim(MODEL, "w", 9)] == ["tiny:0:good"]
    (letter,) = await queue.dead_letters(MODEL)
    assert letter.reason.startswith("malformed_entry")
    assert letter.job_id == ""
    assert len(letter.reason) < 300


async def test_a_member_for_a_job_that_was_never_submitted_tells_its_reader(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, BODY, key="good")
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.zadd(Q, {"ghost": 0})
    assert [claim.job_id for claim in await queue.claim(MODEL, "w", 9)] == ["tiny:0:good"]
    (end,) = await queue.read("tiny:0:ghost", START, wait_seconds=0)
    assert isinstance(end, EndEvent)
    assert end.error is not None
    assert end.error.code == "unknown_job"
    assert (await queue.status("tiny:0:ghost")).reason is EndReason.ERROR
    (letter,) = await queue.dead_letters(MODEL)
    assert letter.job_id == "tiny:0:ghost"
    assert sum((await queue.depth(MODEL)).queued.values()) == 0


@pytest.mark.parametrize("kind", ["p", "j", "both", "j_as_text", "p_as_list"])
async def test_a_job_whose_keys_were_damaged_ends_with_an_error(
    each_redis_url: str, open_queue: OpenQueue, kind: str
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    with redis.Redis.from_url(each_redis_url) as raw:
        if kind in ("p", "both", "p_as_list"):
            raw.delete(f"p:{TAG}:k")
        if kind in ("j", "both", "j_as_text"):
            raw.delete(f"j:{TAG}:k")
        if kind == "j_as_text":
            raw.set(f"j:{TAG}:k", "garbage")
        if kind == "p_as_list":
            raw.rpush(f"p:{TAG}:k", "garbage")
    assert await queue.claim(MODEL, "w", 9) == ()
    (end,) = await queue.read("tiny:0:k", START, wait_seconds=0)
    assert isinstance(end, EndEvent)
    assert end.reason is EndReason.ERROR
    assert (await queue.status("tiny:0:k")).state is JobState.FINISHED
    assert len(await queue.dead_letters(MODEL)) == 1
    assert await queue.claim(MODEL, "w", 9) == ()


async def test_a_second_entry_of_a_job_is_dropped_in_silence(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    with redis.Redis.from_url(each_redis_url) as raw:
        (claim,) = await queue.claim(MODEL, "w", 9)
        raw.zadd(Q, {"k": 0})
        await queue.submit_body(MODEL, BODY, key="other")
        assert [claim.job_id for claim in await queue.claim(MODEL, "w2", 9)] == ["tiny:0:other"]
        assert await queue.finish([stop(claim, 0)]) == (Fenced.OK,)
        raw.zadd(Q, {"k": 0})
        await queue.submit_body(MODEL, BODY, key="third")
    assert [claim.job_id for claim in await queue.claim(MODEL, "w2", 9)] == ["tiny:0:third"]
    assert await queue.dead_letters(MODEL) == ()
    assert sum((await queue.depth(MODEL)).queued.values()) == 0


@pytest.mark.parametrize("kind", ["turn", "lane", "seen", "tenant", "weights", "rates", "rate"])
async def test_whatever_is_deleted_of_the_books_every_job_is_served(
    each_redis_url: str, open_queue: OpenQueue, kind: str
) -> None:
    queue = open_queue(each_redis_url)
    for n in range(3):
        await queue.submit_body(MODEL, b'{"model":"tiny","prompt":"x","tenant":"t%d"}' % n, key=f"k{n}")
    with redis.Redis.from_url(each_redis_url) as raw:
        for name in raw.keys(f"{kind}:*"):
            raw.delete(name)
    assert (
        await queue.wait(MODEL, "w", for_work=Priority.BATCH, timeout_seconds=0.01)
    ).may_have_work or kind == "lane"
    assert sorted(claim.job_id for claim in await queue.claim(MODEL, "w", 9)) == [
        f"tiny:0:k{n}" for n in range(3)
    ]
    depth = await queue.depth(MODEL)
    assert (sum(depth.queued.values()), depth.queued_tokens) == (0, 0)


@pytest.mark.parametrize("value", ["nonsense", "inf", "nan", "-1e300", ""])
async def test_nonsense_in_the_books_stops_nobody(
    each_redis_url: str, open_queue: OpenQueue, value: str
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, BODY, key="k1")
    with redis.Redis.from_url(each_redis_url) as raw:
        for field in raw.hkeys(f"lane:{TAG}"):
            raw.hset(f"lane:{TAG}", field, value)
        raw.hset(f"tenant:{TAG}:default", mapping={"v:standard": value, "tokens:standard": value})
        raw.hset(f"weights:{TAG}", "default", value)
        raw.set(f"rate:{TAG}", value)
        raw.hset(f"rates:{TAG}", "w", value)
        if value in {"inf", "-1e300"}:
            raw.zadd(f"turn:{TAG}:standard", {"default": value})
    await queue.submit_body(MODEL, BODY, key="k2")
    await queue.reap(MODEL)
    claims = await queue.claim(MODEL, "w", 9)
    assert [claim.job_id for claim in claims] == ["tiny:0:k1", "tiny:0:k2"]
    await queue.heartbeat(card(), ttl_seconds=9)
    assert await queue.finish([stop(claim, 0) for claim in claims]) == (Fenced.OK, Fenced.OK)
    assert sum((await queue.depth(MODEL)).queued.values()) == 0


async def test_a_key_that_is_no_token_stream_costs_its_own_job_only(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    for key in ("bad", "good"):
        await queue.submit_body(MODEL, BODY, key=key)
    claims = await queue.claim(MODEL, "w", 9)
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.set(f"o:{TAG}:bad", "x")
    assert await queue.emit([emit(claim, 1, 2) for claim in claims]) == (Fenced.LOST, Fenced.OK)
    assert await queue.finish([stop(claim, 2) for claim in claims]) == (Fenced.OK, Fenced.OK)
    for key in ("bad", "good"):
        events = await queue.read(f"tiny:0:{key}", START, wait_seconds=0)
        assert isinstance(events[-1], EndEvent)
    assert (await queue.status("tiny:0:bad")).state is JobState.FINISHED


STRAYS_AHEAD = ["2-7", "7-0", f"{10**16}-0", f"7-{10**16}", f"{2**64 - 1}-{2**64 - 1}"]
"""Beyond every token so far; ids of more than 15 digits are none that a cursor can have."""


@pytest.mark.parametrize("stray", STRAYS_AHEAD)
async def test_a_strangers_entry_ahead_of_the_tokens_is_dropped_and_costs_nothing(
    each_redis_url: str, open_queue: OpenQueue, stray: str
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, b'{"model":"tiny","prompt":"x","deadline_seconds":60}', key="k")
    (first,) = await queue.claim(MODEL, "w1", 1)
    await queue.emit([emit(first, 1, 2)])
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.xadd(f"o:{TAG}:k", {"x": "y"}, id=stray)
        assert await queue.emit([emit(first, 3, 4)]) == (Fenced.OK,)
        assert raw.pttl(f"o:{TAG}:k") > 0, "it still ends with its deadline"
    await queue.release([(first.job_id, first.token)])
    (claim,) = await queue.claim(MODEL, "w2", 1)
    assert [event.cursor.tokens for event in claim.committed] == [1, 2, 3, 4]
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.xadd(f"o:{TAG}:k", {"x": "y"}, id=stray.replace("2-", "4-", 1) if stray == "2-7" else stray)
    assert await queue.finish([stop(claim, 4)]) == (Fenced.OK,)
    events = await queue.read("tiny:0:k", START, wait_seconds=0)
    assert [str(event.cursor) for event in events] == ["1-0", "2-0", "3-0", "4-0", "4-1"]
    assert isinstance(events[-1], EndEvent)
    assert await queue.read("tiny:0:k", Cursor(3), wait_seconds=0) == events[3:]


@pytest.mark.parametrize("stray", STRAYS_AHEAD)
async def test_a_job_that_ends_without_a_worker_ends_readably_too(
    redis_url: str, open_queue: OpenQueue, stray: str
) -> None:
    queue = open_queue(redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    with redis.Redis.from_url(redis_url) as raw:
        raw.xadd(f"o:{TAG}:k", {"x": "y"}, id=stray)
    await queue.cancel("tiny:0:k", "enough")
    (end,) = await queue.read("tiny:0:k", START, wait_seconds=0)
    assert isinstance(end, EndEvent)
    assert str(end.cursor) == "0-1"


@pytest.mark.parametrize("stray", ["0-5000", f"0-{2**64 - 1}"])
async def test_a_strangers_entry_in_a_token_stream_stops_neither_claim_nor_reader(
    redis_url: str, open_queue: OpenQueue, stray: str
) -> None:
    queue = open_queue(redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    (first,) = await queue.claim(MODEL, "w1", 1)
    with redis.Redis.from_url(redis_url) as raw:
        raw.xadd(f"o:{TAG}:k", {"x": "y"}, id=stray)
    assert await queue.emit([emit(first, 1, 2)]) == (Fenced.OK,)
    await queue.release([(first.job_id, first.token)])
    (claim,) = await queue.claim(MODEL, "w2", 1)
    assert [event.cursor.tokens for event in claim.committed] == [1, 2]
    assert await queue.finish([stop(claim, 2)]) == (Fenced.OK,)
    events = await queue.read("tiny:0:k", START, wait_seconds=0)
    assert [type(event) for event in events] == [TokenEvent, TokenEvent, EndEvent]


async def test_many_strays_do_not_hold_the_server_for_long(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    with redis.Redis.from_url(redis_url) as raw:
        raw.zadd(Q, {f"no key {n}": 0 for n in range(450)})
    await queue.submit_body(MODEL, BODY, key="k")
    claims = [await queue.claim(MODEL, "w", 1) for _ in range(3)]
    assert [len(each) for each in claims] == [0, 0, 1]


async def test_a_job_id_of_another_kind_of_key_reads_as_unknown(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    with pytest.raises(UnknownJobError):
        await queue.read("tiny:0:nothing", START, wait_seconds=1)


SHARED = {
    f"turn:{TAG}:standard": "zset",
    f"seen:{TAG}": "zset",
    f"tenant:{TAG}:default": "hash",
    f"weights:{TAG}": "hash",
    f"rates:{TAG}": "hash",
    f"rate:{TAG}": "string",
    f"recent:{TAG}": "stream",
    f"settle:{TAG}": "stream",
    f"back:{TAG}:standard": "list",
    f"lease:{TAG}": "zset",
    f"due:{TAG}": "zset",
    f"wake:{TAG}": "stream",
    f"lane:{TAG}": "hash",
    f"dlq:{TAG}": "stream",
    f"c:{TAG}:w": "string",
    f"ctl:{TAG}:w": "stream",
    f"idem:{TAG}:default:same": "string",
    "workers:{fleet}": "zset",
    "models:{fleet}": "set",
    "w:{fleet}:w": "string",
}
"""Every key that several jobs or processes share, and its type."""


def card() -> WorkerCard:
    return WorkerCard("w", MODEL, "ready", 1, "here", "0.1.0", 128, 4, 0, 0, 0.0, 0.0, 0.0, 0)


def spoil(raw: redis.Redis, key: str) -> None:
    """Put something of another type there."""
    raw.delete(key)
    if SHARED[key] == "list":
        raw.set(key, "garbage")
    else:
        raw.rpush(key, "garbage")


@pytest.mark.parametrize("key", SHARED)
async def test_a_shared_key_of_another_type_loses_no_job_whatever_is_called_next(
    each_redis_url: str, open_queue: OpenQueue, key: str
) -> None:
    body = b'{"model":"tiny","prompt":"x","deadline_seconds":60}'
    same = b'{"model":"tiny","prompt":"x","idempotency_key":"same"}'
    queue = open_queue(each_redis_url)
    with redis.Redis.from_url(each_redis_url) as raw:
        spoil(raw, key)
        await queue.submit_body(MODEL, body, key="a")
        await queue.submit_body(MODEL, same, key="b")
        await queue.heartbeat(card(), ttl_seconds=60)
        spoil(raw, key)
        await queue.wait(MODEL, "w", for_work=Priority.BATCH, timeout_seconds=0.1)
        claims = await queue.claim(MODEL, "w", 9)
        assert [claim.job_id for claim in claims] == ["tiny:0:a", "tiny:0:b"]
        spoil(raw, key)
        await queue.wait(MODEL, "w", for_work=None, timeout_seconds=0.1)
        held = [(claim.job_id, claim.token) for claim in claims]
        assert await queue.renew(held) == (Fenced.OK, Fenced.OK)
        spoil(raw, key)
        await queue.cancel("tiny:0:b", "enough")
        spoil(raw, key)
        assert await queue.release(held[:1]) == (Fenced.OK,)
        await queue.heartbeat(card(), ttl_seconds=60)
        assert [worker.worker_id for worker in await queue.workers()] == ["w"]
        assert await queue.models() == (MODEL,)
        again = await queue.claim(MODEL, "w", 9)
        assert [claim.job_id for claim in again] == ["tiny:0:a"]
        spoil(raw, key)
        assert await queue.finish([stop(each, 0) for each in (*again, claims[1])]) == (Fenced.OK, Fenced.OK)
        spoil(raw, key)
        await queue.reap(MODEL)
        assert (await queue.status("tiny:0:a")).reason is EndReason.STOP
        depth = await queue.depth(MODEL)
        assert depth.running == 0
        assert sum(depth.queued.values()) == 0


async def test_nonsense_among_models_workers_and_dead_letters_is_passed_over(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    await queue.heartbeat(card(), ttl_seconds=60)
    with redis.Redis.from_url(each_redis_url) as raw:
        raw.sadd("models:{fleet}", b"\xff\xfe", "a}{b", "--", "", "x" * 500)
        raw.zadd("workers:{fleet}", {b"\xff": 9e15, "nobody": 9e15})
        raw.set("w:{fleet}:nobody", b"\xff{")
        raw.xadd(f"dlq:{TAG}", {"attempts": "many", "tokens": "-3.5", b"\xff": b"\xff"})
    assert await queue.models() == (MODEL,)
    assert [worker.worker_id for worker in await queue.workers()] == ["w"]
    (letter,) = await queue.dead_letters(MODEL)
    assert (letter.attempts, letter.committed_tokens) == (0, 0)
