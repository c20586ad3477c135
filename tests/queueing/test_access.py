"""Each role's access rules are enough for it, and hold nothing that it does not use."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from tests.gateway.scripted_worker import card
from tests.queueing.conftest import BODY, MODEL, TAG, Held, emit, follow, stop

from headway.queueing.access import ADMIN, GATEWAY, PRODUCER, ROLES, WORKER, Role
from headway.queueing.admission import Admission
from headway.queueing.batch import NewBatch
from headway.queueing.claims import Fenced, Finish
from headway.queueing.errors import QueueingError, ServerUnsuitableError
from headway.queueing.events import START
from headway.queueing.functions import library
from headway.queueing.messages import Job, Priority
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.server import Server
from headway.queueing.settings import QueueSettings
from headway.queueing.settling import keep_reservations, settle
from headway.queueing.stored_file import StoredFile

if TYPE_CHECKING:
    from tests.conftest import RedisServer, StartRedis
    from tests.queueing.conftest import OpenQueue

DOCS = Path(__file__).parents[2] / "docs"
JOB = Job.model_validate({"model": MODEL, "prompt": "x", "tenant": "acme"})


@pytest.fixture(params=["redis7", "valkey9"])
def server(request: pytest.FixtureRequest, start_redis: StartRedis) -> RedisServer:
    """A server with a user for each role, and nobody without a password."""
    made = start_redis(request.param)
    for role in ROLES.values():
        rules = role.rules(MODEL if role is PRODUCER else "").split()
        assert made.command("ACL", "SETUSER", role.name, "on", ">pw", *rules) == b"+OK\r\n"
    return made


def url_of(server: RedisServer, role: Role) -> str:
    return f"unix://{role.name}:pw@{server.socket}"


def refusals(server: RedisServer) -> bytes:
    """The server's own log of what its access rules refused."""
    return server.command("ACL", "LOG")


async def test_a_gateway_and_a_worker_serve_a_job_and_keep_the_books(
    server: RedisServer, open_queue: OpenQueue
) -> None:
    admin = open_queue(url_of(server, ADMIN))
    assert await admin.check_server() == await admin.check_server()
    await admin.tenant_store.set("acme", {"rpm": 100, "tpm": 100_000, "concurrency": 9, "queued_jobs": 9})
    await admin.tenant_store.add_key("acme", "test", "secret")
    gateway, worker = open_queue(url_of(server, GATEWAY)), open_queue(url_of(server, WORKER))
    for queue in (gateway, worker):
        await queue.check_server()
    await worker.heartbeat(card(), ttl_seconds=60)
    await worker.set_weights(MODEL, {"acme": 2.0})
    assert [one.worker_id for one in await gateway.workers()] == ["w1"]
    await gateway.check_writes(MODEL)
    submitted = await Admission(gateway).submit(JOB)
    assert (await worker.wait(MODEL, "w1", for_work=Priority.BATCH, timeout_seconds=5)).may_have_work
    (claim,) = await worker.claim(MODEL, "w1", 1)
    reading = asyncio.create_task(follow(gateway, submitted.job_id))
    assert await worker.emit([emit(claim, 1)]) == (Fenced.OK,)
    assert await worker.renew([(claim.job_id, claim.token)]) == (Fenced.OK,)
    await keep_reservations(gateway)
    await keep_reservations(worker)
    assert await worker.release([(claim.job_id, claim.token)]) == (Fenced.OK,)
    (claim,) = await worker.claim(MODEL, "w1", 1)
    assert await worker.expire_worker(MODEL, "w1") == 1
    (claim,) = await worker.claim(MODEL, "w1", 1)
    assert await worker.finish([stop(claim, 1)]) == (Fenced.OK,)
    assert len(await reading) == 2
    assert await settle(worker, MODEL) == 1
    assert (await gateway.depth(MODEL)).running == 0
    await _end_without_a_worker(gateway)
    await worker.farewell("w1")
    assert refusals(server) == b"*0\r\n"


async def test_a_gateway_keeps_the_records_of_files_and_batches(
    server: RedisServer, open_queue: OpenQueue
) -> None:
    store = open_queue(url_of(server, GATEWAY)).batch_store
    now_ms = await store.now_ms()
    file = StoredFile("file-1", "acme", "a", "batch", 1, now_ms, now_ms + 9999, "files/a")
    await store.add_file(file)
    assert await store.file("file-1") == file
    await store.add_batch(NewBatch("batch_1", "acme", "file-1", "/v1/completions", "24h", now_ms, now_ms))
    await store.cancel_batch("batch_1")
    assert await store.batch_page("acme", "batch_1", 5) is not None
    assert await store.file_page("acme", "file-1", 5, "asc") is not None
    assert await store.count_files("acme") == 1
    await store.remove_file(file)
    assert refusals(server) == b"*0\r\n"


