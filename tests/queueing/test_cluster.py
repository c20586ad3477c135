"""The queue on a Cluster: every call finds its node, and a failover or a move of slots loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from redis.crc import key_slot
from tests.queueing.conftest import emit, follow, stop
from tests.queueing.outage import patient_follow, work_through
from tests.server_groups import ClusterServers, eventually, free_port

from headway.queueing.claims import Fenced
from headway.queueing.client import Client
from headway.queueing.errors import QueueUnavailableError, ServerUnsuitableError
from headway.queueing.events import START, Cursor, JobState
from headway.queueing.keys import tenant_tag
from headway.queueing.messages import Priority
from headway.queueing.server import Server
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.conftest import StartRedis
    from tests.queueing.conftest import OpenQueue

KINDS = ("redis7", "valkey9")


def body(model: str) -> bytes:
    return b'{"model":"%s","prompt":"x"}' % model.encode()


def slot(model: str) -> int:
    return key_slot(f"{{{model}:0}}".encode())


def tenant_slot(tenant: str) -> int:
    return key_slot(tenant_tag(tenant).encode())


def models_of_each_node(cluster: ClusterServers) -> list[str]:
    """Three models, one on each primary."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < 3:
        model = f"m{number}"
        found.setdefault(cluster.primaries.index(cluster.serving(slot(model))), model)
        number += 1
    return [found[at] for at in range(3)]


@pytest.fixture(params=KINDS)
def cluster(
    request: pytest.FixtureRequest, shared_cluster: Callable[[str], ClusterServers]
) -> ClusterServers:
    """Three primaries, shared and empty."""
    return shared_cluster(request.param)


@pytest.fixture(params=KINDS)
def replicated(request: pytest.FixtureRequest) -> Iterator[ClusterServers]:
    """Three primaries with a replica each, of this test's own."""
    made = ClusterServers(request.param, "--appendonly", "yes", replicas=1)
    try:
        yield made.start()
    finally:
        made.remove()


async def test_lanes_on_different_nodes_are_served_by_one_queue(
    cluster: ClusterServers, open_queue: OpenQueue
) -> None:
    queue = open_queue(cluster.url)
    await queue.check_server()
    models = models_of_each_node(cluster)
    ids = [(await queue.submit_body(model, body(model), key="k")).job_id for model in models]
    reading = [asyncio.create_task(follow(queue, job_id)) for job_id in ids]
    claims = [claim for model in models for claim in await queue.claim(model, "w", 9)]
    assert [claim.job_id for claim in claims] == ids
    assert await queue.emit([emit(claim, 1, 2) for claim in claims]) == (Fenced.OK,) * 3
    assert await queue.renew([(claim.job_id, claim.token) for claim in claims]) == (Fenced.OK,) * 3
    assert await queue.finish([stop(claim, 2) for claim in claims]) == (Fenced.OK,) * 3
    for events in await asyncio.gather(*reading):
        assert [event.cursor for event in events] == [Cursor(1), Cursor(2), Cursor(2, 1)]
    for node, model in zip(cluster.primaries, models, strict=True):
        assert f"j:{{{model}:0}}:k".encode() in node.command("KEYS", "*"), "its keys are on its node"


async def test_the_functions_are_loaded_on_every_primary_and_again_where_they_are_lost(
    cluster: ClusterServers, open_queue: OpenQueue
) -> None:
    queue = open_queue(cluster.url)
    await queue.check_server()
    assert all(node.said("headway", "FUNCTION", "LIST") for node in cluster.primaries)
    models = models_of_each_node(cluster)
    for model in models:
        await queue.submit_body(model, body(model), key="k")
    claims = [claim for model in models for claim in await queue.claim(model, "w", 9)]
    cluster.primaries[1].command("FUNCTION", "FLUSH")
    assert await queue.emit([emit(claim, 1) for claim in claims]) == (Fenced.OK,) * 3
    cluster.primaries[2].command("FUNCTION", "FLUSH")
    assert not (await queue.submit_body(models[2], body(models[2]), key="k")).created


async def test_hints_reach_readers_whichever_node_they_listen_to(
    cluster: ClusterServers, open_queue: OpenQueue
) -> None:
    settings = QueueSettings(poll_seconds=30.0)
    readers, worker = open_queue(cluster.url, settings), open_queue(cluster.url)
    await worker.check_server()
    for model in models_of_each_node(cluster):
        job_id = (await worker.submit_body(model, body(model), key="k")).job_id
        (claim,) = await worker.claim(model, "w", 1)
        reading = asyncio.create_task(readers.read(job_id, START, wait_seconds=20))
        await asyncio.sleep(0.3)
        await worker.emit([emit(claim, 1)])
        (event,) = await asyncio.wait_for(reading, 10)
        assert event.cursor == Cursor(1)


async def test_a_waiting_worker_is_woken_on_its_lanes_node(
    cluster: ClusterServers, open_queue: OpenQueue
) -> None:
    worker, producer = open_queue(cluster.url), open_queue(cluster.url)
    await worker.check_server()
    for model in models_of_each_node(cluster):
        waiting = asyncio.create_task(worker.wait(model, "w", for_work=Priority.BATCH, timeout_seconds=30))
        await asyncio.sleep(0.1)
        await producer.submit_body(model, body(model), key="k")
        assert (await asyncio.wait_for(waiting, 10)).may_have_work


