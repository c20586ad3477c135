"""With ``?replicas=1`` a job counts as accepted only when a replica has it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.queueing.conftest import BODY, MODEL
from tests.server_groups import TcpServer, until_replicated

import headway.queueing.node as node_module
from headway.queueing.errors import QueueUnavailableError

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue


@pytest.fixture(params=["redis7", "valkey9"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[TcpServer, TcpServer]]:
    """A primary and its replica."""
    primary = TcpServer(request.param)
    replica = TcpServer(request.param, "--replicaof", *primary.place.split(":"))
    try:
        primary.start()
        replica.start()
        until_replicated(primary, "first", replica)
        yield primary, replica
    finally:
        primary.remove()
        replica.remove()


async def test_a_job_is_not_accepted_before_a_replica_has_it(
    pair: tuple[TcpServer, TcpServer], open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, replica = pair
    monkeypatch.setattr(node_module, "REPLICATION_MS", 100)
    queue = open_queue(f"redis://{primary.place}?replicas=1")
    assert (await queue.submit_body(MODEL, BODY, key="both")).created
    assert replica.said("j:{tiny:0}:both", "KEYS", "j:*"), "there when the call returns"
    assert replica.process is not None
    os.kill(replica.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(QueueUnavailableError, match="only 0 of 1 replicas"):
            await queue.submit_body(MODEL, BODY, key="one")
    finally:
        os.kill(replica.process.pid, signal.SIGCONT)
    until_replicated(primary, "again", replica)
    assert not (await queue.submit_body(MODEL, BODY, key="one")).created, "the same call again finds it"
    assert (await open_queue(f"redis://{primary.place}").submit_body(MODEL, BODY, key="alone")).created
