"""Servers that restart, forget, refuse and stay silent; callers that go away."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.conftest import ANY
from tests.queueing.conftest import BODY, MODEL, emit, follow, stop

import headway.queueing.node as node_module
from headway.queueing.claims import Fenced
from headway.queueing.errors import QueueingError, QueueUnavailableError
from headway.queueing.events import START, Cursor, EndEvent, EndReason, JobState, TokenEvent
from headway.queueing.messages import Priority
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RedisServer, StartRedis
    from tests.queueing.conftest import OpenQueue
    from tests.queueing.lossy_link import LossyLink

    from headway.queueing.redis_queue import RedisQueue


async def test_functions_are_loaded_again_in_the_middle_of_a_job(
    shared_redis: Callable[[str], RedisServer], open_queue: OpenQueue
) -> None:
    server = shared_redis("redis7")
    queue = open_queue(server.url)
    await queue.check_server()
    await queue.submit_body(MODEL, BODY, key="k")
    server.command("FUNCTION", "FLUSH")
    (claim,) = await queue.claim(MODEL, "w", 1)
    server.command("FUNCTION", "FLUSH")
    assert await queue.emit([emit(claim, 1)]) == (Fenced.OK,)
    server.command("FUNCTION", "FLUSH")
    assert await queue.renew([(claim.job_id, claim.token)]) == (Fenced.OK,)
    server.command("FUNCTION", "FLUSH")
    assert await queue.finish([stop(claim, 1)]) == (Fenced.OK,)
    assert len(await follow(queue, claim.job_id)) == 2


@pytest.mark.parametrize("kind", ["redis7", "valkey9"])
async def test_a_crash_of_the_server_loses_no_accepted_job(
    kind: str, start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis(kind, "--appendonly", "yes", "--appendfsync", "always")
    queue = open_queue(server.url, QueueSettings(lease_seconds=0.2))
    assert await queue.check_server() == ()
    for n in range(3):
        await queue.submit_body(MODEL, BODY, key=f"k{n}")
    (claim,) = await queue.claim(MODEL, "w", 1)
    await queue.emit([emit(claim, 1, 2)])
    server.kill()
    with pytest.raises(QueueUnavailableError):
        await queue.submit_body(MODEL, BODY, key="refused")
    server.start()
    assert (await queue.depth(MODEL)).running == 1
    await asyncio.sleep(0.25)
    assert (await queue.reap(MODEL)).requeued == ("tiny:0:k0",)
    claims = await queue.claim(MODEL, "w2", 9)
    assert [heir.job_id for heir in claims] == ["tiny:0:k0", "tiny:0:k1", "tiny:0:k2"]
    assert [event.token_ids for event in claims[0].committed] == [(1,), (2,)]


async def test_a_waiting_worker_and_reader_outlive_restarts(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    """Five restarts under load: each job ends, each reader sees each token once."""
    server = start_redis(ANY, "--appendonly", "yes", "--appendfsync", "always")
    queue = open_queue(server.url, QueueSettings(lease_seconds=0.5, watch_seconds=0.1, max_attempts=50))
    await queue.check_server()
    ids = [(await queue.submit_body(MODEL, BODY, key=f"k{n}")).job_id for n in range(12)]
    readers = [asyncio.create_task(_patient_follow(queue, job_id)) for job_id in ids]
    worker = asyncio.create_task(_work_forever(queue))
    for _ in range(5):
        await asyncio.sleep(0.15)
        server.kill()
        await asyncio.sleep(0.05)
        server.start()
    for events in await asyncio.wait_for(asyncio.gather(*readers), 60):
        assert [event.cursor for event in events] == [*(Cursor(n) for n in range(1, 31)), Cursor(30, 1)]
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def _patient_follow(queue: RedisQueue, job_id: str) -> list[TokenEvent | EndEvent]:
    seen: list[TokenEvent | EndEvent] = []
    while not seen or not isinstance(seen[-1], EndEvent):
        try:
            seen += await queue.read(job_id, seen[-1].cursor if seen else START, wait_seconds=5)
        except QueueUnavailableError:
            await asyncio.sleep(0.05)
    return seen


async def _work_forever(queue: RedisQueue) -> None:
    """A worker that gives two jobs a token per turn, and drops what it lost."""
    progress: dict[str, tuple[str, int]] = {}
    while True:
        try:
            if not progress:
                for claim in await queue.claim(MODEL, "w", 4):
                    progress[claim.job_id] = (claim.token, sum(len(e.token_ids) for e in claim.committed))
                if not progress:
                    await queue.wait(MODEL, "w", for_work=Priority.BATCH, timeout_seconds=1)
            await _turn(queue, progress)
        except QueueUnavailableError:
            await asyncio.sleep(0.05)


async def _turn(queue: RedisQueue, progress: dict[str, tuple[str, int]]) -> None:
    for job_id, (token, done) in list(progress.items()):
        claim = _Held(job_id, token)
        if done < 30:
            outcome = (await queue.emit([emit(claim, done + 1)]))[0]
            progress[job_id] = (token, done + 1)
        else:
            outcome = (await queue.finish([stop(claim, 30)]))[0]
            del progress[job_id]
        if outcome is Fenced.LOST:
            progress.pop(job_id, None)
    await asyncio.sleep(0.001)


@dataclass(frozen=True)
class _Held:
    job_id: str
    token: str


@pytest.mark.parametrize("lost", [b"headway_submit", b"headway_claim", b"headway_emit", b"headway_finish"])
async def test_a_lost_reply_changes_nothing(
    lossy_link: LossyLink, open_queue: OpenQueue, lost: bytes
) -> None:
    """The server did the work and the connection broke before its answer: the call is repeated."""
    queue = open_queue(lossy_link.url)
    await queue.check_server()
    lossy_link.lose_reply_to(lost)
    submitted = await queue.submit_body(MODEL, BODY, key="k")
    (claim,) = await queue.claim(MODEL, "w", 1)
    assert (claim.epoch, claim.attempts) == (1, 0)
    assert await queue.emit([emit(claim, 1, 2)]) == (Fenced.OK,)
    assert await queue.finish([stop(claim, 2)]) == (Fenced.OK,)
    assert lossy_link.losses == 1
    assert [event.cursor for event in await follow(queue, submitted.job_id)] == [
        Cursor(1),
        Cursor(2),
        Cursor(2, 1),
    ]


async def test_a_claim_that_gave_up_brings_the_same_jobs_when_asked_again(
    lossy_link: LossyLink, open_queue: OpenQueue
) -> None:
    queue = open_queue(lossy_link.url)
    await queue.check_server()
    for n in range(3):
        await queue.submit_body(MODEL, BODY, key=f"k{n}")
    lossy_link.lose_reply_to(b"headway_claim", times=3)
    with pytest.raises(QueueUnavailableError):
        await queue.claim(MODEL, "w", 2)
    claims = await queue.claim(MODEL, "w", 3)
    assert [claim.job_id for claim in claims] == ["tiny:0:k0", "tiny:0:k1", "tiny:0:k2"]
    assert {claim.attempts for claim in claims} == {0}


async def test_a_silent_server_is_noticed(
    lossy_link: LossyLink, open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that takes commands and answers nothing must not hold a caller for ever."""
    monkeypatch.setattr(node_module, "CALL_SECONDS", 0.3)
    queue = open_queue(lossy_link.url)
    await queue.check_server()
    lossy_link.go_silent()
    with pytest.raises(QueueUnavailableError):
        await asyncio.wait_for(queue.status("tiny:0:k"), 25)


