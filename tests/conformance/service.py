"""The real gateway over a real server, in a thread of its own, with a worker that writes what it is told to.

The last message (or the prompt) that holds ``say `` names the answer: clients can so be led through tool
calls, thoughts and JSON without a model. Every three characters are a token.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from tests.conftest import ANY, RedisServer
from tests.gateway.conftest import Rig, over
from tests.gateway.scripted_worker import Script, ScriptedWorker

from headway.gateway.app import create_app
from headway.gateway.settings import GatewaySettings
from headway.queueing.messages import Job, TokenTask
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.tenant_book import digest_of
from headway.services.batch.storage import GatewayBlobs, Storage
from headway.services.constraint import constraint_refusal

OPERATOR = "operator-key-of-the-conformance-tests"
TENANT = "acme"


def told(job: Job) -> tuple[str, ...]:
    """What the worker writes: the words behind the last ``say ``; a tokenizer whose tokens are characters."""
    if job.task is not None:
        return (json.dumps(_token_answer(job, job.task)),)
    asked = [message.content or "" for message in job.messages or ()] or [job.prompt or ""]
    said = next((text for text in reversed(asked) if "say " in text), "say Hello, world!")
    words = said.partition("say ")[2]
    return tuple(words[at : at + 3] for at in range(0, len(words), 3))


def _token_answer(job: Job, task: TokenTask) -> dict[str, object]:
    if task.kind == "detokenize":
        return {"text": "".join(chr(32 + token_id % 95) for token_id in job.prompt_token_ids or ())}
    text = job.prompt or "".join(message.content or "" for message in job.messages or ())
    ids = [ord(character) for character in text]
    return {"token_ids": ids, "texts": list(text) if task.with_texts else None, "max_model_len": 2048}


OBEDIENT = Script(pieces_of=told)


def say(text: str) -> list[Any]:
    """A conversation that is answered with this text."""
    return [{"role": "user", "content": f"say {text}"}]


def say_call(name: str, **arguments: Any) -> list[Any]:
    """A conversation that is answered with this call, as Qwen's and Hermes' models write it."""
    return say(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")


@dataclass(slots=True)
class Service:
    """What the clients are pointed at."""

    url: str = ""
    key: str = ""
    worker: ScriptedWorker = field(default_factory=lambda: ScriptedWorker(None))  # type: ignore[arg-type]  # replaced

    @property
    def base_url(self) -> str:
        """For clients."""
        return f"{self.url}/v1"

    @property
    def seen(self) -> list[Job]:
        """The jobs that the worker got."""
        return self.worker.seen

    @contextmanager
    def following(self, script: Script) -> Generator[None]:
        """The worker does something else for a while."""
        self.worker.script = script
        try:
            yield
        finally:
            self.worker.script = OBEDIENT

    def ask_operator(self, method: str, path: str, body: object = None) -> Any:
        """An administrator's request."""
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        answer = httpx.request(method, self.url + path, json=body, headers=headers, timeout=10)
        answer.raise_for_status()
        return answer.json()

    @contextmanager
    def limited(self, **limits: object) -> Generator[None]:
        """The tenant has these limits for a while."""
        self.ask_operator("PUT", f"/admin/tenants/{TENANT}", limits)
        try:
            yield
        finally:
            self.ask_operator("DELETE", f"/admin/tenants/{TENANT}")

    def until_seen(self, count: int) -> None:
        """Return once the worker has begun that many jobs."""
        _until(lambda: len(self.worker.seen) >= count)

    def until_ended(self, job_id: str) -> str:
        """How the job ended, once it has."""
        _until(lambda: job_id in self.worker.ended)
        return self.worker.ended[job_id].value


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def running_service(folder: Path) -> Generator[Service]:
    """A service with its own server; one API key exists, so that every request needs one."""
    redis = RedisServer(ANY)
    redis.start()
    service, started, stop = Service(), Future[None](), threading.Event()

    def run() -> None:
        try:
            asyncio.run(_serve(redis.url, folder, service, started, stop))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        started.result(timeout=30)
        service.key = service.ask_operator("POST", "/admin/keys", {"tenant": TENANT, "name": "tests"})["key"]
        yield service
    finally:
        stop.set()
        thread.join(timeout=15)
        redis.remove()


async def _serve(
    redis_url: str, folder: Path, service: Service, started: Future[None], stop: threading.Event
) -> None:
    queue = RedisQueue(redis_url)
    await queue.check_server()
    app = create_app(
        queue,
        GatewaySettings(
            version="1.2",
            answer_pause_seconds=0.001,
            cancel_seconds=2.0,
            admin_key_digest=digest_of(OPERATOR),
        ),
        registry=CollectorRegistry(),
        clock=time.monotonic,
        wall_clock=time.time,
        blobs=GatewayBlobs(Storage(str(folder / "files"))),
        constraint_refusal=constraint_refusal,
    )
    try:
        async with over(queue, OBEDIENT) as rig, Rig(queue, rig.worker).serve(app) as url:
            service.url, service.worker = url, rig.worker
            started.set_result(None)
            await asyncio.to_thread(stop.wait)
    finally:
        await queue.close()
