"""The ``headway`` command in this process, on a real server with jobs that a scripted worker plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract.conftest import MODEL, Bench
from tests.services.up.conftest import command

from headway.queueing.worker_card import WorkerCard

if TYPE_CHECKING:
    import subprocess

    from tests.services.up.conftest import Command

__all__ = ["command"]

Play = Callable[[Callable[[Bench], Awaitable[Any]]], Any]


@pytest.fixture
def ask(command: Command, redis_url: str) -> Command:
    """A command against the server."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return command(*arguments, "--redis-url", redis_url, **more)

    return run


@pytest.fixture
def play(redis_url: str) -> Play:
    """Some moves of producers and workers on the server, in a loop of their own."""

    def run(moves: Callable[[Bench], Awaitable[Any]]) -> Any:
        async def act() -> Any:
            bench = Bench("server", redis_url)
            try:
                await bench.queue.heartbeat(card(), ttl_seconds=60)
                return await moves(bench)
            finally:
                await bench.close()

        return asyncio.run(act())

    return run


def card(worker: str = "w1", **changes: Any) -> WorkerCard:
    """A worker's card."""
    fields: dict[str, Any] = {
        "worker_id": worker,
        "model": MODEL,
        "state": "ready",
        "pid": 1,
        "host": "h",
        "version": "0.1.0",
        "max_model_len": 8,
        "max_running": 4,
        "running": 1,
        "waiting": 2,
        "kv_used_fraction": 0.5,
        "step_age_seconds": 0.25,
        "tokens_per_second": 81.5,
        "created_unix": 1,
    }
    return WorkerCard(**{**fields, **changes})


async def dead(bench: Bench, key: str, reason: str = "engine_error", **fields: Any) -> str:
    """A job that its worker gave up."""
    job_id = await bench.submit(key, **fields)
    await bench.finish(await bench.claim_one(), bench.token(1), dead_letter=reason)
    return job_id


def values(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The lines of a command with --json."""
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
