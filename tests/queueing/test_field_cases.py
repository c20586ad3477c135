"""What queues of this kind did wrong elsewhere, tried on ours; tests/field_cases.md has the list."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from tests.queueing.conftest import BODY, MODEL, TAG, emit, follow, stop
from tests.queueing.outage import patient_follow
from tests.server_groups import TcpServer, eventually, until_replicated

from headway.queueing.claims import Emit, Fenced
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.events import START, Cursor, EndEvent, JobState
from headway.queueing.functions import library
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import RedisServer, StartRedis
    from tests.queueing.conftest import OpenQueue
    from tests.queueing.lossy_link import LossyLink


async def test_two_hours_under_a_lease_of_15_seconds_are_one_run() -> None:
    now = [1_700_000_000.0]
    queue = MemoryQueue(QueueSettings(lease_seconds=15.0), clock=lambda: now[0])
    await queue.submit_body(MODEL, BODY, key="k")
    (claim,) = await queue.claim(MODEL, "w1", 1)
    for _ in range(2 * 3600 // 5):
        now[0] += 5.0
        assert await queue.renew([(claim.job_id, claim.token)]) == (Fenced.OK,)
        assert (await queue.reap(MODEL)).requeued == ()
    assert await queue.claim(MODEL, "w2", 1) == ()
    assert await queue.finish([stop(claim, 0)]) == (Fenced.OK,)
    assert (await queue.status(claim.job_id)).attempts == 0


async def test_a_worker_that_dies_while_its_claim_is_under_way_loses_no_job(
    lossy_link: LossyLink, redis_url: str, open_queue: OpenQueue
) -> None:
    """The server did all of it, and whom it gave the jobs to is gone."""
    dying, queue = open_queue(lossy_link.url), open_queue(redis_url)
    await queue.check_server()
    ids = {(await queue.submit_body(MODEL, BODY, key=f"k{n}")).job_id for n in range(3)}
    lossy_link.lose_reply_to(b"headway_claim", times=9)
    with pytest.raises(QueueUnavailableError):
        await dying.claim(MODEL, "w1", 2)
    assert await queue.expire_worker(MODEL, "w1") == 2
    claims = await queue.claim(MODEL, "w2", 9)
    assert {claim.job_id for claim in claims} == ids
    assert sorted(claim.attempts for claim in claims) == [0, 1, 1]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
async def test_a_claim_of_which_a_part_arrives_takes_nothing(
    share: float, redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    await queue.check_server()
    await queue.submit_body(MODEL, BODY, key="k")
    words = ["FCALL", "headway_claim", "1", TAG, "w1", "1", "f" * 32, "15000", "30000", "120000", "1", "1"]
    command = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(redis_url.removeprefix("unix://"))
        link.sendall(command.encode()[: int(share * len(command))])
    (claim,) = await queue.claim(MODEL, "w2", 1)
    assert claim.attempts == 0


async def test_nothing_is_asked_of_a_server_that_loses_entries_elsewhere() -> None:
    """No consumer groups to lose entries of, no trimming of what nobody read, no pop before the record."""
    for word in ("XREADGROUP", "XAUTOCLAIM", "XACK", "XTRIM", "ACKED", "DELREF", "BLPOP", "BRPOPLPUSH"):
        assert word not in library()


@pytest.mark.parametrize("kind", ["redis7", "valkey9"])
async def test_a_rewritten_log_and_a_crash_lose_nothing_that_runs(
    kind: str, start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    server = start_redis(kind, "--appendonly", "yes", "--appendfsync", "always")
    queue = open_queue(server.url)
    await queue.check_server()
    for key in ("running", "waiting", "ended"):
        await queue.submit_body(MODEL, BODY, key=key)
    claims = {claim.job_id[-7:]: claim for claim in await queue.claim(MODEL, "w", 3)}
    running, ended = claims["running"], claims["0:ended"]
    await queue.release([(claims["waiting"].job_id, claims["waiting"].token)])
    await queue.emit([emit(running, 1, 2)])
    await queue.finish([stop(ended, 0)])
    await _rewrite(server)
    await queue.emit([emit(running, 3)])
    server.kill()
    server.start()
    assert await queue.emit([emit(running, 3, 4)]) == (Fenced.OK,), "the owner never noticed"
    assert await queue.finish([stop(running, 4)]) == (Fenced.OK,)
    cursors = [event.cursor for event in await follow(queue, running.job_id)]
    assert cursors == [*(Cursor(n) for n in range(1, 5)), Cursor(4, 1)]
    assert [claim.job_id for claim in await queue.claim(MODEL, "w", 3)] == ["tiny:0:waiting"]
    assert (await queue.status(ended.job_id)).state is JobState.FINISHED


async def _rewrite(server: RedisServer) -> None:
    server.command("BGREWRITEAOF")
    while b"aof_rewrite_in_progress:0" not in server.command("INFO", "persistence"):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["redis7", "valkey9"])
async def test_a_failover_between_claim_and_finish_leaves_one_owner_and_no_gap(
    kind: str, open_queue: OpenQueue
) -> None:
    """The replica has the claim, not the newest tokens: the owner drops the job, the heir repeats nothing."""
    primary = TcpServer(kind)
    replica = TcpServer(kind, "--replicaof", *primary.place.split(":"))
    try:
        primary.start()
        replica.start()
        before = open_queue(f"redis://{primary.place}")
        await before.check_server()
        until_replicated(primary, "x", replica)
        await before.submit_body(MODEL, BODY, key="k")
        (claim,) = await before.claim(MODEL, "w1", 1)
        await before.emit([emit(claim, 1, 2)])
        eventually("both tokens", lambda: replica.said(":2\r\n", "XLEN", f"o:{TAG}:k"))
        assert replica.command("REPLICAOF", "NO", "ONE") == b"+OK\r\n"
        await before.emit([emit(claim, 3, 4)])
        seen = [event.cursor for event in await before.read(claim.job_id, START, wait_seconds=0)]
        primary.kill()

        after = open_queue(f"redis://{replica.place}")
        ahead = emit(claim, 5)
        emission = Emit(ahead.job_id, ahead.token, ahead.entries, entries_before=4)
        assert await after.emit([emission]) == (Fenced.LOST,)
        assert (await after.reap(MODEL)).requeued == (claim.job_id,)
        (heir,) = await after.claim(MODEL, "w2", 1)
        assert len(heir.committed) == 2
        assert await after.finish([stop(claim, 5)]) == (Fenced.LOST,)
        assert await after.emit([emit(heir, 3, 4, 5)]) == (Fenced.OK,)
        assert await after.finish([stop(heir, 5)]) == (Fenced.OK,)
        rest = await after.read(claim.job_id, seen[-1], wait_seconds=0)
        assert [*seen, *(event.cursor for event in rest)] == [*(Cursor(n) for n in range(1, 6)), Cursor(5, 1)]
    finally:
        primary.remove()
        replica.remove()


async def test_a_reader_whose_subscription_is_cut_again_and_again_misses_nothing(
    shared_redis: Callable[[str], RedisServer], open_queue: OpenQueue
) -> None:
    """Servers cut a subscriber that falls behind: hints are lost then, entries are not."""
    server = shared_redis("valkey9")
    queue, worker = open_queue(server.url), open_queue(server.url)
    await worker.submit_body(MODEL, BODY, key="k")
    (claim,) = await worker.claim(MODEL, "w", 1)
    reading = asyncio.create_task(patient_follow(queue, claim.job_id))
    for at in range(1, 13):
        await worker.emit([emit(claim, at)])
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await asyncio.sleep(0.02)
    await worker.finish([stop(claim, 12)])
    events = await asyncio.wait_for(reading, 30)
    assert [event.cursor for event in events] == [*(Cursor(n) for n in range(1, 13)), Cursor(12, 1)]
    assert isinstance(events[-1], EndEvent)