async def test_one_of_the_nodes_named_as_a_single_server_is_refused_with_the_right_url(
    cluster: ClusterServers, open_queue: OpenQueue
) -> None:
    model = models_of_each_node(cluster)[0]
    queue = open_queue(f"redis://{cluster.primaries[2].place}")
    with pytest.raises(ServerUnsuitableError, match=r"redis\+cluster://127.0.0.1"):
        await queue.submit_body(model, body(model))


async def test_a_single_server_named_as_a_cluster_is_refused_with_the_right_url(
    start_redis: StartRedis, open_queue: OpenQueue
) -> None:
    port = free_port()
    start_redis("redis7", "--port", str(port))
    with pytest.raises(ServerUnsuitableError, match=f"redis://127.0.0.1:{port}/0"):
        await open_queue(f"redis+cluster://127.0.0.1:{port}").check_server()


async def test_a_batch_brings_the_replies_of_the_nodes_that_live(cluster: ClusterServers) -> None:
    server = Server(cluster.url)
    try:
        models = models_of_each_node(cluster)
        for model in models:
            await server.call("SET", f"x:{{{model}:0}}", model)
        replies = await server.pipeline([("GET", f"x:{{{model}:0}}") for model in models] * 2)
        assert replies == [model.encode() for model in models] * 2
    finally:
        await server.close()


async def test_a_slot_that_moves_refuses_its_lane_and_loses_nothing(
    cluster: ClusterServers, open_queue: OpenQueue
) -> None:
    """Functions touch keys that only one of the two nodes has: half of a lane must never be written."""
    queue = open_queue(cluster.url)
    await queue.check_server()
    model = models_of_each_node(cluster)[0]
    source, target, number = cluster.serving(slot(model)), cluster.primaries[1], slot(model)
    ids = [(await queue.submit_body(model, body(model), key=f"k{n}")).job_id for n in range(3)]
    (claim,) = await queue.claim(model, "w", 1)
    await queue.emit([emit(claim, 1)])
    try:
        cluster.begin_move(number, source, target)
        cluster.move_keys(number, source, target, most=4)
        for call in (
            queue.submit_body(model, body(model), key="while"),
            queue.claim(model, "w", 9),
            queue.emit([emit(claim, 1, 2)]),
        ):
            with pytest.raises(QueueUnavailableError, match="moves to another node"):
                await call
        # What has one key is found on whichever side it is.
        assert [(await queue.status(job_id)).state for job_id in ids].count(JobState.QUEUED) == 2
        assert [event.cursor for event in await queue.read(claim.job_id, START, wait_seconds=0)] == [
            Cursor(1)
        ]
        cluster.move_keys(number, source, target)
        cluster.end_move(number, target)
        assert await queue.emit([emit(claim, 1, 2)]) == (Fenced.OK,)
        assert await queue.finish([stop(claim, 2)]) == (Fenced.OK,)
        assert {each.job_id for each in await queue.claim(model, "w", 9)} == set(ids) - {claim.job_id}
    finally:
        cluster.empty()
        cluster.end_move(number, source)


async def test_jobs_that_a_moving_slot_refused_hold_nothing_of_their_tenant(
    cluster: ClusterServers, open_queue: OpenQueue
) -> None:
    """The tenant's account is elsewhere and answers: else a few tries would use up its limits."""
    queue = open_queue(cluster.url)
    await queue.check_server()
    client, model = Client(queue), models_of_each_node(cluster)[0]
    source, target, number = cluster.serving(slot(model)), cluster.primaries[1], slot(model)
    tenant = next(
        name for name in map(str, range(99)) if cluster.serving(tenant_slot(name)) is cluster.primaries[2]
    )
    limits = await queue.tenant_store.set(tenant, {"concurrency": 2})
    try:
        cluster.begin_move(number, source, target)
        for _ in range(4):
            with pytest.raises(QueueUnavailableError, match="moves to another node"):
                await client.submit(model=model, prompt="x", tenant=tenant)
        assert (await queue.quota_store.usage(tenant, limits)).in_flight == 0
    finally:
        cluster.empty()
        cluster.end_move(number, source)


async def test_answers_go_on_after_a_primary_is_killed_and_its_replica_takes_over(
    replicated: ClusterServers, open_queue: OpenQueue
) -> None:
    queue = open_queue(replicated.url, QueueSettings(lease_seconds=1.0, watch_seconds=0.2, max_attempts=50))
    await queue.check_server()
    models = models_of_each_node(replicated)
    ids = [(await queue.submit_body(model, body(model), key="k")).job_id for model in models]
    reading = [asyncio.create_task(patient_follow(queue, job_id)) for job_id in ids]
    working = [asyncio.create_task(work_through(queue, model, tokens=80)) for model in models]
    while (await queue.status(ids[0])).committed_tokens < 5:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(replicated.primaries[0].kill)
    for events in await asyncio.wait_for(asyncio.gather(*reading), 60):
        assert [event.cursor for event in events] == [*(Cursor(n) for n in range(1, 81)), Cursor(80, 1)]
    await asyncio.gather(*working)
    assert replicated.replicas[0].said("role:master", "INFO", "replication")
    eventually(
        "the Cluster is whole", lambda: replicated.nodes[1].said("cluster_state:ok", "CLUSTER", "INFO")
    )
    await queue.check_server()
