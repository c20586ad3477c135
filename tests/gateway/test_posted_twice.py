"""The same upload and the same batch, posted twice under one idempotency key, are made once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.file_posts import app_of, create, names_in, upload

from headway.services.batch.storage import Storage


@pytest.fixture
async def http(rig: Rig, storage: Storage) -> AsyncIterator[httpx.AsyncClient]:
    async with rig.client(app_of(rig, storage)) as client:
        yield client


async def test_the_same_idempotency_key_and_body_name_the_same_batch(
    http: httpx.AsyncClient, rig: Rig
) -> None:
    file_id = await upload(http)
    once = {"Idempotency-Key": "monday"}
    made = await asyncio.gather(*(create(http, file_id, once, metadata={"a": "1"}) for _ in range(8)))
    assert {response.status_code for response in made} == {200}
    (batch_id,) = {response.json()["id"] for response in made}
    assert await rig.queue.batch_store.open_batches() == (batch_id,)
    await http.delete(f"/v1/files/{file_id}")
    assert (await create(http, file_id, once, metadata={"a": "1"})).json()["id"] == batch_id
    other = await upload(http)
    refused = await create(http, other, once, metadata={"a": "1"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (
        409,
        "idempotency_conflict",
        "Idempotency-Key",
    )
    assert batch_id in error["message"]
    theirs = once | {"X-Tenant": "other"}
    file_of_theirs = await upload(http, {"X-Tenant": "other"})
    assert (await create(http, file_of_theirs, theirs)).json()["id"] != batch_id, "a key is its tenant's"
    assert (await create(http, other, {"Idempotency-Key": "x" * 256})).status_code == 400


async def test_a_batch_that_was_refused_leaves_its_idempotency_key_free(http: httpx.AsyncClient) -> None:
    once = {"Idempotency-Key": "monday"}
    assert (await create(http, "file-none", once)).status_code == 400
    assert (await create(http, await upload(http), once)).status_code == 200


async def test_the_same_idempotency_key_and_upload_name_the_same_file(
    http: httpx.AsyncClient, rig: Rig, storage: Storage
) -> None:
    once = {"Idempotency-Key": "monday"}
    first = await upload(http, once)
    assert await upload(http, once) == first
    assert (names_in(storage), await rig.queue.batch_store.count_files("default")) == ([first], 1)
    refused = await http.post(
        "/v1/files", files={"file": ("in.jsonl", b"other")}, data={"purpose": "batch"}, headers=once
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert (names_in(storage), await rig.queue.batch_store.count_files("default")) == ([first], 1)
    assert (await create(http, first, once)).status_code == 409, "a batch is no upload"
    await http.delete(f"/v1/files/{first}")
    second = await upload(http, once)
    assert second != first
    assert await upload(http, once) == second
