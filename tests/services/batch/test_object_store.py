"""Files in an S3-compatible server: a real one, which checks keys, goes away and comes back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import httpx
import orjson
import pytest
from tests.conftest import missing
from tests.gateway.conftest import Rig
from tests.gateway.test_files_and_batches import app_of
from tests.services.batch.batch_fleet import COMMAND
from tests.services.batch.conftest import ENDPOINT, SMALL, Service, chat_line, jsonl
from tests.services.batch.object_store import ObjectStore, object_store

from headway.services.batch.retention import sweep
from headway.services.batch.storage import Storage


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ObjectStore]:
    for library in ("s3fs", "moto", "flask_cors"):
        if find_spec(library) is None:
            missing(library)
    async with object_store() as made:
        for name, value in made.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # s3fs's own tries are enough for a test
        yield made


async def test_batches_live_in_an_object_store_and_outlive_its_absence(
    rig: Rig, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(store.url)
    storage.check()
    service = Service(rig.queue, storage)
    async with rig.client(app_of(rig, storage)) as http:
        assert storage.names("files") == []
        # What another process writes now is read, though this one has just seen that nothing is there.
        made = await asyncio.to_thread(_elsewhere, "write('files/from-elsewhere', [b'1\\n2\\n'])", store)
        assert made.returncode == 0, made.stderr
        opened = storage.open("files/from-elsewhere")
        assert (opened.readline(100), opened.readline(1), opened.readline()) == (b"1\n", b"2", b"\n")
        opened.close()
        storage.remove("files/from-elsewhere")

        lines = [chat_line(f"{n}", "x" * 300) for n in range(40)] + [chat_line("bad", temperature=9)]
        file_id = (await _upload(http, jsonl(*lines))).json()["id"]
        body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        batch_id = (await http.post("/v1/batches", json=body)).json()["id"]

        store.link.cut()
        refused, turned = await asyncio.gather(
            _upload(http, b"{}\n"), service.turn(batch_id), return_exceptions=True
        )
        assert isinstance(refused, httpx.Response)
        assert (refused.status_code, refused.headers["x-headway-reason"]) == (503, "storage_unavailable")
        assert isinstance(turned, OSError), "the turn is over, and another one comes"
        store.link.mend()

        assert await service.turn(batch_id)
        batch = (await http.get(f"/v1/batches/{batch_id}")).json()
        assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 40)
        output = await _results(http, batch["output_file_id"])
        errors = await _results(http, batch["error_file_id"])
        assert (sorted(output, key=int), errors) == ([f"{n}" for n in range(40)], ["bad"])
        assert len(storage.names("files")) == 3
        assert storage.names("work") == []

        assert (await http.delete(f"/v1/files/{batch['output_file_id']}")).json()["deleted"] is True
        assert len(storage.names("files")) == 2

        records = rig.queue.batch_store
        error_file = await records.file(batch["error_file_id"])
        assert error_file is not None
        await records.add_file(replace(error_file, expires_ms=1))
        storage.write("work/batch_lost0001/0", [b"x"])
        storage.write("files/file-lost0001.0", [b"x"])
        await sweep(rig.queue, storage, SMALL.file_keep_seconds)
        assert {name for name, _ in storage.names("files")} == {file_id, "file-lost0001.0"}, "it is too young"
        assert [name for name, _ in storage.names("work")] == ["batch_lost0001"], "the same"
        monkeypatch.setattr("headway.services.batch.retention.ORPHAN_SECONDS", -60.0)
        await sweep(rig.queue, storage, SMALL.file_keep_seconds)
        assert ([name for name, _ in storage.names("files")], storage.names("work")) == ([file_id], [])

    told = await asyncio.to_thread(_worker_with_a_wrong_key, store)
    assert told.returncode != 0
    assert "signature" in told.stderr
    assert "AWS_SECRET_ACCESS_KEY" in told.stderr, "and what to correct"


def _elsewhere(call: str, store: ObjectStore) -> subprocess.CompletedProcess[str]:
    """A call to a storage in another process."""
    code = f"from headway.services.batch.storage import Storage; Storage({store.url!r}).{call}"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)


def _worker_with_a_wrong_key(store: ObjectStore) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "batch", "worker", "--files", store.url, "--redis-url", "redis://127.0.0.1:1"]
    environment = os.environ | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


async def _upload(http: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})


async def _results(http: httpx.AsyncClient, file_id: str) -> list[str]:
    text = (await http.get(f"/v1/files/{file_id}/content")).content
    lines: list[dict[str, Any]] = [orjson.loads(line) for line in text.splitlines()]
    return [line["custom_id"] for line in lines]
