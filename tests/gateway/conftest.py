"""One gateway over a real in-memory queue and a scripted worker; called in process or over a real socket."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from structlog.typing import EventDict
from tests.gateway.scripted_worker import Script, ScriptedWorker

from headway.gateway.app import create_app
from headway.gateway.gateway import Gateway
from headway.gateway.settings import GatewaySettings
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.protocol import Queue
from headway.services.batch.storage import Storage
from headway.services.constraint import constraint_refusal

SETTINGS = GatewaySettings(
    version="1.2", read_wait_seconds=0.2, answer_pause_seconds=0.001, cancel_seconds=2.0
)


class QuietServer(uvicorn.Server):
    """Leaves the signal handlers to pytest."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@dataclass(slots=True)
class Rig:
    """The gateway under test, its queue and its worker."""

    queue: Queue
    worker: ScriptedWorker

    def app(self, queue: Queue | None = None, **changes: object) -> FastAPI:
        """A gateway over this queue, or over another one that wraps it."""
        return create_app(
            queue or self.queue,
            replace(SETTINGS, **changes),  # type: ignore[arg-type]  # the test names real settings
            registry=CollectorRegistry(),
            clock=time.monotonic,
            wall_clock=time.time,
            constraint_refusal=constraint_refusal,
        )

    @asynccontextmanager
    async def client(self, app: FastAPI | None = None) -> AsyncIterator[httpx.AsyncClient]:
        """In-process HTTP; an answer is whole before it is seen."""
        transport = httpx.ASGITransport(app or self.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client

    @asynccontextmanager
    async def serve(self, app: FastAPI | None = None, **options: int) -> AsyncIterator[str]:
        """A real server on a free port; yields its address."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            # Accepted sockets inherit it: a stalled reader is then noticed after kilobytes, not megabytes.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 131_072)
            config = uvicorn.Config(
                app or self.app(),
                log_config=None,
                lifespan="on",
                ws="none",
                timeout_graceful_shutdown=options.get("graceful_seconds", 2),
            )
            server = QuietServer(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await until(lambda: server.started)
                port: int = listener.getsockname()[1]
                yield f"http://127.0.0.1:{port}"
            finally:
                server.should_exit = True
                await serving

    async def until_ended(self, count: int = 1) -> None:
        """Return once the worker has finished that many jobs."""
        await until(lambda: len(self.worker.ended) >= count)

    async def until_seen(self, count: int = 1) -> None:
        """Return once the worker has claimed that many jobs."""
        await until(lambda: len(self.worker.seen) >= count)


async def until(is_so: Callable[[], bool], *, seconds: float = 5) -> None:
    """Return once it is so; fails after these seconds."""
    async with asyncio.timeout(seconds):
        while not is_so():  # what is watched has no event of its own
            await asyncio.sleep(0.005)


def gateway_of(app: FastAPI) -> Gateway:
    gateway = app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


@asynccontextmanager
async def over(queue: Queue, script: Script) -> AsyncIterator[Rig]:
    """A rig over a queue of the test's own."""
    worker = ScriptedWorker(queue, script)
    running = asyncio.create_task(worker.run())
    await worker.is_up.wait()
    try:
        yield Rig(queue, worker)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def post_job(rig: Rig, **fields: object) -> str:
    """Post a job over HTTP and return its id."""
    async with rig.client() as http:
        response = await http.post("/v1/jobs", json={"model": "tiny", "prompt": "a"} | fields)
    assert response.status_code == 202, response.text
    job_id: str = response.json()["id"]
    return job_id


@pytest.fixture(autouse=True)
def logs() -> Generator[list[EventDict]]:
    """What was logged, as values."""
    with capture_logs() as captured:
        yield captured


@pytest.fixture
async def rig() -> AsyncGenerator[Rig]:
    async with over(MemoryQueue(), Script()) as made:
        yield made


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A place for files, in a folder of the test's own."""
    return Storage(str(tmp_path / "files"))


@pytest.fixture
async def http(rig: Rig) -> AsyncGenerator[httpx.AsyncClient]:
    async with rig.client() as client:
        yield client


@pytest.fixture
async def client(rig: Rig) -> AsyncGenerator[AsyncOpenAI]:
    """The official client, over a socket."""
    async with rig.serve() as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made
