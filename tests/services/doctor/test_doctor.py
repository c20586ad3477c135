"""Each line of the production checklist is ok on a good server, and is found when its setting is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from tests.gateway.scripted_worker import card
from tests.server_groups import ClusterServers, TcpServer, until_replicated
from tests.services.doctor.reports import doctor, finding, on_queue

from headway.queueing import functions
from headway.queueing.access import GATEWAY
from headway.queueing.address import parse_address
from headway.queueing.server import Server
from headway.services import doctor_facts
from headway.services.doctor import CHECKS, REACH
from headway.services.doctor_facts import Facts, ServerFacts
from headway.services.doctor_report import Finding, Verdict

if TYPE_CHECKING:
    from tests.conftest import RedisServer, StartRedis
    from tests.services.up.conftest import Command

    from headway.queueing.protocol import Queue

GOOD = (
    *("--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory", "256mb"),
    *("--maxmemory-policy", "noeviction", "--stream-node-max-bytes", "1024"),
)
PAGE = Path(__file__).parents[3] / "docs" / "production.md"


@pytest.fixture(scope="module", params=["redis7", "valkey9"])
def pair(request: pytest.FixtureRequest) -> Iterator[TcpServer]:
    """A primary whose replica gets each write."""
    server = TcpServer(request.param, *GOOD)
    replica = TcpServer(request.param, "--replicaof", *server.place.split(":"))
    try:
        server.start()
        replica.start()
        until_replicated(server, "first", replica)
        yield server
    finally:
        server.remove()
        replica.remove()


@pytest.fixture
def good(pair: TcpServer) -> TcpServer:
    """A server as the page wants it, with a replica, a worker and an API key."""
    settings = dict(zip(GOOD[::2], GOOD[1::2], strict=True)) | {"--min-replicas-to-write": "1"}
    limits = '"normal 0 0 0 pubsub 33554432 8388608 60"'
    for name, value in {**settings, "--client-output-buffer-limit": limits}.items():
        assert pair.command("CONFIG", "SET", name.removeprefix("--"), value) == b"+OK\r\n"
    on_queue(pair.url, _serve)
    return pair


async def _serve(queue: Queue) -> None:
    await queue.heartbeat(card(), ttl_seconds=300)
    await queue.tenant_store.add_key("acme", "test", "secret")


def test_a_good_server_has_no_line_that_is_not_ok(good: TcpServer) -> None:
    report = doctor(f"redis://{good.place}")
    assert {line.name: line.finding for line in report.lines if line.finding.verdict is not Verdict.OK} == {}
    assert report.exit_code == 0
    assert [line.name for line in report.lines] == [REACH.name, *(check.name for check in CHECKS)]


WRONG = [
    ("maxmemory-policy", "maxmemory-policy allkeys-lru", "fail", "allkeys-lru"),
    ("maxmemory", "maxmemory 0", "warn", "not set"),
    ("maxmemory", "maxmemory 1", "fail", "no new job"),
    ("maxmemory", "maxmemory 9999gb", "warn", "three quarters"),
    ("appendonly", "appendonly no", "fail", "appendonly no"),
    ("appendonly", "appendfsync no", "warn", "appendfsync no"),
    ("replicas", "min-replicas-to-write 0", "warn", "min-replicas-to-write 0"),
    ("output-limits", 'client-output-buffer-limit "normal 1048576 0 0"', "fail", "largest claim"),
    ("output-limits", 'client-output-buffer-limit "pubsub 1000 0 0"', "warn", "hints"),
    ("stream-node-max-bytes", "stream-node-max-bytes 4096", "warn", "4096"),
]


@pytest.mark.parametrize(("name", "setting", "verdict", "found"), WRONG)
def test_a_wrong_setting_is_found(good: TcpServer, name: str, setting: str, verdict: str, found: str) -> None:
    assert good.command("CONFIG", "SET", setting) == b"+OK\r\n"
    seen = doctor(good.url)
    assert finding(seen, name).verdict.value == verdict
    assert found in finding(seen, name).found
    assert seen.exit_code == int(verdict == "fail")


def test_no_server_and_no_replica_and_a_replica_itself(start_redis: StartRedis) -> None:
    gone = doctor("redis://127.0.0.1:1")
    assert [line.name for line in gone.lines] == ["reach"]
    assert gone.exit_code == 1
    alone = start_redis("redis7")
    assert finding(doctor(alone.url), "replicas") == Finding(Verdict.WARN, "no replica")
    replica = start_redis("redis7", "--replicaof", "127.0.0.1", "1")
    assert finding(doctor(replica.url), "role").verdict is Verdict.FAIL


def test_an_old_version_is_found(facts: Facts) -> None:
    (server,) = facts.servers
    for info, verdict in (
        ({"redis_version": "6.2.14"}, Verdict.FAIL),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.0"}, Verdict.FAIL),
        ({"redis_version": "8.0.0"}, Verdict.OK),
        ({}, Verdict.WARN),
    ):
        assert examine("version", replace(facts, servers=(replace(server, info=info),))).verdict is verdict


def test_slots_that_nobody_serves_and_those_that_move_are_counted() -> None:
    cluster = ClusterServers("redis7", *GOOD)
    try:
        cluster.start()
        whole = doctor(cluster.url)
        assert finding(whole, "slots") == Finding(Verdict.OK, "all, on 3 primaries")
        assert cluster.primaries[0].place in finding(whole, "functions").found, "the worst, by name"
        cluster.begin_move(0, cluster.primaries[0], cluster.primaries[1])
        moving = finding(doctor(cluster.url), "slots")
        assert (moving.verdict, moving.found[:10]) == (Verdict.WARN, "1 of 16384")
        cluster.end_move(0, cluster.primaries[0])
        cluster.primaries[2].command("CLUSTER", "DELSLOTS", "16383")
        seen = doctor("redis+cluster://" + cluster.primaries[2].place)
        assert finding(seen, "slots") == Finding(Verdict.FAIL, "1 of 16384 slots have no primary")
        assert "not known" in finding(seen, "workers").found, "a Cluster that is not whole answers nothing"
    finally:
        cluster.remove()


def test_errors_of_the_last_writes_are_found(start_redis: StartRedis, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    server = start_redis("redis7", "--enable-protected-configs", "yes")
    assert server.command("CONFIG", "SET", "dir", str(folder)) == b"+OK\r\n"
    shutil.rmtree(folder)
    server.command("BGSAVE")
    while b"rdb_bgsave_in_progress:1" in server.command("INFO", "persistence"):
        time.sleep(0.01)
    seen = doctor(server.url)
    assert finding(seen, "last-writes") == Finding(Verdict.FAIL, "rdb_last_bgsave_status err")


@pytest.mark.parametrize(("free", "verdict"), [(60 << 20, "fail"), (5 << 30, "warn"), (50 << 30, "ok")])
def test_a_disk_that_fills_up_is_found(
    good: TcpServer, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str
) -> None:
    block = 4096
    full = SimpleNamespace(f_bavail=free // block, f_blocks=(100 << 30) // block, f_frsize=block)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert finding(doctor(good.url), "disk").verdict.value == verdict


def test_a_library_that_is_missing_older_or_newer_is_found(good: TcpServer) -> None:
    good.command("FUNCTION", "FLUSH")
    assert finding(doctor(good.url), "functions") == Finding(Verdict.FAIL, "not loaded")
    for version, verdict in ((functions.VERSION - 1, "fail"), (functions.VERSION + 1, "warn")):
        _load(good, version)
        assert finding(doctor(good.url), "functions").verdict.value == verdict


def _load(server: RedisServer, version: int) -> None:
    async def do() -> None:
        connection = Server(server.url)
        stated = f"-- library version {functions.VERSION}"
        text = functions.library().replace(stated, f"-- library version {version}")
        await connection.call("FUNCTION", "LOAD", "REPLACE", text)
        await connection.close()

    asyncio.run(do())


def test_clocks_that_differ_are_found(good: TcpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() + 120)
    seen = finding(doctor(good.url), "clock")
    assert seen.verdict is Verdict.WARN
    assert seen.found.startswith("-120.")


@pytest.mark.parametrize(("seconds", "verdict"), [(0.02, "warn"), (0.26, "fail")])
def test_a_slow_link_is_found(
    good: TcpServer, monkeypatch: pytest.MonkeyPatch, seconds: float, verdict: str
) -> None:
    monkeypatch.setattr(doctor_facts, "PINGS", 3)
    with SlowLink(good, seconds) as url:
        assert finding(doctor(url), "latency").verdict.value == verdict


class SlowLink:
    """A port in front of a server that hands on each reply late."""

    def __init__(self, server: TcpServer, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> str:
        self._thread.start()
        listener = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        )
        self._listener = listener.result()
        port: int = self._listener.sockets[0].getsockname()[1]
        return f"redis://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            await asyncio.gather(
                self._pass(reader, up_writer, 0), self._pass(up_reader, writer, self._seconds)
            )
        finally:
            writer.close()
            up_writer.close()

    @staticmethod
    async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, seconds: float) -> None:
        while chunk := await source.read(1 << 20):
            await asyncio.sleep(seconds)
            sink.write(chunk)
        sink.close()


def test_missing_rights_are_named(good: TcpServer) -> None:
    rules = GATEWAY.rules().split()
    good.command("ACL", "SETUSER", "whole", "on", ">pw", *rules)
    good.command("ACL", "SETUSER", "less", "on", ">pw", *rules, "-zadd")
    good.command("ACL", "SETUSER", "mute", "on", ">pw", *rules, "-multi")
    assert finding(doctor(f"unix://whole:pw@{good.socket}"), "access") == Finding(
        Verdict.OK, "enough for a gateway"
    )
    lacking = finding(doctor(f"unix://less:pw@{good.socket}"), "access")
    assert lacking.verdict is Verdict.FAIL
    assert "ZADD on doctor:{fleet}" in lacking.found
    assert finding(doctor(f"unix://mute:pw@{good.socket}"), "access").verdict is Verdict.WARN


def test_an_open_network_is_found(facts: Facts) -> None:
    for url, encryption, login in (
        ("redis://queue.example", "warn", "warn"),
        ("redis://:pw@queue.example", "warn", "ok"),
        ("rediss://me:pw@queue.example", "ok", "ok"),
        ("rediss://me:pw@queue.example?ssl_cert_reqs=none", "warn", "ok"),
        ("redis+cluster://127.0.0.1,localhost:1", "ok", "ok"),
        ("unix:///run/redis.sock", "ok", "ok"),
    ):
        seen = replace(facts, address=parse_address(url))
        assert (examine("encryption", seen).verdict.value, examine("login", seen).verdict.value) == (
            encryption,
            login,
        ), url


def test_the_command_says_it_in_words_and_in_json(command: Command, start_redis: StartRedis) -> None:
    server = start_redis("redis7", "--maxmemory-policy", "allkeys-lru")
    words = command("doctor", "--redis-url", server.url)
    assert words.returncode == 1
    assert "do: CONFIG SET maxmemory-policy noeviction" in words.stdout
    told = json.loads(command("doctor", "--json", HEADWAY_REDIS_URL=server.url).stdout)
    assert told["ok"] is False
    assert next(line for line in told["lines"] if line["name"] == "maxmemory-policy")["verdict"] == "fail"
    nowhere = command("doctor", "--state-dir", "/nonexistent")
    assert nowhere.returncode == 3
    assert command("doctor", "--redis-url", "http://x").returncode == 2


def test_the_page_and_the_doctor_agree_line_by_line() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    lines = [(check.name, check.meaning, check.remedy) for check in CHECKS]
    assert rows == [(REACH.name, REACH.meaning, REACH.remedy), *lines]


# -- without a server ----------------------------------------------------------------------------------------


@pytest.fixture
def facts() -> Facts:
    server = ServerFacts("here", {}, {}, functions.VERSION, 0.0, 0.001, None)
    return Facts(parse_address("redis://localhost"), (server,), None, (), "not asked")


def examine(name: str, facts: Facts) -> Finding:
    return next(check for check in CHECKS if check.name == name).examine(facts)


def test_a_server_that_accepts_and_never_answers_is_told_soon_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        before = time.monotonic()
        report = doctor(f"redis://:secret@127.0.0.1:{port}")
        taken = time.monotonic() - before
    assert [line.name for line in report.lines] == ["reach"]
    assert finding(report, "reach").verdict is Verdict.FAIL
    assert "answers nothing within 3 s" in finding(report, "reach").found
    assert "secret" not in finding(report, "reach").found
    assert taken < 8, "the client library's own time-outs add up to more"


@pytest.mark.parametrize(("used", "verdict"), [(0.5, "ok"), (0.85, "warn"), (0.95, "fail"), (1.0, "fail")])
def test_memory_that_is_nearly_used_up_fails_in_one_unit(used: float, verdict: str) -> None:
    limit = 3 << 20
    info = {"maxmemory": str(limit), "used_memory": str(round(used * limit))}
    server = ServerFacts("here:1", info, {}, 1, 0.0, 0.0, None)
    check = next(check for check in CHECKS if check.name == "maxmemory")
    found = check.examine(SimpleNamespace(servers=(server,)))  # type: ignore[arg-type]  # all it looks at
    assert found.verdict.value == verdict
    assert " of 3.0 MiB used" in found.found
