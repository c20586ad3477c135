"""Files in an S3-compatible server: a real one, which checks keys, goes away and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import httpx
import orjson
import pytest
from tests.conftest import missing
from tests.gateway.conftest import Rig
from tests.gateway.file_posts import app_of
from tests.services.batch.conftest import ENDPOINT, SMALL, Service, chat_line, jsonl
from tests.services.batch.object_store import ObjectStore, object_store

from headway.services.batch.retention import sweep
from headway.services.batch.storage import Storage
from headway.services.errors import StartError


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[ObjectStore]:
    for library in ("s3fs", "moto", "flask_cors"):
        if find_spec(library) is None:
            missing(library)
    async with object_store() as made:
        for name, value in made.variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setattr("s3fs.S3FileSystem.retries", 2)  # seconds of patience are enough for a test
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
        _as_another_process(store).write("files/from-elsewhere", [b"1\n2\n"])
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

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StartError, match="signature") as told:
        _as_another_process(store).check()
    assert "AWS_SECRET_ACCESS_KEY" in str(told.value.hint), "and what to correct"


def _as_another_process(store: ObjectStore) -> Storage:
    """A storage that shares nothing with others of this process: fsspec would give both the same."""
    from s3fs import S3FileSystem  # type: ignore[import-untyped]  # it has no types

    S3FileSystem.clear_instance_cache()
    return Storage(store.url)


async def _upload(http: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await http.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})


async def _results(http: httpx.AsyncClient, file_id: str) -> list[str]:
    text = (await http.get(f"/v1/files/{file_id}/content")).content
    lines: list[dict[str, Any]] = [orjson.loads(line) for line in text.splitlines()]
    return [line["custom_id"] for line in lines]