async def test_lost_hints_only_delay_a_reader(
    lossy_link: LossyLink, open_queue: OpenQueue, redis_url: str
) -> None:
    readers, worker = open_queue(lossy_link.url), open_queue(redis_url)
    await worker.submit_body(MODEL, BODY, key="k")
    (claim,) = await worker.claim(MODEL, "w", 1)
    lossy_link.drop_messages()
    reading = asyncio.create_task(readers.read("tiny:0:k", START, wait_seconds=30))
    await asyncio.sleep(0.1)
    await worker.emit([emit(claim, 1)])
    (event,) = await asyncio.wait_for(reading, 10)
    assert event.cursor == Cursor(1)


async def test_cancelled_callers_never_get_each_others_replies(redis_url: str, open_queue: OpenQueue) -> None:
    """Calls are cancelled at random moments; every answer that arrives belongs to its question."""
    queue = open_queue(redis_url)
    rng = random.Random(5)
    ids = [
        (
            await queue.submit_body(MODEL, b'{"model":"tiny","prompt":"x","tenant":"t%d"}' % n, key=f"k{n}")
        ).job_id
        for n in range(50)
    ]

    async def ask(n: int) -> None:
        status = await queue.status(ids[n])
        assert status.tenant == f"t{n}"
        assert await queue.read(ids[n], START, wait_seconds=0.001) == ()

    for _ in range(15):
        asking = [asyncio.create_task(ask(n)) for n in range(50)]
        for task in rng.sample(asking, 30):
            await asyncio.sleep(rng.random() * 0.001)
            task.cancel()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
    for n in range(50):
        await ask(n)


