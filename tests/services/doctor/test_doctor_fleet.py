"""The doctor finds workers, lanes and jobs that need somebody."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.gateway.scripted_worker import card
from tests.queueing.conftest import stop
from tests.services.doctor.reports import doctor, finding, on_queue

from headway.queueing.redis_queue import RedisQueue
from headway.services.doctor_report import Finding, Verdict

if TYPE_CHECKING:
    from tests.conftest import StartRedis

    from headway.queueing.protocol import Queue


def test_open_mode_missing_and_hung_workers_lonely_lanes_and_dead_letters_are_found(
    start_redis: StartRedis,
) -> None:
    server = start_redis()
    on_queue(server.url, _nothing)
    empty = doctor(server.url)
    assert finding(empty, "api-keys") == Finding(Verdict.WARN, "none: open mode")
    assert finding(empty, "workers") == Finding(Verdict.WARN, "none is alive")
    on_queue(server.url, _trouble)
    seen = doctor(server.url)
    assert finding(seen, "workers") == Finding(Verdict.FAIL, "hung: w2")
    assert finding(seen, "lanes") == Finding(Verdict.FAIL, "no worker for tiny (1 waiting)")
    assert finding(seen, "dead-letters") == Finding(Verdict.WARN, "other: 1")


def test_a_worker_whose_native_kernels_are_missing_is_told_with_the_reason(start_redis: StartRedis) -> None:
    server = start_redis()
    why = "torch (no C++ compiler is installed; install one)"

    async def slow_and_chosen(queue: Queue) -> None:
        await queue.heartbeat(card("w1", computation=why), ttl_seconds=60)
        await queue.heartbeat(card("w2", computation="torch (torch was asked for)"), ttl_seconds=60)
        await queue.heartbeat(card("w3", computation="native (q4)"), ttl_seconds=60)

    on_queue(server.url, slow_and_chosen)
    told = finding(doctor(server.url), "workers")
    assert told == Finding(Verdict.WARN, f"several times slower than they could be: w1 by {why}")


async def _nothing(queue: Queue) -> None:
    await queue.workers()


async def _trouble(queue: Queue) -> None:
    await queue.heartbeat(card("w1"), ttl_seconds=60)
    await queue.farewell("w1")
    await queue.heartbeat(card("w2", model="other", step_age_seconds=100.0), ttl_seconds=60)
    assert isinstance(queue, RedisQueue)
    await queue.submit_body("tiny", b'{"model":"tiny","prompt":"x"}', key="waits")
    await queue.submit_body("other", b'{"model":"other"}', key="bad")
    (claim,) = await queue.claim("other", "w2", 1)
    await queue.finish([replace(stop(claim, 0), dead_letter="internal_error")])
