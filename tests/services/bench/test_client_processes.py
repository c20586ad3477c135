"""Several client processes send together what one would send, and each is watched by itself."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.services.bench.conftest import QUICK, answered, quick
from tests.services.bench.peer import Peer

from headway.services.bench import client_processes
from headway.services.bench.answer import Planned
from headway.services.bench.client_processes import Begin, ClientProcesses, merged
from headway.services.bench.client_watch import ClientLoad
from headway.services.bench.load import Loaded, Point, Share, backlogs_of
from headway.services.bench.plan import make_work
from headway.services.bench.progress import Progress
from headway.services.bench.result import client_result
from headway.services.bench.run import BenchRun
from headway.services.errors import ServiceError, UsageError
from headway.services.traffic import Demand


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shares_are_the_whole_and_no_request_is_in_two(of: int) -> None:
    def coming() -> Iterator[Planned]:
        return (Planned(number, 0.0, Demand(0.0, "", 0, 1, 1)) for number in range(100))

    shares = [Share(number, of) for number in range(of)]
    sent = [planned.number for share in shares for planned in share.mine(coming())]
    assert sorted(sent) == list(range(100))
    assert sum(share.part(16) for share in shares) == 16
    assert max(share.part(16) for share in shares) - min(share.part(16) for share in shares) <= 1


def part_of(cpu_share: float, lag: float, due: float) -> Loaded:
    loaded = Loaded(Point("0", rate=1.0), 0.0, 1.0, [answered(due, [due + 0.1])])
    loaded.client = ClientLoad(cpu_share, lag, lag, lag, 1.0)
    return loaded


def test_one_process_that_was_the_bottleneck_makes_the_point_invalid_and_is_named() -> None:
    settings = replace(QUICK, max_client_cpu=0.8, max_lateness=0.02, client_processes=2)
    whole = merged([part_of(0.1, 0.001, 0.5), part_of(0.95, 0.002, 0.2)])
    assert [answer.planned.seconds for answer in whole.answers] == [0.2, 0.5]
    client = client_result(whole, settings)
    assert (client["cpu_share"], client["loop_lag_seconds"]["max"]) == (0.95, 0.002)
    assert [complaint.split(":")[0] for complaint in client["complaints"]] == ["client process 2"]
    assert len(client["processes"]) == 2


async def test_two_processes_send_the_requests_of_one_at_their_times() -> None:
    sent: list[list[tuple[float, int]]] = []
    for count in (1, 2):
        peer = Peer()
        async with peer.serve() as url:
            settings = quick(url, rates=(60.0,), client_processes=count, duration=1.0)
            result = await BenchRun(settings, Progress(io.StringIO())).run()
        (point,) = result["points"]
        due = result["request_fields"].index("due")
        assert point["finished"] == point["requests"] > 30
        assert len(point["client"].get("processes", [0])) == count
        sent.append(sorted((row[due], row[0]) for row in point["requests_sent"]))
    assert sent[0] == sent[1]


async def test_what_a_client_process_failed_with_is_the_runs_error() -> None:
    no_writer: Any = None
    clients = ClientProcesses(QUICK, no_writer, None)
    here, there = multiprocessing.Pipe()
    clients._connections.append(here)
    there.send(ServiceError("the server is gone"))
    with pytest.raises(ServiceError, match="gone"):
        await clients.collect()
    there.close()
    with pytest.raises(ServiceError, match="ended"):
        await clients.collect()
    clients.close()


async def test_a_client_process_that_never_gets_ready_is_the_runs_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_processes, "START_SECONDS", 0.01)
    no_writer: Any = None
    clients = ClientProcesses(QUICK, no_writer, None)
    here, there = multiprocessing.Pipe()
    clients._connections.append(here)
    with pytest.raises(ServiceError, match="not ready"):
        await clients.ready()
    there.close()
    clients.stop()  # told to nobody: who collects hears of it
    with pytest.raises(ServiceError, match="ended"):
        await clients.collect()
    clients.close()


async def test_a_stop_that_comes_before_a_client_process_can_send_ends_its_first_point() -> None:
    here, there = multiprocessing.Pipe()
    async with Peer().serve() as url:
        no_writer: Any = None
        here.send(client_processes._STOP)
        begin = Begin(Point("0", rate=0.01), time.monotonic() + 60, time.time() + 60)  # nothing is due
        here.send(begin)
        serving = asyncio.create_task(
            client_processes._serve(there, quick(url, duration=600.0), no_writer, None, Share(1, 2))
        )
        assert await asyncio.to_thread(here.recv) == "ready"
        loaded = await asyncio.to_thread(here.recv)
        assert loaded.is_interrupted
        here.close()
        await serving
    there.close()


@pytest.mark.parametrize("of", [2, 3])
def test_the_shares_of_backlogs_are_what_one_process_would_send(of: int, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[tenant.open]\n[tenant.one]\nbacklog = 4\n[tenant.two]\nbacklog = 5\n")
    work = make_work(replace(QUICK, tenants=tenants, length_spread=0.5), 2048)

    def first(share: Share, count: int) -> list[list[Planned]]:
        return [list(islice(waiting, count)) for _, waiting in backlogs_of(work, "0", share)]

    whole = first(Share(), 6 * of)
    shares = [first(Share(number, of), 6) for number in range(of)]
    for place in range(2):
        sent = [planned for share in shares for planned in share[place]]
        assert sorted(sent, key=lambda planned: planned.number) == whole[place]
    assert len({planned.number for backlog in whole for planned in backlog}) == 12 * of
    assert len({planned.demand.prompt_tokens for planned in whole[0]}) > 6


async def test_fewer_clients_than_processes_are_refused() -> None:
    with pytest.raises(UsageError, match="some would have none"):
        await BenchRun(
            quick("http://127.0.0.1:1", concurrencies=(2,), client_processes=3), Progress(io.StringIO())
        ).run()