async def test_a_server_out_of_memory_refuses_jobs_and_lets_running_ones_end(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis("redis7")
    queue = open_queue(server.url)
    await queue.check_server()
    await queue.submit_body(MODEL, BODY, key="running")
    (claim,) = await queue.claim(MODEL, "w", 1)
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(QueueUnavailableError, match="refuses writes") as refused:
        await queue.submit_body(MODEL, BODY, key="new")
    assert refused.value.retry_after_seconds > 0
    assert await queue.emit([emit(claim, 1)]) == (Fenced.OK,)
    assert await queue.finish([stop(claim, 1)]) == (Fenced.OK,)
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert (await queue.status("tiny:0:running")).state is JobState.FINISHED
    with pytest.raises(QueueingError):
        await queue.status("tiny:0:new")
    await queue.submit_body(MODEL, BODY, key="new")


async def test_no_server_is_an_error_of_ours(tmp_path: object, open_queue: OpenQueue) -> None:
    for url in (f"unix://{tmp_path}/none.sock", "redis://127.0.0.1:1/0"):
        queue = open_queue(url)
        for call in (queue.status("tiny:0:k"), queue.check_server(), queue.workers(), queue.depth(MODEL)):
            with pytest.raises(QueueUnavailableError):
                await call
        with pytest.raises(QueueUnavailableError):
            await queue.wait(MODEL, "w", for_work=None, timeout_seconds=1)


async def test_a_worker_restarts_under_its_old_name(redis_url: str, open_queue: OpenQueue) -> None:
    """The new process must not be given what the old one holds."""
    await open_queue(redis_url).submit_body(MODEL, BODY, key="k")
    (old,) = await open_queue(redis_url).claim(MODEL, "w", 1)
    renewed = open_queue(redis_url)
    assert await renewed.claim(MODEL, "w", 1) == ()
    assert await renewed.expire_worker(MODEL, "w") == 1
    (new,) = await renewed.claim(MODEL, "w", 1)
    assert new.token != old.token
    end = (await renewed.finish([stop(new, 0)]), await renewed.finish([stop(old, 0)]))
    assert end == ((Fenced.OK,), (Fenced.LOST,))
    result = await renewed.result("tiny:0:k")
    assert result is not None
    assert result.reason is EndReason.STOP


async def test_a_wait_that_is_given_up_ends_at_once_and_keeps_its_connection(
    shared_redis: Callable[[str], RedisServer], open_queue: OpenQueue
) -> None:
    """A worker gives up its wait whenever a job ends, at any moment: nothing may stand still for that."""
    server = shared_redis("valkey9")
    queue = open_queue(server.url)
    await queue.check_server()
    before = _connections_so_far(server)
    for n in range(60):
        waiting = asyncio.create_task(
            queue.wait(MODEL, "w", for_work=Priority.BATCH if n % 2 == 0 else None, timeout_seconds=30)
        )
        await asyncio.sleep(n * 0.0001)
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=1)
        assert waiting.cancelled()
    assert _connections_so_far(server) - before < 30
    await queue.submit_body(MODEL, BODY, key="k")
    assert (await queue.wait(MODEL, "w", for_work=Priority.BATCH, timeout_seconds=30)).may_have_work
    (claim,) = await queue.claim(MODEL, "w", 1)
    waiting = asyncio.create_task(queue.wait(MODEL, "w", for_work=None, timeout_seconds=30))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await queue.cancel(claim.job_id, "stop")
    wakeup = await queue.wait(MODEL, "w", for_work=None, timeout_seconds=30)
    assert wakeup.cancelled == (claim.job_id,)


def _connections_so_far(server: RedisServer) -> int:
    facts = server.command("INFO", "stats").decode()
    return int(facts.partition("total_connections_received:")[2].split()[0])


async def test_closing_a_queue_ends_whoever_waits_on_it(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    await queue.submit_body(MODEL, BODY, key="k")
    waiting: list[asyncio.Task[object]] = [
        asyncio.create_task(queue.read("tiny:0:k", START, wait_seconds=60)) for _ in range(3)
    ]
    waiting.append(asyncio.create_task(queue.wait("other", "w", for_work=Priority.BATCH, timeout_seconds=60)))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(queue.close(), 10)
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(outcome) for outcome in outcomes] == [QueueUnavailableError] * 4
    with pytest.raises(QueueUnavailableError, match="closed"):
        await queue.status("tiny:0:k")