async def _end_without_a_worker(queue: RedisQueue) -> None:
    """Cancel and deadline of waiting jobs, and a job asked for again under its key."""
    admission = Admission(queue)
    waiting = await admission.submit(JOB)
    await queue.cancel(waiting.job_id, "enough")
    await admission.submit(JOB.model_copy(update={"deadline_seconds": 0.01}))
    await asyncio.sleep(0.05)
    await queue.reap(MODEL)
    again = JOB.model_copy(update={"idempotency_key": "once"})
    assert (await admission.submit(again)).job_id == (await admission.submit(again)).job_id
    await settle(queue, MODEL)


async def test_strangers_keys_are_mended_by_whoever_meets_them(
    server: RedisServer, open_queue: OpenQueue
) -> None:
    gateway, worker = open_queue(url_of(server, GATEWAY)), open_queue(url_of(server, WORKER))
    for key in ("wake", "lease", "due", "lane", "dlq", "recent", "turn", "tenants", "back"):
        suffix = ":standard" if key in {"turn", "back"} else ""
        server.command("SET", f"{key}:{TAG}{suffix}", "mine")
    await worker.wait(MODEL, "w", for_work=Priority.BATCH, timeout_seconds=0.1)
    await gateway.submit_body(MODEL, BODY, key="k")
    (claim,) = await worker.claim(MODEL, "w", 1)
    server.command("XADD", f"o:{TAG}:k", "9-9", "x", "y")
    assert await worker.emit([emit(claim, 1)]) == (Fenced.OK,)
    await worker.finish([stop(claim, 1)])
    assert refusals(server) == b"*0\r\n"


async def test_a_producer_posts_and_reads_in_its_lane_and_nowhere_else(
    server: RedisServer, open_queue: OpenQueue
) -> None:
    worker = open_queue(url_of(server, WORKER))
    await worker.check_server()
    producer = open_queue(url_of(server, PRODUCER), QueueSettings(watch_seconds=0.05))
    submitted = await Admission(producer).submit(JOB)
    reading = asyncio.create_task(producer.read(submitted.job_id, START, wait_seconds=30))
    await asyncio.sleep(0.2)
    (claim,) = await worker.claim(MODEL, "w", 1)
    await worker.finish([stop(claim, 0)])
    assert len(await reading) == 1
    assert (await producer.result(submitted.job_id)) is not None
    await producer.cancel((await producer.submit(JOB)).job_id, "enough")
    for refused in (
        producer.submit_body("other", b'{"model":"other","prompt":"x"}'),
        producer.claim(MODEL, "w", 1),
        producer.workers(),
        producer.tenant_store.set("acme", {"rpm": None}),
    ):
        with pytest.raises((ServerUnsuitableError, QueueingError)):
            await refused
    assert not (await producer.tenant_store.book()).is_readable


def test_what_the_wire_protocol_shows_a_producer_is_allowed_to_it(server: RedisServer) -> None:
    """Plain redis-py, no class of ours."""
    asyncio.run(_load_library(server))
    with redis.Redis.from_url(url_of(server, PRODUCER), protocol=2) as raw:
        assert raw.fcall("headway_submit", 1, TAG, "k", BODY) == [b"created", b"k"]
        assert raw.xread({f"o:{TAG}:k": "0-0"}, block=1) == []
        assert raw.hget(f"j:{TAG}:k", "state") == b"queued"
        assert raw.fcall("headway_reap", 1, TAG, 3, 300_000, 3_600_000) == [[], []]
        assert raw.fcall("headway_cancel", 1, TAG, "k", "enough") == b"queued"
        assert raw.get(f"r:{TAG}:k") is not None
        raw.xrevrange(f"dlq:{TAG}", "+", "-", count=100)
        raw.hgetall(f"lane:{TAG}")
        with raw.pubsub() as hints:
            hints.subscribe(f"hint:{TAG}")
            assert hints.get_message(timeout=5) is not None


async def _load_library(server: RedisServer) -> None:
    queue = RedisQueue(url_of(server, ADMIN))
    await queue.check_server()
    await queue.close()


