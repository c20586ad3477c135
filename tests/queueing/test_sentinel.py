"""The primary that Sentinels name: found, followed over a failover, and told apart from mistakes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.queueing.conftest import BODY, MODEL
from tests.queueing.outage import patient_follow, work_through
from tests.server_groups import SentinelServers, free_port

from headway.queueing.errors import QueueUnavailableError, ServerUnsuitableError
from headway.queueing.events import Cursor
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

SETTINGS = QueueSettings(lease_seconds=1.0, watch_seconds=0.2, max_attempts=50)
WHOLE = [*(Cursor(n) for n in range(1, 81)), Cursor(80, 1)]


@pytest.fixture(params=["redis7", "valkey9"])
def watched(request: pytest.FixtureRequest) -> Iterator[SentinelServers]:
    """A primary, a replica and three Sentinels of this test's own."""
    made = SentinelServers(request.param)
    try:
        yield made.start()
    finally:
        made.remove()


async def test_answers_go_on_when_the_primary_is_killed(
    watched: SentinelServers, open_queue: OpenQueue
) -> None:
    """A failover under load. What the replica had not received is given again: cursors keep it unique."""
    queue = open_queue(watched.url, SETTINGS)
    await queue.check_server()
    ids = [(await queue.submit_body(MODEL, BODY, key=f"k{n}")).job_id for n in range(3)]
    reading = [asyncio.create_task(patient_follow(queue, job_id)) for job_id in ids]
    working = [asyncio.create_task(work_through(queue, MODEL, worker=f"w{n}", tokens=80)) for n in range(3)]
    while (await queue.status(ids[0])).committed_tokens < 5:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(watched.primary.kill)
    for events in await asyncio.wait_for(asyncio.gather(*reading), 60):
        assert [event.cursor for event in events] == WHOLE
    await asyncio.gather(*working)
    assert watched.replica.said("role:master", "INFO", "replication")
    assert (await queue.depth(MODEL)).running == 0


async def test_a_primary_that_hangs_is_left_for_the_next_one(
    watched: SentinelServers, open_queue: OpenQueue
) -> None:
    queue = open_queue(watched.url, SETTINGS)
    await queue.check_server()
    await queue.submit_body(MODEL, BODY, key="before")
    assert watched.primary.process is not None
    os.kill(watched.primary.process.pid, signal.SIGSTOP)
    try:
        while True:
            try:
                assert (await queue.submit_body(MODEL, BODY, key="after")).created
                break
            except QueueUnavailableError:
                await asyncio.sleep(0.05)
    finally:
        os.kill(watched.primary.process.pid, signal.SIGCONT)
    assert watched.replica.said("role:master", "INFO", "replication")
    assert watched.replica.said("after", "KEYS", "j:*")


async def test_one_sentinel_that_is_away_or_behind_does_not_matter(
    watched: SentinelServers, open_queue: OpenQueue
) -> None:
    stale = watched.sentinels[0]
    stale.command("SENTINEL", "REMOVE", watched.SERVICE)
    stale.command("SENTINEL", "MONITOR", watched.SERVICE, "127.0.0.1", str(free_port()), "2")
    await open_queue(watched.url).check_server()
    await asyncio.to_thread(stale.kill)
    await open_queue(watched.url).check_server()


async def test_an_unknown_name_and_sentinels_that_are_away_are_told_apart(
    watched: SentinelServers, open_queue: OpenQueue
) -> None:
    with pytest.raises(ServerUnsuitableError, match="no Sentinel knows a primary called 'other'"):
        await open_queue(watched.url.replace(f"/{watched.SERVICE}", "/other")).check_server()
    with pytest.raises(QueueUnavailableError, match="none of the 1 Sentinels"):
        await open_queue(f"redis+sentinel://127.0.0.1:{free_port()}/queue").check_server()