async def test_roles_cannot_do_each_others_work(server: RedisServer, open_queue: OpenQueue) -> None:
    await open_queue(url_of(server, ADMIN)).check_server()
    gateway, worker = open_queue(url_of(server, GATEWAY)), open_queue(url_of(server, WORKER))
    for refused in (
        gateway.claim(MODEL, "w", 1),
        gateway.heartbeat(card(), ttl_seconds=1),
        gateway.tenant_store.add_key("acme", "test", "secret"),
        worker.submit_body(MODEL, BODY),
        worker.tenant_store.set("acme", {"rpm": 1}),
    ):
        with pytest.raises(ServerUnsuitableError, match="access rules"):
            await refused
    connection = Server(url_of(server, ADMIN))
    for command in (("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "1"), ("KEYS", "*"), ("SHUTDOWN",)):
        with pytest.raises(ServerUnsuitableError, match="access rules"):
            await connection.call(*command)
    await connection.close()


async def test_an_administrator_looks_at_everything_and_mends(
    server: RedisServer, open_queue: OpenQueue
) -> None:
    admin, worker = open_queue(url_of(server, ADMIN)), open_queue(url_of(server, WORKER))
    await worker.check_server()
    job_id = (await admin.submit(JOB)).job_id
    await admin.waiting_jobs(MODEL)
    (claim,) = await worker.claim(MODEL, "w", 1)
    await admin.running_jobs(MODEL)
    await worker.finish([_given_up(claim)])
    assert len(await admin.dead_letters(MODEL)) == 1
    await admin.recent_jobs(MODEL)
    await admin.tenants(MODEL)
    redriven = await admin.redrive(MODEL, (await admin.dead_letters(MODEL))[0].entry_id)
    await admin.cancel(redriven.job_id, "enough")
    await admin.retry(job_id)
    await admin.purge(MODEL)
    await admin.tenant_store.apply({}, "digest")
    assert refusals(server) == b"*0\r\n"


def _given_up(claim: Held) -> Finish:
    return replace(stop(claim, 0), dead_letter="internal_error")


def test_no_role_holds_a_command_that_the_library_and_our_calls_do_not_use() -> None:
    """``Used``: what the functions call, and what redis_*.py, reader.py and ear.py send themselves."""
    folder = Path(__file__).parents[2] / "queueing"
    senders = (*folder.glob("re*.py"), folder / "ear.py", folder / "lost_jobs.py", folder / "batch_store.py")
    sources = [library(), *(path.read_text() for path in senders)]
    used = {word.lower() for text in sources for word in re.findall(r"[\"']([A-Z]{3,})[\"']", text)}
    assert {name for role in ROLES.values() for name in role.commands} - used == set()
    registered = set(re.findall(r"register\('(headway_\w+)'", library()))
    assert {name for role in ROLES.values() for name in role.functions} == registered


def test_the_page_shows_the_rules_as_they_are() -> None:
    page = (DOCS / "production.md").read_text(encoding="utf-8")
    for role in ROLES.values():
        rules = role.rules("smollm2-135m" if role is PRODUCER else "")
        assert f"ACL SETUSER {role.name} on >secret {rules}\n" in page


def test_a_role_may_run_every_command_that_its_functions_can_reach() -> None:
    bodies = _lua_functions(library())
    used = {name: set(re.findall(r"'([A-Z]{3,})'", body)) for name, body in bodies.items()}
    calls = {name: set(re.findall(r"\b[a-z_]+\b", body)) & bodies.keys() for name, body in bodies.items()}
    for role in ROLES.values():
        reached, ahead = set[str](), list(role.functions)
        while ahead:
            if (name := ahead.pop()) not in reached:
                reached.add(name)
                ahead += calls[name]
        commands = {word.lower() for name in reached for word in used[name]} - _NO_COMMANDS
        assert commands - set(role.commands) == set(), role.name


_NO_COMMANDS = {
    "count",
    "create",
    "destroy",
    "keys",
    "limit",
    "maxlen",
    "mkstream",
    "rev",
    "withscores",
    "wrongtype",
}
"""Other words in capitals between quotes."""


def _lua_functions(source: str) -> dict[str, str]:
    """Each function of the library at the top level, registered or local, with its text."""
    heads = r"^(?:local function ([a-z_]+)\(|register\('(headway_\w+)', function)(?:[^\n]*\bend\)?$|.*?^end)"
    found = re.finditer(heads, source, re.MULTILINE | re.DOTALL)
    return {match[1] or match[2]: match[0] for match in found}
